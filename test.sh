#!/usr/bin/env bash
# Sets up .venv and runs the tests.
#
#   bash test.sh            in minutes; needs no root, no servers and no particular Linux
#   bash test.sh --rest     what .ci/run adds, at small counts: real servers, clusters, disks, users
#   bash test.sh --all      everything, at full counts: in hours
#   bash test.sh --gpu      what needs a GPU
#
# Further arguments go to pytest: bash test.sh -k resume
# Packages have the versions in constraints.txt; NEWEST=1 bash test.sh takes the newest instead.
set -euo pipefail
cd "$(dirname "$0")"

counts=(
  --kills 50 --outage-seconds 30 --fresh-stores 20 --figures 400 --slurm-jobs 20
  --schedules 20 --refactors 500 --store-changes 1000 --pairs 30 --host-jobs 40 --demo-epochs 0
)
case ${1-} in
  --all) chosen=(-m "not gpu" "${counts[@]}") trackers=yes && shift ;;
  --rest) chosen=(-m "(full or root) and not (gpu or long)") trackers=yes && shift ;;
  --gpu) chosen=(-m gpu) && shift ;;
  *) chosen=(-m "not (full or long or root or gpu)") ;;
esac

if [[ ! -x .venv/bin/uv ]]; then
  python=$(bash scripts/find-python.sh)
  "$python" -m venv --clear .venv
  .venv/bin/pip install --quiet --disable-pip-version-check uv
fi
export VIRTUAL_ENV=$PWD/.venv PATH="$PWD/.venv/bin:$PATH"

# A generated project says what its own tests need.
generated=$(mktemp -d)
trap 'rm -rf "$generated"' EXIT
known=(--constraints '{{cookiecutter.project_slug}}/constraints.txt')
[[ -z ${NEWEST-} ]] || known=(--upgrade)
uv pip install --quiet "${known[@]}" --group dev
cookiecutter . --no-input --default-config --output-dir "$generated" engine=source >/dev/null
uv pip install --quiet --compile-bytecode "${known[@]}" \
  --requirements "$generated/my_project/pyproject.toml" \
  --group "$generated/my_project/pyproject.toml:dev"
# Without constraints, since Trackio needs an older pillow.
[[ -z ${trackers-} ]] || uv pip install --quiet --group trackers

# More than the two cores of the smallest machines: tests wait for processes, disks and servers.
pytest -n 4 --dist loadfile --no-loadscope-reorder "${chosen[@]}" "$@"
