"""Plans a sweep: looks at all jobs together before any of them starts.

run.sh starts `python -m labjobs.sweeps.sweep FOLDER FLAGS`, with the sweep's folder and its own
flags. Once the grid is complete (grid.py), every job is read, the code is copied, and the jobs that
are left are checked; then they run (queue.py) or are submitted to Slurm. Of the project, this
process imports only settings.py, and it does not import torch.
"""

import argparse
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from subprocess import TimeoutExpired
from tempfile import TemporaryFile
from typing import Any, NoReturn

from labjobs import exit_status, files, installation, layout, settings
from labjobs.cli import parser
from labjobs.cli.flags import of as settings_flags
from labjobs.distributed import ranks
from labjobs.errors import SettingsError
from labjobs.files import PROJECT
from labjobs.fork_server import LOST
from labjobs.job import inputs, provenance, terminal
from labjobs.job.terminal import leave
from labjobs.sweeps import gpus, grid, slurm, states
from labjobs.sweeps.gpus import Slot
from labjobs.sweeps.grid import STARTED, Entry
from labjobs.sweeps.queue import Queue
from labjobs.sweeps.starter import Starter
from labjobs.tracking import mlflow_client, mlflow_read
from labjobs.tracking.mlflow_client import experiment_name

# The flags of run.sh.

NUMBER: dict[str, Any] = {"type": int, "metavar": "N"}
SWITCH: dict[str, Any] = {"action": "store_true"}
FLAGS: dict[str, dict[str, Any]] = {
    "--list": {"help": "print each job: id, state, settings; start nothing"} | SWITCH,
    "--json": {"help": "with --list: print the jobs as JSON"} | SWITCH,
    "--watch": {"help": "keep printing the progress of the jobs; start nothing"} | SWITCH,
    "--gpus": {
        "help": "GPUs by nvidia-smi's numbers (default: CUDA_VISIBLE_DEVICES, else all)",
        "metavar": "0,2",
    },
    "--per-gpu": {
        "help": "jobs at once on each GPU (default: 1), or on the CPU (default: one per core, "
        "fewer where memory is short)",
    }
    | NUMBER,
    "--gpus-per-job": {
        "help": "GPUs for each job, which trains with a process on each of them (default: 1); "
        "`python jobs.py docs several-gpus` says when not to",
        "default": 1,
    }
    | NUMBER,
    "--retries": {
        "help": "retry a job up to N times if it ran out of memory or was killed (default: 0)",
        "default": 0,
    }
    | NUMBER,
    "--fail-fast": {"help": "stop all jobs when one fails"} | SWITCH,
    "--only": {
        "help": f"run only jobs in this state: {', '.join(STARTED)}",
        "choices": STARTED,
        "metavar": "STATE",
    },
    "--redo-stale": {"help": "run jobs again that were finished or begun with other code or data"}
    | SWITCH,
    "--slurm": {"help": "submit the jobs to Slurm; words after -- go to sbatch"} | SWITCH,
    "--at-most": {"help": "with --slurm: run at most N jobs at once"} | NUMBER,
    "--per-task": {
        "help": "with --slurm: run up to N jobs one after another in each task, so that they start "
        "faster (default: 1)",
    }
    | NUMBER,
}


OF_RUN_SH = {
    ("--array", "-a"): "run.sh makes the arrays; --at-most N limits them",
    ("--dependency", "-d"): "run.sh sets it, so that jobs wait for their inputs",
    ("--output", "-o"): "run.sh sets it; what a job prints is in output.txt in its folder",
    ("--wrap",): "run.sh sets it",
}
"""Options of sbatch that cannot be given, and why."""


def read(words: list[str]) -> argparse.Namespace:
    """Return run.sh's flags, with the words after `--` as `sbatch`. Raises SettingsError if they
    are wrong; `--help` ends the process.
    """
    cut = words.index("--") if "--" in words else len(words)
    reader = parser.Parser(
        prog="run.sh",
        usage="bash run.sh [flags]",
        description="Runs the jobs of the grid that are not finished.",
        allow_abbrev=False,
    )
    for flag, about in FLAGS.items():
        reader.add_argument(flag, **about)
    flags, unknown = reader.parse_known_args(words[:cut])
    if unknown:
        sbatch = "; options of sbatch go after --" if flags.slurm else ""
        raise SettingsError(parser.unknown_flag(unknown[0], list(FLAGS)) + sbatch)
    flags.sbatch = words[cut + 1 :]
    _check_numbers(flags)
    _check_together(flags)
    return flags


def _check_numbers(flags: argparse.Namespace) -> None:
    for name, least in (
        ("per_gpu", 1),
        ("gpus_per_job", 1),
        ("retries", 0),
        ("at_most", 1),
        ("per_task", 1),
    ):
        value = getattr(flags, name)
        if value is not None and value < least:
            raise SettingsError(f"--{name.replace('_', '-')} {value}: must be {least} or more")


def _check_together(flags: argparse.Namespace) -> None:
    if flags.json and not flags.list:
        raise SettingsError("--json: only with --list")
    of_slurm = {"--at-most": flags.at_most, "--per-task": flags.per_task, "--": flags.sbatch}
    for flag, given in of_slurm.items() if not flags.slurm else ():
        if given:
            raise SettingsError(f"{flag}: only with --slurm")
    elsewhere = {
        "--gpus": flags.gpus,
        "--per-gpu": flags.per_gpu,
        "--retries": flags.retries,
        "--fail-fast": flags.fail_fast,
    }
    for flag, given in elsewhere.items() if flags.slurm else ():
        if given:
            raise SettingsError(f"{flag}: not with --slurm")
    if flags.per_gpu and flags.gpus_per_job > 1:
        raise SettingsError("--gpus-per-job: not with --per-gpu")
    for options, why in OF_RUN_SH.items():
        if any(word.startswith(options) for word in flags.sbatch):
            raise SettingsError(f"{options[0]}: {why}")
    if flags.slurm:
        slurm.require()


PATIENCE = 2.0
"""Seconds that run.sh waits at its end for a store that is still being prepared."""


class Sweep:
    """All jobs of a grid; ends the process if one is wrong (status 2) or none is left to run."""

    def __init__(self, folder: Path, words: list[str]) -> None:
        self._folder, self._flags = folder, read(words)
        self._lock = states.lock_snapshot(folder)
        grid.answer(folder)
        for number, status in ((signal.SIGUSR1, 130), (signal.SIGTERM, 143)):
            signal.signal(number, partial(_leave_early, status))  # until the queue begins
        self._entries = grid.entries(folder / "grid")
        if not self._entries:
            raise SettingsError("the grid has no jobs")
        self._check_scripts()
        self._each(self._entries, Entry.read)
        self._look()
        states.clear_snapshots(folder)
        self._slots = gpus.on_gpus(self._flags.gpus, self._flags.per_gpu or 1)
        self._ask_states()
        if not self._left:
            self._leave_it()
        self._check_left()
        states.take_snapshot(self._folder / "code")

    def run(self) -> int:
        """Run the jobs that are left, or hand them to Slurm; returns the exit status."""
        starter = self._starter(self._slots or gpus.on_cpu(self._most_on_cpu()))
        with _store_made_ready(starter):
            if not self._check(starter):
                return 2
            self._each(self._left, lambda entry: entry.job.make())
            if not provenance.version()["commit"]:
                print("no git repository here, so no commit is recorded", flush=True)
            if problem := installation.problem(PROJECT):
                print(problem, flush=True)
            return self._submit() if self._flags.slurm else self._run(starter)

    def _check_scripts(self) -> None:
        """Raise SettingsError for a mistake in settings.py, only once instead of for each job."""
        for entry in {entry.script: entry for entry in self._entries}.values():
            try:
                script = entry.declared()
            except SettingsError:  # reported for each of its jobs
                continue
            settings_flags(script.settings)
            settings.check(script.metrics)

    def _check_left(self) -> None:
        """Look for the inputs of the jobs that are left, in the grid or finished before, and check
        that the number of processes suits them."""
        named = {entry.job.id for entry in self._entries}

        def act(entry: Entry) -> None:
            inputs.check(entry.job.settings, entry.job.runs_root, named)
            ranks.check(entry.job.settings, entry.job.runtime, self._flags.gpus_per_job)

        self._each(self._left, act)

    def _most_on_cpu(self) -> int:
        """How many jobs can run on the CPU at once."""
        wanted = {entry.job.runtime.threads for entry in self._left}
        most = min(gpus.at_once("cpu", threads) for threads in wanted)
        processes: int = self._flags.gpus_per_job
        return self._flags.per_gpu or max(1, most // processes)

    def _starter(self, places: list[Slot]) -> Starter:
        self._slots = places
        scripts = dict.fromkeys(entry.words[0] for entry in self._left)
        processes = self._flags.gpus_per_job
        on_gpus = any(slot.device != "cpu" for slot in places)
        if on_gpus and len(places) < processes and not self._flags.slurm:
            raise SettingsError(f"--gpus-per-job {processes}: there are only {len(places)} GPUs")
        at_once = min(len(self._left), len(places) // processes if on_gpus else len(places))
        code, keep = self._folder / "code", [self._lock]
        return Starter(code, scripts, at_once, keep=keep, processes=processes)

    def _check(self, starter: Starter) -> bool:
        """Whether each job that is left can run; messages about the others have been printed."""
        numbers = [entry.number for entry in self._left]
        files.write_json(
            self._folder / layout.LEFT, {"numbers": numbers, "on_slurm": self._flags.slurm}
        )
        if starter.check(str(self._folder)):
            return False
        starter.learn(files.read_json(self._checked)["modules"])
        return True

    def _run(self, starter: Starter) -> int:
        left = {entry.job.id: entry.number for entry in self._left}
        tasks = [
            grid.Task(e.number, e.words, [left[job] for job in e.inputs if job in left])
            for e in self._left
        ]
        on_cpu = all(slot.device == "cpu" for slot in self._slots)
        at_once = files.read_json(self._checked)["at_once"]
        if on_cpu and not self._flags.per_gpu and at_once < len(self._slots):
            starter = self._starter(gpus.on_cpu(at_once))  # on a GPU that nvidia-smi does not know
        since = self._checked.stat().st_mtime_ns
        queue = Queue(self._rows, tasks, self._slots, starter, self._flags, since)
        queue.run()
        return grid.summary(self._rows, queue.codes, queue.stop.status)

    @property
    def _checked(self) -> Path:
        return self._folder / layout.CHECKED

    def _leave_it(self) -> NoReturn:
        """End the process: there is nothing to run."""
        if self._flags.slurm:
            count = Counter(entry.state for entry in self._entries)
            held = ", ".join(f"{n} {state}" for state, n in sorted(count.items()))
            status = self._name_left_out()
            sys.exit(leave(status, f"nothing submitted to Slurm: {held}"))
        sys.exit(grid.summary(self._rows, {}))

    def _look(self) -> None:
        """With --list or --watch, show the jobs' states and end the process."""
        if not (self._flags.list or self._flags.watch):
            return
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # so that `--list | head` prints no trace
        jobs = [entry.job for entry in self._entries]
        if self._flags.json:
            states.print_json(jobs)
        elif self._flags.list:
            states.show(jobs)
        else:
            states.watch(jobs)
        sys.exit(0)

    def _each(self, entries: list[Entry], act: Callable[[Entry], object]) -> None:
        grid.each(entries, act, of=len(self._entries))

    def _ask_states(self) -> None:
        """Find the state of each job (`repeated` if it is earlier in the grid too, `skipped`
        because of --only), and the jobs that are left to run."""
        self._view = view = states.View()
        view.warn()
        to_run = {*grid.STARTED}
        if not self._flags.slurm:
            to_run.add("running")  # wait for it; on Slurm, waiting would block a GPU
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
    def _rows(self) -> list[grid.Row]:
        return [grid.Row(e.state, e.about, e.job.id, str(e.job.path)) for e in self._entries]

    def _submit(self) -> int:
        flags, queued = self._flags, self._view.queued
        places: dict[str, int | str] = {job: known.task for job, known in queued.items()}
        places |= {entry.job.id: place for place, entry in enumerate(self._left)}
        inputs = [[places[job] for job in e.inputs if job in places] for e in self._left]
        given = [slurm.Given(e.job.id, str(e.job.path), e.words) for e in self._left]
        divided = slurm.divide(given, inputs, flags.per_task or 1)
        slurm.write(self._folder, divided, self._checked.stat().st_mtime_ns)
        terminal.handle_signals(signal.SIG_IGN)  # or Slurm could get jobs whose folder is removed
        try:
            name = experiment_name()
            line = slurm.submit(self._folder, divided, flags, name)
        except SettingsError as error:
            return leave(
                exit_status.FAILED if slurm.was_given(self._folder) else 2, f"run.sh: {error}"
            )
        leave(exit_status.DONE, line)
        return self._name_left_out()

    def _name_left_out(self) -> int:
        """Name the jobs that Slurm is not given although they are stale or diverged; returns the
        exit status."""
        given = {entry.job.id for entry in self._left}
        return grid.name_left_out([row for row in self._rows if row.id not in given])


def _depth(entry: Entry, left: Mapping[str, Entry]) -> int:
    """How many of the remaining jobs must run one after another before this job can run."""
    depths = (_depth(left[job], left) for job in entry.inputs if job in left)
    return 1 + max(depths, default=-1)


def _has_store() -> bool:
    """Whether the store is a file that already contains the project's experiment."""
    with suppress(ConnectionError):
        return (
            mlflow_client.database_kind() == "sqlite"
            and experiment_name() in mlflow_read.experiments()
        )
    return False


@contextmanager
def _store_made_ready(starter: Starter) -> Iterator[None]:
    """Prepare the store in the background, unless it is ready. Jobs train in the meantime: their
    couriers wait for the store and try again if it is not available, which is reported at the
    end."""
    if _has_store():
        yield
        return
    with TemporaryFile("w+") as errors:
        process = starter.prepare_store(errors.fileno())
        yield
        with suppress(TimeoutExpired):
            if process.wait(PATIENCE) not in {0, LOST}:
                errors.seek(0)
                why = errors.read().strip().splitlines()[-1]
                line = f"the tracking store is unavailable ({why})"
                leave(exit_status.FAILED, f"run.sh: {line}; results wait in the jobs' folders")


def _leave_early(status: int, *_: object) -> NoReturn:
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(leave(status, "run.sh: nothing was started"))


def main(folder: Path, words: list[str]) -> int:
    """Plan a sweep; returns the exit status."""
    terminal.handle_signals(signal.SIG_DFL)
    ranks.forget()
    for number in (signal.SIGINT, signal.SIGHUP):  # run.sh forwards them, once
        signal.signal(number, signal.SIG_IGN)
    os.environ["MLFLOW_TRACKING_URI"] = (
        mlflow_client.store_uri()
    )  # absolute, for all that is started
    try:
        return Sweep(folder, words).run()
    except SettingsError as error:
        return leave(exit_status.WRONG, f"run.sh: {error}")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
