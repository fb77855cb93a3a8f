"""Short jobs of a student's script, run one after another, and what their journals say.

The jobs hold a GPU as those of a sweep do (labjobs.sweeps.gpus). What has been measured already is
not run again.
"""

import dataclasses
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

from labjobs import exit_status
from labjobs.cli import flags
from labjobs.cli.flags import as_plain, as_text, option
from labjobs.cli.parser import parse
from labjobs.errors import JobError, SettingsError, did_you_mean
from labjobs.files import CODE
from labjobs.job import identity, journal, runtime
from labjobs.job.folder import JobFolder
from labjobs.job.runtime import LENGTHS, Runtime
from labjobs.job.terminal import Interrupted
from labjobs.settings import Span
from labjobs.sweeps import gpus
from labjobs.sweeps.gpus import Gpu

REFUSED = (
    *("--check", "--continue-anyway", "--force", "--help", "--log-every"),
    *("--pause-after", "--profile", "--quiet", "--scratch"),
)
"""Flags of the engine that the finder sets itself, or with which nothing is measured."""


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
        command = identity.as_command(self.settings, self.script.name)
        return f"{command} {shlex.join(words)}".rstrip()

    @property
    def words(self) -> list[str]:
        """The same without `python`."""
        return shlex.split(self.command)[1:]

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

    def __init__(self, purpose: str, device: str, again: bool) -> None:
        self._purpose, self._again = purpose, again
        kind, _, number = device.partition(":")
        named = number or (None if kind == "auto" else "0")
        on_gpus = gpus.on_gpus(named) if kind in ("auto", "cuda") else []
        self._gpus = on_gpus or [Gpu({})]
        self._begun: set[str] = set()
        self.jobs: dict[str, JobFolder[Any]] = {}
        """The jobs that have measured something, by id."""

    @property
    def on_gpu(self) -> bool:
        """Whether the jobs run on a GPU that nvidia-smi knows."""
        return self._gpus[0].device != "cpu"

    @cached_property
    def _gpu(self) -> Gpu:
        """The first GPU that nobody uses, for all jobs, or the CPU. Raises JobError if all GPUs are
        in use."""
        for gpu in self._gpus:
            if gpu.take():
                return gpu
        gpu = self._gpus[0]
        raise JobError(f"GPU {gpu.device} {gpu.why}; wait, or choose another with -- --device")

    def run(self, target: Target, once: bool = True) -> Ended:
        """Run a job and return how it ended; with `once`, only if that is not known already.

        Raises SettingsError for wrong settings, JobError for a job that cannot be run, and
        Interrupted after a signal has stopped it.
        """
        job, ended = target.job, Ended("", "")
        over = bool(job.change) or (self._again and job.id not in self._begun)
        if not once or over or not self._is_known(job):
            self._begun.add(job.id)
            print(f"job {job.id} started: {job.name}", file=sys.stderr, flush=True)
            ended = self._process(target, ["--force"] if over else [])
            job = target.job
        if outcome := job.outcome():
            ended = Ended(outcome.get("status", ""), outcome.get("said", ""))
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

    def _is_known(self, job: JobFolder[Any]) -> bool:
        """Whether a job has measured what it should, or has run out of memory."""
        outcome = job.outcome()
        ended = Ended(outcome.get("status", ""), outcome.get("said", ""))
        as_wanted = ended.how != "paused" or outcome.get("pause_after") == job.runtime.pause_after
        return (ended.has_measured and as_wanted) or ended.out_of_memory

    def _process(self, target: Target, flags: list[str]) -> Ended:
        """Run a job's process to its end; return what is known without the outcome in its
        folder."""
        gpu = self._gpu
        words = [word for word in target.words if not (gpu.env and word.startswith("--device="))]
        with TemporaryFile() as output:
            process = subprocess.Popen(
                [sys.executable, *words, "--quiet", *flags],
                cwd=CODE,
                env=os.environ | {runtime.VARIABLE: self._purpose} | gpu.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=gpu.files,  # it holds the GPU, even if this process is killed
                start_new_session=True,
            )
            try:
                status = process.wait()
            except Interrupted:
                process.terminate()  # so that it can be continued
                process.wait()
                raise
            output.seek(0)
            line = output.read().decode(errors="replace").rstrip("\n").rpartition("\n")[2]
        if status == exit_status.WRONG:
            raise SettingsError(line)
        print(line.split("; the same command")[0], file=sys.stderr, flush=True)
        if status in (exit_status.OTHER_CODE, exit_status.ELSEWHERE):
            raise JobError(line)
        if not 0 <= status < exit_status.SIGNALLED:
            return Ended("killed", f"job was killed (status {status})")
        if status == exit_status.DONE:  # but not of the code that this process knows
            line += "; the code was changed meanwhile, so find has to begin again"
        return Ended("", line)


def points(job: JobFolder[Any], name: str) -> list[dict[str, float]]:
    """Return the points of a job's journal that have a metric, in order, each with its `step`.

    Raises JobError if the journal cannot be read.
    """
    with_metrics = (line for line in lines(job) if name in line.get("metrics", {}))
    return [{"step": line["step"], **line["metrics"]} for line in with_metrics]


def lines(job: JobFolder[Any]) -> list[dict[str, Any]]:
    """Return the lines of a job's journal. Raises JobError if it cannot be read."""
    try:
        return journal.lines_of(job.latest or job.path)
    except FileNotFoundError:
        raise JobError(f"{job.label} has no journal on this disk; see its run in MLflow") from None
