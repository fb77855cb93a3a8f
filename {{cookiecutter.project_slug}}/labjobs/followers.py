"""The attempt at a job of several processes, which torchrun has started.

Process 0 makes the attempt, as the only process of a job would: it has the lock, the folder, the
journal and the courier, and prints all messages. The others train along and end with the same
status.
"""

import os
import platform
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from labjobs import exit_status
from labjobs.attempt import Attempt, Check, Main, NoCourier
from labjobs.distributed.ranks import STOPPED, Other
from labjobs.errors import SettingsError, cause, first_line
from labjobs.job import inputs, reads
from labjobs.job.folder import JobFolder
from labjobs.job.journal import Journal
from labjobs.job.reads import Places
from labjobs.job.terminal import Stopped, leave

if TYPE_CHECKING:
    from labjobs.distributed.collectives import Processes

S = TypeVar("S")

DIFFERENT = (
    "the processes of this job have different flags; if each task of srun should be a job of its "
    "own, use an srun for each, or `bash run.sh --slurm`"
)


def begin(folder: Callable[[], JobFolder[S]], attempt: Callable[[], Attempt[S]]) -> "Together[S]":
    """Return the attempt, once process 0 has made it with `attempt`; `folder` is the job's as the
    command line says. Ends all processes if process 0 ends."""
    from labjobs.distributed.collectives import (
        Processes,  # imports torch, which one process does later
    )

    try:
        processes = Processes()
    except Exception as error:  # of many kinds; there is no process 0 yet to say it for all
        line = f"the processes of this job cannot reach each other ({first_line(error)})"
        sys.exit(leave(exit_status.FAILED, f"{Path(sys.argv[0]).name}: {line}"))
    words = [Path(sys.argv[0]).name, *sys.argv[1:]]
    if any(other != words for other in processes.everyones(words)):
        sys.exit(
            2 if processes.rank.number else leave(exit_status.WRONG, f"{words[0]}: {DIFFERENT}")
        )
    if processes.rank.number:
        return _followed(folder, processes)
    try:
        made = attempt()
    except BaseException as error:
        processes.tell((None, _status(error)))
        raise
    made.processes = processes
    processes.tell((made.place, None))
    return Together(made, processes)


def _followed(folder: Callable[[], JobFolder[S]], processes: "Processes") -> "Together[S]":
    _be_silent()
    place, status = processes.tell(None)
    if place is None:
        sys.exit(status)
    assert processes.other
    if not place[0].is_dir():
        unseen = f"there is no {place[0]} on {platform.node()}; all machines need the same folders"
        processes.other.fail(unseen)
        sys.exit(processes.other.follow())
    return Together(Following(folder(), processes, *place), processes)


def _status(error: BaseException) -> Any:
    """The exit status of a process that an error ends."""
    if isinstance(error, SystemExit):
        return error.code
    return 2 if isinstance(error, SettingsError) else 1


def _be_silent() -> None:
    """Print nothing, because process 0 does. Errors that end Python itself still reach the
    terminal."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 # as long as the process
    warnings.simplefilter("ignore")


class Together(Generic[S]):
    """The side of one process in an attempt of several processes."""

    def __init__(self, attempt: Attempt[S], processes: "Processes") -> None:
        self._attempt, self._processes = attempt, processes
        processes.label = attempt.label

    def run(self, main: Main, check: Check) -> int:
        """Check the job and do it; returns the exit status, the same in all processes."""
        status = self._attempt.run(main, check)
        if self._processes.first:
            self._processes.first.end(status)
        return status


class Following(Attempt[S]):
    """The attempt of process 0, seen from another process."""

    def __init__(
        self, folder: JobFolder[S], processes: "Processes", shared: Path, places: Places
    ) -> None:
        self.processes, self._shared, self._places = processes, shared, places
        super().__init__(folder)

    def _begin(self) -> None:
        folder = self._folder
        folder.runtime = replace(folder.runtime, quiet=True, profile=0, nvtx=False)
        self._temporary = Path(tempfile.mkdtemp(prefix="process-"))
        folder.path = self._temporary  # for the messages that process 0 writes to the log
        inputs.begin(folder.settings, folder.runs_root)
        assert self.processes
        number = self.processes.rank.number
        reads.join((self._shared / reads.of_process(number), self._places))
        self._courier = NoCourier()

    @property
    def place(self) -> tuple[Path, Places]:
        """Where process 0's attempt is, and its data."""
        return self._shared, self._places

    def run(self, main: Main, check: Check) -> int:
        """Do this process's part of the job; returns the exit status of process 0."""
        try:
            return super().run(main, check)
        finally:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _open(self) -> None:
        self._folder.journal = Journal(self._temporary, self._folder.runtime.log_every)

    def _close(self, status: str, said: str) -> None:
        """Leave it to process 0."""

    def _refused(self, error: SettingsError) -> int:
        return self._failed(error)

    def _failed(self, error: Exception) -> int:
        if self.processes and self.processes.lost(error):
            return self._other.follow()
        self._other.fail(cause(error))
        if isinstance(error, SettingsError):  # which process 0 finds too, and says
            return self._other.follow()
        return 1

    def _stopped(self, stop: Stopped) -> int:
        self._other.fail(f"{STOPPED} {stop}")
        return self._other.follow()

    def _delivered(self, line: str) -> int:
        return self._other.follow()

    @property
    def _other(self) -> Other:
        assert self.processes and self.processes.other
        return self.processes.other
