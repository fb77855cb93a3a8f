#!/usr/bin/env bash
# Writes the versions of all packages that projects and tests need into the constraints.txt of
# projects, for Python 3.11 and later: those of .venv, with which the tests should have passed, and the
# newest of what other systems and Pythons need. `NEWEST=1 bash test.sh` tests with the newest.
set -euo pipefail
cd "$(dirname "$0")/.."
inner='{{cookiecutter.project_slug}}'
export VIRTUAL_ENV=$PWD/.venv PATH="$PWD/.venv/bin:$PATH"

generated=$(mktemp -d)
trap 'rm -rf "$generated"' EXIT
projects=()
for example in classification finetuning kernels; do
  cookiecutter . --no-input --default-config --output-dir "$generated/$example" \
    example="$example" engine=source >/dev/null
  projects+=("$generated/$example/my_project/pyproject.toml")
done
found=$generated/constraints.txt
uv pip freeze >"$found" # what uv prefers
uv pip compile --quiet --universal --no-header --no-annotate --no-emit-index-url \
  --group pyproject.toml:dev --group "${projects[0]}:dev" "${projects[@]}" \
  --output-file "$found" >/dev/null
{
  echo "# Versions that the template's tests have passed with; python jobs.py docs updates says more."
  cat "$found"
} >"$inner/constraints.txt"
