"""What a sweep has to do and, at the end, has done.

A job's number is its place in the grid, from 1.
"""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from labjobs import files
from labjobs.job.terminal import leave
from labjobs.paths import shown

STARTED = ("failed", "interrupted", "pending", "unsent")
"""States of jobs that a sweep starts."""

MOST_NAMED = 10
"""Largest number of jobs with the same change that are named one by one."""

LEFT = {"failed", "stale", "interrupted", "queued", "not started"}
"""States of jobs in which something is left to do."""

ENDED = {"finished": 0, "paused": 0, "failed": 1, "diverged": 1}
"""Exit statuses of jobs, by how they have ended."""


class Row(NamedTuple):
    """A job of a sweep: its state before the sweep, and details about that state."""

    state: str
    about: str
    id: str
    folder: str


class Task(NamedTuple):
    """A job that is left to run: its number, its words, and the numbers of those inputs that are
    left to run too."""

    number: int
    words: Sequence[str]
    inputs: Sequence[int]


def ended(folder: str, since: int) -> int | None:
    """Return the exit status that corresponds to a job's outcome, if the outcome was written since
    then."""
    path = Path(folder) / "outcome.json"
    with suppress(OSError):
        if path.stat().st_mtime_ns > since:
            return ENDED.get(files.read_record(path).get("status", ""))
    return None


def summary(rows: Sequence[Row], codes: Mapping[int, int], stopped: int = 0) -> int:
    """Print the results of the sweep; returns its exit status.

    `codes` has the exit statuses of the jobs that have run, by number; `stopped` is the status of a
    sweep that was stopped together with its jobs.
    """
    states = [state_after(row, codes.get(index)) for index, row in enumerate(rows, start=1)]
    named = {"failed", "stale", "diverged"} | (set() if stopped else {"interrupted"})
    _name(rows, states, codes, named)
    count = Counter(state for state in states if state not in {"repeated", "skipped"})
    now = sum(states[index - 1] == "finished" for index in codes)
    others = ", ".join(f"{n} {state}" for state, n in sorted(count.items()) if state != "finished")
    line = f"{count['finished']} of {count.total()} jobs finished, {now} of them now"
    leave(0, line + (others and f"; {others}"))
    if count["unsent"]:
        leave(3, "run.sh: some results are not uploaded yet; the same command uploads them")
    return stopped or (1 if LEFT & count.keys() else 3 if count["unsent"] else 0)


def name_left_out(rows: Sequence[Row]) -> int:
    """Print the jobs that a sweep does not start although they are not finished: stale and diverged
    ones. Returns 1 if any is stale, otherwise 0."""
    states = [row.state for row in rows]
    _name(rows, states, {}, {"stale", "diverged"})
    return int("stale" in states)


def _name(
    rows: Sequence[Row], states: Sequence[str], codes: Mapping[int, int], named: Set[str]
) -> None:
    """Print a line for each job in one of some states; for stale ones, not too many."""
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


def state_after(row: Row, code: int | None) -> str:
    """Return the state of a job after the sweep, by its exit status if it has run."""
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
    """How an unfinished job ended: the last line of its output, and the path of the output."""
    if code is None and row.state == "stale":
        return f"job {row.id} is stale: {row.about}; --redo-stale runs it again"
    if code is None:
        return f"job {row.id} {row.state} before: {row.about}; --force starts it over"
    output = Path(row.folder) / "output.txt"
    if not output.exists():  # it was run by hand
        return f"job {row.id} ended with status {code} [{shown(output.parent)}]"
    *_, last = "", *output.read_text(errors="replace").splitlines()
    return f"{last} [{shown(output)}]"
