"""A sweep's jobs as arrays of a batch system: submitted, looked up in its queue, run there, and put
back.

In the sweep's folder, `submitted.json` has the cluster and the jobs in their order, and `arrays`
lists the arrays: an id and the index of the first job, a line each. Both grow if the sweep submits
jobs again and again, as it does if other machines share them. clusters.py has the systems.
"""

import json
import math
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from labjobs import exit_status, files, layout
from labjobs.errors import SettingsError, cause
from labjobs.files import PROJECT
from labjobs.job.runtime import LENGTHS
from labjobs.job.terminal import WARNINGS, counted, duration, leave
from labjobs.sweeps import gpus, grid
from labjobs.sweeps.clusters import SYSTEMS, UNITS, WARNING, Array, Cluster, expanded
from labjobs.sweeps.forecast import Forecast
from labjobs.sweeps.grid import Entry
from labjobs.sweeps.starter import PAUSE, Running, Starter


def submit(
    folder: Path, left: Sequence[Entry], queued: Mapping[str, str], since: int, cluster: Cluster
) -> str:
    """Submit jobs of a sweep, checked at `since`, in ns, to a cluster, each behind its inputs;
    returns lines that say so. Raises SettingsError."""
    system = cluster.batch
    for job, said in queued.items():
        if not said.startswith(f"{system.title} ") and any(job in e.inputs for e in left):
            raise SettingsError(f"{system.title} cannot wait for job {job}, queued by {said}")
    if any(map(was_given, folder.parent.iterdir())):
        system.tasks()  # without an answer, it could have these jobs already
    forecast = Forecast(left, 0, cluster.gpus > 0, max(1, cluster.gpus))
    given, cluster = cluster, sized(cluster, left, forecast)
    asked = _asked(given, cluster)
    arrays = [*_arrays_to_make(left, queued, system.largest_array())]
    before = _submitted(folder)[1] if was_given(folder) else []
    jobs = [(str(path), words, of) for path, words, of in before]
    for entry in (entry for entries, _ in arrays for entry in entries):
        # What it has written before belongs to an earlier sweep, or to an earlier task.
        entry.since = max(since, files.changed(entry.job.path / layout.OUTCOME))
        jobs.append((str(entry.job.path), entry.words, entry.since))
    files.write_json(folder / layout.SUBMITTED, {"cluster": vars(cluster), "jobs": jobs})
    ids: list[str] = []
    tasks: dict[str, str] = {}  # of the jobs that are submitted
    for entries, waits in arrays:
        first = len(before) + len(tasks)
        text = script(cluster, folder / "code", "labjobs.sweeps.arrays", folder, first)
        ok = [tasks[job] for job in waits if job in tasks]
        # What is in the queue may end, in whatever way, before the system is told to wait for it.
        ended = [queued[job].split()[1] for job in waits if job not in tasks]
        ended += ids[-1:] if cluster.at_most else []  # a limit holds within one array
        for _ in range(cluster.pieces):
            try:
                array = system.submit(cluster, Array(text, folder, len(entries), ok, ended))
            except SettingsError as error:
                of = f"{len(tasks)} of {counted(len(left), 'job')}"
                rest = f"{of} were submitted, and the same command submits the rest" if ids else ""
                parts = filter(None, [str(error), asked, rest])
                raise SettingsError("; ".join(parts)) from error
            ids.append(array)
            with (folder / layout.ARRAYS).open("a", encoding="utf-8") as file:
                print(array, first, file=file)
            ok, ended = [], [array]
        tasks |= {entry.job.id: f"{array}_{number}" for number, entry in enumerate(entries)}
    line = f"{counted(len(left), 'job')} submitted to {system.title} as {', '.join(ids)}"
    return "\n".join([f"{line}; --list shows them", *filter(None, [asked]), *_notes(cluster, left)])


def _asked(given: Cluster, cluster: Cluster) -> str:
    """What a cluster is asked for that was not given."""
    keys = [key for key in ("time", "memory") if cluster.given(key) != given.given(key)]
    return "each task has " * bool(keys) + ", ".join(f"{key} {vars(cluster)[key]}" for key in keys)


def _notes(cluster: Cluster, left: Sequence[Entry]) -> Iterator[str]:
    """Yield what else is to be known of the tasks."""
    if paused := sum(entry.rung is not None for entry in left):
        line = "pauses at its rung" if paused == 1 else "pause at their rungs"
        then = "then the same command submits those that continue"
        yield f"{counted(paused, 'job')} {line}; {then}"
    if cluster.piece and not cluster.put_back:
        tasks = counted(cluster.pieces, "task")
        yield f"a job has {tasks}, one after another; the same command continues what is left"
    if unknown := [key for key in ("time", "memory") if cluster.lacks(key)]:
        yield f"no comparable jobs tell the {' and the '.join(unknown)}: the cluster's limits hold"


def sized(cluster: Cluster, left: Sequence[Entry], forecast: Forecast) -> Cluster:
    """Return a cluster whose tasks have the time and the memory that jobs need, where these are not
    given and comparable jobs tell, and the time of a piece at most. Raises SettingsError if pieces
    are too short."""
    known = [cost for entry in left if (cost := forecast.of(entry.job)) and cost.alike]
    # Systems count in minutes, and the last one is for the checkpoint.
    takes = max(cost.seconds[2] for cost in known) + 2 * WARNING if len(known) == len(left) else 0
    if piece := cluster.piece:
        trains = piece - WARNING - max((cost.start for cost in known), default=0)
        _check_piece(piece, trains, left)
        pieces = 1 if cluster.put_back else math.ceil(takes / trains) or 1
        cluster = replace(cluster, time=_clock(min(piece, takes or piece)), pieces=pieces)
    elif takes and cluster.lacks("time"):
        # Many systems allow no more than a day, and a job can go on in the next task.
        takes = min(takes, 24 * 3600) if cluster.put_back else takes
        cluster = replace(cluster, time=_clock(takes))
    memory = [forecast.memory(entry.job) for entry in left]
    if all(memory) and cluster.lacks("memory"):  # 1 GiB for what runs beside: courier, task
        cluster = replace(cluster, memory=f"{math.ceil(max(memory) / UNITS['G']) + 1}G")
    return cluster


def _check_piece(piece: int, trains: float, left: Sequence[Entry]) -> None:
    """Raise SettingsError if a job could be killed before its first checkpoint in each piece, or if
    a piece has no time in which it `trains`."""
    shown = f"--piece {piece // 60}m"
    if trains <= 0:
        start = duration(piece - WARNING - trains)
        raise SettingsError(f"{shown}: a start takes {start}, and a checkpoint a minute")
    lasting = (e.job for e in left if any(hasattr(e.job.settings, name) for name in LENGTHS))
    minutes = max((job.runtime.checkpoint_minutes for job in lasting), default=0.0)
    if piece < 60 * minutes:
        raise SettingsError(f"{shown}: must be at least --checkpoint-minutes {minutes:g}")


def _clock(seconds: float) -> str:
    """A time limit, in whole minutes."""
    minutes = math.ceil(seconds / 60)
    return f"{minutes // 60}:{minutes % 60:02}:00"


def _arrays_to_make(
    left: Sequence[Entry], queued: Mapping[str, str], size: int
) -> Iterator[tuple[list[Entry], list[str]]]:
    """The jobs of each array, and the jobs that they all wait for."""
    own = {entry.job.id for entry in left}
    alike: dict[tuple[str, ...], list[Entry]] = {}
    for entry in left:  # those without inputs come first
        waits = tuple(job for job in entry.inputs if job in own or job in queued)
        alike.setdefault(waits, []).append(entry)
    for waits, entries in alike.items():
        for first in range(0, len(entries), size):
            yield entries[first : first + size], [*waits]


def script(cluster: Cluster, code: Path, module: str, *words: object) -> str:
    """Return the script of a task, which starts a module of the engine in a folder with code. A
    signal that arrives before Python handles it must not end the script."""
    start = ["env", f"PROJECT_FOLDER={PROJECT}", sys.executable, "-m", module, *map(str, words)]
    steps = []
    for line in map(shlex.quote, cluster.setup):
        steps.append(f"eval {line} || {{ echo setup in cluster.toml failed: {line} >&2; exit 1; }}")
    steps += [f"cd {shlex.quote(str(code))}", f"exec {shlex.join(start)}"]
    done = " && ".join(steps)
    if cluster.setup:  # a login shell knows the command `module`
        done = f"exec bash -lc {shlex.quote(done)}"
    return f"trap '' INT USR1 USR2 TERM; {done}"


def was_given(folder: Path) -> bool:
    """Whether a batch system has been given a sweep's jobs."""
    return (folder / layout.ARRAYS).exists()


def has(folder: Path) -> bool:
    """Whether the system still has any of a sweep's jobs, or cannot be asked."""
    try:
        tasks = _submitted(folder)[0].batch.tasks()
    except SettingsError:
        return True
    return any(array in tasks for array, _ in _arrays(folder))


def queued(sweeps: Path) -> tuple[dict[str, str], list[str]]:
    """The jobs in queues that have not ended, by job id: their tasks and the systems' words for
    their states, such as `Slurm 17_3 PENDING, Priority`; and why systems cannot be asked."""
    found: dict[str, str] = {}
    problems: dict[str, str] = {}
    tasks = cache(lambda system: SYSTEMS[system].tasks())
    for folder in filter(was_given, sorted(sweeps.glob("*"))):
        with suppress(FileNotFoundError):  # removed in the meantime, so nothing of it is queued
            system = folder.name
            try:
                cluster, jobs = _submitted(folder)
                system = cluster.system
                states = {} if system in problems else tasks(system)
            except SettingsError as error:
                problems[system] = str(error)
                continue
            for array, start in _arrays(folder):
                for number, state in states.get(array, {}).items():
                    attempt, _, since = jobs[start + number]
                    if grid.ended(attempt, since) is None:
                        task = f"{cluster.batch.title} {array}_{number}"
                        found.setdefault(attempt.parent.name, f"{task} {state}")
    return found, [*problems.values()]


def cancel(folder: Path) -> str:
    """End all tasks of a sweep; returns a line that says so, or why that is not possible."""
    if not was_given(folder):
        return ""
    try:
        system = _submitted(folder)[0].batch
        tasks = system.tasks()
        alive = [array for array, _ in _arrays(folder) if array in tasks]
        if not alive:
            return ""
        system.cancel(alive)
    except SettingsError as error:
        return f"run.sh: {error}"
    count = counted(sum(len(tasks[array]) for array in alive), "task")
    return f"{count} cancelled on {system.title}, of {', '.join(alive)}"


def _submitted(folder: Path) -> tuple[Cluster, list[tuple[Path, list[str], int]]]:
    """The cluster, and of each job that was submitted: its attempt, its words, and the time in ns
    from which its outcome counts."""
    path = folder / layout.SUBMITTED
    try:
        found = json.loads(path.read_bytes())
        jobs = [(Path(attempt), words, since) for attempt, words, since in found["jobs"]]
        return Cluster(**found["cluster"]), jobs
    except (ValueError, LookupError, TypeError) as error:
        raise SettingsError(f"{files.shown(path)} is damaged, or from another version") from error


def _arrays(folder: Path) -> Iterator[tuple[str, int]]:
    for line in (folder / layout.ARRAYS).read_text("utf-8").splitlines():
        array, start = line.split()
        yield array, int(start)


# A task, which runs one job.
#
# The system starts `python -m labjobs.sweeps.arrays FOLDER FIRST` in the sweep's copy of the code,
# with the sweep's folder and the index of the array's first job. A warning (USR1 or USR2, before
# the time limit or preemption) or TERM makes the job write a checkpoint and stop; then the task
# goes back into the queue. Its exit status is the job's, but 0 for a finished job whose results are
# not all uploaded: jobs that are derived from it can start.

SIGNALS = (*WARNINGS, signal.SIGTERM)

AGAIN = 5.0
"""Seconds between two signals to a job, which may have come before it could handle them; podman
complains if the job has just ended."""


def main(folder: Path, first: int) -> int:
    """Run this task's job; returns the exit status."""
    asked: list[int] = []
    for number in (signal.SIGINT, *SIGNALS):
        signal.signal(number, lambda number, _: asked.append(number))
    cluster, jobs = _submitted(folder)
    array, own, node, cores = cluster.batch.this_task()
    attempt, words, since = jobs[first + own]
    status = grid.ended(attempt, since)  # in an earlier run of this task
    if status is None:
        processes = max(1, cluster.gpus)
        if not os.environ.get("OMP_NUM_THREADS"):  # jobs may not be confined to their cores
            os.environ["OMP_NUM_THREADS"] = str(max(1, cores // processes))
        starter = Starter(folder / "code", 1, (), processes, False, cluster.container)
        if files.changed(attempt / layout.SETTINGS) > since:  # it has started over already
            words = [word for word in words if word != "--force"]
        if cluster.node_data:  # a job's own --data-root comes later
            words.insert(1 + len(cluster.flags), f"--data-root={expanded(cluster.node_data)}")
        place = f"{node} ({cluster.batch.title} {array}_{own})"
        status = _run(attempt, words, starter, place, cluster, asked)
    if cluster.put_back and status in [128 + number for number in SIGNALS]:
        try:
            status = cluster.put_back(array, own, status)
        except SettingsError as error:
            leave(status, f"{array}_{own} cannot be put back into the queue: {error}")
    return exit_status.DONE if status == exit_status.NOT_UPLOADED else status


def _run(
    attempt: Path,
    words: Sequence[str],
    starter: Starter,
    place: str,
    cluster: Cluster,
    asked: list[int],
) -> int:
    """Run a job, and pass on a signal that arrives; return its exit status. Where the system gives
    tasks no GPUs, it takes free ones of the machine's. If it is killed, there remains a note of the
    memory that it had, for the next one to have more."""
    job, count, note = f"job {attempt.parent.name}", cluster.gpus, attempt / layout.TASK
    try:
        given = not count or "CUDA_VISIBLE_DEVICES" in os.environ
        places = [] if given else gpus.on_gpus(None, 1, count)
        places = places or [gpus.Gpu({})]
        while not (asked or (gpu := next((each for each in places if each.take()), None))):
            time.sleep(PAUSE)
        if asked or not gpu:
            return 128 + asked[0]
        print(f"{job} started: {shlex.join(words)}", flush=True)
        slurms = UNITS["M"] * int(os.environ.get("SLURM_MEM_PER_NODE") or 0)
        files.write_record(note, {"bytes": cluster.bytes or slurms})
        gpu.device = place
        running = Running(attempt, words, starter, gpu)
    except (OSError, SettingsError) as error:
        return leave(exit_status.FAILED, f"{job} cannot be started: {cause(error)}")
    sent = -AGAIN
    while (status := running.status()) is None:
        if asked and time.monotonic() > sent + AGAIN:  # it ignores further ones
            running.send_signal(asked[0])
            sent = time.monotonic()
        time.sleep(PAUSE)
    print(running.ending(status), flush=True)
    if running.failed_by(status) != "memory":
        note.unlink(missing_ok=True)
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
