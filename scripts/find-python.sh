#!/usr/bin/env bash
# Prints the path of a Python that can make the environment: 3.11 to 3.14, with venv.
set -euo pipefail

probe='import ensurepip, sys, venv
assert (3, 11) <= sys.version_info[:2] <= (3, 14)
print(sys.executable)'

for name in python3 python3.14 python3.13 python3.12 python3.11 python; do
  if "$name" -c "$probe" 2>/dev/null; then exit; fi
done

echo "No Python 3.11 to 3.14 with venv was found; install one (on Debian: apt install python3-venv)." >&2
exit 1
