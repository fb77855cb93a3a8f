"""How long a job trains: a number of epochs, steps or minutes."""

import time
from collections.abc import Callable
from typing import Any

from labjobs.errors import JobError, SettingsError
from labjobs.stateful import Stateful

WARM_UP = 10
"""Steps before the timed ones: the first few compile code, choose kernels and fill caches."""

TIMED = 20
"""Steps whose time tells how many steps fit into --minutes."""


class Length(Stateful):
    """The length of a job by its settings' `epochs`, or `steps` or `minutes` if one is above 0.

    Minutes become a number of steps, measured over TIMED steps and kept in the checkpoint, so that
    a job that is killed and continued takes as many steps as one that is not. `steps_per_epoch` is
    None until the training batches are known, and 0 for a stream without an end; it is kept too,
    since a job that continues may ask for it before its first step.
    """

    kept = ("_measured", "steps_per_epoch")

    def __init__(self, settings: Any) -> None:
        self.epochs = int(getattr(settings, "epochs", 1))
        self.minutes = float(getattr(settings, "minutes", 0))
        self._steps = int(getattr(settings, "steps", 0))
        self.in_epochs = not (self._steps or self.minutes)
        self._measured = 0  # steps that the minutes amount to
        self._taken = 0  # steps that this process has taken
        self._began = self._timed_from = 0.0
        self.steps_per_epoch: int | None = None
        self.clock: Callable[[], float] = time.monotonic
        """Seconds since some moment; the same for all processes of a job."""

    def set_epoch(self, steps: int | None) -> None:
        """Record how many batches an epoch has, None for a stream.

        Raises SettingsError for a length in epochs of a stream.
        """
        self.steps_per_epoch = steps or 0
        if self.in_epochs and not steps:
            raise SettingsError("--epochs: this data has no epochs; use --steps or --minutes")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it, also from a checkpoint that has no steps of an epoch."""
        super().load_state_dict({"steps_per_epoch": self.steps_per_epoch, **state})

    @property
    def total(self) -> int | None:
        """Steps of the whole job; None while its minutes are not measured yet.

        Raises JobError before the length of an epoch is known, if the job's is in epochs.
        """
        if self.minutes:
            return self._measured or None
        if self._steps:
            return self._steps
        if self.steps_per_epoch is None:
            raise JobError(
                "the number of steps is not known before job.batches(…, shuffle=True) is called"
            )
        return self.epochs * self.steps_per_epoch

    def fraction(self, step: int) -> float:
        """Return the fraction of the job that is done after so many steps; of its time while its
        minutes are not measured."""
        total = self.total
        if total:
            return step / total
        return min(1.0, self._elapsed / (60 * self.minutes)) if self._began else 0.0

    def measure(self, step: int) -> None:
        """Record that a step was taken, after the device has done it."""
        self._taken += 1
        if self._taken == WARM_UP:
            self._timed_from = self.clock()
        elif self._taken == WARM_UP + TIMED:
            each = (self.clock() - self._timed_from) / TIMED
            self._measured = step + max(0, round((60 * self.minutes - self._elapsed) / each))

    @property
    def measuring(self) -> bool:
        """Whether the next step is to be measured; notes when the first one began."""
        if self._measured or not self.minutes:
            return False
        self._began = self._began or self.clock()
        return True

    @property
    def _elapsed(self) -> float:
        return self.clock() - self._began
