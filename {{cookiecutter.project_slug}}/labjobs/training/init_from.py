"""What --init-from gives a job to start from: another job's best weights, or its final state.

A job records how long it has trained in `trained.json`. A longer job needs this record to
continue it.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from labjobs import layout
from labjobs.cli import flags
from labjobs.cli.flags import as_text
from labjobs.errors import JobError, SettingsError
from labjobs.files import write_record
from labjobs.job import attempts, journal
from labjobs.job.folder import JobFolder
from labjobs.job.identity import as_command, identity
from labjobs.job.runtime import LENGTHS
from labjobs.job.terminal import log
from labjobs.settings import Span, Weights
from labjobs.training import checkpoints
from labjobs.training.progress import Length, Position

# Whether a longer job may continue a shorter one.
#
# The result must be that of a job which does all steps itself. So only the length and the schedule
# may differ, and each step that was done must have had the learning rate that the longer job would
# have used. To compare them, the student's schedule is called for both jobs.

MAY_DIFFER = (*LENGTHS, "schedule", "init_from")
"""Settings in which a longer job may differ from the one that it continues."""

PLATEAUS = (0, 1)
"""Numbers of plateaus to compare schedules for, since the actual number is unknown."""


class Timing(Protocol):
    """What a schedule may know about a job before its next step; a job has all of it itself."""

    @property
    def step(self) -> int:
        """Optimizer steps that are done."""

    @property
    def total_steps(self) -> int | None:
        """Optimizer steps of the whole job; None while --minutes are not measured yet."""

    @property
    def fraction_done(self) -> float:
        """Fraction of the job that is done."""

    def span(self, span: Span) -> int:
        """Return a span such as --warmup as a number of steps."""


Factor = Callable[[Any, Timing, int], float]
"""What learning rates are multiplied by in the next step: of settings, the timing, and how often
the monitored metric has not improved."""


@dataclass
class Planned:
    """A job with a given length, as its schedule sees it."""

    total_steps: int
    steps_per_epoch: int
    step: int = 0

    @property
    def fraction_done(self) -> float:
        """Fraction of the job that is done."""
        return self.step / self.total_steps

    def span(self, span: Span) -> int:
        """Return a span as a number of steps."""
        return span.steps(self.steps_per_epoch or None)


class Trained(NamedTuple):
    """The training that a job has done; `early`: it stopped before its full length."""

    steps: int
    steps_per_epoch: int
    early: bool


def can_go_on(settings: Any, factor: Factor | None, done: Trained) -> bool:
    """Return whether a longer job could continue, tested with one that is twice as long and has the
    same schedule. False if the schedule is unknown or the length is in minutes."""
    if factor is None or done.early or not done.steps or _in_minutes(settings):
        return False
    if not _is_evaluated(settings, done):
        return False
    itself, longer = (settings, done.steps), (settings, 2 * done.steps)
    return _first_difference(factor, longer, itself, done) is None


def extension_problem(settings: Any, before: Any, factor: Factor, done: Trained) -> str:
    """Return why a job cannot continue what a job with the settings `before` has done, and what to
    do about it; empty if it can."""
    if _in_minutes(settings) or _in_minutes(before):
        return "both jobs need a length in --steps or --epochs, not in --minutes"
    mine, theirs = identity(settings), identity(before)
    for name in [*mine.keys() - MAY_DIFFER, *theirs.keys() - MAY_DIFFER]:
        if mine.get(name) != theirs.get(name):
            here, there = as_text(mine.get(name)), as_text(theirs.get(name))
            differs = f"{flags.option(name)} is {here}, but was {there} in that job"
            return f"{differs}; only the length and the schedule may differ"
    total = _total(settings, done)
    if done.early:
        return f"it stopped early, after {done.steps} steps, as a longer job would; see --patience"
    if total <= done.steps:
        return f"it has done {done.steps} steps, and this job has {total}; make this job longer"
    if not _is_evaluated(settings, done):
        every = as_text(settings.eval_every)
        ended = f"it ended between two evaluations, after {done.steps} steps"
        return f"{ended}; its length must be a multiple of --eval-every {every}"
    return _rates(factor, (settings, total), (before, done.steps), done)


def _rates(factor: Factor, mine: tuple[Any, int], theirs: tuple[Any, int], done: Trained) -> str:
    """Why the learning rates of the steps that were done differ; empty if they are the same."""
    step = _first_difference(factor, mine, theirs, done)
    if step is None:
        return ""
    here, there = (_factor(factor, *each, done, step) for each in (mine, theirs))
    rates = f"in step {step + 1} the learning rate would be {here:.4g} of its highest, but was"
    cure = "up to there, the schedule must not depend on the length, like --schedule constant"
    return f"{rates} {there:.4g}; {cure}"


def _first_difference(
    factor: Factor, one: tuple[Any, int], other: tuple[Any, int], done: Trained
) -> int | None:
    """The number of steps before the first one whose learning rate differs; None if none does.
    The last step comes first, since most schedules differ there."""
    first, second = (Planned(total, done.steps_per_epoch) for _, total in (one, other))
    for step in chain((done.steps - 1,), range(done.steps - 1)):
        first.step = second.step = step
        for plateaus in PLATEAUS:
            if factor(one[0], first, plateaus) != factor(other[0], second, plateaus):
                return step
    return None


def _factor(factor: Factor, settings: Any, total: int, done: Trained, step: int) -> float:
    return factor(settings, Planned(total, done.steps_per_epoch, step), 0)


def _in_minutes(settings: Any) -> bool:
    return bool(getattr(settings, "minutes", 0))


def _total(settings: Any, done: Trained) -> int:
    length = Length(settings)
    length.steps_per_epoch = done.steps_per_epoch
    return length.total or 0


def _is_evaluated(settings: Any, done: Trained) -> bool:
    """Whether a longer job has an evaluation at the step at which this one has ended."""
    length = Length(settings)
    length.steps_per_epoch = done.steps_per_epoch
    position = Position(settings, length)
    return position.is_evaluated(done.steps)


NAMED = 8
"""Largest number of unfitting weights that are named; further ones are only counted."""

CPU = torch.device("cpu")


class Beginning:
    """The attempt from which a job starts."""

    def __init__(self, folder: JobFolder[Any]) -> None:
        self._folder = folder
        given = getattr(folder.settings, "init_from", None)
        self._given = given if isinstance(given, Weights) else None
        self._factor: Factor | None = None
        self._taken = False

    def take(self, models: Mapping[str, nn.Module]) -> None:
        """Give models the other job's best weights, as far as they fit; says in the log what does
        not. Of models on the meta device it is only checked whether any do.

        Raises SettingsError if none do.
        """
        if not self._given or self._given.last or not (attempt := self._attempt):
            return
        kept = self._best_of(attempt)
        fitting = {name: _fitting(model, kept.get(name, {})) for name, model in models.items()}
        if not any(_has_parameter(model, fitting[name]) for name, model in models.items()):
            has = ", ".join(kept)
            raise SettingsError(
                f"{self._flag}: none of its weights fit; that job kept weights of {has}"
            )
        for name, model in models.items():
            if any(weight.is_meta for weight in model.parameters()):
                continue
            model.load_state_dict(fitting[name], strict=False)
            count, own = len(fitting[name]), len(model.state_dict())
            level = logging.INFO if 2 * count > own else logging.WARNING
            log.log(level, "%s: %d of %d weights of %s are taken", self._flag, count, own, name)
            lines = list(_misfits(model, kept.get(name, {})))
            for line in lines[:NAMED]:
                log.warning("%s: %s.%s", self._flag, name, line)
            if len(lines) > NAMED:
                log.warning("%s: and %d more do not fit", self._flag, len(lines) - NAMED)
            self._taken = True

    def check(self, factor: Factor) -> None:
        """Raise SettingsError if the job has to continue another one and cannot."""
        self._factor = factor
        given, folder = self._given, self._folder
        if not given or not given.last or not (attempt := self._attempt):
            return
        known = attempts.settings_of(given.job, self._root)
        if not known or (attempts.has_checkpoint(folder.path) and not folder.runtime.force):
            return
        before, script = known
        if script != folder.script:
            raise SettingsError(f"{self._flag}: is a job of {script}.py")
        done = journal.record_of(attempt, layout.TRAINED)
        again = f"{as_command(before, script)} --force runs it again"
        if not done:
            raise SettingsError(
                f"{self._flag}: that job did not record how long it trained; {again}"
            )
        trained = Trained(done["steps"], done["steps_per_epoch"], done["early"])
        if problem := extension_problem(folder.settings, before, factor, trained):
            raise SettingsError(f"{self._flag}: {problem}")
        if not (attempt / layout.LAST).exists():
            raise SettingsError(f"{self._flag}: the last.pt of that job is gone; {again}")

    def state(self) -> dict[str, Any]:
        """Return the state at the end of the other job's training; empty if this one starts anew.

        Raises JobError if the state cannot be read, or run.py does not do what --init-from needs.
        """
        if not self._given:
            return {}
        if not self._given.last:
            if not self._taken:
                raise JobError(f"{self._flag}: run.py has to call job.init(…) before job.resume(…)")
            return {}
        if not self._factor or not (attempt := self._attempt):
            raise JobError(f"{self._flag}: check() in run.py has to call job.check_schedule(…)")
        content = self._opened(attempt / layout.LAST)
        position = content["parts"]["job.position"]
        position["over"] = False
        if content["best"]:
            content["best"]["settings"] = identity(self._folder.settings)
        log.info("continuing job %s after %d steps", self._given.job, position["step"])
        return {**content, "lines": (0, 0)}

    def note_end(self, trained: Trained) -> None:
        """Record how long the job has trained, and whether a longer one could continue."""
        content = {
            "schema": 1,
            "id": self._folder.id,
            **trained._asdict(),
            attempts.GOES_ON: can_go_on(self._folder.settings, self._factor, trained),
        }
        write_record(self._folder.path / layout.TRAINED, content)

    @property
    def _flag(self) -> str:
        return f"--init-from {self._given}"

    @property
    def _root(self) -> Path:
        return attempts.runs_root(self._folder.runs_root)

    @property
    def _attempt(self) -> Path | None:
        """The other job's attempt; None if that job has not run yet, as when a sweep is checked."""
        return attempts.finished_at(self._given.job, self._root) if self._given else None

    def _best_of(self, attempt: Path) -> dict[str, dict[str, Tensor]]:
        if not (attempt / layout.BEST).exists():
            raise SettingsError(f"{self._flag}: that job has kept no weights")
        return dict(self._opened(attempt / layout.BEST)["models"])

    def _opened(self, path: Path) -> dict[str, Any]:
        try:
            content = checkpoints.load(path, CPU)
            return _whole(content, path.parent) if "shards" in content else content
        except checkpoints.Damaged as error:
            line = f"its {path.name} is damaged; run that job again with --force"
            raise JobError(f"{self._flag}: {line}") from error


def _whole(content: dict[str, Any], folder: Path) -> dict[str, Any]:
    from labjobs.training import sharding  # slow

    return sharding.filled_shards(content, folder)


def _fitting(model: nn.Module, kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
    own = model.state_dict()
    return {
        name: weight
        for name, weight in kept.items()
        if name in own and own[name].shape == weight.shape
    }


def _has_parameter(model: nn.Module, fitting: Mapping[str, Tensor]) -> bool:
    return any(name in fitting for name, _ in model.named_parameters())


def _misfits(model: nn.Module, kept: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield a line for each weight that does not fit."""
    own = model.state_dict()
    for name, weight in own.items():
        if name not in kept:
            yield f"{name} keeps its initial values: that job has no weight of this name"
        elif kept[name].shape != weight.shape:
            here, there = tuple(weight.shape), tuple(kept[name].shape)
            shapes = f"its shape is {here}, but {there} in that job"
            yield f"{name} keeps its initial values: {shapes}"
    for name in sorted(kept.keys() - own.keys()):
        yield f"{name} of that job is not used: this job has no weight of this name"
