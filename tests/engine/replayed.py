"""Attempts as they are, with stand-ins for what is slow: a training loop that logs known numbers, a
store in memory and a courier in this process.

Journal, records, locks and delivery are the engine's own.
"""

import json
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

from labjobs.attempt import Attempt
from labjobs.job import attempts
from labjobs.job import journal as lines
from labjobs.job.folder import JobFolder
from labjobs.job.runtime import Runtime
from labjobs.job.terminal import handle_signals, log
from labjobs.tracking import courier, mlflow_store
from labjobs.tracking.stored_jobs import Known, StoredJob
from toy import METRICS, Settings

TOTAL, EVERY = 24, 8
"""Steps of the job, and steps from one evaluation to the next."""

SEED = 0
"""The job's seed, which is all that tells it from another."""


class Killed(BaseException):
    """The job was killed."""


@dataclass
class Stored:
    """One run in the store."""

    points: dict[tuple[str, int, int], float] = field(default_factory=dict)
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
        """Take points and tags; one point of the same step and time."""
        for line in sent:
            for name, value in line.get("metrics", {}).items():
                self._stored.points[name, line["step"], line["time"]] = value
            self._stored.tags.update(line.get("tags", {}))

    def add(self, folder: Path, names: Iterable[str]) -> None:
        """Take files."""
        self._stored.files.update(names)

    def end(self, status: str) -> None:
        """Be over."""
        self._stored.status = status


class Training:
    """A stand-in for training.job.Job: logs known numbers from its checkpoint on, which has its
    step and how far the journal was."""

    start = stop = close = nothing
    checkpoint_at = 0
    """The step of its checkpoint."""
    ends: BaseException | None = None
    """What ends it in the middle."""

    def __init__(self, folder: JobFolder[Settings], **_how: object) -> None:
        self.folder = folder

    def train(self) -> dict[str, float]:
        """Go on to the end, or until the job is killed."""
        journal, checkpoint = self.folder.journal, self.folder.path / "last.pt"
        done, lines = json.loads(checkpoint.read_text()) if checkpoint.exists() else (0, (0, 0))
        journal.check_reaches(lines)
        for step in range(done + 1, TOTAL + 1):
            journal.metrics(step, {"train_loss": 1 / step, "lr": 0.1})
            if step % EVERY == 0:
                self.folder.path.joinpath("logged").mkdir(exist_ok=True)
                self.folder.path.joinpath("logged", f"{step}.png").touch()
                journal.files([f"logged/{step}.png"])
                times = {"elapsed_seconds": float(step)}
                journal.metrics(step, {"val_loss": 2 / step, **times}, of=TOTAL)
            if step == Training.checkpoint_at:
                checkpoint.write_text(json.dumps([step, journal.mark]))
            if Training.ends and step == TOTAL // 2:
                journal.flush()
                raise Training.ends
        return {"test_loss": 0.5}

    def finish(self, results: Mapping[str, float]) -> dict[str, float]:
        """Log the results."""
        self.folder.journal.metrics(EVERY, {**results, "best_val_loss": 2 / TOTAL})
        return dict(results)


class Courier:
    """A courier in this process; `away` while the store is."""

    store, away, displaced = Store(), False, False
    folder: Path | None = None

    def carry(self, folder: Path) -> None:
        """Begin to carry."""
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


class Try(Attempt[Settings]):
    """An attempt that asks no real store and leaves the template alone."""

    def _begin(self) -> None:
        ended = [run.tags for run in Courier.store.runs.values() if run.status == "FINISHED"]
        about: dict[str, Any] = {"job_id": self._folder.id, "state": "finished"}
        self._leave_if_over(Known(StoredJob(**about, tags=tags) for tags in ended))
        self._folder.make()
        self._take()
        self._courier = Courier()  # type: ignore[assignment]


def command(runs: Path) -> tuple[int, str]:
    """Give the job's command; return its exit status and what it printed."""
    folder = job(runs)
    with here() as said:
        try:
            status = Try(folder).run(lambda job: job.train(), lambda job: None)  # type: ignore
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
    """Return the job, in a folder of runs."""
    return JobFolder(Settings(seed=SEED), Runtime(device="cpu", runs_root=runs), METRICS)


_present = cache(attempts.present_code)


@contextmanager
def here() -> Iterator[StringIO]:
    """Have the stand-ins take the places of what they stand for; yields what is printed."""
    said = StringIO()
    with (
        patch("labjobs.attempt.Courier", Courier),
        patch("labjobs.training.loop.Job", Training),
        patch("labjobs.job.attempts.present_code", _present),
        patch("labjobs.attempt.provenance.tags", lambda: {"commit": "1234abcd"}),
        patch.object(courier, "Run", Run),
        redirect_stdout(said),
        redirect_stderr(said),
    ):
        yield said
