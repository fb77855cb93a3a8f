"""Attempts at the toy project's jobs, with a store in memory and a courier in this process.

Training, journal, records, locks and delivery are the engine's own.
"""

import logging
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

from attempts import TIMES
from labjobs.attempt import Attempt
from labjobs.job import attempts
from labjobs.job import journal as lines
from labjobs.job.folder import JobFolder
from labjobs.job.runtime import Runtime
from labjobs.job.terminal import handle_signals, log
from labjobs.tracking import costs, courier, mlflow_store
from labjobs.tracking.stored_jobs import Known, StoredJob
from toy import METRICS, Hook, Loop, Settings, factor
from toy import STEPS as EVERY

TOTAL = 2 * EVERY
"""Steps of the job; there is an evaluation in the middle and at the end."""

SEED = 0
"""The job's seed, which is all that tells it from another."""


class Killed(BaseException):
    """The job was killed."""


@dataclass
class Stored:
    """One run in the store."""

    points: dict[tuple[str, int], float] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    files: set[str] = field(default_factory=set)
    status: str = ""


class Store:
    """A store in memory: runs by job and journal, with what Delivery asks of them."""

    def __init__(self) -> None:
        self.runs: dict[tuple[str, str], Stored] = {}

    def run(self, job: str, journal: str) -> Stored:
        """Return the run of a journal, the job's only one."""
        key = job, journal
        for other in [each for each in self.runs if each[0] == job and each != key]:
            del self.runs[other]
        return self.runs.setdefault(key, Stored())


def nothing(*_: object, **_how: object) -> None:
    """Stand in for what need not be done here."""


class Run(mlflow_store.Run):
    """A run, as Delivery writes it."""

    beat = has_read = nothing

    def open(self) -> None:
        """Find the run in the store or make it."""
        self._stored = Courier.store.run(self._job, self._journal)
        self.id = f"{self._job} {self._journal}"

    def log(self, sent: Iterable[Mapping[str, Any]]) -> None:
        for line in sent:
            self._stored.points.update(points_of(line))
            self._stored.tags.update(line.get("tags", {}))

    def add(self, folder: Path, names: Iterable[str]) -> None:
        self._stored.files.update(names)

    def end(self, status: str, at: int) -> None:
        self._stored.status = status


def points_of(line: Mapping[str, Any]) -> dict[tuple[str, int], float]:
    """Return the points of a journal's line that are the same each time."""
    others = {*TIMES, *costs.NAMES}
    metrics = line.get("metrics", {})
    return {(name, line["step"]): metrics[name] for name in metrics if name not in others}


class Courier:
    """A courier in this process; `away` while the store is."""

    store, away, displaced = Store(), False, False
    folder: Path | None = None

    def carry(self, folder: Path) -> None:
        self.folder = folder

    def finish(self, seconds: float) -> str:
        """Send all; return what went wrong."""
        if self.folder is None:
            return ""
        if Courier.away:
            return "the store is away"
        try:
            courier.Delivery(self.folder).send(over=True)
        except lines.Damaged as error:
            return str(error)
        return ""


class Try(Attempt):
    """An attempt that asks no real store and leaves the template alone."""

    def _begin(self) -> None:
        ended = [run.tags for run in Courier.store.runs.values() if run.status == "FINISHED"]
        about: dict[str, Any] = {"job_id": self.folder.id, "state": "finished"}
        self._leave_if_over(Known(StoredJob(**about, tags=tags) for tags in ended))
        self.folder.make()
        self.folder.take()
        self._courier = Courier()  # type: ignore[assignment]


def command(runs: Path, hook: Hook = lambda what, job: None) -> tuple[int, str]:
    """Give the job's command; return its exit status and what it printed."""
    folder = job(runs)
    with here() as said:
        try:
            check = lambda job: job.check_schedule(factor)  # noqa: E731
            status = Try(folder).run(Loop(hook=hook).main, check)
        except SystemExit as left:
            status = int(str(left.code))
        finally:
            handle_signals(signal.SIG_DFL)
            if hasattr(folder, "_lock"):
                folder._lock.close()
            for handler in list(log.handlers):
                handler.close()
            log.handlers = [logging.NullHandler()]
    return status, said.getvalue()


def job(runs: Path) -> JobFolder[Settings]:
    how = Runtime(device="cpu", runs_root=runs, checkpoint_minutes=1e-9, quiet=True)
    return JobFolder(Settings(seed=SEED, epochs=2, schedule="linear"), how, METRICS)


_present = cache(attempts.present_code)


@contextmanager
def here() -> Iterator[StringIO]:
    """Have the stand-ins take the places of what they stand for; yields what is printed."""
    said = StringIO()
    with (
        patch("labjobs.attempt.Courier", Courier),
        patch("labjobs.job.attempts.present_code", _present),
        patch("labjobs.attempt.provenance.tags", lambda: {"commit": "1234abcd"}),
        patch.object(courier, "Run", Run),
        redirect_stdout(said),
        redirect_stderr(said),
    ):
        yield said
