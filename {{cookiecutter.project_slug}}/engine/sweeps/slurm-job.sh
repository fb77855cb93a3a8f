#!/usr/bin/env bash
# One task of a Slurm array: runs one job of a sweep. slurm.py submits it, with the sweep's folder,
# the number of the array's first job in the sweep's queue, and the Python to use.
# Slurm's warning (USR1, before the time limit or another's turn) makes the job write a checkpoint and
# leave. It then goes back into Slurm's queue, unless Slurm has ended it: scancel is to last.
# shellcheck disable=SC1091,SC2034,SC2154 # queue.sh takes `python` and gives `args`, `pid`, `code`

work=$1 row=$(($2 + SLURM_ARRAY_TASK_ID + 1)) python=$3
task=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
cd "$work/../.." && source "$work/code/engine/sweeps/queue.sh" || exit
IFS=$'\t' read -r index _ folder _ < <(sed -n "${row}p" "$work/queue")
read_words "$index"
mkdir -p "$folder"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$SLURM_CPUS_ON_NODE} # not all Slurms keep jobs to theirs
trap 'kill -USR1 "$pid" 2>/dev/null' USR1
trap 'kill -TERM "$pid" 2>/dev/null' TERM
attempt "$index" "$folder" "${args[@]}"
((code == 3)) && code=0 # it has finished, and those that are derived from it can start
((code == 138 || code == 143)) && [[ $(squeue --noheader --job="$task" --format=%T) == RUNNING ]] &&
  scontrol requeue "$task"
exit "$code"
