"""The queue of a sweep: each place, here or on a host, takes the next job as soon as it is free.

A cluster that shares the jobs is given all that are ready and that no place here takes; a place
that is free then takes the last one back that still waits there. So each job goes to the place or
node that is free first. The cluster need not know what waits for what: inputs have ended before.

run.py guarantees that no job runs twice: a job that another process is running ends with status 4;
the queue then waits for it and uses its outcome.
"""

import os
import shlex
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from labjobs import exit_status, files, layout
from labjobs.errors import DISK_IS_FULL, SettingsError, cause
from labjobs.job.terminal import leave, notify
from labjobs.sweeps import arrays, grid, states
from labjobs.sweeps.clusters import Cluster
from labjobs.sweeps.forecast import Budget
from labjobs.sweeps.gpus import LOOK, Gpu
from labjobs.sweeps.grid import Entry
from labjobs.sweeps.hosts import Slot
from labjobs.sweeps.options import Flags, from_environment
from labjobs.sweeps.starter import PAUSE, Running, Starter

MOST_HOSTS = 10  # hosts that may give a job back

SOON, SELDOM = 3.0, 10.0
"""Seconds between two looks at a cluster, while a place here waits for its jobs and else."""

REFUSED = 60.0  # seconds after which a cluster is asked again that has refused jobs

QUIET, TIMES = 600.0, 10
"""Seconds that a job may log nothing, and how many times as long as ever before, before a message
says so."""


@dataclass
class Worker:
    """A place, whether it is held, what starts jobs there, and the job that runs there; `said` is
    the last message about why it waits. `size` is that of the job's journal, which last grew when
    it was `heard`, after `longest` at most."""

    gpu: Gpu
    starter: Starter
    running: tuple[Entry, Running] | None = None
    holds: bool = False
    said: str = ""
    size: int = 0
    heard: float = 0.0
    longest: float = 0.0

    def take(self) -> bool:
        """Take the place, or say why that is not possible; return whether it is held."""
        if not self.holds:
            self.holds = self.gpu.take()
            if self.gpu.why not in ("", self.said) and not self.holds:
                _print(f"{self.gpu.device} {self.gpu.why}; waiting")
            self.said = "" if self.holds else self.gpu.why
        return self.holds

    def release(self) -> None:
        """Release the place, also if it was only asked for, as one of a host."""
        self.gpu.release()
        self.running, self.holds = None, False

    def is_stuck(self, entry: Entry, quiet: float) -> bool:
        """Return whether its job has logged nothing for too long, and at least `quiet` seconds;
        again only after TIMES as long."""
        now, size = time.monotonic(), self.size
        with suppress(OSError):
            size = (entry.job.path / layout.JOURNAL).stat().st_size
        if size != self.size:
            self.longest = max(self.longest, now - self.heard if self.size else 0)
            self.size, self.heard = size, now
        if not self.size or now - self.heard < max(quiet, TIMES * self.longest):
            return False
        self.longest = now - self.heard
        return True


class Share:
    """What a cluster has of a queue's jobs, which were checked `since` then, in ns. `waiting` are
    those that wait there, each with what the cluster says of it; `returned` are those that it has
    brought no further, which it does not get again."""

    def __init__(self, folder: Path, cluster: Cluster, since: int) -> None:
        self._folder, self._since = folder, since
        self._cluster, self._most = replace(cluster, at_most=None), cluster.at_most
        self.waiting: dict[Entry, str] = {}
        self._given: dict[Entry, int] = {}  # when each had written its last checkpoint
        self.returned: set[Entry] = set()
        self._next_try = 0.0
        self._said: set[str] = set()

    def give(self, ready: Iterable[Entry]) -> list[Entry]:
        """Submit jobs, as many as the cluster may have, and return them. Raises SettingsError if it
        refuses them; then it is left alone for a while."""
        entries = [entry for entry in ready if entry not in self.returned]
        if self._most is not None:
            entries = entries[: max(0, self._most - len(self._given))]
        if not entries or time.monotonic() < self._next_try:
            return []
        for entry in entries:
            entry.set_rung()
        self._next_try = time.monotonic() + REFUSED
        self.say(arrays.submit(self._folder, entries, {}, self._since, self._cluster))
        self._next_try = 0.0
        self._given |= {entry: _last_checkpoint(entry) for entry in entries}
        return entries

    def take_back(self, count: int) -> list[Entry]:
        """Take the last ones that wait out of its queue, and return them."""
        taken = [*self.waiting][max(0, len(self.waiting) - count) :]
        tasks = [self.waiting.pop(entry).split()[1] for entry in taken]
        with suppress(SettingsError):  # one has ended; the next look at the queue tells
            if tasks:
                self._cluster.batch.cancel(tasks)
        for entry in taken:
            self._given.pop(entry, None)
        return taken

    def waiting_of(self, entries: Iterable[Entry], view: states.View) -> dict[Entry, str]:
        """Return those jobs that wait for this cluster, with what it says of each."""
        said = {entry: view.queued.get(entry.job.id, "") for entry in entries}
        begin = f"{self._cluster.batch.title} "
        return {e: text for e, text in said.items() if text.startswith(begin) and "PENDING" in text}

    def tell_of_starts(self, view: states.View) -> None:
        """Say which of its jobs have been started since the last look."""
        for entry in self._given:
            task, _, state = view.queued.get(entry.job.id, "").rpartition(" ")
            if state == "RUNNING":
                self.say(f"job {entry.job.id} started on {task}: {shlex.join(entry.words)}")

    def brought_no_further(self, entry: Entry) -> bool:
        """Note that a job is not there any more; return whether its task, which was not taken back,
        has ended before it had written a checkpoint."""
        return self._given.pop(entry, None) == _last_checkpoint(entry)

    def say(self, lines: str) -> None:
        """Print those lines that were not printed before."""
        for line in lines.splitlines():
            if line not in self._said:
                self._said.add(line)
                _print(line)

    def end(self) -> None:
        """End all tasks of this sweep."""
        self.say(arrays.cancel(self._folder))


def _last_checkpoint(entry: Entry) -> int:
    """When a job has last written a checkpoint, in ns; 0 if it has none."""
    return files.changed(entry.job.path / layout.LAST)


class Queue:
    """Runs the jobs that are `left` of a grid of `count`, and notes the status of each. What other
    sweeps have done counts if it was done `since` then, in ns. `run_sh` is the pid of run.sh. A
    cluster may have a `share`.
    `status` is the exit status of a sweep that was asked to stop, and 0 before. run.sh forwards
    Ctrl-C as USR1, and other signals as TERM. Raises SettingsError for a wrong NOTIFY_SECONDS."""

    def __init__(
        self,
        left: Sequence[Entry],
        count: int,
        places: Sequence[tuple[Gpu, Starter]],
        flags: Flags,
        since: int,
        budget: Budget,
        run_sh: int,
        share: Share | None = None,
    ) -> None:
        self._quiet = from_environment("NOTIFY_SECONDS", QUIET)
        self.status = 0
        self._why = ""
        self._kill = False
        signal.signal(signal.SIGUSR1, lambda *_: self._ask(130, "Ctrl-C"))
        signal.signal(signal.SIGTERM, lambda *_: self._ask(143, "a signal"))
        self._left, self._elsewhere = [*left], list[Entry]()
        self._count, self._flags = count, flags
        self._since, self._budget, self._share = since, budget, share
        self._workers = [Worker(*place) for place in places]
        own = {entry.job.id: entry for entry in left}
        self._brackets = {entry.bracket for entry in left if entry.bracket}
        self._inputs = {e.number: [own[job] for job in e.inputs if job in own] for e in left}
        self._broken: set[str] = set()
        self._failed = False
        self._last_look = -SELDOM
        self._sent = 0
        self._run_sh = run_sh

    def run(self) -> None:
        """Run all jobs. When asked to stop, start no more, and ask the running ones to stop. Raises
        SettingsError, before anything is started, if the cluster refuses jobs."""
        self._hand_over([entry for entry in self._left if entry.state == "queued"])
        if self._share:
            self._hand_over(self._share.give([*self._ready()][len(self._workers) :]))
        while self._goes_on() or any(worker.running for worker in self._workers):
            if self._budget.is_spent:
                self._ask(1, "--budget")
            self._stop_jobs()
            for worker in self._workers:
                if worker.running:
                    self._look_after(worker, *worker.running)
                elif not (self._goes_on() and self._works(worker) and self._has_work()):
                    worker.release()
                elif worker.take() and (entry := self._next()):
                    self._begin(worker, entry)
            shared = SOON if self._free else SELDOM
            if time.monotonic() >= self._last_look + (shared if self._share else LOOK):
                self._last_look = time.monotonic()
                self._look_elsewhere()
            time.sleep(PAUSE)
        for entry in self._elsewhere if self.status and self._share else ():
            if entry.has_begun(self._since):  # in a task that was cancelled
                entry.status = self.status

    def _goes_on(self) -> bool:
        """Whether more jobs should be started; not after run.sh has ended."""
        stops = self.status or os.getppid() != self._run_sh
        return not stops and bool(self._elsewhere or self._next())

    def _has_work(self) -> bool:
        """Whether a place that is free can have a job now, or one that waits for the cluster."""
        return bool(self._next() or (self._share and self._share.waiting))

    @property
    def _free(self) -> int:
        """How many places are held and have no job."""
        return sum(worker.holds and not worker.running for worker in self._workers)

    def _works(self, worker: Worker) -> bool:
        return worker.gpu.device not in self._broken

    def _ask(self, status: int, why: str) -> None:
        """Ask the sweep to stop; a later Ctrl-C asks it to kill the jobs."""
        if self.status:
            self._kill |= why == "Ctrl-C"
        else:
            self.status, self._why = status, why

    def _ready(self) -> Iterator[Entry]:
        """Yield the jobs that may train on and whose inputs have ended, whether or not they failed:
        the job itself reports a failed input. The budget has to last for them."""
        for entry in filter(self._budget.lasts, self._left):
            due = not entry.bracket or entry.bracket.is_due(entry.job)
            if due and all(each.status is not None for each in self._inputs[entry.number]):
                yield entry

    def _next(self) -> Entry | None:
        """The first job that is ready, or else the best that may pass its rung of a halving."""
        if entry := next(self._ready(), None):
            return entry
        lasting = filter(self._budget.lasts, self._left)
        ranks = {entry: entry.bracket.lead(entry.job) for entry in lasting if entry.bracket}
        leading = {entry: rank for entry, rank in ranks.items() if rank is not None}
        return min(leading, key=leading.__getitem__, default=None)

    def _begin(self, worker: Worker, entry: Entry) -> None:
        """Start a job in a place that is held, for the first time or again."""
        self._left.remove(entry)
        again = entry.retries or entry.moved or entry.returned or entry.bracket
        known = None if again else grid.ended(entry.job.path, since=self._since)
        if known is not None:  # another sweep has run it
            self._leave(worker, entry, known)
            return
        entry.set_rung()
        words = shlex.join(entry.words)
        self._say(entry, f"job {entry.job.id} started on {worker.gpu.device}: {words}")
        try:
            job = Running(entry.job.path, entry.words, worker.starter, worker.gpu)
            worker.running, worker.size, worker.longest = (entry, job), 0, 0.0
            self._budget.begin(entry)
        except OSError as error:
            self._say(entry, f"job {entry.job.id} cannot be started: {cause(error)}")
            self._leave(worker, entry, exit_status.FAILED)

    def _look_after(self, worker: Worker, entry: Entry, job: Running) -> None:
        """Record how a job has ended, if it has; one that is tried again comes first."""
        status = job.status()
        if status is None:
            if worker.is_stuck(entry, self._quiet):
                notify(f"job {entry.job.id} has stopped logging: {entry.job.name}")
            return
        ending, name = job.ending(status), f"job {entry.job.id}"
        at_rung = entry.rung and ending.startswith(f"{name} paused: ")
        self._say(entry, f"{name} paused at {entry.rung}, to be compared" if at_rung else ending)
        why = job.failed_by(status)
        again = why == "memory" and not self.status and entry.retries < self._flags.retries
        entry.retries += again
        if status == exit_status.GIVEN_BACK and isinstance(worker.gpu, Slot):
            again = not self.status and entry.returned < MOST_HOSTS
            self._leave_host(worker.gpu, entry, ending)
        if why == "gpu" and not entry.moved:  # twice: it is the job's own mistake
            again = entry.moved = True
            self._broken.add(worker.gpu.device)  # other jobs would fail there, one after another
            _print(f"{worker.gpu.device} is broken: no more jobs are started on it")
            self._end_without_places("broken GPUs")
        self._leave(worker, entry, None if again else status)
        if entry.status is not None:
            self._look_at_failure(entry, ending)

    def _look_at_failure(self, entry: Entry, ending: str) -> None:
        """Send a message about the first job that has failed, and stop if that is wanted."""
        if entry.state_after == "failed":
            if not self._failed:
                notify(f"a job has failed, the first one: {ending}")
            self._failed = True
            if self._flags.fail_fast:
                self._ask(1, "--fail-fast")

    def _leave_host(self, slot: Slot, entry: Entry, ending: str) -> None:
        """Start no jobs on a host for a while, or no more if its disk is full."""
        entry.returned += 1
        slot.leave_alone()
        if DISK_IS_FULL in ending:
            of_host = (w.gpu for w in self._workers if isinstance(w.gpu, Slot))
            self._broken |= {each.device for each in of_host if each.host is slot.host}
            _print(f"{slot.host.name}: {DISK_IS_FULL}: no more jobs are started there")
        self._end_without_places("full disks")

    def _end_without_places(self, why: str) -> None:
        """Stop if no place works any more, unless a cluster takes all jobs that are left."""
        cluster_takes_all = self._share and not self._share.returned
        if not (any(map(self._works, self._workers)) or cluster_takes_all):
            self._ask(1, why)

    def _leave(self, worker: Worker, entry: Entry, status: int | None) -> None:
        worker.release()
        self._budget.end(entry)
        if status is None:
            entry.go_on(self._since)
            self._left.insert(0, entry)
        elif status == exit_status.ELSEWHERE:
            self._elsewhere.append(entry)
        elif status == exit_status.OTHER_CODE and self._flags.redo_stale and entry.state != "stale":
            entry.state, entry.about = "stale", "since this sweep began"
            self._left.insert(0, entry)
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
        """See what has become of the jobs that are elsewhere, and share jobs with the cluster."""
        if not (self._elsewhere or self._share):
            return
        view = states.View()
        for bracket in self._brackets:
            bracket.look()
        if self._share:
            self._hand_over([entry for entry in self._left if entry.job.id in view.queued])
        waiting = self._share.waiting_of(self._elsewhere, view) if self._share else {}
        elsewhere, self._elsewhere = self._elsewhere, []
        for entry in elsewhere:
            unknown = self._share and view.silent
            if entry in waiting or unknown or view.state(entry.job).word in ("running", "queued"):
                self._elsewhere.append(entry)
            else:
                self._come_back(entry)
        if self._share and self._goes_on():
            self._share.waiting = waiting
            self._share.tell_of_starts(view)
            self._exchange(self._share)

    def _exchange(self, share: Share) -> None:
        """Give the cluster the jobs that are ready, or take some back if places are free."""
        ready = [*self._ready()]
        for entry in share.take_back(max(0, self._free - len(ready))):
            self._elsewhere.remove(entry)
            entry.go_on(self._since)
            self._left.append(entry)
        try:
            self._hand_over(share.give(ready[self._free :]))
        except SettingsError as error:
            share.say(f"run.sh: {error}")

    def _hand_over(self, entries: Sequence[Entry]) -> None:
        """Leave jobs to others."""
        given = {*entries}
        self._left = [entry for entry in self._left if entry not in given]
        self._elsewhere += entries

    def _come_back(self, entry: Entry) -> None:
        """Note how a job that is elsewhere no more has ended, or put it back into the queue."""
        known = grid.ended(entry.job.path, entry.since or self._since)
        no_further = self._share and self._share.brought_no_further(entry)
        if known is None:
            entry.go_on(self._since)
            self._left.append(entry)
            if self._share and no_further:
                line = "its task ended before its first checkpoint; it stays here"
                self._say(entry, f"job {entry.job.id}: {line}")
                self._share.returned.add(entry)
                self._end_without_places("tasks that end early")
        else:
            ending = grid.last_line(entry.job.path / layout.OUTPUT)
            self._say(entry, ending)
            entry.status = known
            self._look_at_rungs(entry)
            self._look_at_failure(entry, ending)

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
        if self._share:
            self._share.end()

    def _say(self, entry: Entry, text: str) -> None:
        _print(f"[{entry.number}/{self._count}] {text}")


def _print(line: str) -> None:
    with suppress(OSError):  # nobody reads the output any more, which is no reason to stop
        print(line, flush=True)
