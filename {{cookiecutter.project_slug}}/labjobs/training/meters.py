"""The numbers of a training loop: they stay on the device until there is time for them.

What the steps measure is kept as it is. By time it is summed, many steps in a few operations, and
copied to the host while training goes on; the means are made there. So a step never waits for the
device, and a loss that is not finite is found soon, not at once: before a checkpoint is made, which
holds finite weights only (writer.py).
"""

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from labjobs.errors import Diverged
from labjobs.job.journal import Journal, now
from labjobs.job.terminal import log
from labjobs.training import devices
from labjobs.training.measures import Sum, check_name, own, sum_of, sums_made, totals, wide

POINTS = 1000
"""Points of a training curve that --log-every auto aims at."""

UNKNOWN = 10
"""Steps for each point if the number of steps is not known from the start."""

STEPS = 64
"""Largest number of steps whose measurements are summed together."""

VALUES = 2**20
"""Largest number of measured values that wait on the device."""

ON_DEVICE = (Tensor, tuple)
"""Kinds of measurements; all else is a number."""

INTERVAL = 1.0
"""Largest number of seconds between two copies to the host."""


NamedSum = tuple[str, float, float]
"""A measurement's name, its numerator and its weight."""


class Step(NamedTuple):
    """A step, with its measurements and numbers from the host, such as the learning rate."""

    step: int
    at: int
    sums: list[tuple[str, Sum]]
    numbers: dict[str, float]


class TrainMeter:
    """Means of what a loop measures, by optimizer step, into the journal as `train_<name>`.

    A point is the mean over --log-every steps, under the number of the last of them. `declared`
    names the metrics that must be finite. With CUDA `graphs` each step is summed at its end, as the
    next one writes over what it returned.
    """

    def __init__(
        self,
        journal: Journal,
        device: torch.device,
        declared: Mapping[str, Any],
        graphs: bool = False,
    ) -> None:
        self._journal, self._declared, self._graphs = journal, declared, graphs
        self._every = 0  # not chosen yet
        self._names: set[str] = set()
        self._numbers: dict[str, float] = {}
        self._of_step: list[tuple[str, Sum]] = []
        self._waiting: list[Step] = []
        self._values = 0
        self._copies = _Copies(device)
        self._sent = time.monotonic()
        self._means = _Means()
        self._in_mean = 0
        self._since_last = _Means()

    def choose_spacing(self, steps: int | None) -> None:
        """Choose the steps for each point: as the job began, or by the steps that it has."""
        if self._every:  # as its checkpoint has it: with --minutes the steps were not known yet
            return
        every = self._journal.log_every
        if every == "auto":
            every = max(1, steps // POINTS) if steps else UNKNOWN
        self._every = int(every)

    def add(self, measured: Mapping[str, Any]) -> None:
        """Add measurements of this step, several times if need be; numbers are kept as they are."""
        made = sums_made(measured)
        for name, value in measured.items():
            if name not in self._names:
                check_name(name)
                self._names.add(name)
            if isinstance(value, ON_DEVICE):
                each = made.get(name) or sum_of(value)
                self._of_step.append((name, each))
                self._values += each.numerator.numel()
            else:
                self._numbers[name] = float(value)

    def end_step(self, step: int) -> None:
        """A step is whole. Raises Diverged, some steps later, for a metric that is not finite."""
        sums = own(self._of_step) if self._graphs else self._of_step
        self._waiting.append(Step(step, now(), sums, dict(self._numbers)))
        self._of_step = []
        full = len(self._waiting) >= STEPS or self._values > VALUES
        if full or time.monotonic() - self._sent > INTERVAL:
            self._exchange(wait=full)

    def flush(self) -> None:
        """Wait for the device and write every point so far. Raises Diverged as `end_step` does."""
        self._exchange(wait=True)  # sends what waits
        self._exchange(wait=True)  # and takes it

    def close(self, step: int) -> None:
        """Write the mean of the last steps too, if they are fewer than --log-every. The state keeps
        their sums, because a longer job that continues from it adds more steps to that mean."""
        self.flush()
        if self._in_mean:
            before = self._means, self._in_mean
            self._write(step, now())
            self._means, self._in_mean = before
            self._journal.flush()

    def since_last(self) -> dict[str, float]:
        """Return the means over the points written since the last call, as `train_<name>`, and the
        last values of numbers such as the learning rate."""
        means = {f"train_{name}": mean for name, mean in self._since_last.read().items()}
        self._since_last = _Means()
        return means | self._numbers

    def state_dict(self) -> dict[str, Any]:
        """Return the sums of a point that is not whole; all others are in the journal."""
        self.flush()
        return {
            "every": self._every,
            "in_mean": self._in_mean,
            "means": self._means.sums,
            "numbers": dict(self._numbers),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._every, self._in_mean = state["every"], state["in_mean"]
        if self._journal.log_every not in ("auto", self._every):  # continuing another job
            log.warning("--log-every stays %s, the value that training began with", self._every)
        self._means.sums, self._numbers = state["means"], state["numbers"]

    def _exchange(self, wait: bool) -> None:
        """Take what has arrived on the host, and send what waits on the device.

        Nothing happens while a copy is under way, unless it is to be waited for.
        """
        arrived = self._copies.take(wait)
        if arrived is None:
            return
        self._copies.send(self._waiting)
        self._waiting, self._values, self._sent = [], 0, time.monotonic()
        steps, values = arrived
        for each, sums in zip(steps, self._read(steps, values), strict=True):
            self._count(each, sums)
        self._journal.flush()

    def _read(self, steps: list[Step], values: Iterator[float]) -> list[list[NamedSum]]:
        """The sums of each step, of what has been copied to the host."""
        return [
            [
                (name, next(values), count if isinstance(count, int) else next(values))
                for name, (_, count) in step.sums
            ]
            for step in steps
        ]

    def _count(self, step: Step, sums: list[NamedSum]) -> None:
        for name, total, count in sums:
            self._means.add(name, total, count)
        self._in_mean += 1
        if self._in_mean >= self._every:
            self._write(step.step, step.at, step.numbers)

    def _write(self, step: int, at: int, numbers: Mapping[str, float] | None = None) -> None:
        means = self._means.read()
        named = {f"train_{name}": mean for name, mean in means.items()}
        self._journal.metrics(step, {**named, **(numbers or self._numbers)}, at)
        self._since_last.merge(self._means)
        self._means, self._in_mean = _Means(), 0
        for name, mean in means.items():
            if name in self._declared and not math.isfinite(mean):
                self._journal.flush()
                cure = "look at the data and the loss" if step == 1 else "lower the learning rate"
                raise Diverged(f"train_{name} was not finite by optimizer step {step}; {cure}")


class _Means:
    """Means on the host, weighted by the number of values."""

    def __init__(self) -> None:
        self.sums: dict[str, tuple[float, float]] = {}

    def add(self, name: str, total: float, count: float) -> None:
        before, counted = self.sums.get(name, (0.0, 0.0))
        self.sums[name] = before + total, counted + count

    def merge(self, other: "_Means") -> None:
        for name, (total, count) in other.sums.items():
            self.add(name, total, count)

    def read(self) -> dict[str, float]:
        return {name: total / count for name, (total, count) in self.sums.items() if count}


class _Copies:
    """The sums of steps on their way to the host, one copy at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._ahead = device, devices.runs_ahead(device)
        self._host = devices.pinned((1024,), wide(device), device)
        self._copied = devices.event(device)
        self._steps: list[Step] = []
        self._size = 0

    def take(self, wait: bool) -> tuple[list[Step], Iterator[float]] | None:
        """Return the steps that have arrived and their sums; None while they are under way."""
        if self._steps:
            if wait:
                self._copied.synchronize()
            elif not self._copied.query():
                return None
        return self._steps, iter(self._host[: self._size].tolist())

    def send(self, steps: list[Step]) -> None:
        """Sum what the steps measured and have it copied; nothing may be under way."""
        tensors = [tensor for step in steps for _, each in step.sums for tensor in each.tensors]
        self._steps, self._size = steps, len(tensors)
        if not tensors:
            return
        if self._size > len(self._host):
            self._host = devices.pinned((2 * self._size,), self._host.dtype, self._device)
        self._host[: self._size].copy_(totals(tensors), non_blocking=self._ahead)
        self._copied.record()
