"""Trials of a job, each in a process of its own, so that none inherits anything from another.

The processes are forked, which costs no import of torch. What a trial prints goes into its folder.
"""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from labjobs import attempt
from labjobs.checks.facts import Fact, Recorded, measured
from labjobs.checks.short import STEPS, Moment, ShortJob
from labjobs.checks.watched import Seen, Watched
from labjobs.errors import JobError, SettingsError, cause
from labjobs.job import interruption
from labjobs.job.folder import JobFolder
from labjobs.job.interruption import Stopped
from labjobs.sources import Place, reached

S = TypeVar("S")
T = TypeVar("T")

FORK = multiprocessing.get_context("fork")

MOMENTS = (Moment(STEPS // 2, evaluating=True), Moment(STEPS - 3))
"""When a trial is interrupted: in its first evaluation, and between two steps after that."""

PLAIN = {
    "log_every": 1,
    "compile": "off",  # it takes half a minute
    "pause_after": None,
    "profile": 0,
    "quiet": True,
    "force": False,
    "continue_anyway": False,
}
"""The runtime flags of a trial that differ from the command's flags."""


class Failure(NamedTuple):
    """Why a trial ended early, and where in the student's code."""

    line: str
    trace: str
    of_settings: bool
    place: Place | None


@dataclass(frozen=True)
class Outcome:
    """The outcome of a trial. `stops` are the moments at which it was interrupted."""

    facts: dict[Fact, str] = field(default_factory=dict)
    stops: tuple[Moment, ...] = ()
    seen: Seen | None = None
    spec: dict[str, Any] = field(default_factory=dict)
    resumed_at: Place | None = None
    device: str = "cpu"
    failure: Failure | None = None


class Trials(Generic[S]):
    """The trials of a job, whose folders are in a temporary one."""

    def __init__(
        self,
        folder: JobFolder[S],
        main: attempt.Main,
        check: attempt.Check,
        temporary: Path,
    ) -> None:
        self._folder, self._main, self._check = folder, main, check
        self._temporary = temporary
        import_module("torch._dynamo")  # as an optimizer would: once, not in each process

    def whole(self) -> Outcome:
        """Run the job without interruptions."""
        return _in_process(partial(self._recorded, "whole", ()))

    def interrupted(self) -> Outcome:
        """Run the job, interrupt it at each of MOMENTS and continue it in a new process."""
        whole, left = Outcome(), list(MOMENTS)
        while True:
            part = _in_process(partial(self._recorded, "interrupted", left))
            whole = replace(part, facts=whole.facts | part.facts, stops=whole.stops + part.stops)
            if not part.stops:
                return whole
            del left[: left.index(part.stops[0]) + 1]

    def watched(self) -> Outcome:
        """Run the job and look at what it does."""
        return _in_process(self._watched)

    def _recorded(self, name: str, stops: Sequence[Moment]) -> Outcome:
        folder = self._folder_of(name)
        job = Recorded(folder, stops)
        failure = self._run(folder, job)
        facts = job.facts | measured(folder.path, folder.metrics) if not failure else job.facts
        return Outcome(
            facts,
            (job.stopped,) if job.stopped else (),
            spec=job.spec,
            resumed_at=job.resumed_at,
            device=job.device.type,
            failure=failure,
        )

    def _watched(self) -> Outcome:
        folder = self._folder_of("watched")
        job = Watched(folder)
        failure = self._run(folder, job)
        if failure:
            return Outcome(failure=failure)
        return Outcome(measured(folder.path, folder.metrics), seen=job.seen())

    def _folder_of(self, name: str) -> JobFolder[S]:
        """Make the folder of a trial, and write what the process prints into it."""
        root, mine = self._temporary / name, self._folder
        runtime = replace(mine.runtime, runs_root=root, **PLAIN)  # type: ignore[arg-type]
        folder = JobFolder(mine.settings, runtime, mine.metrics, mine.script)
        folder.make()
        folder.take()
        with (root / "output.txt").open("ab") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        return folder

    def _run(self, folder: JobFolder[S], job: ShortJob[S]) -> Failure | None:
        """Do a job as an attempt does; returns why it failed, if it did."""
        try:
            self._check(job)
            folder.open()
            job.start()
            job.finish(self._main(job))
            folder.journal.flush()
        except Stopped:
            job.stop(save=True)
        except Exception as error:
            job.stop(save=False)
            return _failure(error)
        finally:
            job.close()
        return None


def _failure(error: Exception) -> Failure:
    of_settings = isinstance(error, SettingsError)
    trace = "" if isinstance(error, SettingsError | JobError) else traceback.format_exc()
    return Failure(cause(error), trace, of_settings, reached(error))


def _in_process(function: Callable[[], T]) -> T:
    """Return what a function returns in a process that is forked for it."""
    receiving, sending = FORK.Pipe(duplex=False)
    process = FORK.Process(target=_send, args=(function, sending))
    process.start()
    sending.close()
    try:
        returned: T = receiving.recv()
    except EOFError:
        process.join()
        raise JobError(f"a trial ended without a result, with status {process.exitcode}") from None
    except BaseException:  # a signal, perhaps only to this process
        process.terminate()
        raise
    finally:
        process.join()
    return returned


def _send(function: Callable[[], Any], sending: Connection) -> None:
    interruption.handle(signal.SIG_DFL)
    sending.send(function())
