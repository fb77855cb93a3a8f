"""The queue of run.sh: each slot of the machine takes jobs in their order, one after another.

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
from pathlib import Path

from labjobs import exit_status
from labjobs.errors import cause
from labjobs.job.terminal import leave
from labjobs.sweeps import gpus, grid, states
from labjobs.sweeps.gpus import LOOK, Gpu, Gpus, Slot
from labjobs.sweeps.grid import Row, Task
from labjobs.sweeps.starter import PAUSE, Running, Starter

ELSEWHERE = 4
"""The exit status of a job that another process trains."""


class Stop:
    """Whether a sweep should stop: `status` is its exit status in that case, and 0 before.

    run.sh forwards the signals that it receives: Ctrl-C as USR1, since the terminal sends INT to
    all processes, and the others as TERM.
    """

    def __init__(self) -> None:
        self.status = 0
        self.why = ""
        self.kill = False
        signal.signal(signal.SIGUSR1, lambda *_: self.ask(130, "Ctrl-C"))
        signal.signal(signal.SIGTERM, lambda *_: self.ask(143, "a signal"))

    def ask(self, status: int, why: str) -> None:
        """Ask the sweep to stop; a later Ctrl-C asks it to kill the jobs."""
        if self.status:
            self.kill |= why == "Ctrl-C"
        else:
            self.status, self.why = status, why


@dataclass
class Worker:
    """A place on a GPU or on the CPU. `job` runs there, or will be tried again if it has `failed`
    with that status; `said` is the last message about why it waits."""

    gpu: Gpu | Gpus
    job: Running | None = None
    failed: int | None = None
    said: str = ""


class Queue:
    """The remaining jobs of a sweep. `codes` has the exit statuses of those that have ended."""

    def __init__(
        self,
        rows: Sequence[Row],
        left: Sequence[Task],
        slots: Sequence[Slot],
        starter: Starter,
        flags: Namespace,
        since: int,
    ) -> None:
        self.codes: dict[int, int] = {}
        self.stop = Stop()
        self._rows, self._left, self._starter = rows, [*left], starter
        self._retries, self._fail_fast = flags.retries, flags.fail_fast
        places = gpus.places(slots, flags.per_gpu or 1, flags.gpus_per_job)
        self._workers = [Worker(place) for place in places]
        self._elsewhere: list[Task] = []
        self._since = since
        self._next_look = 0.0
        self._sent = 0
        self._run_sh = os.getppid()

    def run(self) -> None:
        """Run all jobs. When asked to stop, start no more jobs, and ask the running ones to
        stop."""
        while self._goes_on() or self._running():
            self._stop_jobs()
            for worker in self._workers:
                self._attend(worker)
            self._look_elsewhere()
            time.sleep(PAUSE)

    def _goes_on(self) -> bool:
        """Whether more jobs should be started; not after run.sh has ended."""
        stops = self.stop.status or os.getppid() != self._run_sh
        return not stops and bool(self._left or self._elsewhere)

    def _running(self) -> list[Running]:
        return [worker.job for worker in self._workers if worker.job]

    def _attend(self, worker: Worker) -> None:
        """Look after the job of a slot, or else start the next one there."""
        if worker.job and worker.failed is not None:
            self._retry(worker, worker.job, worker.failed)
        elif worker.job:
            status = worker.job.status()
            if status is not None:
                self._end(worker, worker.job, status)
        elif self._goes_on() and (task := self._next()):
            self._begin(worker, task)

    def _next(self) -> Task | None:
        """The first job whose inputs have ended, whether or not they failed: the job itself reports
        a failed input."""
        return next((task for task in self._left if self.codes.keys() >= {*task.inputs}), None)

    def _begin(self, worker: Worker, task: Task) -> None:
        if not worker.gpu.take():
            self._say_once(worker, worker.gpu.why)
            return
        worker.said = ""
        self._left.remove(task)
        row = self._row(task)
        known = grid.ended(row.folder, since=self._since)  # another sweep may have run it
        if known is not None:
            self._leave(worker, task, known)
            return
        self._say_started(worker, task)
        gpu = worker.gpu
        try:
            worker.job = Running(task, row, gpu.device, self._starter, gpu.env, gpu.files)
        except OSError as error:
            self._cannot_start(worker, task, error)

    def _end(self, worker: Worker, job: Running, status: int) -> None:
        """Record how a job has ended, unless it will be tried again."""
        self._say(job.task, job.ending(status))
        if job.may_do_better(status, self._retries) and not self.stop.status:
            worker.failed = status
            return
        self._leave(worker, job.task, status)
        if self._fail_fast and grid.state_after(self._row(job.task), status) == "failed":
            self.stop.ask(1, "--fail-fast")

    def _leave(self, worker: Worker, task: Task, status: int) -> None:
        worker.job, worker.failed = None, None
        worker.gpu.release()
        if status == ELSEWHERE:
            self._elsewhere.append(task)
        else:
            self.codes[task.number] = status

    def _retry(self, worker: Worker, job: Running, status: int) -> None:
        """Start a job again, once no other process uses its GPU, because that process may have used
        the memory."""
        if self.stop.status:
            self._leave(worker, job.task, status)
        elif used := worker.gpu.used():
            self._say_once(worker, used)
        else:
            worker.failed, worker.said = None, ""
            self._say_started(worker, job.task)
            try:
                job.start()
            except OSError as error:
                self._cannot_start(worker, job.task, error)

    def _cannot_start(self, worker: Worker, task: Task, error: OSError) -> None:
        self._say(task, f"job {self._row(task).id} cannot be started: {cause(error)}")
        self._leave(worker, task, 1)

    def _look_elsewhere(self) -> None:
        """Put jobs back into the queue that no other process is training any more."""
        if self._elsewhere and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK
            is_trained = [states.is_trained(Path(self._row(t).folder)) for t in self._elsewhere]
            pairs = list(zip(self._elsewhere, is_trained, strict=True))
            self._elsewhere = [task for task, trained in pairs if trained]
            self._left += [task for task, trained in pairs if not trained]

    def _stop_jobs(self) -> None:
        """Ask the running jobs to stop, and later kill them, if that is requested."""
        asked = signal.SIGKILL if self.stop.kill else signal.SIGTERM if self.stop.status else 0
        if asked != self._sent:
            self._sent = asked
            text = f"stopping the jobs because of {self.stop.why}; Ctrl-C kills them"
            leave(exit_status.FAILED, f"run.sh: {'killing the jobs' if self.stop.kill else text}")
            for job in self._running():
                job.stop(asked)

    def _say_started(self, worker: Worker, task: Task) -> None:
        words = shlex.join(task.words)
        self._say(task, f"job {self._row(task).id} started on {worker.gpu.device}: {words}")

    def _say_once(self, worker: Worker, why: str) -> None:
        if worker.said != why:
            worker.said = why
            _print(f"{worker.gpu.device} {why}; waiting")

    def _say(self, task: Task, text: str) -> None:
        _print(f"[{task.number}/{len(self._rows)}] {text}")

    def _row(self, task: Task) -> Row:
        return self._rows[task.number - 1]


def _print(line: str) -> None:
    with suppress(OSError):  # nobody reads the output any more, which is no reason to stop
        print(line, flush=True)
