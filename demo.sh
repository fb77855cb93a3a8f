#!/usr/bin/env bash
# Makes a project, runs its sweep on the digits dataset and draws its figures.
#
#   bash demo.sh            in a temporary folder
#   bash demo.sh FOLDER     in a new or empty one
set -euo pipefail

if (($# > 1)) || [[ ${1-} == -* ]]; then
  echo "Usage: bash demo.sh [FOLDER]" >&2
  exit 2
fi

template=$(cd "$(dirname "$0")" && pwd)
python=$(bash "$template/scripts/find-python.sh")
version=$("$python" -c 'import sys; print("{}.{}".format(*sys.version_info))')

folder=${1:-$(mktemp -d)}
mkdir -p "$folder"
if [[ -n $(ls -A "$folder") ]]; then
  echo "demo.sh: $folder is not empty; name a new folder" >&2
  exit 2
fi
folder=$(cd "$folder" && pwd)
project=$folder/demo
tools=$folder/tools/bin

# The demo keeps to its folder, whatever store or environment this shell is set up for.
unset MLFLOW_TRACKING_URI VIRTUAL_ENV

echo "== Installing uv and cookiecutter"
"$python" -m venv "$folder/tools"
"$tools/pip" install --quiet --disable-pip-version-check uv cookiecutter

echo "== Making a project"
"$tools/cookiecutter" "$template" --no-input --default-config --output-dir "$folder" \
  project_name=Demo python_version="$version"

echo
echo "== Installing what it needs (several GB)"
cd "$project"
"$tools/uv" sync --python "$python"
export PATH="$project/.venv/bin:$PATH"

echo "== bash run.sh"
bash run.sh

echo "== python plot.py"
python plot.py

cat <<END

Done. The demo is in $folder:

    project    $project
    figures    $project/figures
    jobs       $project/runs
    store      $project/mlflow.db

Look at the jobs in a browser:

    cd "$project" && .venv/bin/mlflow ui --backend-store-uri sqlite:///mlflow.db
END
