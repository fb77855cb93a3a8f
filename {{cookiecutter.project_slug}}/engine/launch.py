"""From the command line to a job's exit status.

`begin` does what needs no torch: help, wrong settings, finished jobs, and the start of the courier,
which imports MLflow beside torch's import. `run` does the rest.

Exit status: 0 finished (now or before), 1 failed, 2 wrong settings, 3 finished but the tracking
store has not got it all, 128 + n stopped by signal n (130 Ctrl-C, 143 TERM).
"""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

from engine import cli, provenance, reading, store
from engine.courier import Courier
from engine.job import Job, as_line, cause, leave, log, shown
from engine.settings import JobSettings, SettingsError
from engine.sweep import Grid

UNDER_RUN_SH = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
"""Whether Ctrl-C is ignored here, as the shell does for jobs in the background."""

S = TypeVar("S", bound=JobSettings)
Check = Callable[[S], None]
Main = Callable[[Job[S]], dict[str, float]]


class Interrupted(BaseException):
    """A signal asked the job to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(f"by {signal.Signals(number).name}")
        self.number = number


def begin(kind: type[S]) -> "OneJob[S] | Grid[S]":
    """Read the command line; ends the process if that is all there is to do.

    `--grid FOLDER`, which run.sh uses, reads many command lines from files instead.
    """
    _on_signals(signal.SIG_DFL)
    words = sys.argv[1:]
    os.environ["MLFLOW_TRACKING_URI"] = store.tracking_uri()  # absolute, for all that is started
    try:
        if words[:1] == ["--grid"]:
            return Grid(kind, Path(words[1]))
        return OneJob(cli.parse(kind, words))
    except SettingsError as error:
        sys.exit(leave(2, f"run.py: {error}"))


class OneJob(Generic[S]):
    """A single job, from `python run.py FLAGS`."""

    def __init__(self, settings: S) -> None:
        self.job = Job(settings)
        if not settings.force:
            self._leave_if_finished()
        self.job.make_folder()
        self._courier = Courier()

    def _leave_if_finished(self) -> None:
        last, name = self.job.outcome(), f"job {self.job.id}"
        line = f"already finished: {last.get('said', 'see MLflow')}"
        root = last.get("data_root", str(self.job.settings.data_root))
        if root != str(self.job.settings.data_root):
            line += f" (on --data-root {root})"
        try:
            known = self.job.id in reading.finished_ids(store.experiment_name())
        except ConnectionError:
            known = False  # the courier will say so, too
        if known:
            sys.exit(leave(0, f"{name} {line}"))
        if last.get("status") == "finished":
            courier = Courier()
            courier.carry(self.job.folder)
            _on_signals(_stop)
            sys.exit(_delivered(name, courier, line))

    def run(self, check: Check[S], main: Main[S]) -> int:
        """Check the settings, then do the job; its exit status."""
        try:
            check(self.job.settings)
        except SettingsError as error:
            self._courier.finish()
            with suppress(OSError):
                self.job.folder.rmdir()  # if there is nothing in it
            return leave(2, f"run.py: {error}")
        except Exception as error:  # a fault in the project's code: the log is to have its trace
            self._open()
            return self._ended("failed", 1, cause(error))
        self._open()
        _on_signals(_stop)
        try:
            said = as_line(main(self.job))
            _on_signals(signal.SIG_IGN)
        except Exception as error:
            _on_signals(signal.SIG_DFL)
            status = 2 if isinstance(error, SettingsError) else 1
            return self._ended("failed", status, cause(error))
        except Interrupted as stop:
            why = f"{stop}; the same command starts it again"
            return self._ended("interrupted", 128 + stop.number, why)
        self.job.close("finished", said)
        _on_signals(_stop)
        return _delivered(f"job {self.job.id}", self._courier, f"finished: {said}")

    def _open(self) -> None:
        self.job.open()
        self._courier.carry(self.job.folder)
        self.job.journal.tags(provenance.tags())

    def _ended(self, status: str, code: int, why: str) -> int:
        log.error("%s: %s", status, why, exc_info=True)
        self.job.close(status, why)
        self._courier.finish()
        trace = f" (full trace: {shown(self.job.folder)}/log.txt)" if status == "failed" else ""
        return leave(code, f"job {self.job.id} {status}: {why}{trace}")


def _delivered(name: str, courier: Courier, line: str) -> int:
    """The exit status of a finished job; says what the store has not got."""
    try:
        problem = courier.finish()
    except Interrupted as stop:
        problem = f"interrupted {stop}"
    if problem:
        again = "the same command sends it again"
        return leave(
            3, f"{name} {line}; the tracking store has not got it all ({problem}): {again}"
        )
    return leave(0, f"{name} {line}")


def _on_signals(handler: Any) -> None:
    """Handle Ctrl-C and TERM so; but leave Ctrl-C to run.sh if that has it ignored."""
    if not UNDER_RUN_SH:
        signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGTERM, handler)


def _stop(number: int, _frame: object) -> NoReturn:
    _on_signals(signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's would raise for each loader that ends
    if number == signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends the process at once
    raise Interrupted(number)
