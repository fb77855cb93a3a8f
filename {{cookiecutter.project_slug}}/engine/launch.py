"""From the command line to a job's exit status.

`begin` does what needs no torch: help, wrong settings, finished jobs, and the start of the courier,
which imports MLflow beside torch's import. `run` does the rest.

Exit status: 0 finished (now or before), 1 failed, 2 wrong settings, 3 finished but the tracking
store has not got it all, 4 running already in another process, 128 + n stopped by signal n (130
Ctrl-C, 143 TERM, 138 USR1).
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from engine.cli import parser as cli
from engine.cli.settings import JobSettings, neutral
from engine.errors import Diverged, JobError, SettingsError, cause
from engine.job import interruption, provenance
from engine.job.folder import Job
from engine.job.interruption import Interrupted
from engine.job.terminal import as_line, leave, log
from engine.paths import shown
from engine.sweeps.sweep import Grid
from engine.tracking import reading, store
from engine.tracking.courier import IMPATIENCE, PATIENCE, Courier
from engine.tracking.sync import sync

S = TypeVar("S", bound=JobSettings)
Check = Callable[[S], None]
Main = Callable[[Job[S]], dict[str, float]]


def begin(kind: type[S]) -> "OneJob[S] | Grid[S]":
    """Read the command line; ends the process if that is all there is to do.

    `--grid FOLDER`, which run.sh uses, reads many command lines from files instead.
    """
    interruption.handle(signal.SIG_DFL)
    words = sys.argv[1:]
    of_sweep = words[:1] == ["--grid"]
    os.environ["MLFLOW_TRACKING_URI"] = store.tracking_uri()  # absolute, for all that is started
    try:
        if of_sweep:
            return Grid(kind, Path(words[1]), words[2:])
        settings = cli.parse(kind, words)
        if settings.sync:
            if settings != kind(sync=True, runs_root=settings.runs_root):
                raise SettingsError("--sync: goes with --runs-root alone")
            sys.exit(sync(settings.runs_root))
        return OneJob(settings)
    except SettingsError as error:
        sys.exit(leave(2, f"{'run.sh' if of_sweep else 'run.py'}: {error}"))


class OneJob(Generic[S]):
    """A single job, from `python run.py FLAGS`."""

    def __init__(self, settings: S) -> None:
        self.job = Job(settings)
        self._name = f"job {self.job.id}"
        self._store_is_away = ""
        known = self._ask_store()
        if not settings.force:
            self._leave_if_finished(self.job.id in known.finished)
        self.job.make_folder()
        self._take()
        for lease in known.leases.get(self.job.id, []):
            if lease.owner != self.job.owner:
                line = f"{self._name} is running already (on {lease.host}, says the tracking store)"
                sys.exit(leave(4, f"{line}; if it is not, try again in {store.LEASE:.0f} s"))
        self._courier = Courier()

    def _take(self) -> None:
        try:
            self.job.take()
        except JobError as error:
            sys.exit(leave(4, f"{self._name} {error}"))
        except OSError as error:
            sys.exit(leave(1, f"{self._name} {cause(error)}"))

    def _ask_store(self) -> reading.Known:
        try:
            return reading.known(store.experiment_name())
        except ConnectionError as error:
            self._store_is_away = str(error)
            return reading.Known({}, {})

    def _leave_if_finished(self, known: bool) -> None:
        last = self.job.outcome()
        line = f"already finished: {last.get('said', 'see MLflow')}"
        root = last.get("data_root", str(self.job.settings.data_root))
        if root != str(self.job.settings.data_root):
            line += f" (on --data-root {root})"
        if known:
            sys.exit(leave(0, f"{self._name} {line}"))
        if last.get("status") == "finished":
            self._take()
            self._courier = Courier()
            self._courier.carry(self.job.folder)
            sys.exit(self._delivered(line))

    def run(self, check: Check[S], main: Main[S]) -> int:
        """Check the settings, then do the job; its exit status."""
        fault: Exception | None = None
        try:
            check(self.job.settings)
        except SettingsError as error:
            self._courier.finish(IMPATIENCE)
            self.job.discard()
            return leave(2, f"run.py: {error}")
        except Exception as error:  # a fault in the project's code: the log is to have its trace
            fault = error
        try:
            self.job.interruption.listen()
            self._open()
            if fault:
                raise fault
            said = self._result(main)
        except Exception as error:
            interruption.handle(signal.SIG_DFL)
            status = 2 if isinstance(error, SettingsError) else 1
            if isinstance(error, Diverged):
                self.job.journal.tags({"diverged": "true"})
            return self._ended("failed", status, cause(error))
        except Interrupted as stop:
            return self._ended("interrupted", 128 + stop.number, str(stop))
        return self._delivered(f"finished: {said}")

    def _open(self) -> None:
        self.job.open()
        self._courier.carry(self.job.folder)
        older = json.dumps(neutral(self.job.settings))
        self.job.journal.tags(provenance.tags() | {"neutral": older, "diverged": "false"})
        self.job.keep_changes(provenance.version()["changes"])
        self.job.journal.flush()
        if self._store_is_away:
            log.warning("%s; results wait in the job's folder", self._store_is_away)

    def _result(self, main: Main[S]) -> str:
        said = as_line(main(self.job))
        interruption.handle(signal.SIG_IGN)
        self.job.close("finished", said)
        return said

    def _ended(self, status: str, code: int, why: str) -> int:
        log.error("%s: %s", status, why, exc_info=status == "failed")
        with suppress(OSError, AttributeError):  # a full disk; a job that could not be opened
            self.job.close(status, why)
        problem = self._courier.finish(IMPATIENCE)
        if self._courier.displaced:  # which has interrupted it
            return leave(4, f"{self._name} {problem}")
        if status == "interrupted":
            why += "; the same command goes on from there"
        trace = f" (full trace: {shown(self.job.folder)}/log.txt)" if status == "failed" else ""
        return leave(code, f"{self._name} {status}: {why}{trace}")

    def _delivered(self, line: str) -> int:
        """The exit status of a finished job; says what the store has not got."""
        self.job.interruption.listen()
        try:
            problem = self._courier.finish(IMPATIENCE if self._store_is_away else PATIENCE)
        except Interrupted as stop:
            problem = f"interrupted {stop}"
        if problem:
            missing = f"the tracking store has not got it all ({problem})"
            return leave(
                3, f"{self._name} {line}; {missing}: python run.py --sync sends what is left"
            )
        return leave(0, f"{self._name} {line}")
