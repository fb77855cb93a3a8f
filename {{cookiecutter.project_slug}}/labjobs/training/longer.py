"""Whether a longer job may continue a shorter one.

The result must be that of a job which does all steps itself. So only the length and the schedule
may differ, and each step that was done must have had the learning rate that the longer job would
have used. To compare them, the student's schedule is called for both jobs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, Protocol

from labjobs.cli import flags
from labjobs.cli.spans import Span
from labjobs.cli.values import as_text
from labjobs.job.identity import identity
from labjobs.job.runtime import LENGTHS
from labjobs.training.length import Length
from labjobs.training.position import Position

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


def goes_on(settings: Any, factor: Factor | None, done: Trained) -> bool:
    """Return whether a longer job could continue, tested with one that is twice as long and has the
    same schedule. False if the schedule is unknown or the length is in minutes."""
    if factor is None or done.early or not done.steps or _in_minutes(settings):
        return False
    if not _is_evaluated(settings, done):
        return False
    itself, longer = (settings, done.steps), (settings, 2 * done.steps)
    return _first_difference(factor, longer, itself, done) is None


def problem(settings: Any, before: Any, factor: Factor, done: Trained) -> str:
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
