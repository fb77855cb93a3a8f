"""The queue of run.sh: each place of the machine takes jobs in their order, one after another.

run.py guarantees that no job runs twice: a job that another sweep is running ends with status 4;
the queue then waits for it and uses its outcome.
"""

import os
import shlex
import signal
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from labjobs import exit_status
from labjobs.errors import cause
from labjobs.job.terminal import leave
from labjobs.sweeps import grid, states
from labjobs.sweeps.gpus import LOOK, Gpu
from labjobs.sweeps.grid import Entry
from labjobs.sweeps.starter import PAUSE, Running, Starter


@dataclass
class Worker:
    """A place for one job, and the job there. It runs there, or will be tried again if it has
    `failed` with that status; `said` is the last message about why the place waits."""

    gpu: Gpu
    entry: Entry | None = None
    job: Running | None = None
    failed: int | None = None
    said: str = ""


class Queue:
    """Runs the jobs that are `left` of a grid of `count`, and notes the status of each. What other
    sweeps have done counts if it was done `since` then, in ns.

    `status` is the exit status of a sweep that was asked to stop, and 0 before. run.sh forwards the
    signals that it receives: Ctrl-C as USR1, since the terminal sends INT to all processes, and the
    others as TERM.
    """

    def __init__(
        self,
        left: Sequence[Entry],
        count: int,
        places: Sequence[Gpu],
        starter: Starter,
        flags: Namespace,
        since: int,
    ) -> None:
        self.status = 0
        self._why = ""
        self._kill = False
        signal.signal(signal.SIGUSR1, lambda *_: self._ask(130, "Ctrl-C"))
        signal.signal(signal.SIGTERM, lambda *_: self._ask(143, "a signal"))
        self._left, self._count, self._starter = [*left], count, starter
        self._retries, self._fail_fast, self._since = flags.retries, flags.fail_fast, since
        self._workers = [Worker(place) for place in places]
        own = {entry.job.id: entry for entry in left}
        self._inputs = {e.number: [own[job] for job in e.inputs if job in own] for e in left}
        self._elsewhere: list[Entry] = []
        self._next_look = 0.0
        self._sent = 0
        self._run_sh = os.getppid()

    def run(self) -> None:
        """Run all jobs. When asked to stop, start no more jobs, and ask the running ones to
        stop."""
        while self._goes_on() or any(worker.entry for worker in self._workers):
            self._stop_jobs()
            for worker in self._workers:
                self._attend(worker)
            self._look_elsewhere()
            time.sleep(PAUSE)

    def _goes_on(self) -> bool:
        """Whether more jobs should be started; not after run.sh has ended."""
        stops = self.status or os.getppid() != self._run_sh
        return not stops and bool(self._left or self._elsewhere)

    def _ask(self, status: int, why: str) -> None:
        """Ask the sweep to stop; a later Ctrl-C asks it to kill the jobs."""
        if self.status:
            self._kill |= why == "Ctrl-C"
        else:
            self.status, self._why = status, why

    def _attend(self, worker: Worker) -> None:
        """Look after the job of a place, or else start the next one there."""
        if worker.entry and worker.job:
            if worker.failed is not None:
                self._retry(worker, worker.entry, worker.failed)
            elif (status := worker.job.status()) is not None:
                self._end(worker, worker.entry, worker.job, status)
        elif self._goes_on() and (entry := self._next()):
            self._begin(worker, entry)

    def _next(self) -> Entry | None:
        """The first job whose inputs have ended, whether or not they failed: the job itself reports
        a failed input."""
        for entry in self._left:
            if all(each.status is not None for each in self._inputs[entry.number]):
                return entry
        return None

    def _begin(self, worker: Worker, entry: Entry) -> None:
        if not worker.gpu.take():
            self._say_once(worker, worker.gpu.why)
            return
        worker.said, worker.entry = "", entry
        self._left.remove(entry)
        known = grid.ended(entry.job.path, since=self._since)  # another sweep may have run it
        if known is None:
            self._start(worker, entry)
        else:
            self._leave(worker, entry, known)

    def _start(self, worker: Worker, entry: Entry) -> None:
        """Start a job, for the first time or again."""
        gpu = worker.gpu
        words = shlex.join(entry.words)
        self._say(entry, f"job {entry.job.id} started on {gpu.device}: {words}")
        try:
            if worker.job:
                worker.job.start()
            else:
                worker.job = Running(entry.command, gpu.device, self._starter, gpu.env, gpu.files)
        except OSError as error:
            self._say(entry, f"job {entry.job.id} cannot be started: {cause(error)}")
            self._leave(worker, entry, exit_status.FAILED)

    def _end(self, worker: Worker, entry: Entry, job: Running, status: int) -> None:
        """Record how a job has ended, unless it will be tried again."""
        self._say(entry, job.ending(status))
        if job.may_do_better(status, self._retries) and not self.status:
            worker.failed = status
            return
        self._leave(worker, entry, status)
        if self._fail_fast and entry.status is not None and entry.state_after == "failed":
            self._ask(1, "--fail-fast")

    def _leave(self, worker: Worker, entry: Entry, status: int) -> None:
        worker.entry, worker.job, worker.failed = None, None, None
        worker.gpu.release()
        if status == exit_status.ELSEWHERE:
            self._elsewhere.append(entry)
        else:
            entry.status = status

    def _retry(self, worker: Worker, entry: Entry, status: int) -> None:
        """Start a job again, once no other process uses its GPU, because that process may have used
        the memory."""
        if self.status:
            self._leave(worker, entry, status)
        elif used := worker.gpu.used():
            self._say_once(worker, used)
        else:
            worker.failed, worker.said = None, ""
            self._start(worker, entry)

    def _look_elsewhere(self) -> None:
        """Put jobs back into the queue that no other process is training any more."""
        if self._elsewhere and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK
            for entry in [*self._elsewhere]:
                if not states.is_trained(entry.job.path):
                    self._elsewhere.remove(entry)
                    self._left.append(entry)

    def _stop_jobs(self) -> None:
        """Ask the running jobs to stop, and later kill them, if that is requested."""
        asked = signal.SIGKILL if self._kill else signal.SIGTERM if self.status else 0
        if asked == self._sent:
            return
        self._sent = asked
        text = f"stopping the jobs because of {self._why}; Ctrl-C kills them"
        leave(exit_status.FAILED, f"run.sh: {'killing the jobs' if self._kill else text}")
        for worker in self._workers:
            if worker.job:
                worker.job.stop(asked)

    def _say_once(self, worker: Worker, why: str) -> None:
        if worker.said != why:
            worker.said = why
            _print(f"{worker.gpu.device} {why}; waiting")

    def _say(self, entry: Entry, text: str) -> None:
        _print(f"[{entry.number}/{self._count}] {text}")


def _print(line: str) -> None:
    with suppress(OSError):  # nobody reads the output any more, which is no reason to stop
        print(line, flush=True)
