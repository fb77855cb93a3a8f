"""A sweep's jobs as arrays of Slurm's: submitted, and looked up in its queue.

The sweep's folder notes in `slurm` the arrays made from it: an id and the number of the first job,
a line each. A task runs slurm-job.sh. Sources: slurm.schedmd.com/sbatch.html, squeue.html.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from engine.errors import SettingsError

OPTIONS = ("--gres=gpu:1", "--signal=B:USR1@60", "--requeue", "--open-mode=append")
"""What sbatch is told unless the user says otherwise: USR1, 60 s before the end, is the warning."""


Inputs = Sequence[int | str]
"""What a job waits for: places in the queue, from 0, and tasks that Slurm has already."""


class Queued(NamedTuple):
    """A job in Slurm's queue: its task, such as `17_3`, and Slurm's word for its state."""

    task: str
    state: str


def require() -> None:
    """Raise SettingsError where there is no Slurm."""
    if not shutil.which("sbatch"):
        raise SettingsError("--slurm: there is no sbatch on this machine")


def submit(
    folder: Path, inputs: Sequence[Inputs], at_most: int | None, options: list[str], name: str
) -> str:
    """Hand the jobs of a sweep's queue, by their inputs, to Slurm; a line that says so.

    Raises SettingsError.
    """
    limit = f"%{at_most}" if at_most else ""
    output = str(folder).replace("%", "%%") + "/slurm-%A_%a.txt"
    script = str(folder / "code" / "engine" / "sweeps" / "slurm-job.sh")
    ids: list[str] = []
    tasks: list[str] = []
    for start, count, of_all in _arrays_to_make(inputs, _largest_array()):
        words = [f"--array=0-{count - 1}{limit}", f"--job-name={name}"]
        words += [f"--output={output}", "--parsable", *OPTIONS]
        after = [tasks[each] if isinstance(each, int) else each for each in of_all]
        conditions = [":".join(["afterok", *after])] if after else []
        if at_most and ids:  # a limit holds within one array
            conditions.append(f"afterany:{ids[-1]}")
        if conditions:
            words += [f"--dependency={','.join(conditions)}", "--kill-on-invalid-dep=yes"]
        try:
            made = _ask("sbatch", *words, *options, script, str(folder), str(start), sys.executable)
        except SettingsError as error:
            rest = "the same command hands it the rest"
            had = f"; Slurm has {start} of {len(inputs)} jobs, {rest}"
            raise SettingsError(f"{error}{had if ids else ''}") from error
        ids.append(made.split(";")[0].strip())
        tasks += [f"{ids[-1]}_{number}" for number in range(count)]
        with (folder / "slurm").open("a") as file:
            print(ids[-1], start, file=file)
    arrays = ", ".join(ids)
    return f"{len(inputs)} jobs submitted to Slurm as {arrays}; bash run.sh --list shows them"


def _arrays_to_make(inputs: Sequence[Inputs], size: int) -> Iterator[tuple[int, int, Inputs]]:
    """The first job of each array, how many it has, and what they all wait for: their inputs."""
    start = 0
    for of_all, alike in groupby(inputs):
        end = start + len(list(alike))
        for first in range(start, end, size):
            yield first, min(size, end - first), of_all
        start = end


def was_given(folder: Path) -> bool:
    """Whether Slurm has been given a sweep's jobs."""
    return (folder / "slurm").exists()


def has(folder: Path) -> bool:
    """Whether Slurm has any of a sweep's jobs still, or cannot say."""
    try:
        tasks = _tasks()
        return any(array in tasks for array, _ in _arrays(folder))
    except SettingsError:
        return True


def queued(sweeps: Path) -> dict[str, Queued]:
    """What Slurm says of the jobs in its queue, by job id. Raises SettingsError where it says
    nothing."""
    found: dict[str, Queued] = {}
    folders = [path.parent for path in sorted(sweeps.glob("*/slurm"))]
    tasks = _tasks() if folders else {}
    for folder in folders:
        with suppress(FileNotFoundError):  # cleared away meanwhile, so Slurm has none of it
            ids = [line.split("\t")[1] for line in (folder / "queue").read_text().splitlines()]
            for array, start in _arrays(folder):
                for task, state in tasks.get(array, {}).items():
                    found[ids[start + task]] = Queued(f"{array}_{task}", state)
    return found


def _arrays(folder: Path) -> Iterator[tuple[str, int]]:
    for line in (folder / "slurm").read_text().splitlines():
        array, start = line.split()
        yield array, int(start)


def _tasks() -> dict[str, dict[int, str]]:
    """The state of each task in Slurm's queue, by array."""
    found: dict[str, dict[int, str]] = {}
    mine = ("squeue", f"--user={os.getuid()}")
    for line in _ask(*mine, "--noheader", "--array", "--format=%F %K %T").splitlines():
        array, task, state = line.split()
        if task.isdecimal():
            found.setdefault(array, {})[int(task)] = state
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
