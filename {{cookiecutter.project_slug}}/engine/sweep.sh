# shellcheck shell=bash
# The engine of run.sh: a queue in shell, one job per GPU. run.sh sources this file, defines its grid
# as a function that calls `job` for each job, and calls `sweep`.
#
# A worker per slot takes the jobs in order; it owns the one whose claim folder it could make. What
# has been finished is asked once, of the tracking store, before anything starts.

set -uo pipefail
cd "$(dirname "$0")" || exit 1

python=${PYTHON:-python}
if [[ -z ${PYTHON:-}${VIRTUAL_ENV:-} && -x .venv/bin/python ]]; then
  python=.venv/bin/python
fi

# Adds a job to the grid: its arguments, kept apart by NUL bytes so that any value passes through.
job() {
  count=$((count + 1))
  : >"$work/jobs/$count"
  if (($# > 0)); then printf '%s\0' "$@" >"$work/jobs/$count"; fi
}

# What bash calls for a command that is not there: a misspelt `job` is a wrong grid.
command_not_found_handle() {
  echo "run.sh: $1: no such command; nothing was started" >&2
  : >"$work/wrong"
  return 127
}

# Names the slots: the GPUs that CUDA_VISIBLE_DEVICES allows, else all there are, else the CPU.
find_slots() {
  local gpus=${CUDA_VISIBLE_DEVICES-}
  if [[ -z ${CUDA_VISIBLE_DEVICES+set} ]]; then
    gpus=$(nvidia-smi --query-gpu=uuid --format=csv,noheader 2>/dev/null) || gpus=
  fi
  IFS=$', \n' read -r -d '' -a slots <<<"$gpus" || true
  if ((${#slots[@]} == 0)); then slots=(cpu); fi
}

# Runs one job on a slot. Everything it prints is kept; its last line is shown.
run_job() {
  local slot=$1 index=$2 folder=$3 id=$4 args=() arg code pid
  while IFS= read -r -d '' arg; do args+=("$arg"); done <"$work/jobs/$index"
  mkdir -p "$folder"
  echo "[$index/$count] $id started on $slot: ${args[*]-}"
  if [[ $slot != cpu ]]; then export CUDA_VISIBLE_DEVICES=$slot; fi
  "$python" run.py ${args[@]+"${args[@]}"} >"$folder/output.txt" 2>&1 &
  pid=$!
  echo "$pid" >"$work/pids/$index"
  if [[ -e $work/stop ]]; then kill -TERM "$pid" 2>/dev/null; fi
  wait "$pid"
  code=$?
  while kill -0 "$pid" 2>/dev/null; do
    wait "$pid"
    code=$?
  done
  rm -f "$work/pids/$index"
  echo "$code" >"$work/codes/$index"
  echo "[$index/$count] $(tail -n 1 "$folder/output.txt")"
}

# Takes jobs until none is left. What stops is decided by `sweep`, even if a signal comes to all.
worker() {
  trap '' INT HUP
  trap : TERM
  local slot=$1 index=0 state id folder
  while IFS=$'\t' read -r state id folder <&3; do
    index=$((index + 1))
    if [[ $state == pending && ! -e $work/stop ]] && mkdir "$work/claims/$index" 2>/dev/null; then
      run_job "$slot" "$index" "$folder" "$id"
    fi
  done 3<"$work/plan"
}

# Asks the running jobs to stop; asked a second time, kills them.
stop_jobs() {
  local signal=TERM pid
  if [[ -e $work/stop ]]; then signal=KILL; fi
  echo "run.sh: stopping the jobs ($signal); Ctrl-C again kills them" >&2
  echo "$1" >"$work/stop"
  cat "$work"/pids/* 2>/dev/null | while read -r pid; do kill "-$signal" "$pid" 2>/dev/null; done
}

# Prints what became of the jobs; returns the sweep's exit status.
summary() {
  local index=0 state id folder code before=0 finished=0 bad=0 left=0
  while IFS=$'\t' read -r state id folder; do
    index=$((index + 1))
    code=$(cat "$work/codes/$index" 2>/dev/null)
    case $state:$code in
      repeated:) ;;
      finished:) before=$((before + 1)) ;;
      pending:) left=$((left + 1)) ;;
      pending:0) finished=$((finished + 1)) ;;
      *)
        bad=$((bad + 1))
        echo "status $code: $(tail -n 1 "$folder/output.txt") [$folder/output.txt]" >&2
        ;;
    esac
  done <"$work/plan"
  echo "$((before + finished)) of $((before + finished + bad + left)) jobs finished," \
    "$finished of them now; $bad did not, $left were not started"
  if [[ -e $work/stop ]]; then return "$(cat "$work/stop")"; fi
  ((bad == 0))
}

# Runs what the grid names and is not finished.
sweep() {
  if (($# > 0)); then
    echo "run.sh: no such argument: $1 (the grid is in the script)" >&2
    exit 2
  fi
  count=0
  work=$(mktemp -d) || exit 1
  trap 'rm -rf "$work"' EXIT
  mkdir "$work"/{jobs,claims,pids,codes}
  grid
  unset -f command_not_found_handle
  if [[ -e $work/wrong ]]; then exit 2; fi
  if ((count == 0)); then
    echo "run.sh: the grid names no job" >&2
    exit 2
  fi
  "$python" run.py --grid "$work/jobs" >"$work/plan" || exit
  find_slots
  trap 'stop_jobs 130' INT
  trap 'stop_jobs 143' TERM HUP
  local slot workers=() pid
  for slot in "${slots[@]}"; do
    worker "$slot" &
    workers+=($!)
  done
  for pid in "${workers[@]}"; do
    while kill -0 "$pid" 2>/dev/null; do wait "$pid"; done
  done
  summary
}
