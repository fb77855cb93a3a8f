# shellcheck shell=bash disable=SC2154
# The queue of run.sh: a worker per slot (a place on a GPU, or on the CPU) takes the jobs in order; it
# owns the one whose claim folder it could make.
#
# A GPU is held by a lock that all users of the machine share. The job inherits it, so it is held
# until the job itself ends, whatever becomes of run.sh. A process that takes no part in the locks is
# known by the memory that it takes on the GPU.
#
# The cores are divided among the jobs that run at once, as threads. Libraries (OpenMP's, OpenBLAS,
# MKL) size their pools of threads when they are loaded, before run.py could tell them anything, so
# the environment does.
#
# That no job runs twice is run.py's promise. One that another sweep runs has status 4, or none if the
# worker that started it was killed: it is waited for, and its outcome is taken.
# Whoever sources this has set `work`, the sweep's folder, and `python`.

flock=$(command -v flock || true) # macOS has none

# Tries for a second to get hold of a GPU: descriptors 8 and 9, which the job inherits. A job that is
# to be alone locks the GPU; jobs that share it lock their places.
hold() {
  local slot=$1 lock=$2 place=$3 kind=--exclusive
  if [[ $lock == - || -z $flock ]]; then return 0; fi
  if ((per_gpu > 1)); then kind=--shared; fi
  if ! open_locks "$lock.0" "$lock.$place"; then
    say_once "$slot" "has lost its lock $lock, which the next run.sh makes again" && sleep 2
  elif ! "$flock" --wait 1 9 || ! "$flock" --wait 1 $kind 8; then
    say_once "$slot" "is in use by a job of another sweep"
  elif "$flock" --nonblock --exclusive 8 && is_busy "$slot"; then # no job of a sweep's
    say_once "$slot" "is in use by another process ($usage)" && sleep 2
  elif "$flock" --nonblock $kind 8 && are_in_place "$lock.0" "$lock.$place"; then
    return 0
  fi
  release
  return 1
}

release() { exec 8<&- 9<&-; }

# Opens two locks. Other users can put a link in the place of one that they have made, at any moment:
# it is looked for before, so as not to be followed, and after, so as not to be taken for a lock.
# Systems clear away what is old, which is what its owner has not touched and nobody has read.
open_locks() {
  local file
  for file; do [[ -f $file && ! -L $file ]] || return 1; done
  { exec 8<"$1" 9<"$2"; } 2>/dev/null && are_in_place "$@" || return 1
  touch -ch "$@" 2>/dev/null
  read -rn 1 -u 8 _
  read -rn 1 -u 9 _
  return 0
}

are_in_place() { [[ ! -L $1 && $1 -ef /dev/fd/8 && ! -L $2 && $2 -ef /dev/fd/9 ]]; }

# Whether more of a GPU is in use than a display takes.
is_busy() {
  local memory percent query=memory.used,utilization.gpu
  usage=$(nvidia-smi --query-gpu=$query --format=csv,noheader,nounits --id="$1" 2>/dev/null)
  IFS=', ' read -r memory percent <<<"$usage"
  usage="$memory MiB and $percent % of its time in use"
  [[ $memory =~ ^[0-9]+$ && $percent =~ ^[0-9]+$ ]] || return 1 # a part of a GPU has no such figures
  ((memory > ${GPU_BUSY_MIB:-1024} || (memory > 100 && percent > ${GPU_BUSY_PERCENT:-20})))
}

# Before a job that ran out of memory tries again: another process may have that memory.
wait_until_free() {
  while [[ $1 != cpu ]] && ((per_gpu == 1)) && is_busy "$1" && goes_on; do
    say_once "$1" "is in use by another process ($usage)" && sleep 2
  done
}

say_once() {
  if [[ $said != "$2" ]]; then said=$2 && echo "$1 $2; waiting"; fi
}

# Runs one job on a slot, again if it may do better the next time; its last line is shown.
run_job() {
  local slot=$1 index=$2 id=$3 folder=$4 try=0 last
  if [[ $slot != cpu ]]; then export CUDA_VISIBLE_DEVICES=$slot; fi
  mkdir -p "$folder" && echo "started on $slot, $(date)" >>"$folder/output.txt"
  while
    read_words "$index"
    echo "[$index/$count] job $id started on $slot: ${args[*]}"
    attempt "$index" "$folder" "${args[@]}"
    last=$(tail -n 1 "$folder/output.txt")
    if [[ $last != "job $id "* ]]; then # it was killed, or crashed
      last="job $id ended with status $code: $last"
      echo "$last" >>"$folder/output.txt"
    fi
    echo "[$index/$count] $last"
    ((try++ < retries)) && may_do_better "$folder" && goes_on
  do wait_until_free "$slot"; done
  echo "$code" >"$work/codes/$index"
  if [[ -n $fail_fast && $code == [12] && ! -e $work/stop ]]; then
    if [[ $(outcome "$folder") != diverged ]]; then stop_jobs 1 "--fail-fast"; fi
  fi
}

# The word that a job wrote down when it ended.
outcome() { sed -n 's/^ *"status": "\(.*\)",*$/\1/p' "$1/outcome.json" 2>/dev/null; }

# Reads a job's words, its script and its flags, into `args`.
read_words() {
  local word
  args=()
  while IFS= read -r -d '' word; do args+=("$word"); done <"$work/jobs/$1"
}

# Starts a job and waits for its end; `code` is its exit status. Everything it prints is kept.
attempt() {
  local index=$1 folder=$2 script=$3 pid
  shift 3
  PROJECT_FOLDER=$PWD "$python" "$work/code/$script" "$@" >>"$folder/output.txt" 2>&1 &
  pid=$!
  echo "$pid" >"$work/pids/$index"
  if [[ -e $work/stop ]]; then kill -TERM "$pid" 2>/dev/null; fi
  while
    wait "$pid" 2>/dev/null # which would tell that it was killed
    code=$?
    kill -0 "$pid" 2>/dev/null
  do :; done
  rm -f "$work/pids/$index"
}

# Out of memory, or killed, perhaps for want of memory: no fault in the code.
may_do_better() {
  ((code == 137)) || { ((code == 1)) && grep -q 'out of memory' <(tail -n 1 "$1/output.txt"); }
}

# Takes jobs until none is left or run.sh is gone. What stops is decided by run.sh, even if a signal
# comes to all, or nobody reads what is printed.
worker() {
  trap '' INT HUP PIPE
  trap : TERM
  local slot=$1 lock=$2 place=$3 said='' held='' code='' usage='' args=() early='' busy=1
  while
    take_jobs
    [[ -n $held ]] && release && held=''
    [[ -n $early && -n $busy ]] && goes_on
  do sleep 1 && is_running && busy=1 || busy=''; done
}

# Goes once through the queue; `early` says whether it has jobs whose inputs are not over yet, `busy`
# that this worker has run any.
take_jobs() {
  local index id folder inputs
  early=''
  while IFS=$'\t' read -r index id folder inputs <&3; do
    [[ -d $work/claims/$index ]] && continue
    if ! are_over "$inputs"; then early=1 && continue; fi
    while [[ -z $held && ! -d $work/claims/$index ]] && goes_on; do
      if hold "$slot" "$lock" "$place"; then held=1; fi
    done
    goes_on || break
    mkdir "$work/claims/$index" 2>/dev/null || continue
    if was_run_elsewhere "$index" "$folder"; then continue; fi
    run_job "$slot" "$index" "$id" "$folder" 3<&-
    release
    held='' busy=1
  done 3<"$work/queue"
}

# Whether jobs are over, however they have ended: a job says itself if an input has failed.
are_over() {
  local index status
  for index in $1; do
    read -r status 2>&- <"$work/codes/$index" && ((status != 4)) || return 1
  done
}

# Whether any job of this sweep runs.
is_running() {
  local file pid
  for file in "$work"/pids/*; do read -r pid 2>&- <"$file" && kill -0 "$pid" 2>&- && return; done
  return 1
}

# Becomes a module of the sweep's copy of the engine.
become() {
  export PROJECT_FOLDER=$PWD PYTHONPATH=$work/code
  exec "$python" -P -m "engine.sweeps.$1" "$2"
}

goes_on() { [[ ! -e $work/stop ]] && kill -0 $$ 2>/dev/null; }

# Whether another sweep has run a job since this one was planned; takes over how it ended.
was_run_elsewhere() {
  [[ $2/outcome.json -nt $work/plan.json ]] || return 1
  case $(outcome "$2") in
    finished | paused) echo 0 >"$work/codes/$1" ;;
    failed | diverged) echo 1 >"$work/codes/$1" ;;
    *) return 1 ;;
  esac
}

# Asks the running jobs to stop; a Ctrl-C after that kills them, and any process that this would start.
stop_jobs() {
  local signal=TERM text="stopping the jobs because of $2; Ctrl-C kills them" file pid
  if [[ -e $work/stop ]]; then
    if [[ $2 != Ctrl-C ]]; then return; fi # a terminal that closes says so twice
    signal=KILL text='killing the jobs'
  else
    echo "$1" >"$work/stop"
  fi
  echo "run.sh: $text" >&2
  for file in "$work"/pids/*; do read -r pid 2>&- <"$file" && kill "-$signal" "$pid" 2>&-; done
}

# Runs a worker per slot, until each job has an exit status of its own or one from another sweep.
run_queue() {
  local slot lock place workers pid threads
  trap 'stop_jobs 130 Ctrl-C' INT
  trap 'stop_jobs 143 "a signal"' TERM HUP
  read -r count per_gpu retries JOBS_AT_ONCE threads fail_fast <"$work/options"
  export JOBS_AT_ONCE OMP_NUM_THREADS=${OMP_NUM_THREADS:-$threads}
  while [[ -s $work/queue && ! -e $work/stop ]]; do
    workers=()
    while IFS=$'\t' read -r slot lock place; do
      worker "$slot" "$lock" "$place" &
      workers+=($!)
    done <"$work/slots"
    for pid in "${workers[@]}"; do
      while kill -0 "$pid" 2>/dev/null; do wait "$pid"; done
    done
    keep_unresolved
  done
}

# Leaves in the queue the jobs that have no status yet; waits until the first one has no owner.
keep_unresolved() {
  local index id folder inputs code
  while IFS=$'\t' read -r index id folder inputs; do
    code=4
    if [[ -e $work/codes/$index ]]; then read -r code <"$work/codes/$index"; fi
    if ((code == 4)); then
      rm -rf "$work/codes/$index" "$work/claims/$index"
      printf '%s\t%s\t%s\t%s\n' "$index" "$id" "$folder" "$inputs"
    fi
  done <"$work/queue" >"$work/unresolved"
  mv "$work/unresolved" "$work/queue"
  if [[ -s $work/queue && ! -e $work/stop ]]; then
    IFS=$'\t' read -r index id folder inputs <"$work/queue"
    become states "$folder" >&2 &
    while kill -0 $! 2>/dev/null && [[ ! -e $work/stop ]]; do wait $!; done
    kill $! 2>/dev/null
  fi
}
