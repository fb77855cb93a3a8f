"""The jobs that run.sh's grid names: from words such as `analyse.py --lr 1` to jobs.

Words without a script are for run.py; `search`, `propose` and `breed` stand for several jobs
(search.py, proposals.py), and what follows `halving` trains on rung by rung, up to `keep_all`. In
the sweep's folder, the file `grid` has all of them: for each, the number of its words, then the
words, each ended by NUL. While the grid runs, captured jobs, as in `id=$(job …)`, come in the same
form through the pipe `asked`; their ids are returned through the pipe `answered`, a line each,
which is empty if the words are wrong.
"""

import math
import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from labjobs import exit_status, files, layout
from labjobs.cli import parser
from labjobs.cli.flags import as_text, option
from labjobs.errors import SettingsError
from labjobs.files import shown
from labjobs.job import identity, journal
from labjobs.job.folder import JobFolder
from labjobs.job.runtime import Runtime
from labjobs.job.terminal import counted, leave, notify
from labjobs.settings import Span
from labjobs.sources import described
from labjobs.sweeps import proposals, search
from labjobs.sweeps.search import Bracket, Halving, read_halving

NO_JOB = {"-h", "--help", "--check", "--scratch", "--like"}
"""Flags with which a script runs no job, or one that a grid does not show."""
END = "end"  # sent instead of a number of words when the grid is complete
STARTED = ("failed", "interrupted", "pending", "unsent")  # states of jobs that a sweep starts
LEFT = {"failed", "stale", "interrupted", "queued", "not started"}  # something is left to do
ENDED = {"finished": 0, "paused": 0, "failed": 1, "diverged": 1}  # exit statuses of jobs
BEST = "best_step"  # a metric that is logged at the end, with the results of the best weights


@dataclass(eq=False)
class Entry:
    """A job of the grid; `number` is its place there, from 1. `state` is its state before the
    sweep, with details `about` it; `status` is the exit status with which the sweep has run it,
    and `retries` how often it was tried again. If `moved`, its GPU broke and the sweep has started
    it on another; `returned` is how many hosts have given it back. What it has written counts for a
    cluster's task `since` then, in ns. `drawn` is which draw of which search it is. `halving` is
    the line below which it stands, `bracket` the jobs that it is compared with, and `rung` where it
    pauses."""

    number: int
    script: str
    flags: list[str]
    drawn: Mapping[str, Any] = field(default_factory=dict)
    halving: Halving | None = None
    bracket: Bracket | None = None
    rung: Span | None = None
    job: JobFolder[Any] = field(init=False)
    state: str = ""
    about: str = ""
    status: int | None = None
    retries: int = 0
    moved: bool = False
    returned: int = 0
    since: int = 0

    @property
    def words(self) -> list[str]:
        """The command line, after `python`; with --force for a stale job, which starts over."""
        more = ["--force"] if self.state == "stale" else []
        more += [f"--pause-after={self.rung}"] if self.rung else []
        return [f"{self.script}.py", *self.flags, *more]

    @property
    def inputs(self) -> list[str]:
        """The ids of the jobs that it is derived from."""
        return [*identity.inputs(self.job.settings)]

    @property
    def state_after(self) -> str:
        """Its state after the sweep."""
        state = self._own_state_after
        return self.bracket.state(self.job, state) if self.bracket else state

    @property
    def _own_state_after(self) -> str:
        if self.status is None:
            waits = {*STARTED, "running"} - {"unsent"}
            return "not started" if self.state in waits else self.state
        wrote = files.read_record(self.job.path / layout.OUTCOME).get("status")
        match self.status:
            case exit_status.DONE:
                return wrote if wrote in ("paused", "stopped") else "finished"
            case exit_status.FAILED | exit_status.WRONG:
                return "diverged" if wrote == "diverged" else "failed"
            case exit_status.NOT_UPLOADED:
                return "unsent"
            case exit_status.OTHER_CODE:
                return "stale"
        return "interrupted"

    def has_begun(self, since: int) -> bool:
        """Return whether it has been started since then, in ns."""
        return files.changed(self.job.path / layout.SETTINGS) > since

    def go_on(self, since: int) -> None:
        """Let it go on, instead of starting over again, if it has begun since then, in ns."""
        if self.has_begun(since):
            self.flags = [flag for flag in self.flags if flag != "--force"]
            self.state = "interrupted" if self.state == "stale" else self.state

    def set_rung(self) -> None:
        """Note where it pauses, by what is decided so far."""
        self.rung = self.bracket.pause_after(self.job) if self.bracket else None

    def read(self) -> None:
        """Find out which job it is. Raises SettingsError if the words do not describe a job."""
        if found := NO_JOB & {flag.partition("=")[0] for flag in self.flags}:
            raise SettingsError(f"{min(found)}: cannot be used in a grid")
        script = identity.read(self.script)
        settings, runtime = parser.parse(script.settings, Runtime, self.flags)
        self.job = JobFolder(settings, runtime, script.metrics, script.name)

    def make(self) -> None:
        """Make its folder, with the draw that it is: figures then know which jobs are a sample.
        Raises SettingsError if the job cannot write."""
        self.job.make()
        if self.drawn:
            record = {"id": self.job.id, "draw": self.drawn}
            files.write_record(self.job.root / layout.DRAWN, record)


def entries(grid: Path, flags: Sequence[str] = ()) -> list[Entry]:
    """Return the jobs in a sweep's file, with these flags before their own."""
    found = [*_entries(_words(grid), [])]
    for entry in found:
        entry.flags[:0] = flags
    return found


def needed(entries: Sequence[Entry]) -> list[Entry]:
    """Return the jobs without the draws of `search until` that it may not come to: those that are
    further from the best one than it allows without improvement. Jobs count in the order of their
    draws, up to the first one that has not ended."""
    found: list[Entry] = []
    best, place, end, certain = math.inf, 0, 0, True
    for entry in entries:
        if patience := entry.drawn.get("until"):
            if not entry.drawn["index"]:
                best, place, end, certain = math.inf, 0, patience, True
            place += 1
            if place > end:
                continue
            score = search.final(entry.job) if certain else None
            certain = score is not None
            if score is not None and score < best:
                best, end = score, place + patience
        found.append(entry)
    return found


def following(grid: Path) -> list[tuple[list[str], int]]:
    """Return the words of each `confirm`, `propose` and `breed` in a sweep's file, and how many
    jobs there are up to it; those that were proposed are before it."""
    found = list[tuple[list[str], int]]()
    for _ in _entries(_words(grid), found):
        pass
    return found


def add(grid: Path, jobs: Iterable[Sequence[str]]) -> None:
    """Add jobs to a sweep's file."""
    with grid.open("ab") as file:
        for words in [["keep_all"], *jobs]:
            file.write(b"".join(os.fsencode(f"{word}\0") for word in (str(len(words)), *words)))


def answer(folder: Path) -> None:
    """Answer with the ids of captured jobs until the grid is complete, or run.sh has ended."""
    with (
        os.fdopen(_opened(folder / "asked", os.O_RDONLY), "rb") as asked,
        os.fdopen(_opened(folder / "answered", os.O_WRONLY), "w", encoding="utf-8") as answered,
    ):
        for entry in _entries(iter(lambda: _word(asked), None), []):
            with suppress(SettingsError):  # reported once all jobs are known
                entry.read()
            print(entry.job.id if hasattr(entry, "job") else "", file=answered, flush=True)


def _opened(pipe: Path, how: int) -> int:
    """Open one of run.sh's pipes without waiting for run.sh, which may have been killed."""
    file = os.open(pipe, how | os.O_NONBLOCK)
    os.set_blocking(file, True)
    return file


def each(entries: Sequence[Entry], act: Callable[[Entry], object]) -> None:
    """Call `act` with each entry, and print what is wrong with the first entry for which it fails,
    and with others for which it fails in another way. Raises SettingsError if it failed for any."""
    wrong: dict[str, list[Entry]] = {}
    for entry in entries:
        try:
            act(entry)
        except Exception as error:
            wrong.setdefault(described(error), []).append(entry)
    for said, (first, *others) in wrong.items():
        alike = f" (and {counted(len(others), 'more job')})" if others else ""
        job = f"job {first.number}, {shlex.join(first.words)}"
        leave(exit_status.WRONG, f"{job}: {said}{alike}")
    if count := sum(map(len, wrong.values())):
        raise SettingsError(f"{count} of {len(entries)} jobs are wrong; nothing was started")


def _words(grid: Path) -> Iterator[str]:
    return iter(os.fsdecode(grid.read_bytes()).split("\0")[:-1])


def _entries(words: Iterator[str], following: list[tuple[list[str], int]]) -> Iterator[Entry]:
    """The jobs; what follows from results is added to `following`."""
    number, halvings, halving = 0, 0, None
    for given, drawn in _commands(words):
        match given:
            case ["halving", *rungs]:
                halvings += 1
                halving = read_halving(halvings, rungs)
            case ["keep_all"]:
                halving = None
            case ["confirm" | "propose" | "breed", *_]:
                following.append((given, number))
            case _ if halving and {"proposal", "until"} & drawn.keys():
                line = "not below halving, which stops jobs itself; write keep_all before them"
                raise SettingsError(f"search until, propose and breed: {line}")
            case _:
                number += 1
                is_named = bool(given) and given[0].endswith(".py") and not given[0].startswith("-")
                script = given.pop(0).removesuffix(".py") if is_named else identity.DEFAULT
                yield Entry(number, script, given, drawn, halving)


def _commands(words: Iterator[str]) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """The arguments of each job, and which draw of a search it is, if it is one."""
    for count in words:
        if count == END:
            return
        match [next(words) for _ in range(int(count))]:
            case ["search", *ranges]:
                yield from search.jobs(ranges)
            case ["propose" | "breed", *_] as line:
                yield from proposals.read(line).jobs()
                yield line, {}
            case given:
                yield given, {}


def _word(pipe: BinaryIO) -> str:
    """The next word that comes through a pipe."""
    found = bytearray()
    while (byte := pipe.read(1)) != b"\0":
        if not byte:
            sys.exit(1)
        found += byte
    return os.fsdecode(bytes(found))


def ended(folder: Path, since: int) -> int | None:
    """Return the exit status for a job's outcome, if that was written since then, in ns."""
    path = folder / layout.OUTCOME
    if files.changed(path) > since:
        return ENDED.get(files.read_record(path).get("status", ""))
    return None


def summary(entries: Sequence[Entry], stopped: int = 0) -> int:
    """Print the results of a sweep; returns its exit status, `stopped` if that is not 0."""
    name(entries, {"failed", "stale", "diverged"} | (set() if stopped else {"interrupted"}))
    states = [entry.state_after for entry in entries]
    count = Counter(state for state in states if state != "repeated")
    now = sum(entry.status is not None and entry.state_after == "finished" for entry in entries)
    others = ", ".join(f"{n} {state}" for state, n in sorted(count.items()) if state != "finished")
    line = f"{count['finished']} of {count.total()} jobs finished, {now} of them now"
    line += others and f"; {others}"
    leave(exit_status.DONE, line)
    if any(entry.status is not None for entry in entries):
        notify(line, wait=True)
    brackets = [*dict.fromkeys(entry.bracket for entry in entries if entry.bracket)]
    for remark in dict.fromkeys(said for bracket in brackets for said in bracket.undefined):
        leave(exit_status.DONE, f"run.sh: {remark}")
    missing = sorted({job for bracket in brackets for job in bracket.missing})
    if missing and not stopped:
        line = f"run.sh: halving waits for {counted(len(missing), 'job')}, such as {missing[0]}"
        leave(exit_status.FAILED, line)
    for found in same_results(entries) if now else ():
        leave(exit_status.DONE, f"run.sh: {found}")
    before = (entry for entry in entries if entry.state == "finished" and entry.about)
    for remark, n in Counter(entry.about for entry in before).items():
        leave(exit_status.FAILED, f"{counted(n, 'finished job')}: {remark}")
    if count["unsent"]:
        line = "run.sh: some results are not uploaded yet; the same command uploads them"
        leave(exit_status.NOT_UPLOADED, line)
    left = missing or LEFT & count.keys()
    return stopped or (1 if left else 3 if count["unsent"] else 0)


def stopped(entries: Iterable[Entry]) -> list[tuple[Entry, Span]]:
    """Return the jobs that halving has stopped, each with its rung."""
    return [(e, rung) for e in entries if e.bracket and (rung := e.bracket.stopped_at(e.job))]


def name(entries: Iterable[Entry], named: Set[str]) -> None:
    """Print a line for each job in one of some states."""
    for entry in entries:
        if (state := entry.state_after) in named:
            leave(exit_status.FAILED, _ending(entry, state))


def _ending(entry: Entry, state: str) -> str:
    """How an unfinished job ended: the last line of its output, and the path of the output."""
    job, output = f"job {entry.job.id}", entry.job.path / layout.OUTPUT
    if entry.status is None and state == "stale":
        return f"{job} is stale: {entry.about}; --redo-stale runs it again"
    if entry.status is None:
        return f"{job} {state} before: {entry.about}; --force starts it over"
    if not output.exists():  # it was run by hand
        return f"{job} ended with status {entry.status} [{shown(output.parent)}]"
    return f"{last_line(output)} [{shown(output)}]"


def last_line(output: Path) -> str:
    """Return the last line of a job's output; empty if somebody has removed that."""
    return files.tail(output).decode(errors="replace").rstrip("\n").rpartition("\n")[2]


def same_results(entries: Iterable[Entry]) -> Iterator[str]:
    """Yield a line for each setting of which two values gave the same results, bit for bit."""
    found, named = dict[tuple[str, ...], list[JobFolder[Any]]](), {"note"}
    for entry in entries:
        if entry.state_after == "finished" and (last := journal.last_of(entry.job.path, BEST)):
            # A job that continues another one is meant to have the results of one that did it all.
            alike = found.setdefault((entry.script, str(last["metrics"]), *entry.inputs), [])
            for other in alike:
                mine, theirs = vars(entry.job.settings), vars(other.settings)
                differ = [name for name in mine if mine[name] != theirs[name]]
                if len(differ) == 1 and not named & {*differ}:
                    named.add(name := differ[0])
                    jobs = f"(jobs {other.id}, {entry.job.id})"
                    values = f"{option(name)} {as_text(theirs[name])} and {as_text(mine[name])}"
                    yield f"{values} gave the same results, bit for bit {jobs}"
            alike.append(entry.job)
