# shellcheck shell=bash
# The engine of run.sh, which sources this file, defines its grid as a function that calls `job` for
# each job, and calls `sweep "$@"`. sweep.py reads the flags, asks once which jobs are finished,
# freezes the code and runs what is left.
# Names that begin with labjobs_ are its own; a grid may use any others.
#
# A sweep's folder, .sweeps/<name>/, holds `grid` and two pipes (grid.py says what for), `code/` (what
# is run) and `lock`, which is held by everything that the sweep has started.

# `sh run.sh`, if sh is another shell; `source run.sh` at a prompt, which `exit` would close.
[ -n "${BASH_VERSION-}" ] || exec bash "${0##*/}" "$@"
if [[ $- == *i* ]]; then
  sweep() { echo "run.sh: do not source it; type bash run.sh" >&2; }
  return
fi

set -Euo pipefail                     # without -e, under which `wait`, ((n++)) and traps misbehave
[[ -e /dev/fd/1 ]] || exec >/dev/null # closed, by `bash run.sh >&-`
[[ -e /dev/fd/2 ]] || exec 2>/dev/null
# Words and names of files mean the same in every locale, and sets have the same order in all jobs.
export PYTHONUTF8="${PYTHONUTF8-1}" PYTHONHASHSEED="${PYTHONHASHSEED-0}"

labjobs_python=${PYTHON:-python}
[[ -z ${PYTHON:-}${VIRTUAL_ENV:-} && -x .venv/bin/python ]] && labjobs_python=.venv/bin/python

# Adds a job to the grid; in `id=$(job …)`, also prints its id. Words are separated by NUL bytes, so
# that any value can be passed.
job() {
  printf '%s\0' "$#" "$@" >&4
  if ((BASH_SUBSHELL)) && [[ ! /dev/fd/1 -ef /dev/fd/3 ]]; then labjobs_print_id "$@"; fi
}

# Asks sweep.py, which may have ended because of wrong flags.
labjobs_print_id() {
  local id='' part
  printf '%s\0' "$#" "$@" >&5
  while kill -0 "$labjobs_planner" 2>/dev/null; do
    if read -r -t 1 part <&6; then echo "$id$part" && return; fi
    id+=$part # the second may end within the line
  done
}

# Adds jobs with randomly drawn settings, the same ones each time; search.py says how:
#   search 20 --lr 'log 1e-4 1e-1' --batch-size 'choice 32 64' -- --model convnet
#   search until 10 without improvement --at-most 100 --lr 'log 1e-4 1e-1' -- --model convnet
search() { printf '%s\0' "$(($# + 1))" search "$@" >&4; }

# Adds generations of jobs, each from the results of earlier ones; proposals.py says how:
#   propose tuned 8 x 5 --lr 'log 1e-4 1e-1' -- --model convnet
propose() { printf '%s\0' "$(($# + 1))" propose "$@" >&4; }

# Adds generations of jobs that go on from the best of the one before; proposals.py says how:
#   breed family 8 x 5 x 4e --lr 'log 1e-4 1e-1' -- --schedule constant
breed() { printf '%s\0' "$(($# + 1))" breed "$@" >&4; }

# Runs what validation chooses among the jobs before it with fresh seeds, once they have ended:
#   confirm 5
confirm() { printf '%s\0' 2 confirm "${1-}" >&4; }

# Of the jobs that follow, up to keep_all, the best third trains on at each of these rungs:
#   halving 3 2e 6e 18e
halving() { printf '%s\0' "$(($# + 1))" halving "$@" >&4; }
keep_all() { printf '%s\0' 1 keep_all >&4; }

# `job … & wait` in a grid: bash's own would also wait for sweep.py, which waits for the grid.
wait() {
  local each IFS=$' \t\n'
  if (($#)); then
    builtin wait "$@"
    return
  fi
  for each in $(jobs -p); do [[ $each == "$labjobs_planner" ]] || builtin wait "$each"; done
}

# An unknown command or variable makes the grid wrong; bash has already printed which one, and where.
# So does a command that fails in a `$(…)` or before a pipe, since what it did not print may be values
# of the grid. A test may fail there, as in `((n++))`, and SIGPIPE end what writes to `head` (141).
labjobs_refuse_failed() {
  local status=$? each=("${PIPESTATUS[@]}") said=$BASH_COMMAND place
  if ((status != 127)); then
    [[ $BASH_SUBSHELL -gt 0 && $status -ne 141 && ! $said =~ ^(\(|\[|test |let ) ]] || said=
    for ((place = 0; place + 1 < ${#each[@]}; place++)); do
      ((each[place] == 0 || each[place] == 141)) || said="what is before a pipe"
    done
    [[ $said ]] || return 0
    echo "run.sh: $said failed, so jobs may be missing; if that is meant, put || true behind it" >&2
  fi
  : >"$labjobs_work/wrong" && exit 2
}

# Ends sweep.py. A signal that arrives before bash has become Python is lost, so it is sent until
# there is no such process.
labjobs_end_planner() { while kill "$labjobs_planner" 2>/dev/null; do sleep 0.05; done; }

labjobs_clean_up() {
  if [[ -n ${labjobs_naming:-} ]]; then labjobs_end_planner; fi
  # A server that is about to end may still write there what it has compiled: then once more.
  # Where sweep.py was killed, a job may just be reading its code there; the next sweep removes it.
  if [[ ! -e $labjobs_work/arrays && ! -e $labjobs_work/kept && ${labjobs_code:-0} -ne 137 ]]; then
    rm -rf "$labjobs_work" 2>/dev/null || { sleep 1 && rm -rf "$labjobs_work"; }
  fi
  if [[ -n ${labjobs_naming:-} ]]; then echo "run.sh: nothing was started" >&2 && exit 2; fi
}

# Runs what the grid names and is not finished, or does what the flags say instead.
sweep() {
  labjobs_work=$PWD/.sweeps/$(date +%Y%m%d-%H%M%S)-$$
  mkdir -p .sweeps && mkdir "$labjobs_work" || exit 1 # never an existing folder
  trap labjobs_clean_up EXIT
  mkfifo "$labjobs_work"/{asked,answered} || exit 1
  exec 3>&1 5<>"$labjobs_work/asked" 6<>"$labjobs_work/answered" || exit 1
  LABJOBS_RUN_SH=$$ "$labjobs_python" -m labjobs.sweeps.sweep "$labjobs_work" "$@" 3>&- 5>&- 6>&- &
  labjobs_planner=$!
  trap 'labjobs_end_planner && exit 130' INT
  trap 'labjobs_end_planner && exit 143' TERM HUP
  trap labjobs_refuse_failed ERR
  labjobs_naming=1 && grid 4>"$labjobs_work/grid" 3>&2 1>&2 # what it prints is no part of --list --json
  trap - ERR
  if [[ -e $labjobs_work/wrong ]]; then exit 2; fi
  labjobs_naming=
  trap 'kill -USR1 "$labjobs_planner" 2>/dev/null' INT # the terminal sends INT to all processes
  trap 'kill -TERM "$labjobs_planner" 2>/dev/null' TERM HUP
  printf 'end\0' >&5
  while
    builtin wait "$labjobs_planner"
    labjobs_code=$?
    kill -0 "$labjobs_planner" 2>/dev/null
  do :; done
  exit "$labjobs_code" # here, so that bash reads no more of a run.sh that was edited meanwhile
}
