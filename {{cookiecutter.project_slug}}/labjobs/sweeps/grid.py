"""The jobs that run.sh's grid names: from words such as `analyse.py --lr 1` to jobs.

Words without a script are for run.py. In the sweep's folder, the file `grid` has all jobs: for
each, the number of its words, then the words, each ended by NUL. While the grid runs, captured
jobs, as in `id=$(job …)`, come in the same form through the pipe `asked`; their ids are returned
through the pipe `answered`, a line each, which is empty if the words are wrong.
"""

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from labjobs.cli import parser
from labjobs.errors import SettingsError, cause
from labjobs.job import identity, scripts
from labjobs.job.folder import JobFolder
from labjobs.job.runtime import Runtime
from labjobs.job.scripts import Script
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
        return scripts.read(self.script)

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
            leave(2, f"job {entry.number}, {command}: {cause(error)}{place}")
    if wrong:
        raise SettingsError(f"{wrong} of {of} jobs are wrong; nothing was started")


def _entries(words: Iterator[str]) -> Iterator[Entry]:
    for number, count in enumerate(words, start=1):
        if count == END:
            return
        given = [next(words) for _ in range(int(count))]
        is_named = bool(given) and given[0].endswith(".py") and not given[0].startswith("-")
        script = given.pop(0).removesuffix(".py") if is_named else scripts.DEFAULT
        yield Entry(number, script, given)


def _word(pipe: BinaryIO) -> str:
    """The next word that comes through a pipe."""
    found = bytearray()
    while (byte := pipe.read(1)) != b"\0":
        if not byte:
            sys.exit(1)
        found += byte
    return found.decode(sys.getfilesystemencoding(), "surrogateescape")
