"""What a sweep is to do and, in the end, has done, in files of its folder.

`plan.json` has all jobs. The others are for queue.sh and Slurm's tasks: `queue` (a line for each
job to run: index, id, folder, and the indices of those that it is derived from and that run before
it), `jobs/<index>` (its words, the script first), `slots` (a line for each worker: device,
lock, place) and `options`. `codes/<index>` is the exit status of a job that has run. An index is a
job's place in the grid, from 1.

`python -m engine.sweeps.plan FOLDER` prints the summary of a sweep that is over.
"""

import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from engine import files, machine
from engine.job.terminal import leave
from engine.paths import shown
from engine.sweeps.slots import Slot
from engine.sweeps.states import STARTED

MOST_NAMED = 10
"""Largest number of jobs with the same change that are named one by one."""

LEFT = {"failed", "stale", "interrupted", "queued", "not started"}
"""States in which something is left to do."""


class Row(NamedTuple):
    """A job of a sweep: its state before it, and more about that."""

    state: str
    about: str
    id: str
    folder: str


class Task(NamedTuple):
    """A job that is left to run: its index, its words, and the indices of its inputs that are."""

    number: int
    words: Sequence[str]
    inputs: Sequence[int]


def write(
    folder: Path,
    rows: Sequence[Row],
    left: Sequence[Task],
    slots: list[Slot],
    flags: Namespace,
) -> None:
    """Write down all jobs, and those that are left to run, each after its inputs."""
    for task in left:
        text = "".join(f"{word}\0" for word in task.words)
        (folder / "jobs" / str(task.number)).write_text(text, errors="surrogateescape")
    at_once = min(len(left), len(slots))
    threads = max(1, machine.cores() // at_once)
    numbers = (len(rows), flags.per_gpu or 1, flags.retries, at_once, threads)
    queue = []
    for task in left:
        row = rows[task.number - 1]
        queue.append((task.number, row.id, row.folder, " ".join(map(str, task.inputs))))
    files.write_json(folder / "plan.json", {"jobs": rows})
    (folder / "slots").write_text(_lines(slots))
    (folder / "options").write_text(_lines([(*numbers, "1" if flags.fail_fast else "")]))
    (folder / "queue").write_text(_lines(queue))  # the last: without it there is nothing to do


def _lines(rows: Iterable[Iterable[object]]) -> str:
    return "".join("\t".join(map(str, row)) + "\n" for row in rows)


def summary(rows: Sequence[Row], codes: Mapping[int, int], stopped: int = 0) -> int:
    """Print what became of the jobs; returns the sweep's exit status.

    `codes` has the exit statuses of the jobs that have run, by index; `stopped` is the status of a
    sweep that was stopped, jobs and all.
    """
    states = [_state(row, codes.get(index)) for index, row in enumerate(rows, start=1)]
    named = {"failed", "stale", "diverged"} | (set() if stopped else {"interrupted"})
    changes: Counter[str] = Counter()
    for index, (row, state) in enumerate(zip(rows, states, strict=True), start=1):
        if state == "stale" and index not in codes:
            changes[row.about] += 1
            if changes[row.about] > MOST_NAMED:
                continue
        if state in named:
            leave(1, _ending(row, codes.get(index)))
    for about, found in changes.items():
        if found > MOST_NAMED:
            line = f"{found - MOST_NAMED} more jobs are stale: {about}"
            leave(1, f"{line}; --list names them, --redo-stale runs them again")
    count = Counter(state for state in states if state not in {"repeated", "skipped"})
    now = sum(states[index - 1] == "finished" for index in codes)
    others = ", ".join(f"{n} {state}" for state, n in sorted(count.items()) if state != "finished")
    line = f"{count['finished']} of {count.total()} jobs finished, {now} of them now"
    leave(0, line + (others and f"; {others}"))
    if count["unsent"]:
        leave(3, "run.sh: some results are not uploaded yet; the same command uploads them")
    return stopped or (1 if LEFT & count.keys() else 3 if count["unsent"] else 0)


def _state(row: Row, code: int | None) -> str:
    """The state of a job after the sweep, by its exit status if it has run."""
    if code is None:
        started = {*STARTED, "running"} - {"unsent"}
        return "not started" if row.state in started else row.state
    wrote = files.read_record(Path(row.folder) / "outcome.json").get("status")
    match code:
        case 0:
            return "paused" if wrote == "paused" else "finished"
        case 1 | 2:
            return "diverged" if wrote == "diverged" else "failed"
        case 3:
            return "unsent"
        case 5:
            return "stale"
    return "interrupted"


def _ending(row: Row, code: int | None) -> str:
    """How a job has ended that has not finished: its last line, and where the others are."""
    if code is None and row.state == "stale":
        return f"job {row.id} is stale: {row.about}; --redo-stale runs it again"
    if code is None:
        return f"job {row.id} {row.state} before: {row.about}; --force starts it over"
    output = Path(row.folder) / "output.txt"
    if not output.exists():  # it was run by hand
        return f"job {row.id} ended with status {code} [{shown(output.parent)}]"
    return f"{output.read_text(errors='replace').splitlines()[-1]} [{shown(output)}]"


def main(folder: Path) -> int:
    """Print the summary of a sweep that is over; returns the exit status."""
    rows = [Row(*row) for row in files.read_json(folder / "plan.json")["jobs"]]
    written = {int(path.name): path.read_text() for path in (folder / "codes").iterdir()}
    codes = {index: int(code) for index, code in written.items() if code}  # none: killed meanwhile
    stop = folder / "stop"
    return summary(rows, codes, int(stop.read_text()) if stop.exists() else 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
