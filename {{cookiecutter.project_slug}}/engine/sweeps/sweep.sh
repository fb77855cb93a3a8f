# shellcheck shell=bash
# The engine of run.sh, which sources this file, defines its grid as a function that calls `job` for
# each job, and calls `sweep "$@"`. sweep.py reads the flags, asks once which jobs are finished, and
# freezes the code; queue.sh runs what is left.
#
# A sweep's folder, .sweeps/<name>/, holds `grid` (all jobs: the number of words, then the words, each
# ended by a NUL byte), `plan` (a line a job: state, id, folder), `queue` (index, id and folder of
# those to run), `jobs/<index>` (a job's words), `slots` (a line a worker: device, lock, place),
# `options` and `code/` (what is run). `lock` is held by all that the sweep has started.

set -Euo pipefail # without -e, under which `wait`, ((n++)) and traps misbehave
cd "$(dirname "$0")" || exit 1
source engine/sweeps/queue.sh

python=${PYTHON:-python}
[[ -z ${PYTHON:-}${VIRTUAL_ENV:-} && -x .venv/bin/python ]] && python=.venv/bin/python

# Adds a job to the grid. Its words are kept apart by NUL bytes, so that any value passes through.
job() { printf '%s\0' "$#" "$@" >&4; }

# Adds jobs whose settings are drawn at random, the same each time; search.py tells how:
#   search 20 --lr 'log 1e-4 1e-1' --batch-size 'choice 32 64' -- --model convnet
search() { "$python" -m engine.sweeps.search "$@" >&4 || : >"$work/wrong"; }

# In the grid, a command or a variable that is not there makes it wrong; bash has said which and where.
refuse_unknown() { if (($? == 127)); then : >"$work/wrong" && exit 2; fi; }

clean_up() {
  if [[ ! -e $work/slurm ]]; then rm -rf "$work"; fi
  if [[ -n ${naming:-} ]]; then echo "run.sh: nothing was started" >&2 && exit 2; fi
}

# Makes the sweep's folder. All that is started from here on inherits its lock, descriptor 7.
make_folder() {
  work=$PWD/.sweeps/$(date +%Y%m%d-%H%M%S)-$$
  mkdir -p .sweeps && mkdir "$work" "$work"/{jobs,claims,pids,codes} || exit 1 # never what is there
  echo $$ >"$work/lock" && exec 7<"$work/lock" || exit 1
  if [[ -n $flock ]]; then "$flock" 7; fi
  trap clean_up EXIT
}

# Prints what became of the jobs; returns the sweep's exit status.
summary() {
  local index=0 state id folder code finished=0 now=0 bad=0 left=0
  while IFS=$'\t' read -r state id folder; do
    index=$((index + 1)) code=
    if [[ -e $work/codes/$index ]]; then read -r code <"$work/codes/$index"; fi
    case $state:$code in
      repeated:* | skipped:*) ;;
      finished:*) finished=$((finished + 1)) ;;
      *:0) finished=$((finished + 1)) now=$((now + 1)) ;;
      *:) left=$((left + 1)) ;;
      *)
        bad=$((bad + 1))
        echo "status $code: $(tail -n 1 "$folder/output.txt") [$folder/output.txt]" >&2
        ;;
    esac
  done <"$work/plan"
  echo "$finished of $((finished + bad + left)) jobs finished," \
    "$now of them now; $bad did not, $left were not started"
  if [[ -e $work/stop ]]; then return "$(cat "$work/stop")"; fi
  ((bad + left == 0))
}

# Runs what the grid names and is not finished, or does what the flags say instead.
sweep() {
  make_folder
  trap refuse_unknown ERR
  naming=1 && grid 4>"$work/grid"
  trap - ERR
  if [[ -e $work/wrong ]]; then exit 2; fi
  naming=
  "$python" run.py --grid "$work" "$@" &
  trap 'kill $! && wait && exit 130' INT
  trap 'kill $! && wait && exit 143' TERM HUP
  wait $! || exit
  if [[ ! -e $work/queue || -e $work/slurm ]]; then exit 0; fi
  run_queue
  summary
  exit # here, so that bash reads no more of a run.sh that was edited meanwhile
}
