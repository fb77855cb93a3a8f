"""The jobs that run.sh's grid names: from words such as `analyse.py --lr 1` to jobs.

Words without a script are for run.py. In the sweep's folder, the file `grid` has all jobs: for
each, the number of its words, then the words, each ended by NUL. While the grid runs, captured
jobs, as in `id=$(job …)`, come in the same form through the pipe `asked`; their ids are returned
through the pipe `answered`, a line each, which is empty if the words are wrong.
"""

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from labjobs import exit_status, files, layout
from labjobs.cli import parser
from labjobs.errors import SettingsError, cause
from labjobs.files import shown
from labjobs.job import identity
from labjobs.job.folder import JobFolder
from labjobs.job.identity import Script
from labjobs.job.runtime import Runtime
from labjobs.job.terminal import leave
from labjobs.sources import fault

NO_JOB = {"-h", "--help", "--check", "--scratch"}
"""Flags with which a script does not run a job."""

END = "end"
"""Sent instead of a number of words when the grid is complete."""


@dataclass
class Entry:
    """A job of the grid; `number` is its place there, from 1."""

    number: int
    script: str
    flags: list[str]
    job: JobFolder[Any] = field(init=False)
    state: str = ""
    about: str = ""

    @property
    def words(self) -> list[str]:
        """The command line, after `python`; with --force for a stale job, so that it starts
        over."""
        return [f"{self.script}.py", *self.flags, *(["--force"] if self.state == "stale" else [])]

    @property
    def inputs(self) -> list[str]:
        """The ids of the jobs that it is derived from."""
        return [*identity.inputs(self.job.settings)]

    def declared(self) -> Script:
        """Return what its script declares about its jobs. Raises SettingsError if there is none."""
        return identity.read(self.script)

    def read(self) -> None:
        """Find out which job it is. Raises SettingsError if the words do not describe a job."""
        if found := NO_JOB & set(self.flags):
            raise SettingsError(f"{min(found)}: cannot be used in a grid")
        script = self.declared()
        settings, runtime = parser.parse(script.settings, Runtime, self.flags)
        self.job = JobFolder(settings, runtime, script.metrics, script.name)


def entries(grid: Path) -> list[Entry]:
    """Return the jobs in a sweep's file."""
    text = grid.read_text(sys.getfilesystemencoding(), "surrogateescape")
    return list(_entries(iter(text.split("\0")[:-1])))


def answer(folder: Path) -> None:
    """Answer with the ids of captured jobs until the grid is complete. Ends the process if run.sh
    has ended."""
    with (folder / "asked").open("rb") as asked, (folder / "answered").open("w") as answered:
        for entry in _entries(iter(lambda: _word(asked), None)):
            with suppress(SettingsError):  # reported once all jobs are known
                entry.read()
            print(entry.job.id if hasattr(entry, "job") else "", file=answered, flush=True)


def each(entries: Iterable[Entry], act: Callable[[Entry], object], of: int) -> None:
    """Call `act` with each entry, and print the entries for which it fails; the grid has `of` jobs.

    Raises SettingsError if it failed for any.
    """
    wrong = 0
    for entry in entries:
        try:
            act(entry)
        except Exception as error:
            wrong += 1
            command = shlex.join(entry.words)
            at = fault(error)
            place = f" ({at})" if at else ""
            leave(exit_status.WRONG, f"job {entry.number}, {command}: {cause(error)}{place}")
    if wrong:
        raise SettingsError(f"{wrong} of {of} jobs are wrong; nothing was started")


def _entries(words: Iterator[str]) -> Iterator[Entry]:
    for number, count in enumerate(words, start=1):
        if count == END:
            return
        given = [next(words) for _ in range(int(count))]
        is_named = bool(given) and given[0].endswith(".py") and not given[0].startswith("-")
        script = given.pop(0).removesuffix(".py") if is_named else identity.DEFAULT
        yield Entry(number, script, given)


def _word(pipe: BinaryIO) -> str:
    """The next word that comes through a pipe."""
    found = bytearray()
    while (byte := pipe.read(1)) != b"\0":
        if not byte:
            sys.exit(1)
        found += byte
    return found.decode(sys.getfilesystemencoding(), "surrogateescape")


# What a sweep has to do and, at the end, has done.
#
# A job's number is its place in the grid, from 1.

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
    path = Path(folder) / layout.OUTCOME
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
    leave(exit_status.DONE, line + (others and f"; {others}"))
    if count["unsent"]:
        leave(
            exit_status.NOT_UPLOADED,
            "run.sh: some results are not uploaded yet; the same command uploads them",
        )
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
            leave(exit_status.FAILED, _ending(row, codes.get(index)))
    for about, found in changes.items():
        if found > MOST_NAMED:
            line = f"{found - MOST_NAMED} more jobs are stale: {about}"
            leave(exit_status.FAILED, f"{line}; --list names them, --redo-stale runs them again")


def state_after(row: Row, code: int | None) -> str:
    """Return the state of a job after the sweep, by its exit status if it has run."""
    if code is None:
        started = {*STARTED, "running"} - {"unsent"}
        return "not started" if row.state in started else row.state
    wrote = files.read_record(Path(row.folder) / layout.OUTCOME).get("status")
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
    output = Path(row.folder) / layout.OUTPUT
    if not output.exists():  # it was run by hand
        return f"job {row.id} ended with status {code} [{shown(output.parent)}]"
    *_, last = "", *output.read_text(errors="replace").splitlines()
    return f"{last} [{shown(output)}]"
