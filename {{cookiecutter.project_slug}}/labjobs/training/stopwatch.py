"""Where the time of a job goes, according to the host's clock."""

import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from labjobs.stateful import Stateful

T = TypeVar("T")


class Stopwatch(Stateful):
    """Times of training and evaluation, over all attempts at a job, in seconds."""

    kept = ("_seconds", "_trained", "_waited", "_examples", "rates")

    def __init__(self) -> None:
        self._seconds = self._trained = self._waited = 0.0
        self._examples = 0
        self._noted = time.monotonic()
        self._units: dict[str, float] = {}
        self.peak: float | None = None
        """Floating-point operations per second that the device can do, if known."""
        self.rates: dict[str, float] = {}
        """Of the last interval: training examples per second, what they consist of per second, the
        MFU if it is known, and the fraction of its training spent waiting for data."""

    def start(self, units: Mapping[str, float] = MappingProxyType({})) -> None:
        """Training begins or goes on; time before that does not count. `units` is how much of
        something else an example is, by name, such as its `flops`."""
        self._noted, self._units = time.monotonic(), dict(units)

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
        """Record that a step with this many examples was taken."""
        self._examples += examples

    def end_steps(self) -> None:
        """The steps of an interval are over and the device has done them."""
        self._lap(training=True)
        if self._trained and self._examples:
            rate = self._examples / self._trained
            self.rates = {
                "examples_per_second": rate,
                **{f"{name}_per_second": rate * each for name, each in self._units.items()},
                "data_wait_fraction": min(1.0, self._waited / self._trained),
            }
            speed = self.rates.pop("flops_per_second", 0.0)
            if speed and self.peak:
                self.rates["mfu"] = speed / self.peak
        self._trained = self._waited = 0.0
        self._examples = 0

    @property
    def elapsed(self) -> float:
        """Seconds of training and evaluation so far."""
        self._lap()
        return self._seconds

    def state_dict(self) -> dict[str, Any]:
        """Return the times so far; called between two steps or in an evaluation."""
        self._lap(training=self._examples > 0)
        return super().state_dict()

    def _lap(self, training: bool = False) -> None:
        now = time.monotonic()
        self._seconds += now - self._noted
        self._trained += (now - self._noted) if training else 0.0
        self._noted = now
