"""From the command line to a job's exit status.

`begin` does what needs no torch: help, wrong settings, finished jobs, and the start of the courier,
which imports MLflow beside torch's import. `run` does the rest.

Exit status: 0 finished (now or before), 1 failed, 2 wrong settings, 3 finished but the tracking
store has not got it all, 128 + n stopped by signal n (130 Ctrl-C, 143 TERM).
"""

import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

from engine import cli, provenance, reading, store
from engine.courier import Courier
from engine.job import Job, JobError, as_line, leave, log, shown
from engine.settings import JobSettings, SettingsError
from engine.sweep import Grid

S = TypeVar("S", bound=JobSettings)
Check = Callable[[S], None]
Main = Callable[[Job[S]], dict[str, float]]


class Interrupted(BaseException):
    """A signal asked the job to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(f"by {signal.Signals(number).name}; the same command starts it again")
        self.number = number


def begin(kind: type[S]) -> "OneJob[S] | Grid[S]":
    """Read the command line; ends the process if that is all there is to do.

    `--grid FOLDER`, which run.sh uses, reads many command lines from files instead.
    """
    _on_signals(signal.SIG_DFL)
    words = sys.argv[1:]
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
        try:
            known = self.job.id in reading.finished_ids(store.experiment_name())
        except ConnectionError:
            known = False  # the courier will say so, too
        if known:
            sys.exit(leave(0, f"{name} already finished: {last.get('said', 'see MLflow')}"))
        if last.get("status") == "finished":
            courier = Courier()
            courier.carry(self.job.folder)
            sys.exit(_delivered(name, courier, f"already finished: {last['said']}"))

    def run(self, check: Check[S], main: Main[S]) -> int:
        """Check the settings, then do the job; its exit status."""
        try:
            check(self.job.settings)
        except (SettingsError, JobError) as error:
            self._courier.finish()
            with suppress(OSError):
                self.job.folder.rmdir()  # if there is nothing in it
            return leave(_status(error), f"run.py: {error}")
        self.job.open()
        self._courier.carry(self.job.folder)
        self.job.journal.tags(provenance.tags())
        _on_signals(_stop)
        try:
            said = as_line(main(self.job))
        except Exception as error:
            return self._ended("failed", _status(error), _one_line(error))
        except Interrupted as stop:
            return self._ended("interrupted", 128 + stop.number, str(stop))
        self.job.close("finished", said)
        return _delivered(f"job {self.job.id}", self._courier, f"finished: {said}")

    def _ended(self, status: str, code: int, cause: str) -> int:
        log.error("%s: %s", status, cause, exc_info=True)
        self.job.close(status, cause)
        self._courier.finish()
        trace = f" (full trace: {shown(self.job.folder)}/log.txt)" if status == "failed" else ""
        return leave(code, f"job {self.job.id} {status}: {cause}{trace}")


def _delivered(name: str, courier: Courier, line: str) -> int:
    """The exit status of a finished job; says what the store has not got."""
    problem = courier.finish()
    if problem:
        again = "the same command sends it again"
        return leave(
            3, f"{name} {line}; the tracking store has not got it all ({problem}): {again}"
        )
    return leave(0, f"{name} {line}")


def _on_signals(handler: Any) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # under run.sh the queue has Ctrl-C
            signal.signal(number, handler)


def _stop(number: int, _frame: object) -> NoReturn:
    _on_signals(signal.SIG_DFL)  # a second one ends the process at once
    raise Interrupted(number)


def _status(error: Exception) -> int:
    return 2 if isinstance(error, SettingsError) else 1


def _one_line(error: Exception) -> str:
    """The cause of a failure: its first line, or the last if a loader process put its trace before
    it."""
    lines = str(error).strip().splitlines() or [""]
    cause = lines[-1] if lines[0].startswith("Caught ") else lines[0]
    if isinstance(error, SettingsError | JobError):
        return cause.split("JobError: ")[-1]
    return f"{type(error).__name__}: {cause}"
