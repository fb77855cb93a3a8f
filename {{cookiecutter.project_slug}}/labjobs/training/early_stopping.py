"""Which evaluation's weights are best, and when to stop waiting for better ones."""

import math
from collections.abc import Mapping

from labjobs.cli.metrics import Metric, no_monitor
from labjobs.errors import Diverged, JobError
from labjobs.stateful import Stateful


class EarlyStopping(Stateful):
    """Follows a validation metric in the direction that METRICS declares for it.

    `improved(metrics)` says after each evaluation whether it was the best so far; a tie is no
    improvement, so the earliest best is kept. With the monitor `none` every evaluation is the best:
    the last weights are kept, and nothing stops early. Raises JobError for a metric that is not
    declared.
    """

    kept = ("evaluations", "best_evaluation", "plateaus", "_best")

    def __init__(
        self, metrics: Mapping[str, Metric], monitor: str, patience: int = 0, plateau: int = 5
    ) -> None:
        self._monitor, self._patience, self._plateau = monitor, patience, plateau
        name = monitor.removeprefix("val_")
        if monitor != "none" and name not in metrics:
            raise JobError(f"--monitor {monitor}: {no_monitor(monitor, metrics)}")
        better = "" if monitor == "none" else metrics[name].better
        self._sign = -1.0 if better == "lower" else 1.0
        self._best = -math.inf
        self.evaluations = self.best_evaluation = 0
        self.plateaus = 0
        """How often `plateau` evaluations in a row brought no improvement."""

    def improved(self, metrics: Mapping[str, float]) -> bool:
        """Record an evaluation; return whether it is the best so far.

        Raises Diverged if the monitored metric is not finite, JobError if it was not measured.
        """
        self.evaluations += 1
        if self._monitor == "none":
            self.best_evaluation = self.evaluations
            return True
        if self._monitor not in metrics:
            raise JobError(
                f"--monitor {self._monitor}: evaluate() returned no such metric, only "
                f"{', '.join(metrics) or 'none'}"
            )
        value = self._sign * float(metrics[self._monitor])
        if not math.isfinite(value):
            raise Diverged(f"{self._monitor} was not finite; lower the learning rate")
        if value > self._best:
            self._best, self.best_evaluation = value, self.evaluations
            return True
        waited = self.evaluations - self.best_evaluation
        if self._plateau and waited % self._plateau == 0:
            self.plateaus += 1
        return False

    @property
    def due(self) -> bool:
        """Whether `patience` evaluations have passed without a better one; never if it is 0."""
        return 0 < self._patience <= self.evaluations - self.best_evaluation
