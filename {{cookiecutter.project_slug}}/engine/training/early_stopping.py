"""Which epoch's weights are best, and when to stop looking for better ones."""

import math

from engine.errors import Diverged
from engine.stateful import Stateful


class EarlyStopping(Stateful):
    """Follows one validation metric: `val_loss` is better lower, `val_accuracy` higher.

    A tie is no improvement: the earliest best epoch is kept.
    """

    kept = ("epoch", "best_epoch", "_best")

    def __init__(self, monitor: str, patience: int) -> None:
        self.monitor = monitor
        self._patience = patience
        self._sign = -1.0 if monitor == "val_loss" else 1.0
        self._best = -math.inf
        self.best_epoch = 0
        self.epoch = 0
        """Epochs that have been taken note of."""

    def improved(self, metrics: dict[str, float]) -> bool:
        """Take note of an epoch's metrics; whether it is the best so far.

        Raises Diverged if the metric is not finite.
        """
        self.epoch += 1
        value = self._sign * metrics[self.monitor]
        if not math.isfinite(value):
            raise Diverged(f"{self.monitor} was not finite after epoch {self.epoch}; lower --lr")
        if value <= self._best:
            return False
        self._best, self.best_epoch = value, self.epoch
        return True

    @property
    def due(self) -> bool:
        """Whether `patience` epochs have passed without a better one; never if it is 0."""
        return 0 < self._patience <= self.epoch - self.best_epoch
