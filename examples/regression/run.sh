#!/usr/bin/env bash
# The jobs of this project. `bash run.sh` runs those that are not finished, one per GPU, or one per
# core if the machine has no GPU. Run it again after a crash or a power cut, or with a longer grid: it
# does what is left.

CDPATH='' cd -- "$(dirname -- "$0")" || exit 1
shell=$(PATH="${VIRTUAL_ENV:-.venv}/bin:$PATH" "${PYTHON:-python}" -m labjobs.sweeps) || exit 1
# shellcheck source=/dev/null
. "$shell" # job, search, sweep

grid() {
  for model in mlp linear; do
    for lr in 1e-3 1e-2; do
      for seed in 0 1 2; do
        job --model "$model" --lr "$lr" --seed "$seed"
      done
    done
  done
}

sweep "$@"
