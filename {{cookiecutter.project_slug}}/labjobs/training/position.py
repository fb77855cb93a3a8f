"""Where a training loop is: the steps that are done, and when the model is evaluated next."""

from typing import Any

from labjobs.cli.spans import Span
from labjobs.errors import SettingsError
from labjobs.stateful import Stateful
from labjobs.training.length import Length


class Position(Stateful):
    """The position of a loop: `step` steps are done, in `interval` whole evaluation intervals.

    `evaluating`: the steps of this interval are done, its evaluation is not. `over`: the loop has
    ended, by its length or by the student's `break`.
    """

    kept = ("step", "interval", "evaluating", "over")

    def __init__(self, settings: Any, length: Length) -> None:
        self.length = length
        every = Span(getattr(settings, "eval_every", "1e"))
        self._every, self._in_epochs = every.number, every.endswith("e")
        self.step = self.interval = 0
        self.evaluating = self.over = False

    @property
    def epoch(self) -> float:
        """Passes over the training data so far; 0 for a stream."""
        per_epoch = self.length.steps_per_epoch
        return self.step / per_epoch if per_epoch else 0.0

    @property
    def fraction(self) -> float:
        """Fraction of the job that is done."""
        return self.length.fraction(self.step)

    def place(self) -> tuple[int, int]:
        """Return the next step's epoch, counted from 1, and its batch in there, counted from 0."""
        per_epoch = self.length.steps_per_epoch
        if not per_epoch:
            return 1, self.step
        return self.step // per_epoch + 1, self.step % per_epoch

    @property
    def interval_end(self) -> int:
        """The step at whose end the model is evaluated next, or at which the job ends."""
        end, total = self._next_evaluation(), self.length.total
        return end if total is None else min(end, total)

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to train or to evaluate."""
        if self.over or self.evaluating or not self.step:
            return self.over
        total = self.length.total
        return total is not None and self.step >= total

    def end_interval(self) -> None:
        """An interval and its evaluation are over."""
        self.interval += 1
        self.evaluating = False
        while self._next_evaluation() <= self.step:  # spans shorter than a step
            self.interval += 1

    def is_evaluated(self, step: int) -> bool:
        """Whether the model is evaluated after a step, whatever the job's length is."""
        while (end := self._next_evaluation()) < step:
            self.interval += 1
        return end == step

    def _next_evaluation(self) -> int:
        per_epoch = self.length.steps_per_epoch if self._in_epochs else 1
        if not per_epoch:
            raise SettingsError(
                "--eval-every: this data has no epochs; give a number of steps, such as 500"
            )
        return max(1, round((self.interval + 1) * self._every * per_epoch))
