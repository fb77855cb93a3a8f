"""A sweep's jobs, looked at together before any of them starts.

run.sh starts `python -m engine.sweeps.sweep FOLDER FLAGS`, with the sweep's folder and its own
flags. Once the grid is complete (grid.py), every job is read and checked; then the code is frozen
and the plan written, for queue.sh to carry out or for Slurm.
"""

import os
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from engine.cli import metrics
from engine.cli.flags import of as settings_flags
from engine.errors import SettingsError, cause
from engine.job import inputs, interruption, provenance
from engine.job.identity import identity
from engine.job.terminal import leave
from engine.paths import CODE
from engine.sources import fault
from engine.sweeps import flags, grid, plan, slots, slurm, snapshot, states
from engine.sweeps.grid import Entry
from engine.tracking import address, database, reading
from engine.tracking.experiment import experiment_name


class Grid:
    """All jobs of a sweep; ends the process if one is wrong (status 2) or none is left to run."""

    def __init__(self, folder: Path, words: list[str]) -> None:
        self._folder, self._flags = folder, flags.read(words)
        grid.answer(folder)
        self._entries = grid.entries(folder / "grid")
        if not self._entries:
            raise SettingsError("the grid has no jobs")
        self._check_scripts()
        self._each(self._entries, Entry.read)
        self._look()
        snapshot.clear(folder)
        self._slots = slots.on_gpus(self._flags.gpus, self._flags.per_gpu or 1)
        self._ask_states()
        if not self._left:
            self._leave_it()
        self._check_inputs()
        snapshot.take(self._folder / "code")
        self._store = None if _has_store() else _make_store()

    def run(self) -> int:
        """Check the jobs that are left, which takes torch; returns the exit status."""
        self._check()
        self._each(self._left, lambda entry: entry.job.make())
        if self._store:
            _wait_for(self._store)
        if not provenance.version()["commit"]:
            print("no git repository here, so no commit is recorded", flush=True)
        left = {entry.job.id: entry for entry in self._left}
        tasks = [
            plan.Task(
                entry.number,
                [*entry.words, *entry.forced],
                [left[job].number for job in entry.inputs if job in left],
            )
            for entry in self._left
        ]
        plan.write(self._folder, self._rows, tasks, self._slots, self._flags)
        return self._submit() if self._flags.slurm else 0

    def _check_scripts(self) -> None:
        """Raise SettingsError for a mistake in settings.py, once and not for each job."""
        for entry in {entry.script: entry for entry in self._entries}.values():
            try:
                script = entry.declared()
            except SettingsError:  # which is said of each of its jobs
                continue
            settings_flags(script.settings)
            metrics.check(script.metrics)

    def _check_inputs(self) -> None:
        """Look for the inputs of the jobs that are left: in the grid, or finished before."""
        named = {entry.job.id for entry in self._entries}

        def act(entry: Entry) -> None:
            inputs.check(entry.job.settings, entry.job.runs_root, named)

        self._each(self._left, act)

    def _check(self) -> None:
        """Check each job that is left, and find out how many at once the CPU serves."""
        modules = {entry.script: import_module(entry.script) for entry in self._left}
        import torch

        from engine.training.job import Job

        # Where Slurm's jobs are submitted there may be no GPU, so each asks for its own by itself.
        device = torch.device("meta") if self._flags.slurm else None
        at_once: list[int] = []
        checked: set[tuple[object, ...]] = set()

        def act(entry: Entry) -> None:
            """Check a job, unless one that differs by its seed alone was checked."""
            settings, runtime = entry.job.settings, entry.job.runtime
            job = Job(entry.job, device)
            unseeded = identity(settings) | {"seed": None}  # a job can run whatever its seed is
            alike = entry.script, str(unseeded), runtime
            if alike not in checked:
                getattr(modules[entry.script], entry.declared().check)(job)
                checked.add(alike)
            at_once.append(slots.at_once(job.device.type, runtime.threads))

        self._each(self._left, act)
        self._slots = self._slots or slots.on_cpu(self._flags.per_gpu or min(at_once))

    def _leave_it(self) -> NoReturn:
        """End the process: there is nothing to run."""
        if self._flags.slurm:
            count = Counter(entry.state for entry in self._entries)
            held = ", ".join(f"{n} {state}" for state, n in sorted(count.items()))
            sys.exit(leave(0, f"nothing submitted to Slurm: {held}"))
        sys.exit(plan.summary(self._rows, {}))

    def _look(self) -> None:
        """If that is all there is to do, show the jobs' states and end the process."""
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # of `--list | head` no trace
        jobs = [entry.job for entry in self._entries]
        if self._flags.json:
            states.print_json(jobs)
        elif self._flags.list:
            states.show(jobs)
        elif self._flags.watch:
            states.watch(jobs)
        else:
            return
        sys.exit(0)

    def _each(self, entries: list[Entry], act: Callable[[Entry], object]) -> None:
        """Act on each entry; name all that are wrong, then leave."""
        wrong = 0
        for entry in entries:
            try:
                act(entry)
            except Exception as error:
                wrong += 1
                command = shlex.join(entry.words)
                at = fault(error)
                place = f" ({at})" if at else ""
                leave(2, f"job {entry.number}, {command}: {cause(error)}{place}")
        if wrong:
            line = f"{wrong} of {len(self._entries)} jobs are wrong; nothing was started"
            sys.exit(leave(2, f"run.sh: {line}"))

    def _ask_states(self) -> None:
        """Find the state of each job (`repeated` if it is in the grid before, `skipped` by --only)
        and which of them are left to run."""
        self._view = view = states.View()
        view.warn()
        to_run = {*states.STARTED}
        if not self._flags.slurm:
            to_run.add("running")  # to be waited for, by which a task of Slurm's would block a GPU
        if view.store_is_away:
            to_run.remove("unsent")
        if self._flags.redo_stale:
            to_run.add("stale")
        seen: set[str] = set()
        for entry in self._entries:
            entry.state, entry.about, _ = view.state(entry.job)
            if entry.job.id in seen:
                entry.state = "repeated"
            elif self._flags.only and entry.state in to_run - {self._flags.only}:
                entry.state = "skipped"
            seen.add(entry.job.id)
        left = {entry.job.id: entry for entry in self._entries if entry.state in to_run}
        self._left = sorted(left.values(), key=partial(_depth, left=left))

    @property
    def _rows(self) -> list[plan.Row]:
        return [plan.Row(e.state, e.about, e.job.id, str(e.job.path)) for e in self._entries]

    def _submit(self) -> int:
        at_most, sbatch, queued = self._flags.at_most, self._flags.sbatch, self._view.queued
        places: dict[str, int | str] = {job: known.task for job, known in queued.items()}
        places |= {entry.job.id: place for place, entry in enumerate(self._left)}
        waits = [[places[job] for job in e.inputs if job in places] for e in self._left]
        interruption.handle(signal.SIG_IGN)  # or Slurm would have jobs whose folder is gone
        try:
            line = slurm.submit(self._folder, waits, at_most, sbatch, experiment_name())
        except SettingsError as error:
            return leave(1 if slurm.was_given(self._folder) else 2, f"run.sh: {error}")
        return leave(0, line)


def _depth(entry: Entry, left: Mapping[str, Entry]) -> int:
    """How many jobs must run one after another before a job can, of those that are left."""
    depths = (_depth(left[job], left) for job in entry.inputs if job in left)
    return 1 + max(depths, default=-1)


def _has_store() -> bool:
    """Whether the store is a file that knows the project."""
    with suppress(ConnectionError):
        return database.kind() == "sqlite" and experiment_name() in reading.experiments()
    return False


def _make_store() -> subprocess.Popen[str]:
    """Make the store ready, once: many jobs that open a new one together would crash it."""
    command = [sys.executable, "-m", "engine.tracking.experiment"]
    return subprocess.Popen(command, cwd=CODE, stderr=subprocess.PIPE, text=True)


def _wait_for(store: subprocess.Popen[str]) -> None:
    _, errors = store.communicate()
    if store.returncode:  # no reason not to train: the couriers will try again
        why = errors.strip().splitlines()[-1]
        line = f"the tracking store is unavailable ({why}); results wait in the jobs' folders"
        leave(1, f"run.sh: {line}")


def main(folder: Path, words: list[str]) -> int:
    """Plan a sweep; returns the exit status."""
    interruption.handle(signal.SIG_DFL)
    os.environ["MLFLOW_TRACKING_URI"] = address.uri()  # absolute, for all that is started
    try:
        return Grid(folder, words).run()
    except SettingsError as error:
        return leave(2, f"run.sh: {error}")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
