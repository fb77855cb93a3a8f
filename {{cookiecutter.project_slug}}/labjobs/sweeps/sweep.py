"""Plans a sweep: looks at all jobs together before any of them starts; then runs them.

run.sh starts `python -m labjobs.sweeps.sweep FOLDER FLAGS`, with the sweep's folder and its own
flags. Once the grid is complete (grid.py), every job is read, the code is copied, and the jobs that
are left are checked; then they run (queue.py) or are submitted to a cluster (arrays.py). Of the
project, this process imports only settings.py, and it does not import torch.
"""

import json
import math
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn

from labjobs import exit_status, files, layout, settings
from labjobs.cli.flags import of as settings_flags
from labjobs.distributed import ranks
from labjobs.errors import SettingsError, cause, require_known
from labjobs.files import PROJECT
from labjobs.job import attempts, identity, provenance, terminal
from labjobs.job.runtime import Runtime
from labjobs.job.terminal import leave, notify
from labjobs.sources import described
from labjobs.sweeps import arrays, gpus, grid, proposals, search, states
from labjobs.sweeps.clusters import Cluster
from labjobs.sweeps.forecast import Budget, Forecast
from labjobs.sweeps.gpus import Gpu
from labjobs.sweeps.grid import STARTED, Entry
from labjobs.sweeps.hosts import Hosts, Slot
from labjobs.sweeps.options import read
from labjobs.sweeps.queue import Queue, Share
from labjobs.sweeps.starter import Starter
from labjobs.tracking import mlflow_store


class Sweep:
    """A sweep with its flags, and what it holds until it ends: its hosts, the lock of its copy of
    the code, and its budget of time. Raises SettingsError for wrong flags."""

    def __init__(self, folder: Path, words: list[str], run_sh: int) -> None:
        self.folder, self.grid, self.run_sh = folder, folder / "grid", run_sh
        self.flags, self.cluster = flags, cluster = read(words)
        if flags.only:
            line = "--only {}: no such state" if flags.list else "--only {}: such jobs are not run"
            require_known([flags.only], states.STATES if flags.list else STARTED, line)
        self.hosts, self.lock = Hosts(flags.hosts or ""), states.lock_snapshot(folder)
        self.budget = Budget(3600 * (flags.budget or math.inf) / flags.gpus_per_job)
        self.only_shown = flags.list or flags.watch
        self.submits_to = None if flags.hosts else cluster  # which gets all jobs at once
        self.shares_with = cluster if flags.hosts else None  # which gets those that wait here
        self.first_flags = cluster.flags if cluster else []  # of all jobs, before their own
        self.confirmed = set[int]()  # numbers of lines

    def run(self) -> int:
        """Run the jobs, or do what the flags say instead; return the exit status. Raises
        SettingsError before anything is started."""
        grid.answer(self.folder)
        _leave_when_asked(self.only_shown)
        _, waiting = self._grow()
        ends_now = self.only_shown or self.submits_to
        try:
            while True:
                while (status := self._run()) is None:
                    _leave_when_asked()
                if status or ends_now:
                    break
                _leave_when_asked()
                grown, waiting = self._grow()
                if not grown:
                    break
            if waiting and not (status or self.submits_to or self.flags.json):
                leave(status, f"{waiting[0]} waits until all jobs before it have results")
            return status
        finally:
            self.hosts.close()
            if not self.submits_to:
                states.keep_written(self.folder)

    def _grow(self) -> tuple[bool, list[str]]:
        """Add the jobs that follow from results, once these are there: the next generation of each
        `propose` and `breed`, unless jobs are only shown, and the jobs of each `confirm`. Return
        whether any were added, and what waits for results."""
        grown, waiting = False, list[str]()
        for number in range(len(grid.following(self.grid))):
            words, before = grid.following(self.grid)[number]
            entries = grid.entries(self.grid, self.first_flags)[:before]
            if words[0] != "confirm":
                added, left = self._propose(words, entries)
                grown = grown or added
                waiting += [" ".join(words[:2])] * left
            elif number not in self.confirmed:
                _check_confirm(words[1], entries)
                if waiting or not (jobs := self._confirm(int(words[1]), entries)):
                    waiting.append("confirm")
                else:
                    grid.add(self.grid, jobs)
                    self.confirmed.add(number)
                    grown = True
        return grown, waiting

    def _confirm(self, count: int, entries: list[Entry]) -> list[list[str]]:
        """The jobs that confirm what was chosen; none while results are missing."""
        _read_jobs(entries)
        entries = grid.needed(entries)
        ended = {entry.job.id for entry, _ in grid.stopped(entries)}
        of_run = {entry.job.id for entry in entries if entry.script == identity.DEFAULT}
        jobs: list[list[str]] = self._asked("confirm", count=count, ids=sorted(of_run - ended))
        return jobs

    def _propose(self, words: list[str], entries: list[Entry]) -> tuple[bool, bool]:
        """Write the next generation down, if all jobs before it have results and jobs are not only
        shown; return whether that was done, and whether results are still missing."""
        asked = proposals.read(words)
        known, grown = asked.known(), False
        if not self.only_shown:
            own = entries[len(entries) - sum(len(each.jobs) for each in known) :]
            _read_jobs(own)
            found = self._asked("propose", words=words, ids=[entry.job.id for entry in own])
            grown = found["grown"]
            if found["said"]:
                leave(exit_status.DONE, f"run.sh: {found['said']}")
        return grown, grown or len(known) < asked.generations

    def _asked(self, what: str, **about: Any) -> Any:
        """What `commands.propose` answers, in a process of its own, since it imports more than a
        sweep does; of jobs with the sweep's code, if that was copied. Raises SettingsError."""
        code = self.folder / "code"
        how: dict[str, Any] = {"capture_output": True, "encoding": "utf-8"}
        how["cwd"] = code if code.exists() else PROJECT
        how["env"] = os.environ | {"PROJECT_FOLDER": str(PROJECT)}
        command = [sys.executable, "-m", "labjobs.commands.propose", what]
        done = subprocess.run(command, input=json.dumps(about), **how)
        if done.returncode:
            said = done.stderr.strip() or f"{what} ended with status {done.returncode}"
            raise SettingsError(mlflow_store.last_line(said))
        return json.loads(done.stdout.splitlines()[-1])  # settings.py may have printed something

    def _run(self) -> int | None:
        """Run the jobs of the grid, or do what the flags say instead; return the exit status, or
        None if a search goes on."""
        named = grid.entries(self.grid, self.first_flags)
        if not named:
            raise SettingsError("the grid has no jobs")
        _read_jobs(named)
        entries = grid.needed(named)
        if self.only_shown:
            return self._show(entries)
        states.clear_snapshots(self.folder)
        here = self._here(entries) if self.hosts.here and not self.submits_to else []
        view = states.View()
        view.warn()
        left = self._left(entries, view)
        if not left:
            return self._end_at_once(entries)
        away = self._prepare(left, entries)
        starter = self._starter(min(len(left), len(here)))
        if starter.check(self.folder):
            return exit_status.WRONG
        since = (self.folder / layout.CHECKED).stat().st_mtime_ns
        grid.each(left, Entry.make)
        if why := provenance.no_commit():
            print(f"no commit is recorded: {why}", flush=True)
        if problem := provenance.other_engine(PROJECT):
            print(problem, flush=True)
        if self.submits_to:
            return self._submit(self.submits_to, left, entries, view, since)
        places = self._places(here, away, starter)
        if self.flags.budget:
            left = self.budget.ordered(left, self._forecast(entries, [gpu for gpu, _ in places]))
        share = Share(self.folder, self.shares_with, since) if self.shares_with else None
        more = self.budget, self.run_sh, share
        queue = Queue(left, len(named), places, self.flags, since, *more)
        try:
            queue.run()
        except OSError as error:
            notify(f"the sweep has ended: {cause(error)}", wait=True)
            raise
        status = _end(entries, queue.status)
        for line in self.budget.lines(entries):
            leave(status, f"run.sh: --budget {self.flags.budget:g}: {line}")
        return None if not status and len(grid.needed(named)) > len(entries) else status

    def _show(self, entries: list[Entry]) -> int:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # so that `--list | head` prints no trace
        if self.flags.watch:
            states.watch(entries)
        else:
            here = [] if self.cluster or not self.flags.cost else self._here(entries)
            of = self._forecast(entries, here) if self.flags.cost else None
            states.show(entries, self.flags.json, of, [self.flags.only] if self.flags.only else ())
        return exit_status.DONE

    def _forecast(self, entries: list[Entry], places: Sequence[Gpu]) -> Forecast:
        """What the jobs take on a cluster, or else in these places."""
        if cluster := self.cluster:
            return Forecast(entries, cluster.at_most or 0, cluster.gpus > 0, max(1, cluster.gpus))
        on_gpus = any(not place.device.endswith("cpu") for place in places)
        return Forecast(entries, len(places), on_gpus, self.flags.gpus_per_job)

    def _here(self, entries: list[Entry]) -> list[Gpu]:
        return gpus.places(self.hosts.gpus or self.flags.gpus, *self._wanted(entries))

    def _wanted(self, entries: list[Entry]) -> tuple[int | None, int, list[int | Literal["auto"]]]:
        """What `gpus.places` is asked for, here and on hosts."""
        threads = sorted({entry.job.runtime.threads for entry in entries}, key=str)
        return self.flags.per_gpu, self.flags.gpus_per_job, threads

    def _left(self, entries: list[Entry], view: states.View) -> list[Entry]:
        """Find the state of each job (`repeated` if it is earlier in the grid too, `skipped`
        because of --only); return the jobs that are left to run, inputs first. Raises SettingsError
        for a draw of `search until` that has results elsewhere alone."""
        to_run = {*STARTED}
        if not self.submits_to:
            to_run.add("running")  # wait for it; on a cluster, waiting would block a GPU
        if self.shares_with:
            to_run.add("queued")  # until a place is free for it
        if view.known.problem:
            to_run.remove("unsent")
        if self.flags.redo_stale:
            to_run.add("stale")
        only, seen = self.flags.only, set[str]()
        for entry in entries:
            entry.state, entry.about = view.of(entry)
            if entry.job.id in seen:
                entry.state = "repeated"
            elif only and entry.state in to_run - {only}:
                entry.state = "skipped"
            seen.add(entry.job.id)
            over = "until" in entry.drawn and entry.state in ("finished", "diverged")
            if over and search.final(entry.job) is None:
                where = "but not in this folder of runs, where a search looks for its results"
                line = f"job {entry.job.id} has {entry.state}, {where}"
                raise SettingsError(f"search until: {line}")
        left = {entry.job.id: entry for entry in entries if entry.state in to_run}
        if left and not (only or self.submits_to):  # those that are compared with them may train on
            left |= {e.job.id: e for e in entries if e.bracket and e.state == "paused"}
        settings = {job: entry.job.settings for job, entry in left.items()}
        return [left[job] for job in attempts.inputs_first(settings)]

    def _end_at_once(self, entries: list[Entry]) -> int:
        """Say what the jobs are, none of which is left to run."""
        if not self.submits_to:
            return _end(entries)
        _note_stopped(entries)
        count = Counter(entry.state for entry in entries)
        held = ", ".join(f"{n} {state}" for state, n in sorted(count.items()))
        leave(exit_status.DONE, f"nothing submitted to {self.submits_to.batch.title}: {held}")
        return _name_left_out(entries)

    def _prepare(self, left: list[Entry], entries: list[Entry]) -> list[Slot]:
        """Check the jobs that are left, copy the code here and to the hosts, whose places are
        returned, and write down what the check of the code reads. Raises SettingsError."""
        named = {entry.job.id for entry in entries}

        def check(entry: Entry) -> None:
            attempts.check_inputs(entry.job.settings, entry.job.runs_root, named)
            ranks.check(entry.job.settings, entry.job.runtime, self.flags.gpus_per_job)

        grid.each(left, check)
        if not (self.folder / "code").exists():
            states.take_snapshot(self.folder / "code")
        away = self.hosts.slots(self.folder, self._wanted(entries))
        if not all(slot.host.shared for slot in away):
            grid.each(left, _refuse_another_folder)
        numbers = [entry.number for entry in left]
        about = {"numbers": numbers, "flags": self.first_flags, "here": not self.submits_to}
        files.write_json(self.folder / layout.LEFT, about)
        return away

    def _starter(self, at_once: int) -> Starter:
        return Starter(self.folder / "code", max(1, at_once), [self.lock], self.flags.gpus_per_job)

    def _submit(
        self, to: Cluster, left: list[Entry], entries: list[Entry], view: states.View, since: int
    ) -> int:
        """Hand the jobs that are left to a cluster, and name the others; returns the status."""
        for entry in left:
            entry.set_rung()
        terminal.handle_signals(signal.SIG_IGN)  # or it could get jobs whose folder is removed
        try:
            lines = arrays.submit(self.folder, left, view.queued, since, to)
        except SettingsError as error:
            given = arrays.was_given(self.folder)
            return leave(exit_status.FAILED if given else exit_status.WRONG, f"run.sh: {error}")
        leave(exit_status.DONE, lines)
        submitted = {*left}
        return _name_left_out([entry for entry in entries if entry not in submitted])

    def _places(
        self, here: list[Gpu], away: list[Slot], starter: Starter
    ) -> list[tuple[Gpu, Starter]]:
        """The places where jobs run, each with what starts them there."""
        on_gpus = any(place.env for place in here)
        checked = files.read_json(self.folder / layout.CHECKED)
        if not (on_gpus or self.flags.per_gpu or checked["on_cpu"]):
            # The jobs take a GPU that nvidia-smi does not know, and all cores.
            here, starter = here[:1], self._starter(1)
        # A job on a host is a process here, too, which waits for it.
        distant = Starter(self.folder / "code", 1, [self.lock], warm=False)
        return [*((place, starter) for place in here), *((slot, distant) for slot in away)]


def _check_confirm(count: str, entries: list[Entry]) -> None:
    """Raise SettingsError for a line `confirm` that means nothing, or follows `breed`."""
    if not count.isdecimal() or not int(count):
        raise SettingsError(f"confirm {count}: expects a number of seeds, such as confirm 5")
    if any("length" in entry.drawn for entry in entries):
        why = "not after breed, whose jobs go on from others; breed with another --seed"
        raise SettingsError(f"confirm {count}: {why}")


def _refuse_another_folder(entry: Entry) -> None:
    if entry.job.runs_root != Runtime().runs_root.resolve():
        raise SettingsError("--runs-root: not with --hosts whose disks are not shared")


def _end(entries: list[Entry], status: int = 0) -> int:
    """Print the results; return the exit status."""
    if not status:
        _note_stopped(entries)
    return grid.summary(entries, status)


def _note_stopped(entries: list[Entry]) -> None:
    """Note which jobs halving has stopped, also in the store."""
    noted = [e.job.runs_root for e, rung in grid.stopped(entries) if e.job.note_stop(f"at {rung}")]
    for runs_root in {*noted}:  # if the store is away, `jobs.py sync` sends it
        send = "import sys, pathlib; from labjobs.tracking import courier; "
        send += "courier.sync(pathlib.Path(sys.argv[1]))"
        command = [sys.executable, "-c", send, str(runs_root)]
        subprocess.run(command, cwd=PROJECT, capture_output=True)


def _read_jobs(entries: list[Entry]) -> None:
    """Find out which jobs they are. Raises SettingsError."""
    for name in {entry.script for entry in entries}:
        try:
            script = identity.read(name)
        except SettingsError:  # reported for each of its jobs
            continue
        except Exception as error:
            raise SettingsError(described(error)) from error
        settings_flags(script.settings)  # a mistake in settings.py is reported only once
        settings.check(script.metrics)
    grid.each(entries, Entry.read)
    _join(entries)


def _join(entries: list[Entry]) -> None:
    """Find out which jobs a halving compares; one that is named outside of any as well runs to its
    end. Raises SettingsError."""
    halved = [(entry.halving, entry.job) for entry in entries if entry.halving]
    kept = {entry.job.id for entry in entries if not entry.halving}

    def check(entry: Entry) -> None:
        """Raise SettingsError if a job cannot be halved, searched or bred as its line says."""
        if entry.halving:
            search.check_halving(entry.halving, entry.job)
        if "until" in entry.drawn:
            search.check_monitor("search until", entry.job)
        if length := entry.drawn.get("length"):
            search.check_monitor("breed", entry.job)
            search.check_evaluated(f"breed: {length}", length, entry.job)
        for job in {*entry.inputs} & ({job.id for _, job in halved} - kept):
            raise SettingsError(f"its input {job} may be stopped by halving: name that elsewhere")

    grid.each(entries, check)
    brackets = search.brackets(halved)
    for entry in entries:
        entry.bracket = None if entry.job.id in kept else brackets.get(entry.job.id)


def _name_left_out(entries: list[Entry]) -> int:
    """Name the stale and the diverged jobs, which are not submitted; returns the exit status."""
    grid.name(entries, {"stale", "diverged"})
    return int(any(entry.state == "stale" for entry in entries))


def _leave_when_asked(only_shown: bool = False) -> None:
    """End the process by a signal, until the queue begins."""
    for number, status in (signal.SIGUSR1, 130), (signal.SIGTERM, 143):
        signal.signal(number, partial(_leave_early, status, only_shown))


def _leave_early(status: int, only_shown: bool, *_: object) -> NoReturn:
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(status if only_shown else leave(status, "run.sh: nothing was started"))


def main(folder: Path, words: list[str]) -> int:
    """Run a sweep; returns the exit status."""
    terminal.prepare_streams()
    terminal.handle_signals(signal.SIG_DFL)
    ranks.forget()
    sys.argv[0] = "run.sh"
    for number in (signal.SIGINT, signal.SIGHUP):  # run.sh forwards them, once
        signal.signal(number, signal.SIG_IGN)
    # Absolute, for all that is started.
    os.environ["MLFLOW_TRACKING_URI"] = mlflow_store.store_uri()
    run_sh = int(os.environ.pop("LABJOBS_RUN_SH"))  # which may have been killed since
    try:
        return Sweep(folder, words, run_sh).run()
    except SettingsError as error:
        return leave(exit_status.WRONG, f"run.sh: {error}")
    except OSError as error:
        return leave(exit_status.FAILED, f"run.sh: {cause(error)}")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
