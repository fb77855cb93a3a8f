#!/usr/bin/env bash
# Sets up .venv and runs all tests. Arguments go to pytest: bash test.sh -m "not slow"
set -euo pipefail
cd "$(dirname "$0")"

if [[ ! -x .venv/bin/uv ]]; then
  python=$(bash find-python.sh)
  "$python" -m venv --clear .venv
  .venv/bin/pip install --quiet --disable-pip-version-check uv
fi
export VIRTUAL_ENV=$PWD/.venv PATH="$PWD/.venv/bin:$PATH"

# A generated project says what its own tests need.
generated=$(mktemp -d)
trap 'rm -rf "$generated"' EXIT
uv pip install --quiet --group dev
cookiecutter . --no-input --default-config --output-dir "$generated" >/dev/null
uv pip install --quiet --compile-bytecode --requirements "$generated/my_project/pyproject.toml" \
  --group "$generated/my_project/pyproject.toml:dev"

pytest -n 2 --dist loadfile --no-loadscope-reorder "$@"
