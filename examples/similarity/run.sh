#!/usr/bin/env bash
# The jobs of this project. `bash run.sh` runs those that are not finished, one per GPU, or one per
# core if the machine has no GPU. Run it again after a crash or a power cut, or with a longer grid: it
# does what is left.

CDPATH='' cd -- "$(dirname -- "$0")" || exit 1
shell=$(PATH="${VIRTUAL_ENV:-.venv}/bin:$PATH" "${PYTHON:-python}" -m labjobs.sweeps) || exit 1
# shellcheck source=/dev/null
. "$shell" # job, search, sweep

grid() {
  for model in mlp convnet; do
    first=$(job --model "$model" --seed 0)
    second=$(job --model "$model" --seed 1)
    job compare.py --first "$first" --second "$second"
    job compare.py --first "$first" --model "$model"
    if [[ $model == mlp ]]; then
      mlp=$first
    else
      job compare.py --first "$mlp" --second "$first"
    fi
  done
}

sweep "$@"
