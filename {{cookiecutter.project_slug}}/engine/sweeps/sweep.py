"""A sweep's jobs, looked at together before any of them starts.

run.sh calls `python run.py --grid FOLDER FLAGS`, with the sweep's folder and its own flags. Every
job is read and checked; then the code is frozen and the plan written, for queue.sh to carry out or
for Slurm. sweep.sh tells what is in the folder.
"""

import argparse
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

from engine.cli import parser
from engine.cli.metrics import Metric
from engine.errors import SettingsError, cause
from engine.job import interruption, provenance
from engine.job.folder import JobFolder
from engine.job.runtime import Runtime
from engine.job.terminal import leave
from engine.paths import CODE
from engine.sweeps import slots, slurm, snapshot, states
from engine.tracking import address
from engine.tracking.store import experiment_name

S = TypeVar("S")

ONLY = ("failed", "interrupted", "pending")
TO_RUN = {*ONLY, "unsent", "running"}
"""States of jobs that a sweep sees to their end; one that is running is waited for, but not by
Slurm, where it would keep a GPU from others."""


NUMBER: dict[str, Any] = {"type": int, "metavar": "N"}
SWITCH: dict[str, Any] = {"action": "store_true"}
FLAGS: dict[str, dict[str, Any]] = {
    "--list": {"help": "print each job: id, state, settings; start nothing"} | SWITCH,
    "--watch": {"help": "the same in short, again and again"} | SWITCH,
    "--gpus": {
        "help": "GPUs by nvidia-smi's numbers (default: CUDA_VISIBLE_DEVICES, else all)",
        "metavar": "0,2",
    },
    "--per-gpu": {"help": "jobs at once on each GPU, or on the CPU (default: 1)", "default": 1}
    | NUMBER,
    "--retries": {
        "help": "run a job up to N times again that ran out of memory or was killed (default: 0)",
        "default": 0,
    }
    | NUMBER,
    "--fail-fast": {"help": "stop all jobs when one fails"} | SWITCH,
    "--keep-going": {
        "help": "go on when one fails (the default)",
        "action": "store_false",
        "dest": "fail_fast",
    },
    "--only": {
        "help": f"run only jobs in this state: {', '.join(ONLY)}",
        "choices": ONLY,
        "metavar": "STATE",
    },
    "--slurm": {"help": "hand the jobs to Slurm; words after -- go to sbatch"} | SWITCH,
    "--at-most": {"help": "with --slurm: jobs that run at once"} | NUMBER,
}


class Grid(Generic[S]):
    """All jobs of a sweep; ends the process if one is wrong (status 2) or none is left to run."""

    def __init__(
        self, kind: type[S], metrics: Mapping[str, Metric], folder: Path, words: list[str]
    ) -> None:
        self._folder = folder
        self._flags = _flags(words)
        self._commands = list(_commands(folder / "grid"))
        if not self._commands:
            raise SettingsError("the grid names no job")
        self._jobs: list[JobFolder[S]] = []

        def add(words: list[str]) -> None:
            if {"-h", "--help", "--sync"} & set(words):
                raise SettingsError("this is no job")
            self._jobs.append(JobFolder(*parser.parse(kind, Runtime, words), metrics))

        self._each(add, self._commands)
        self._look()
        snapshot.clear(folder)
        self._slots = slots.find(self._flags.gpus, self._flags.per_gpu)
        self._to_run = TO_RUN - {"running"} if self._flags.slurm else TO_RUN
        self._states = list(self._ask_states())
        if not self._to_run & set(self._states):
            self._leave_it()
        snapshot.take(self._folder / "code")
        # Many jobs that open a new store at once would crash it, so it is made ready here, once.
        command = [sys.executable, "-m", "engine.tracking.store"]
        self._store = subprocess.Popen(command, cwd=CODE, stderr=subprocess.PIPE, text=True)

    def run(self, _main: object, check: Callable[[Any], object]) -> int:
        """Check the jobs that are left, now that torch can be asked; returns the exit status."""
        import torch

        from engine.training.job import Job

        left = [
            job if state in self._to_run else None
            for job, state in zip(self._jobs, self._states, strict=True)
        ]
        # Where Slurm's jobs are submitted there may be no GPU, so each asks for its own by itself.
        device = torch.device("meta") if self._flags.slurm else None
        self._each(lambda job: check(Job(job, device)) if job else None, left)
        self._each(lambda job: job.make() if job else None, left)
        _, errors = self._store.communicate()
        if self._store.returncode:  # no reason not to train: the couriers will try again
            why = address.last_line(errors)
            say(f"the tracking store is away ({why}); results wait in the jobs' folders")
        if not provenance.version()["commit"]:
            print("no git repository here, so the jobs note no commit", flush=True)
        self._write_plan()
        return self._submit() if self._flags.slurm else 0

    def _leave_it(self) -> NoReturn:
        """End the process: there is nothing to run."""
        if self._flags.slurm:
            words = Counter(self._states)
            held = ", ".join(f"{words[word]} {word}" for word in sorted(words))
            sys.exit(leave(0, f"nothing handed to Slurm: {held}"))
        self._write_plan()
        sys.exit(0)

    def _look(self) -> None:
        """If that is all there is to do, show the jobs' states and end the process."""
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # of `--list | head` no trace
        if self._flags.list:
            states.show(self._jobs, states.View())
        elif self._flags.watch:
            states.watch(self._jobs)
        else:
            return
        sys.exit(0)

    def _each(self, act: Callable[[Any], Any], items: list[Any]) -> None:
        """Act on every job's item; name all that are wrong, then leave."""
        wrong = 0
        for number, (words, item) in enumerate(zip(self._commands, items, strict=True), start=1):
            try:
                act(item)
            except Exception as error:
                wrong += 1
                leave(2, f"job {number} ({shlex.join(words)}): {cause(error)}")
        if wrong:
            sys.exit(leave(2, f"run.sh: {wrong} wrong of {len(items)} jobs; nothing was started"))

    def _ask_states(self) -> Iterator[str]:
        """The state of each job; `repeated` if it is in the grid before, `skipped` by --only."""
        view = states.View()
        for problem in view.problems:
            say(problem)
        seen: set[str] = set()
        for job in self._jobs:
            word = view.state(job).word
            if job.id in seen:
                yield "repeated"
            elif self._flags.only and word in TO_RUN - {self._flags.only}:
                yield "skipped"
            else:
                yield word
            seen.add(job.id)

    def _write_plan(self) -> None:
        """What queue.sh reads, the queue last: without one there is nothing for it to do."""
        queue, plan = [], []
        rows = zip(self._jobs, self._states, self._commands, strict=True)
        for index, (job, state, words) in enumerate(rows, start=1):
            plan.append(f"{state}\t{job.id}\t{job.path}\n")
            if state in self._to_run:
                queue.append(f"{index}\t{job.id}\t{job.path}\n")
                text = "".join(f"{word}\0" for word in words)
                (self._folder / "jobs" / str(index)).write_text(text, errors="surrogateescape")
        flags = self._flags
        at_once = min(len(queue), len(self._slots))
        numbers = f"{len(plan)} {flags.per_gpu} {flags.retries} {at_once}"
        options = f"{numbers} {'1' if flags.fail_fast else ''}\n"
        places = "".join(f"{s.device}\t{s.lock}\t{s.place}\n" for s in self._slots)
        for name, text in (("options", options), ("slots", places), ("plan", "".join(plan))):
            (self._folder / name).write_text(text)
        (self._folder / "queue").write_text("".join(queue))

    def _submit(self) -> int:
        count = sum(state in self._to_run for state in self._states)
        flags = self._flags
        interruption.handle(signal.SIG_IGN)  # or Slurm would have jobs whose folder is gone
        try:
            line = slurm.submit(self._folder, count, flags.at_most, flags.sbatch, experiment_name())
        except SettingsError as error:
            return leave(1 if slurm.was_given(self._folder) else 2, f"run.sh: {error}")
        return leave(0, line)


def say(line: str) -> None:
    """Something that the user should know, but which stops nothing."""
    leave(1, f"run.sh: {line}")


def _commands(grid: Path) -> Iterator[list[str]]:
    """The words of each job: in the file, their number and then the words, each ended by NUL."""
    words = iter(grid.read_text(errors="surrogateescape").split("\0")[:-1])
    for count in words:
        yield [next(words) for _ in range(int(count))]


def _flags(words: list[str]) -> argparse.Namespace:
    """run.sh's flags. Raises SettingsError where they are wrong; `--help` ends the process."""
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
        raise SettingsError(parser.unknown_flag(unknown[0], list(FLAGS)))
    flags.sbatch = words[cut + 1 :]
    _check(flags)
    return flags


def _check(flags: argparse.Namespace) -> None:
    for name, least in (("per_gpu", 1), ("retries", 0), ("at_most", 1)):
        value = getattr(flags, name)
        if value is not None and value < least:
            raise SettingsError(f"--{name.replace('_', '-')} {value}: must be {least} or more")
    if (flags.sbatch or flags.at_most) and not flags.slurm:
        raise SettingsError(f"{'--at-most' if flags.at_most else '--'}: only with --slurm")
    elsewhere = {
        "--gpus": flags.gpus,
        "--per-gpu": flags.per_gpu > 1,
        "--retries": flags.retries,
        "--fail-fast": flags.fail_fast,
    }
    for flag, given in elsewhere.items() if flags.slurm else ():
        if given:
            raise SettingsError(f"{flag}: not with --slurm")
    if any(word.startswith(("--array", "-a")) for word in flags.sbatch):
        raise SettingsError("--array: run.sh makes the arrays; --at-most N limits them")
    if flags.slurm:
        slurm.require()
