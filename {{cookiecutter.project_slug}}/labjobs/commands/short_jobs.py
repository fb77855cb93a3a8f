"""Short jobs of a student's script, run one after another, and what their journals say.

A job takes a GPU as the jobs of a sweep do (labjobs.sweeps.gpus), and runs from a copy of the code
made when the first job started. What has been measured already is not run again.
"""

import dataclasses
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple, Self

from labjobs import exit_status, layout
from labjobs.cli import flags
from labjobs.cli.flags import as_plain, as_text, option
from labjobs.cli.parser import parse
from labjobs.errors import JobError, SettingsError, did_you_mean
from labjobs.files import PROJECT
from labjobs.job import identity, journal, runtime
from labjobs.job.folder import JobFolder
from labjobs.job.runtime import LENGTHS, Runtime
from labjobs.job.terminal import Interrupted, handle_signals
from labjobs.settings import Span
from labjobs.sweeps import gpus, states
from labjobs.sweeps.gpus import Gpu
from labjobs.sweeps.starter import Starter

REFUSED = (
    *("--check", "--continue-anyway", "--force", "--help", "--log-every"),
    *("--pause-after", "--profile", "--quiet", "--scratch"),
)
"""Flags of the engine that the finder sets itself, or with which nothing is measured."""

PAUSE = 0.05  # seconds between two checks of a job


@dataclass(frozen=True)
class Target:
    """A job to find a value for, by its script, its settings and the engine's flags; or one like
    it."""

    script: identity.Script
    settings: Any
    runtime: Runtime

    @cached_property
    def known(self) -> flags.Flags:
        """The settings of jobs of this script."""
        return flags.of(type(self.settings))

    @property
    def job(self) -> JobFolder[Any]:
        """The job's folder in its current state."""
        return JobFolder(self.settings, self.runtime, self.script.metrics, self.script.name)

    @property
    def command(self) -> str:
        """The command that runs the job, as a user types it."""
        words = []
        for name, flag in flags.of(Runtime).items():
            value = getattr(self.runtime, name)
            if isinstance(value, Path):  # jobs run in the project's folder
                value = value.expanduser().absolute()
            if value != flag.default:
                words.append(f"{option(name)}={as_text(as_plain(value))}")
        return (
            f"{identity.as_command(self.settings, self.script.name)} {shlex.join(words)}".rstrip()
        )

    def having(self, **settings: Any) -> "Target":
        """Return the job with other values of some settings. Raises SettingsError if they are not
        allowed."""
        for name, value in settings.items():
            self.known[name].read(as_text(value))
        try:
            changed = dataclasses.replace(self.settings, **settings)
        except ValueError as error:  # a rule in __post_init__
            raise SettingsError(str(error)) from None
        return dataclasses.replace(self, settings=changed)

    def running(self, **runtime: Any) -> "Target":
        """Return the same job with other flags of the engine."""
        return dataclasses.replace(self, runtime=dataclasses.replace(self.runtime, **runtime))

    def paused_after(self, steps: int) -> "Target":
        """Return the same job, which pauses after this number of steps and logs each of them."""
        return self.running(pause_after=Span(str(steps)), log_every=1)

    def long(self, steps: int = 1_000_000) -> "Target":
        """Return the job with this number of optimizer steps, evaluated only at the end; it is
        measured at its start, and then pauses.

        Raises SettingsError if its script has no setting `steps`.
        """
        if "steps" not in self.known:
            raise SettingsError("settings.py has no setting `steps`, which find needs")
        values = {"steps": steps, "minutes": 0.0, "eval_every": Span(str(steps))}
        return self.having(**{name: value for name, value in values.items() if name in self.known})

    def named(self, name: str, given: str) -> str:
        """Return the setting with this present or former name, or `given` if that is not empty.

        Raises SettingsError if there is none.
        """
        if given:
            wanted = given.removeprefix("--").replace("-", "_")
            if wanted not in self.known:
                raise SettingsError(f"--setting {given}: {did_you_mean(wanted, self.known)}")
            return wanted
        for now in self.known:
            if name in (now, self.known.formerly.get(now)):
                return now
        raise SettingsError(
            f"settings.py has no setting `{name}`; name the setting to use instead with --setting"
        )


def read_target(words: Sequence[str], runs_root: Path | None) -> Target:
    """Return the job of a command line, which has its flags and, optionally, its script first.

    Raises SettingsError if they are wrong.
    """
    given = [*words]
    named = bool(given) and given[0].endswith(".py") and not given[0].startswith("-")
    script = identity.read(given.pop(0).removesuffix(".py") if named else identity.DEFAULT)
    for word in given:
        flag = word.split("=")[0].replace("_", "-")
        if flag in REFUSED:
            raise SettingsError(f"{flag}: cannot be used with find")
    settings, runtime = parse(script.settings, Runtime, given)
    if runs_root:
        runtime = dataclasses.replace(runtime, runs_root=runs_root)
    target = Target(script, settings, runtime)
    if not {*LENGTHS} & target.known.keys():
        raise SettingsError(f"{script.name}.py: its jobs do not train")
    return target


class Ended(NamedTuple):
    """How a job has ended: `paused`, `finished`, `diverged`, `failed` or `killed`; and a line about
    it."""

    how: str
    said: str

    @property
    def has_measured(self) -> bool:
        """Whether its journal has the measurements, as far as the job got."""
        return self.how in ("paused", "finished", "diverged")

    @property
    def out_of_memory(self) -> bool:
        """Whether the system has killed it, or its error says so."""
        return self.how == "killed" or (self.how == "failed" and "out of memory" in self.said)


class Trials:
    """Runs jobs for a purpose, such as `find lr`, on the device that --device names; with `again`,
    jobs that were run before are run again.

    Raises SettingsError for a GPU that does not exist.
    """

    def __init__(self, what: str, device: str, again: bool) -> None:
        self._purpose, self._again = what, again
        kind, _, number = device.partition(":")
        named = number or (None if kind == "auto" else "0")
        on_gpus = gpus.on_gpus(named, 1) if kind in ("auto", "cuda") else []
        self._slots = on_gpus or gpus.on_cpu(1)
        self._folder = PROJECT / layout.SWEEPS / f"{what.replace(' ', '-')}-{os.getpid()}"
        self._starter: Starter | None = None
        self._begun: set[str] = set()
        self._asked = 0
        self.jobs: dict[str, JobFolder[Any]] = {}
        """The jobs that have measured something, by id."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._starter:
            os.close(self._lock)
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def on_gpu(self) -> bool:
        """Whether the jobs run on a GPU that nvidia-smi knows."""
        return self._slots[0].device != "cpu"

    def before(self, target: Target) -> Ended:
        """Return how a job has ended with the present code and data; empty if it has to be run."""
        job = target.job
        outcome = job.outcome()
        other_pause = outcome.get("pause_after") != job.runtime.pause_after
        if self._starts_over(job) or (outcome.get("status") == "paused" and other_pause):
            return Ended("", "")
        return Ended(outcome.get("status", ""), outcome.get("said", ""))

    def run(self, target: Target, once: bool = True) -> Ended:
        """Run a job and return how it ended; with `once`, only if it was not run before.

        Raises SettingsError for wrong settings, JobError for a job that cannot be run, and
        Interrupted after a signal has stopped it.
        """
        job, said = target.job, ""
        if not (once and self.before(target).has_measured):
            over = self._starts_over(job)
            self._begun.add(job.id)
            words = [*shlex.split(target.command)[1:], "--quiet", *(["--force"] if over else [])]
            said = self._run(target, job, words)
        job = target.job
        outcome = job.outcome()
        ended = Ended(outcome.get("status", "killed"), outcome.get("said", said))
        if ended.has_measured:
            self.jobs[job.id] = job
        return ended

    def measure(self, target: Target) -> JobFolder[Any]:
        """Run a job, if it was not run before, and return it. Raises JobError, beside what `run`
        raises, if it has measured nothing."""
        ended = self.run(target)
        if not ended.has_measured:
            raise JobError(ended.said)
        return target.job

    def _starts_over(self, job: JobFolder[Any]) -> bool:
        return bool(job.change) or (self._again and job.id not in self._begun)

    def _run(self, target: Target, job: JobFolder[Any], words: list[str]) -> str:
        """Run a job's process, after waiting for any other that trains it; return its last line."""
        while True:
            print(f"job {job.id} started: {job.name}", file=sys.stderr, flush=True)
            status, line = self._process(target, words)
            if status == exit_status.WRONG:  # the command reports this error
                raise SettingsError(line)
            print(line.split("; the same command")[0], file=sys.stderr, flush=True)
            if self._asked:
                raise Interrupted(self._asked)
            if status == exit_status.OTHER_CODE:
                raise JobError(f"{line}, or use find with --force")
            if status != exit_status.ELSEWHERE:
                return line
            while states.is_trained(job.path):
                self._rest()

    def _process(self, target: Target, words: list[str]) -> tuple[int, str]:
        """Run a process to its end; return its exit status and its last line."""
        starter = self._starter or self._start(target)
        gpu = self._gpu()
        if gpu.env:
            words = [word for word in words if not word.startswith("--device=")]
        env = {runtime.VARIABLE: self._purpose, **gpu.env}
        with TemporaryFile() as output:
            process = starter.job(words, output.fileno(), env, gpu.files)
            gpu.release()  # the job holds it until it ends
            while (status := process.poll()) is None:
                if self._asked:  # it ignores further ones
                    process.send_signal(signal.SIGTERM)
                time.sleep(PAUSE)
            if status < 0:
                status = exit_status.SIGNALLED - status
            if status > exit_status.SIGNALLED:
                return status, f"job was killed (status {status})"
            output.seek(0)
            said = output.read().decode(errors="replace")
            return status, said.rstrip("\n").rpartition("\n")[2]

    def _start(self, target: Target) -> Starter:
        """Copy the code, and import once what every job would import."""
        handle_signals(signal.SIG_IGN)  # in the servers and the jobs that they fork
        self._folder.mkdir(parents=True)
        self._lock = states.lock_snapshot(self._folder)
        states.clear_snapshots(self._folder)
        states.take_snapshot(self._folder / "code")
        script = f"{target.script.name}.py"
        self._starter = Starter(self._folder / "code", [script], at_once=1, keep=[self._lock])
        handle_signals(self._stop)
        return self._starter

    def _stop(self, number: int, _frame: object) -> None:
        self._asked = number
        signal.signal(number, signal.SIG_DFL)  # a second one ends this process

    def _gpu(self) -> Gpu:
        """Wait for a GPU that nobody uses, and take and return it; or return the CPU."""
        every = [Gpu(slot, shared=False) for slot in self._slots]
        waiting = False
        while True:
            for gpu in every:
                if gpu.take():
                    return gpu
            if not waiting:
                print(f"{every[0].device} {every[0].why}; waiting", file=sys.stderr, flush=True)
            waiting = True
            self._rest()

    def _rest(self) -> None:
        time.sleep(PAUSE)
        if self._asked:
            raise Interrupted(self._asked)


def points(job: JobFolder[Any], name: str) -> list[dict[str, float]]:
    """Return the points of a job's journal that have a metric, in order, each with its `step`.

    Raises JobError if the journal cannot be read.
    """
    with_metrics = (line for line in _lines(job) if name in line.get("metrics", {}))
    return [{"step": line["step"], **line["metrics"]} for line in with_metrics]


def logged(job: JobFolder[Any]) -> set[str]:
    """Return the names of all metrics in a job's journal."""
    return {name for line in _lines(job) for name in line.get("metrics", {})}


def tags(job: JobFolder[Any]) -> dict[str, str]:
    """Return the last value that a job logged of each tag."""
    return {name: text for line in _lines(job) for name, text in line.get("tags", {}).items()}


def _lines(job: JobFolder[Any]) -> list[dict[str, Any]]:
    try:
        with (Path(job.latest or job.path) / layout.JOURNAL).open("rb") as file:
            return journal.Reader(file).read()
    except FileNotFoundError:
        raise JobError(f"{job.label} has no journal on this disk; see its run in MLflow") from None
