"""Runs jobs one after another, each in its own process, and reads their journals.

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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple, Self

from labjobs import layout
from labjobs.cli import flags
from labjobs.cli.flags import as_plain, as_text, option
from labjobs.cli.parser import parse
from labjobs.errors import JobError, SettingsError, did_you_mean
from labjobs.files import PROJECT
from labjobs.fork_server import Process
from labjobs.job import identity, journal, runtime
from labjobs.job.folder import JobFolder
from labjobs.job.runtime import LENGTHS, Runtime
from labjobs.job.terminal import SIGNALS, Interrupted
from labjobs.settings import Span
from labjobs.sweeps import gpus as slots
from labjobs.sweeps import states
from labjobs.sweeps.gpus import Gpu
from labjobs.sweeps.starter import Starter

# The job to find a value for, and others like it.

REFUSED = (
    "check",
    "continue_anyway",
    "force",
    "log_every",
    "pause_after",
    "profile",
    "quiet",
    "scratch",
)
"""Flags of the engine that the finder sets itself, or with which nothing is measured."""

MANY = 1_000_000
"""Steps of a job that is only measured at its start, and then pauses."""


@dataclass(frozen=True)
class Target:
    """A job, by its script, its settings and the engine's flags."""

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
        name, metrics = self.script.name, self.script.metrics
        return JobFolder(self.settings, self.runtime, metrics, name)

    @property
    def words(self) -> list[str]:
        """The command line that runs it, after `python`."""
        own = identity.identity(self.settings).items()
        settings = [f"{option(name)}={as_text(value)}" for name, value in own]
        return [f"{self.script.name}.py", *settings, *self._runtime_words]

    @property
    def command(self) -> str:
        """The command that runs the job, as a user types it."""
        words = shlex.join(self._runtime_words)
        return f"{identity.as_command(self.settings, self.script.name)} {words}".rstrip()

    @property
    def trains_in_batches(self) -> bool:
        """Whether the job has a length."""
        return bool({*LENGTHS} & self.known.keys())

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

    def long(self, steps: int) -> "Target":
        """Return the job with this number of optimizer steps, evaluated only at the end.

        Raises SettingsError if its script has no setting `steps`.
        """
        if "steps" not in self.known:
            raise SettingsError("settings.py has no setting `steps`, which find needs")
        changes: dict[str, Any] = {"steps": steps}
        if "minutes" in self.known:
            changes["minutes"] = 0.0
        if "eval_every" in self.known:
            changes["eval_every"] = Span(str(steps))
        return self.having(**changes)

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

    @property
    def _runtime_words(self) -> list[str]:
        words = []
        for name, flag in flags.of(Runtime).items():
            value = getattr(self.runtime, name)
            if isinstance(value, Path):  # jobs run in the project's folder
                value = value.expanduser().absolute()
            if value != flag.default:
                words.append(f"{option(name)}={as_text(as_plain(value))}")
        return words


def read_target(words: Sequence[str], runs_root: Path | None) -> Target:
    """Return the job of a command line, which has its flags and, optionally, its script first.

    Raises SettingsError if they are wrong.
    """
    given = [*words]
    named = bool(given) and given[0].endswith(".py") and not given[0].startswith("-")
    script = identity.read(given.pop(0).removesuffix(".py") if named else identity.DEFAULT)
    for word in given:
        name = word.split("=")[0].removeprefix("--").replace("-", "_")
        if word.startswith("--") and name in (*REFUSED, "help"):
            raise SettingsError(f"{word.split('=')[0]}: cannot be used with find")
    settings, runtime = parse(script.settings, Runtime, given)
    if runs_root:
        runtime = dataclasses.replace(runtime, runs_root=runs_root)
    target = Target(script, settings, runtime)
    if not target.trains_in_batches:
        raise SettingsError(f"{script.name}.py: its jobs do not train")
    return target


PAUSE = 0.05
"""Seconds between two checks of a job."""

OVER = ("paused", "finished", "diverged")
"""The ways in which a job can end that has measured something."""

WRONG, ELSEWHERE, CHANGED = 2, 4, 5
"""Exit statuses of a job."""

KILLED = 128
"""Processes that were ended by a signal have exit statuses above this one."""


class Ended(NamedTuple):
    """How a job has ended: `paused`, `finished`, `diverged`, `failed` or `killed`; and a line about
    it."""

    how: str
    said: str

    @property
    def has_measured(self) -> bool:
        """Whether its journal has the measurements, as far as the job got."""
        return self.how in OVER


class Trials:
    """Runs jobs for a purpose, such as `find lr`, on the device that --device names; with `again`,
    jobs that were run before are run again.

    Raises SettingsError for a GPU that does not exist.
    """

    def __init__(self, what: str, device: str, again: bool) -> None:
        self._purpose, self._again = what, again
        self._slots = _slots(device)
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
        if job.change or (self._again and job.id not in self._begun):
            return Ended("", "")
        outcome = job.outcome()
        if outcome.get("status") == "paused" and outcome.get("pause_after") != job.pause_after:
            return Ended("", "")
        return Ended(outcome.get("status", ""), outcome.get("said", ""))

    def run(self, target: Target, once: bool = True) -> Ended:
        """Run a job and return how it ended; with `once`, only if it was not run before.

        Raises SettingsError for wrong settings, JobError for a job that cannot be run, and
        Interrupted after a signal has stopped it.
        """
        job = target.job
        said = ""
        if not (once and self.before(target).has_measured):
            anew = job.change or (self._again and job.id not in self._begun)
            self._begun.add(job.id)
            said = self._run(target, job, [*target.words, *(["--force"] if anew else [])])
        job = target.job
        outcome = job.outcome()
        ended = Ended(outcome.get("status", "killed"), outcome.get("said", said))
        if ended.has_measured:
            self.jobs[job.id] = job
        return ended

    def _run(self, target: Target, job: JobFolder[Any], words: list[str]) -> str:
        """Run a job's process, after waiting for any other that trains it; return its last line."""
        while True:
            status, line = self._process(target, words, f"job {job.id} started: {job.name}")
            if status != WRONG:  # the command reports this error
                print(line.split("; the same command")[0], file=sys.stderr, flush=True)
            if self._asked:
                raise Interrupted(self._asked)
            if status != ELSEWHERE:
                break
            while states.is_trained(job.path):
                self._rest()
        if status == WRONG:
            raise SettingsError(line)
        if status == CHANGED:
            raise JobError(f"{line}, or use find with --force")
        return line

    def _process(self, target: Target, words: list[str], said: str) -> tuple[int, str]:
        """Run a process to its end; return its exit status and its last line."""
        starter = self._starter or self._start(target)
        gpu = self._gpu()
        env = {runtime.VARIABLE: self._purpose}
        if gpu.device != "cpu":
            env["CUDA_VISIBLE_DEVICES"] = gpu.device
            words = [word for word in words if not word.startswith("--device=")]
        print(said, file=sys.stderr, flush=True)
        with TemporaryFile() as output:
            process = starter.job([*words, "--quiet"], output.fileno(), env, gpu.files)
            gpu.release()  # the job holds it until it ends
            status = self._wait(process)
            killed = f"job was killed (status {status})" if status > KILLED else ""
            return status, killed or _last_line(output)

    def _start(self, target: Target) -> Starter:
        """Copy the code, and import once what every job would import."""
        for number in SIGNALS:  # ignored by the servers and the jobs that they fork
            signal.signal(number, signal.SIG_IGN)
        self._folder.mkdir(parents=True)
        self._lock = states.lock_snapshot(self._folder)
        states.clear_snapshots(self._folder)
        states.take_snapshot(self._folder / "code")
        script = f"{target.script.name}.py"
        self._starter = Starter(self._folder / "code", [script], at_once=1, keep=[self._lock])
        for number in SIGNALS:
            signal.signal(number, self._stop)
        return self._starter

    def _stop(self, number: int, _frame: object) -> None:
        self._asked = number
        signal.signal(number, signal.SIG_DFL)  # a second one ends this process

    def _gpu(self) -> Gpu:
        """Wait for a GPU that nobody uses, and take and return it; or return the CPU."""
        gpus = [Gpu(slot, shared=False) for slot in self._slots]
        waiting = False
        while not any(gpu.take() for gpu in gpus):
            if not waiting:
                print(f"{gpus[0].device} {gpus[0].why}; waiting", file=sys.stderr, flush=True)
            waiting = True
            self._rest()
        return next(gpu for gpu in gpus if gpu.device == "cpu" or gpu.files)

    def _wait(self, process: Process) -> int:
        """Return a process's exit status as a shell reports it; pass signals on to it."""
        passed = False
        while (status := process.poll()) is None:
            if self._asked and not passed:
                process.send_signal(signal.SIGTERM)
                passed = True
            time.sleep(PAUSE)
        return 128 - status if status < 0 else status

    def _rest(self) -> None:
        time.sleep(PAUSE)
        if self._asked:
            raise Interrupted(self._asked)


def _slots(device: str) -> list[slots.Slot]:
    """The devices that a job with this --device may run on."""
    kind, _, number = device.partition(":")
    gpus = []
    if kind in ("auto", "cuda"):
        gpus = slots.on_gpus(number or None if kind == "auto" else number or "0", 1)
    return gpus or slots.on_cpu(1)


def _last_line(output: IO[bytes]) -> str:
    output.seek(0)
    return output.read().decode(errors="replace").rstrip("\n").rpartition("\n")[2]


def points(job: JobFolder[Any], names: Iterable[str]) -> list[dict[str, float]]:
    """Return the points of a job's journal that have any of these metrics, in order, each with its
    `step`. Raises JobError if the journal cannot be read."""
    wanted = {*names}
    return [
        {"step": line["step"], **line["metrics"]}
        for line in _lines(job)
        if wanted & line.get("metrics", {}).keys()
    ]


def logged(job: JobFolder[Any]) -> set[str]:
    """Return the names of all metrics in a job's journal."""
    return {name for line in _lines(job) for name in line.get("metrics", {})}


def tag(job: JobFolder[Any], name: str) -> str:
    """Return the last value that a job logged of a tag; empty if there is none."""
    found = [line["tags"][name] for line in _lines(job) if name in line.get("tags", {})]
    return str(found[-1]) if found else ""


def _lines(job: JobFolder[Any]) -> list[dict[str, Any]]:
    path = Path(job.latest or job.path) / layout.JOURNAL
    try:
        with path.open("rb") as file:
            return journal.Reader(file).read()
    except FileNotFoundError:
        raise JobError(f"{job.label} has no journal on this disk; see its run in MLflow") from None
