"""Where the time of a job goes, by the host's clock."""

import time
from collections.abc import Iterator
from typing import Any, TypeVar

from engine.stateful import Stateful

T = TypeVar("T")


class Stopwatch(Stateful):
    """Times of training and evaluation, over all attempts at a job, in seconds."""

    kept = ("_seconds", "_trained", "_waited", "_examples")

    def __init__(self) -> None:
        self._seconds = self._trained = self._waited = 0.0
        self._examples = 0
        self._noted = time.monotonic()

    def start(self) -> None:
        """Training begins or goes on; time before that does not count."""
        self._noted = time.monotonic()

    def waiting(self, batches: Iterator[T]) -> Iterator[T]:
        """Yield the batches, with the time spent waiting for each of them counted."""
        while True:
            asked = time.monotonic()
            batch = next(batches, None)
            self._waited += time.monotonic() - asked
            if batch is None:
                return
            yield batch

    def trained(self, examples: int) -> None:
        """Take note that a step with so many examples was taken."""
        self._examples += examples

    def end_steps(self) -> None:
        """The steps of an interval are over and the device has done them; evaluation begins."""
        self._trained += self._lap()

    def read(self) -> dict[str, float]:
        """Return the time so far, and of the interval that ends the training examples per second
        and the fraction of training spent waiting for data."""
        self._lap()
        metrics = {"elapsed_seconds": self._seconds}
        if self._trained and self._examples:
            metrics["examples_per_second"] = self._examples / self._trained
            metrics["data_wait_fraction"] = min(1.0, self._waited / self._trained)
        self._trained = self._waited = 0.0
        self._examples = 0
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return the times so far."""
        self._lap()
        return super().state_dict()

    def _lap(self) -> float:
        now = time.monotonic()
        seconds, self._noted = now - self._noted, now
        self._seconds += seconds
        return seconds
