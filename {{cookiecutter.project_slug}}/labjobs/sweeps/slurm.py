"""A sweep's jobs as Slurm arrays: submitted, looked up in its queue, and put back there.

A task of an array runs the jobs of a chunk (chunks.py), as slurm_task.py says. The file `slurm` in
the sweep's folder lists its arrays: an id and the number of the first chunk, a line each. Sources:
slurm.schedmd.com/sbatch.html, squeue.html, scontrol.html.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from labjobs.errors import SettingsError
from labjobs.job.terminal import counted
from labjobs.paths import PROJECT
from labjobs.sweeps import chunks, plan
from labjobs.sweeps.chunks import Chunk, Inputs

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
    module = [sys.executable, "-m", "labjobs.sweeps.slurm_task", str(folder)]
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
            given, since = chunks.read(folder)
            for array, start in _arrays(folder):
                for task, state in tasks.get(array, {}).items():
                    for job in given[start + task]:
                        if plan.ended(job.folder, since) is None:
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
