"""The queue of run.sh: each place of the machine takes jobs in their order, one after another.

run.py guarantees that no job runs twice: a job that another sweep is running ends with status 4;
the queue then waits for it and uses its outcome.
"""

import os
import shlex
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from labjobs import exit_status
from labjobs.errors import cause
from labjobs.job.terminal import leave
from labjobs.sweeps import grid, states
from labjobs.sweeps.gpus import LOOK, Gpu
from labjobs.sweeps.grid import Entry
from labjobs.sweeps.options import Flags
from labjobs.sweeps.starter import PAUSE, Running, Starter


@dataclass
class Worker:
    """A place, and the job that runs there; `said` is the last message about why it waits."""

    gpu: Gpu
    running: tuple[Entry, Running] | None = None
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
        flags: Flags,
        since: int,
    ) -> None:
        self.status = 0
        self._why = ""
        self._kill = False
        signal.signal(signal.SIGUSR1, lambda *_: self._ask(130, "Ctrl-C"))
        signal.signal(signal.SIGTERM, lambda *_: self._ask(143, "a signal"))
        self._left, self._count, self._starter = [*left], count, starter
        self._flags, self._since = flags, since
        self._workers = [Worker(place) for place in places]
        own = {entry.job.id: entry for entry in left}
        self._brackets = {entry.bracket for entry in left if entry.bracket}
        self._inputs = {e.number: [own[job] for job in e.inputs if job in own] for e in left}
        self._elsewhere: list[Entry] = []
        self._broken: set[str] = set()
        self._next_look = 0.0
        self._sent = 0
        self._run_sh = os.getppid()

    def run(self) -> None:
        """Run all jobs. When asked to stop, start no more, and ask the running ones to stop."""
        while self._goes_on() or any(worker.running for worker in self._workers):
            self._stop_jobs()
            for worker in self._workers:
                if worker.running:
                    self._look_after(worker, *worker.running)
                elif self._goes_on() and self._works(worker) and (entry := self._next()):
                    self._begin(worker, entry)
            self._look_elsewhere()
            time.sleep(PAUSE)

    def _goes_on(self) -> bool:
        """Whether more jobs should be started; not after run.sh has ended."""
        stops = self.status or os.getppid() != self._run_sh
        return not stops and bool(self._elsewhere or self._next())

    def _works(self, worker: Worker) -> bool:
        return worker.gpu.device not in self._broken

    def _ask(self, status: int, why: str) -> None:
        """Ask the sweep to stop; a later Ctrl-C asks it to kill the jobs."""
        if self.status:
            self._kill |= why == "Ctrl-C"
        else:
            self.status, self._why = status, why

    def _next(self) -> Entry | None:
        """The first job whose inputs have ended, whether or not they failed: the job itself reports
        a failed input. If there is none, the best that may pass its rung of a halving."""
        leading: list[tuple[int, Entry]] = []
        for entry in self._left:
            if entry.bracket and not entry.bracket.is_due(entry.job):
                rank = entry.bracket.lead(entry.job)
                leading += [] if rank is None else [(rank, entry)]
            elif all(each.status is not None for each in self._inputs[entry.number]):
                return entry
        return min(leading, key=lambda each: each[0])[1] if leading else None

    def _begin(self, worker: Worker, entry: Entry) -> None:
        """Start a job, for the first time or again, if its place is free."""
        gpu = worker.gpu
        if not gpu.take():
            if worker.said != gpu.why:
                worker.said = gpu.why
                _print(f"{gpu.device} {gpu.why}; waiting")
            return
        worker.said = ""
        self._left.remove(entry)
        again = entry.retries or entry.moved or entry.bracket
        known = None if again else grid.ended(entry.job.path, since=self._since)
        if known is not None:  # another sweep has run it
            self._leave(worker, entry, known)
            return
        entry.rung = entry.bracket.pause_after(entry.job) if entry.bracket else None
        words = shlex.join(entry.words)
        self._say(entry, f"job {entry.job.id} started on {gpu.device}: {words}")
        try:
            attempt, starter = entry.job.path, self._starter
            job = Running(attempt, entry.words, gpu.device, starter, gpu.env, gpu.files)
            worker.running = entry, job
        except OSError as error:
            self._say(entry, f"job {entry.job.id} cannot be started: {cause(error)}")
            self._leave(worker, entry, exit_status.FAILED)

    def _look_after(self, worker: Worker, entry: Entry, job: Running) -> None:
        """Record how a job has ended, if it has; one that is tried again comes first."""
        status = job.status()
        if status is None:
            return
        self._say(entry, job.ending(status))
        why = job.failed_by(status)
        again = why == "memory" and not self.status and entry.retries < self._flags.retries
        entry.retries += again
        if why == "gpu" and not entry.moved:  # twice: it is the job's own mistake
            again = entry.moved = True
            self._leave_gpu(worker)
        self._leave(worker, entry, None if again else status)
        if self._flags.fail_fast and entry.status is not None and entry.state_after == "failed":
            self._ask(1, "--fail-fast")

    def _leave_gpu(self, worker: Worker) -> None:
        """Start no more jobs on a broken GPU, which would fail one after another."""
        self._broken.add(worker.gpu.device)
        _print(f"{worker.gpu.device} is broken: no more jobs are started on it")
        if not any(map(self._works, self._workers)):
            self._ask(1, "broken GPUs")

    def _leave(self, worker: Worker, entry: Entry, status: int | None) -> None:
        worker.running = None
        worker.gpu.release()
        if status is None:
            self._left.insert(0, entry)
        elif status == exit_status.ELSEWHERE:
            self._elsewhere.append(entry)
        else:
            entry.status = status
            self._look_at_rungs(entry)

    def _look_at_rungs(self, entry: Entry) -> None:
        """See who trains on now that a job has ended; if this one may, it comes first in the queue,
        unless it has measured nothing at its rung."""
        for bracket in self._brackets:
            bracket.look()
        came = entry.bracket and entry.rung != entry.bracket.pause_after(entry.job)
        if came and not entry.status and entry.state_after in ("paused", "interrupted"):
            entry.state = "interrupted"
            self._left.insert(0, entry)

    def _look_elsewhere(self) -> None:
        """Put jobs back into the queue that no other process is training any more."""
        if self._elsewhere and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK
            view = states.View()
            for bracket in self._brackets:
                bracket.look()
            for entry in [*self._elsewhere]:
                if view.state(entry.job).word != "running":
                    self._elsewhere.remove(entry)
                    self._left.append(entry)

    def _stop_jobs(self) -> None:
        """Ask the running jobs to stop, and later kill them, if that is requested."""
        asked = signal.SIGKILL if self._kill else signal.SIGTERM if self.status else 0
        if asked == self._sent:
            return
        self._sent = asked
        text = f"stopping the jobs because of {self._why}; a second Ctrl-C kills them"
        leave(exit_status.FAILED, f"run.sh: {'killing the jobs' if self._kill else text}")
        for worker in self._workers:
            if worker.running:
                worker.running[1].send_signal(asked)

    def _say(self, entry: Entry, text: str) -> None:
        _print(f"[{entry.number}/{self._count}] {text}")


def _print(line: str) -> None:
    with suppress(OSError):  # nobody reads the output any more, which is no reason to stop
        print(line, flush=True)
