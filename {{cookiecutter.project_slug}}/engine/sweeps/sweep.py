"""A sweep's jobs, looked at together before any of them starts.

run.sh calls `python run.py --grid FOLDER FLAGS`, with the sweep's folder and its own flags. Every
job is read and checked; then the code is frozen and the plan written, for queue.sh to carry out or
for Slurm.
"""

import shlex
import signal
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

from engine.cli import parser
from engine.cli.flags import of as settings_flags
from engine.cli.metrics import Metric
from engine.errors import JobError, SettingsError, cause
from engine.job import interruption, provenance
from engine.job.folder import JobFolder
from engine.job.identity import identity
from engine.job.runtime import Runtime
from engine.job.terminal import leave
from engine.paths import CODE
from engine.sweeps import flags, plan, slots, slurm, snapshot, states
from engine.tracking import database, reading
from engine.tracking.experiment import experiment_name

S = TypeVar("S")

NO_JOB = {"-h", "--help", "--scratch"}
"""Flags of run.py with which it does something other than a job."""


@dataclass
class Entry(Generic[S]):
    """A job of the grid; `number` is its place there, from 1."""

    number: int
    words: list[str]
    job: JobFolder[S] = field(init=False)
    state: str = ""
    about: str = ""

    @property
    def forced(self) -> list[str]:
        """The flag by which a stale job starts over."""
        return ["--force"] if self.state == "stale" else []


class Grid(Generic[S]):
    """All jobs of a sweep; ends the process if one is wrong (status 2) or none is left to run."""

    def __init__(
        self,
        kind: type[S],
        metrics: Mapping[str, Metric],
        script: str,
        folder: Path,
        words: list[str],
    ) -> None:
        self._script, self._folder = script, folder
        self._flags = flags.read(words)
        settings_flags(kind)  # a mistake in settings.py is said once
        self._entries: list[Entry[S]] = list(_entries(folder / "grid"))
        if not self._entries:
            raise SettingsError("the grid has no jobs")

        def read(entry: Entry[S]) -> None:
            if found := NO_JOB & set(entry.words):
                raise SettingsError(f"{min(found)}: cannot be used in a grid")
            settings, runtime = parser.parse(kind, Runtime, entry.words)
            entry.job = JobFolder(settings, runtime, metrics, Path(script).stem)

        self._each(self._entries, read)
        self._look()
        snapshot.clear(folder)
        self._slots = slots.on_gpus(self._flags.gpus, self._flags.per_gpu or 1)
        self._ask_states()
        if not self._left:
            self._leave_it()
        snapshot.take(self._folder / "code")
        self._store = None if _has_store() else _make_store()

    def run(self, _main: object, check: Callable[[Any], object]) -> int:
        """Check the jobs that are left, now that torch can be asked; returns the exit status."""
        self._check(check)
        self._each(self._left, lambda entry: entry.job.make())
        if self._store:
            _wait_for(self._store)
        if not provenance.version()["commit"]:
            print("no git repository here, so no commit is recorded", flush=True)
        left = {entry.number: [*entry.words, *entry.forced] for entry in self._left}
        plan.write(self._folder, self._rows, left, self._slots, self._flags)
        return self._submit() if self._flags.slurm else 0

    def _check(self, check: Callable[[Any], object]) -> None:
        """Check each job that is left, and find out how many at once the CPU serves."""
        import torch

        from engine.training.job import Job

        # Where Slurm's jobs are submitted there may be no GPU, so each asks for its own by itself.
        device = torch.device("meta") if self._flags.slurm else None
        at_once: list[int] = []
        checked: set[tuple[str, Runtime]] = set()

        def act(entry: Entry[S]) -> None:
            settings, runtime = entry.job.settings, entry.job.runtime
            job = Job(entry.job, device)
            unseeded = str(
                identity(settings) | {"seed": None}
            )  # a job can run whatever its seed is
            if (unseeded, runtime) not in checked:
                check(job)
                checked.add((unseeded, runtime))
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

    def _each(self, entries: list[Entry[S]], act: Callable[[Entry[S]], object]) -> None:
        """Act on each entry; name all that are wrong, then leave."""
        wrong = 0
        for entry in entries:
            try:
                act(entry)
            except Exception as error:
                wrong += 1
                command = f"{self._script} {shlex.join(entry.words)}"
                leave(2, f"job {entry.number}, {command}: {cause(error)}{_place(error)}")
        if wrong:
            line = f"{wrong} of {len(self._entries)} jobs are wrong; nothing was started"
            sys.exit(leave(2, f"run.sh: {line}"))

    def _ask_states(self) -> None:
        """Find the state of each job (`repeated` if it is in the grid before, `skipped` by --only)
        and which of them are left to run."""
        view = states.View()
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
        self._left = [entry for entry in self._entries if entry.state in to_run]

    @property
    def _rows(self) -> list[plan.Row]:
        return [plan.Row(e.state, e.about, e.job.id, str(e.job.path)) for e in self._entries]

    def _submit(self) -> int:
        count, at_most, sbatch = len(self._left), self._flags.at_most, self._flags.sbatch
        interruption.handle(signal.SIG_IGN)  # or Slurm would have jobs whose folder is gone
        try:
            line = slurm.submit(self._folder, count, at_most, sbatch, experiment_name())
        except SettingsError as error:
            return leave(1 if slurm.was_given(self._folder) else 2, f"run.sh: {error}")
        return leave(0, line)


def _entries(grid: Path) -> Iterator[Entry[Any]]:
    """The jobs in the file: for each the number of its words, and the words, each ended by NUL."""
    words = iter(grid.read_text(errors="surrogateescape").split("\0")[:-1])
    for number, count in enumerate(words, start=1):
        yield Entry(number, [next(words) for _ in range(int(count))])


def _place(error: Exception) -> str:
    """Where in the project's files an error is from that has no text of the engine's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).parent == CODE]
    if isinstance(error, SettingsError | JobError) or not own:
        return ""
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})"


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
