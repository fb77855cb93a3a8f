"""A job on a host (labjobs.sweeps.hosts), in the process that stands for it here.

If the host shares the disk, this process only waits for the job, which makes its attempt itself.
Otherwise the attempt is made here, with its lock and its courier. What the job needs is copied to
the host, and what it has written comes back once a minute, and at its end: what counts is the
folder here, which looks at any moment as if the job had been killed here.
"""

import shlex
import shutil
import time
from typing import Any

from labjobs import exit_status, layout
from labjobs.attempt import Attempt
from labjobs.errors import DISK_IS_FULL
from labjobs.job import attempts, data_evidence, terminal
from labjobs.job.folder import JobFolder
from labjobs.job.terminal import leave
from labjobs.sweeps import grid
from labjobs.sweeps.hosts import Gone, Session
from labjobs.tracking.courier import IMPATIENCE, Courier

BACK = "goes on elsewhere: {}"

OFTEN, SELDOM = 1.0, 60.0  # seconds between two copies, at least and at most
TIMES = 4  # as long as copying takes, at least
AGAIN = (0, 5, 30)  # seconds to wait before each try to copy the end

ARRIVING = "arriving"  # a folder for a checkpoint that is ahead of the journal here

IN_PLACE = (layout.JOURNAL, layout.OUTPUT)  # files that grow, and that processes here have open
STAY = (layout.COURIER_LOCK, layout.SENT, layout.WANDB_SENT, layout.BEFORE, ARRIVING)


def run(folder: JobFolder[Any], words: list[str], place: str) -> int:
    """Run a job with these words on a host; returns its exit status."""
    session = Session(place)
    try:
        if session.folder:
            return Away(folder, session).do(words)
        terminal.handle_signals(session.ask)
        return session.run(str(folder.path), words, lambda: None)
    except Gone as error:
        return leave(exit_status.GIVEN_BACK, f"{folder.label} {BACK.format(error)}")


class Away(Attempt):
    """An attempt that trains on a host with another disk."""

    def __init__(self, folder: JobFolder[Any], session: Session) -> None:
        self._session, self._carried, self._next = session, False, 0.0
        self._runs = f"{session.host}:{session.folder}/runs"
        super().__init__(folder)

    def _prepare(self) -> None:
        folder = self.folder
        if folder.runtime.force or folder.starts_over:
            data_evidence.forget(folder.path)
            attempts.put_aside(folder.path)
        self._courier = Courier(measures=False)
        # Named as the job will name it there, where it has only this attempt.
        name = folder.path.name if folder.begun else attempts.name(folder.code.digest)
        self._there = f"{folder.id}/{name}"

    def do(self, words: list[str]) -> int:
        """Have the job run there; returns its exit status. Raises Gone."""
        session = self._session
        terminal.handle_signals(session.ask)
        try:
            if problem := self._send():
                return self._give_back(f"{session.host}: {problem}")
            status = session.run(f"runs/{self._there}", words, self._fetch_sometimes)
            for seconds in AGAIN:
                session.pause(seconds)
                if not (problem := self._fetch(ended=True)):
                    return self._end(status)
        except Gone:
            self._missing(IMPATIENCE)
            raise
        line = f"what it has written on {session.host} cannot be fetched: {problem}"
        return self._ended(exit_status.FAILED, f"{line}; the same command continues it")

    def _end(self, status: int) -> int:
        """Deliver the results; return the exit status."""
        folder = self.folder
        outcome, said = folder.outcome(), grid.last_line(folder.path / layout.OUTPUT)
        if status == exit_status.DONE and outcome.get("status") == "finished":
            shutil.rmtree(folder.path / layout.BEFORE, ignore_errors=True)
            return self._delivered(f"finished: {self._results(outcome['said'])}")
        if status == exit_status.FAILED and DISK_IS_FULL in said:
            return self._give_back(f"{self._session.host}: {DISK_IS_FULL}")
        return self._ended(status)

    def _give_back(self, why: str) -> int:
        return self._ended(exit_status.GIVEN_BACK, BACK.format(why))

    def _send(self) -> str:
        """Copy what the job needs there: its inputs and theirs, without which those would look
        changed, and what it has written before; return what went wrong."""
        folder = self.folder
        inputs = attempts.inputs_of(folder.settings, folder.runs_root)
        needed = [path for each in inputs for path in attempts.with_ancestors(each)]
        needed += [folder.root / layout.DRAWN, *(folder.runs_root / name for name in layout.SHARED)]
        paths = [p.relative_to(folder.runs_root) for p in needed if p.exists()]
        below = [f"{folder.runs_root}/./{path}" for path in paths]
        how = ("--relative", "--ignore-existing", "--exclude=*.tar.gz", "--exclude=lock")
        problem = self._session.copy(*how, *below, f"{self._runs}/") if below else ""
        if problem:
            return problem
        make = f"mkdir -p {shlex.quote(f'{self._session.folder}/runs/{self._there}')} && rsync"
        exactly = ("--checksum", "--delete", "--delete-excluded", f"--rsync-path={make}")
        left_out = [f"--exclude=/{name}" for name in (*STAY, layout.PREVIOUS, layout.OUTCOME)]
        own = f"{folder.path}/", f"{self._runs}/{self._there}/"
        return self._session.copy(*exactly, *left_out, *own)

    def _fetch_sometimes(self) -> None:
        begun = time.monotonic()
        if begun >= self._next:
            self._fetch()  # what went wrong is tried again
            pause = max(OFTEN, min(SELDOM, 60 * self.folder.runtime.checkpoint_minutes))
            self._next = time.monotonic() + max(pause, TIMES * (time.monotonic() - begun))

    def _fetch(self, ended: bool = False) -> str:
        """Copy what the job has written; return what went wrong.

        Of a job that is running, a checkpoint is copied before the journal that reaches it, and
        gets its name after it. Only a journal that is complete is copied with an outcome.
        """
        folder = self.folder
        here, there = f"{folder.path}/", f"{self._runs}/{self._there}/"
        only, copy = "--exclude=*", self._session.copy
        checkpoint = (f"--include=/{layout.LAST}", only, "--checksum", "--compare-dest=..")
        growing = (*(f"--include=/{name}" for name in IN_PLACE), only, "--inplace")
        left_out = (*STAY, *IN_PLACE, layout.LOCK, *layout.CHECKPOINTS)
        others = [*(f"--exclude=/{name}" for name in left_out), f"--filter=H /{layout.OUTCOME}"]
        shared = (*(f"--include=/{name}/***" for name in layout.SHARED), only, "--ignore-existing")
        arriving = folder.path / ARRIVING
        arriving.mkdir(exist_ok=True)
        problem = (
            copy(*checkpoint, there, f"{arriving}/")
            or copy(*growing, there, here)
            or copy(*others, "--checksum", "--delete", there, here)
        )
        if not problem and (ended or not self._carried):
            problem = copy(*shared, f"{self._runs}/", f"{folder.runs_root}/")
        if not problem and (arriving / layout.LAST).exists():
            (arriving / layout.LAST).replace(folder.path / layout.LAST)
        if not problem and ended:
            problem = copy(f"--include=/{layout.OUTCOME}", only, there, here)
        shutil.rmtree(arriving)
        if not problem and self._courier and (folder.path / layout.JOURNAL).exists():
            if not self._carried:
                self._courier.carry(folder.path)
            self._carried = True
        return problem
