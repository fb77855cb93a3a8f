"""A sweep's jobs as Slurm arrays: submitted, looked up in its queue, and put back there.

A task of an array runs the jobs of a chunk (chunks.py), as slurm_task.py says. The file `slurm` in
the sweep's folder lists its arrays: an id and the number of the first chunk, a line each. Sources:
slurm.schedmd.com/sbatch.html, squeue.html, scontrol.html.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from labjobs import exit_status, files, layout
from labjobs.errors import SettingsError, cause
from labjobs.files import PROJECT
from labjobs.job.terminal import counted, leave
from labjobs.sweeps import grid
from labjobs.sweeps.grid import Row
from labjobs.sweeps.starter import KILLED, PAUSE, Running, Starter

# The jobs submitted to Slurm, in chunks. A task of an array runs the jobs of one chunk, in order.
#
# They are written to `chunks.json` in the sweep's folder.

Inputs = Sequence[int | str]
"""What a job waits for: indices of jobs, from 0, and tasks that are already in Slurm's queue."""


class Given(NamedTuple):
    """A job submitted to Slurm: its id, its attempt's folder, and its words, the script first."""

    id: str
    folder: str
    words: list[str]


class Chunk(NamedTuple):
    """The jobs of one task, and what they wait for: earlier chunks, and tasks in Slurm's queue."""

    jobs: list[Given]
    waits: Inputs


def divide(jobs: Sequence[Given], inputs: Sequence[Inputs], most: int) -> list[Chunk]:
    """Return the jobs in chunks of `most` or fewer, each after the chunks that it waits for. A job
    comes after its inputs. Jobs share a chunk if they wait for the same chunks, so that no job
    waits for more than its inputs and the jobs that run with them; and they join these inputs if
    there is space for all of them.
    """
    chunks: list[Chunk] = []
    home: dict[int | str, int | str] = {}
    for level in _levels(inputs):
        alike: dict[frozenset[int | str], list[int]] = {}
        for place in level:
            waits = frozenset(home.get(each, each) for each in inputs[place])
            alike.setdefault(waits, []).append(place)
        for waits, places in alike.items():
            joined = _with_space(chunks, waits, most - len(places))
            if joined is None:
                several = [places[n : n + most] for n in range(0, len(places), most)]
                first = len(chunks)
                chunks += [Chunk([], sorted(waits, key=str)) for _ in several]
            else:
                several, first = [places], joined
            for chunk, own in enumerate(several, first):
                chunks[chunk].jobs.extend(jobs[place] for place in own)
                home |= dict.fromkeys(own, chunk)
    return chunks


def _levels(inputs: Sequence[Inputs]) -> Iterator[list[int]]:
    """The indices of the jobs by level: those without inputs, then those whose inputs are at
    earlier levels, and so on."""
    depths: list[int] = []
    for each in inputs:
        depths.append(1 + max((depths[i] for i in each if isinstance(i, int)), default=-1))
    for _, level in groupby(range(len(inputs)), depths.__getitem__):
        yield [*level]


def _with_space(chunks: Sequence[Chunk], waits: frozenset[int | str], full: int) -> int | None:
    """The only chunk that is waited for, if there is just one and it has at most `full` jobs."""
    match [*waits]:
        case [int(chunk)] if len(chunks[chunk].jobs) <= full:
            return chunk
    return None


def write(folder: Path, chunks: Sequence[Chunk], since: int) -> None:
    """Write down the jobs of each chunk, and when they were checked, in ns."""
    files.write_json(
        folder / layout.CHUNKS, {"since": since, "chunks": [chunk.jobs for chunk in chunks]}
    )


def read(folder: Path) -> tuple[list[list[Given]], int]:
    """Return the jobs of each chunk, and when they were checked, in ns: anything written before
    that time belongs to an earlier sweep. Raises FileNotFoundError for a sweep whose folder was
    removed."""
    found = json.loads((folder / layout.CHUNKS).read_bytes())
    return [[Given(*job) for job in jobs] for jobs in found["chunks"]], found["since"]


OPTIONS = ("--signal=B:USR1@60", "--requeue", "--open-mode=append")
"""Default options of sbatch: USR1 is sent 60 s before the end, as a warning."""


class Queued(NamedTuple):
    """A job in Slurm's queue: its task, such as `17_3`, and Slurm's words for its state and for why
    it waits."""

    task: str
    state: str


def require() -> None:
    """Raise SettingsError if there is no Slurm."""
    if not shutil.which("sbatch"):
        raise SettingsError("--slurm: there is no sbatch on this machine")


def submit(folder: Path, given: Sequence[Chunk], flags: argparse.Namespace, name: str) -> str:
    """Submit the chunks of a sweep, as run.sh's flags say, under a name; returns a line that says
    so. Raises SettingsError."""
    limit = f"%{flags.at_most}" if flags.at_most else ""
    output = str(folder).replace("%", "%%") + "/slurm-%A_%a.txt"
    ids: list[str] = []
    tasks: list[str] = []
    jobs = sum(len(chunk.jobs) for chunk in given)
    for start, count, waits in _arrays_to_make(given, _largest_array()):
        words = [f"--array=0-{count - 1}{limit}", f"--job-name={name}"]
        words += [f"--output={output}", "--parsable", f"--gres=gpu:{flags.gpus_per_job}", *OPTIONS]
        conditions = [_condition(each, given, tasks) for each in waits]
        if flags.at_most and ids:  # a limit holds within one array
            conditions.append(f"afterany:{ids[-1]}")
        if conditions:
            words += [f"--dependency={','.join(conditions)}", "--kill-on-invalid-dep=yes"]
        script = _script(folder, start, flags.gpus_per_job)
        try:
            ids.append(_array_in(_ask("sbatch", *words, *flags.sbatch, f"--wrap={script}")))
        except SettingsError as error:
            had = sum(len(chunk.jobs) for chunk in given[:start])
            of = f"{had} of {counted(jobs, 'job')}"
            rest = f"; {of} were submitted, and the same command submits the rest"
            raise SettingsError(f"{error}{rest if ids else ''}") from error
        tasks += [f"{ids[-1]}_{number}" for number in range(count)]
        with (folder / "slurm").open("a") as file:
            print(ids[-1], start, file=file)
    size = f" in {counted(len(given), 'task')}" if len(given) < jobs else ""
    submitted = f"{counted(jobs, 'job')} submitted to Slurm{size}"
    return f"{submitted} as {', '.join(ids)}; --list shows them"


def _array_in(printed: str) -> str:
    """The id that sbatch has printed. Raises SettingsError if it has submitted nothing."""
    found = re.fullmatch(r"(\d+)(;.*)?", printed.strip())
    if not found:
        said = f"; it says: {printed.strip().splitlines()[0]}" if printed.strip() else ""
        raise SettingsError(f"sbatch: has submitted nothing{said}")
    return found[1]


def _arrays_to_make(given: Sequence[Chunk], size: int) -> Iterator[tuple[int, int, Inputs]]:
    """The first chunk of each array, its number of chunks, and what they all wait for."""
    start = 0
    for waits, alike in groupby(chunk.waits for chunk in given):
        end = start + len(list(alike))
        for first in range(start, end, size):
            yield first, min(size, end - first), waits
        start = end


def _condition(waited_for: int | str, given: Sequence[Chunk], tasks: Sequence[str]) -> str:
    """The dependency on a task that is waited for. A task with several jobs may have failed because
    of any of them, so a job whose input has failed says so itself, and does not run."""
    if isinstance(waited_for, str):
        return f"afterany:{waited_for}"
    alone = len(given[waited_for].jobs) == 1
    return f"{'afterok' if alone else 'afterany'}:{tasks[waited_for]}"


def _script(folder: Path, first: int, processes: int) -> str:
    """The script of an array's tasks: it starts slurm_task.py. A signal that arrives before Python
    handles it must not end the script."""
    module = [sys.executable, "-m", "labjobs.sweeps.slurm", str(folder)]
    numbers = [str(first), str(processes)]
    command = shlex.join(["env", f"PROJECT_FOLDER={PROJECT}", *module, *numbers])
    return f"trap '' USR1 TERM; cd {shlex.quote(str(folder / 'code'))} && exec {command}"


def requeue(task: str) -> None:
    """Put a task back into the queue, unless Slurm has ended it, as after scancel."""
    if _ask("squeue", "--noheader", f"--job={task}", "--format=%T").strip() == "RUNNING":
        _ask("scontrol", "requeue", task)


def was_given(folder: Path) -> bool:
    """Whether Slurm has been given a sweep's jobs."""
    return (folder / "slurm").exists()


def has(folder: Path) -> bool:
    """Whether Slurm still has any of a sweep's jobs, or cannot be asked."""
    try:
        tasks = _tasks()
        return any(array in tasks for array, _ in _arrays(folder))
    except SettingsError:
        return True


def queued(sweeps: Path) -> dict[str, Queued]:
    """The jobs in Slurm's queue that have not ended, by job id. Raises SettingsError if Slurm does
    not answer."""
    found: dict[str, Queued] = {}
    folders = [path.parent for path in sorted(sweeps.glob("*/slurm"))]
    tasks = _tasks() if folders else {}
    for folder in folders:
        with suppress(FileNotFoundError):  # removed in the meantime, so Slurm has none of its jobs
            given, since = read(folder)
            for array, start in _arrays(folder):
                for task, state in tasks.get(array, {}).items():
                    for job in given[start + task]:
                        if grid.ended(job.folder, since) is None:
                            found[job.id] = Queued(f"{array}_{task}", state)
    return found


def _arrays(folder: Path) -> Iterator[tuple[str, int]]:
    for line in (folder / "slurm").read_text().splitlines():
        array, start = line.split()
        yield array, int(start)


def _tasks() -> dict[str, dict[int, str]]:
    """The state of each task in Slurm's queue, with the reason if it waits, by array."""
    found: dict[str, dict[int, str]] = {}
    mine = ("squeue", f"--user={os.getuid()}")
    for line in _ask(*mine, "--noheader", "--array", "--format=%F %K %T %r").splitlines():
        array, task, state, reason = line.split(maxsplit=3)
        if task.isdecimal():
            waits = f", {reason}" if state == "PENDING" and reason != "None" else ""
            found.setdefault(array, {})[int(task)] = state + waits
    return found


def _largest_array() -> int:
    """How many tasks an array can have; their numbers begin at 0."""
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", _ask("scontrol", "show", "config"), re.M)
    return int(found[1]) if found else 1001


def _ask(*command: str) -> str:
    """What a command of Slurm's prints."""
    name = command[0]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise SettingsError(f"there is no {name} on this machine") from error
    if done.returncode:
        lines = [line.removeprefix(f"{name}: ") for line in done.stderr.strip().splitlines()]
        reason = "; ".join(line.removeprefix("error: ") for line in lines)
        raise SettingsError(f"{name}: {reason or f'status {done.returncode}'}")
    return done.stdout


# A Slurm task: runs the jobs of a chunk one after another; if there are several, as forks of
# servers.
#
# Slurm starts `python -m labjobs.sweeps.slurm FOLDER FIRST PROCESSES` in the sweep's copy of
# the code, with the sweep's folder, the number of the array's first chunk, and how many processes,
# each with a GPU, train a job. Slurm's warning (USR1, before the time limit or preemption) or TERM
# makes the running job write a checkpoint and stop. The task then goes back into Slurm's queue;
# when it starts again, it skips the jobs that have ended.
#
# Exit status: 0 if all jobs have finished, or else the status of the first job that has not.

SIGNALS = (signal.SIGUSR1, signal.SIGTERM)

INTERRUPTED = [128 + number for number in SIGNALS]
"""Exit statuses of a job that was asked to stop, and of its task."""

FINISHED = (0, 3)
"""Exit statuses of a finished job; after 3 the store lacks some of its results."""


class TaskChunk:
    """The jobs of a task, as submitted by a sweep. Remembers signals that arrive."""

    def __init__(self, jobs: Sequence[Given], since: int, task: str) -> None:
        self._jobs, self._since, self._task = jobs, since, task
        self._asked = 0
        for number in SIGNALS:
            signal.signal(number, self._ask)

    def _ask(self, number: int, *_: object) -> None:
        self._asked = number

    def run(self, starter: Starter) -> int:
        """Run the jobs that are left, until a signal; return the task's exit status."""
        result = 0
        for job in self._jobs:
            status = grid.ended(job.folder, self._since)
            if status is None:
                status = self._run(job, starter)
            if status in INTERRUPTED:
                return status
            if status not in FINISHED:
                result = result or status
        return result

    def _run(self, job: Given, starter: Starter) -> int:
        """Run a job, unless a signal has come; return its exit status."""
        if self._asked:
            return 128 + self._asked
        words = self._words(job)
        print(f"job {job.id} started: {shlex.join(words)}", flush=True)
        task, row = grid.Task(0, words, ()), Row("", "", job.id, job.folder)
        try:
            running = Running(task, row, self._task, starter)
        except OSError as error:
            return leave(exit_status.FAILED, f"job {job.id} cannot be started: {cause(error)}")
        status = self._wait(running)
        print(running.ending(status), flush=True)
        if (
            status == KILLED and self._asked
        ):  # the server got the signal too, and the real status is lost
            return 128 + self._asked
        return status

    def _wait(self, running: Running) -> int:
        """Wait for a job to end, and pass the signal on to it; return its exit status."""
        passed_on = 0
        while (status := running.status()) is None:
            if self._asked and not passed_on:
                passed_on = self._asked
                running.stop(passed_on)
            time.sleep(PAUSE)
        return status

    def _words(self, job: Given) -> list[str]:
        """A job's words, without --force if it has already started over, so that it continues."""
        begun = Path(job.folder) / layout.SETTINGS
        if begun.exists() and begun.stat().st_mtime_ns > self._since:
            return [word for word in job.words if word != "--force"]
        return job.words


def main(folder: Path, first: int, processes: int) -> int:
    """Run this task's jobs; returns the exit status."""
    array, number = os.environ["SLURM_ARRAY_JOB_ID"], int(os.environ["SLURM_ARRAY_TASK_ID"])
    node, task = os.environ["SLURMD_NODENAME"], f"{array}_{number}"
    given, since = read(folder)
    jobs = given[first + number]
    chunk = TaskChunk(jobs, since, f"{node} (Slurm {task})")
    if not os.environ.get("OMP_NUM_THREADS"):  # Slurm may not confine jobs to their cores
        cores = int(os.environ["SLURM_CPUS_ON_NODE"])
        os.environ["OMP_NUM_THREADS"] = str(max(1, cores // processes))
    scripts = dict.fromkeys(job.words[0] for job in jobs)
    warm = len(jobs) > 1 and processes == 1
    starter = Starter(folder / "code", scripts, at_once=1, warm=warm, processes=processes)
    starter.learn(files.read_json(folder / layout.CHECKED)["modules"])
    status = chunk.run(starter)
    if status in INTERRUPTED:
        try:
            requeue(task)
        except SettingsError as error:
            leave(status, f"{task} cannot be put back into the queue: {error}")
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
