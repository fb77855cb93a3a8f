"""The job to find a value for, and others like it."""

import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from labjobs.cli import Span, flags
from labjobs.cli.flags import option
from labjobs.cli.parser import parse
from labjobs.cli.values import as_plain, as_text
from labjobs.errors import SettingsError, did_you_mean
from labjobs.job import identity, scripts
from labjobs.job.folder import JobFolder
from labjobs.job.runtime import LENGTHS, Runtime

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

    script: scripts.Script
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


def read(words: Sequence[str], runs_root: Path | None) -> Target:
    """Return the job of a command line, which has its flags and, optionally, its script first.

    Raises SettingsError if they are wrong.
    """
    given = [*words]
    named = bool(given) and given[0].endswith(".py") and not given[0].startswith("-")
    script = scripts.read(given.pop(0).removesuffix(".py") if named else scripts.DEFAULT)
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
