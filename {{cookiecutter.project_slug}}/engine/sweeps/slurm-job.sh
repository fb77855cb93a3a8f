#!/usr/bin/env bash
# One task of a Slurm array: runs one job of a sweep. slurm.py submits it, with the sweep's folder,
# the number of the array's first job in the sweep's queue, and the Python to use.
# Slurm's warning (USR1, before the time limit or another's turn) makes the job write a checkpoint and
# leave. It then goes back into Slurm's queue, unless Slurm has ended it: scancel is to last.

work=$1 row=$(($2 + SLURM_ARRAY_TASK_ID + 1)) python=$3
task=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
cd "$work/../.." || exit
IFS=$'\t' read -r index _ folder < <(sed -n "${row}p" "$work/queue")
words=()
while IFS= read -r -d '' word; do words+=("$word"); done <"$work/jobs/$index"
mkdir -p "$folder"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$SLURM_CPUS_ON_NODE} # not all Slurms keep jobs to theirs
trap 'kill -USR1 "$pid" 2>/dev/null' USR1
trap 'kill -TERM "$pid" 2>/dev/null' TERM
PROJECT_FOLDER=$PWD "$python" "$work/code/${words[0]}" "${words[@]:1}" >>"$folder/output.txt" 2>&1 &
pid=$!
while
  wait "$pid" 2>/dev/null # which would tell that it was killed
  code=$?
  kill -0 "$pid" 2>/dev/null
do :; done
((code == 3)) && code=0 # it has finished, and those that are derived from it can start
((code == 138 || code == 143)) && [[ $(squeue --noheader --job="$task" --format=%T) == RUNNING ]] &&
  scontrol requeue "$task"
exit "$code"
