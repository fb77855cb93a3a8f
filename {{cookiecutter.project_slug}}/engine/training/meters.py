"""Numbers of a training loop that stay on the device until there is time for them.

They are summed there as the steps make them. By time they are brought together in a block, which is
copied to the host while training goes on, and read when the copy is done. So a step never waits for
the device, and a loss that is not finite is found soon, not at once: before a checkpoint is made,
which holds finite weights only (writer.py).
"""

import math
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine.errors import Diverged
from engine.job.journal import Journal, now, numbers
from engine.training import devices
from engine.training.measures import Sum, sums

POINTS = 1000
"""Points of a training curve that --log-every auto aims at."""

UNKNOWN = 10
"""Steps for each point where the number of steps is not known from the start."""

BLOCK = 1024
"""Numbers that wait on the device at most."""

INTERVAL = 1.0
"""Seconds between two blocks."""


class _Point(NamedTuple):
    """A point of the curves whose sums are on their way from the device."""

    step: int
    at: int
    counts: dict[str, int | None]
    """The number of values behind each mean; None where the device has it, after the sum."""
    numbers: dict[str, float]
    """What the host knew: the last values, such as the learning rate."""


class TrainMeter:
    """Means of what a loop measures, by optimizer step, into the journal as `train_<name>`.

    A point is the mean over --log-every steps, under the number of the last of them. `declared`
    names the metrics that must be finite.
    """

    def __init__(self, journal: Journal, device: torch.device, declared: Mapping[str, Any]) -> None:
        self._journal, self._device, self._declared = journal, device, declared
        self._every = 0  # not chosen yet
        self._sums: dict[str, Sum] = {}
        self._numbers: dict[str, float] = {}
        self._in_mean = 0
        self._totals: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._block = _Block(device)
        self._last_block = time.monotonic()

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
        values = {k: v for k, v in measured.items() if isinstance(v, Tensor | tuple)}
        if len(values) < len(measured):
            self._numbers |= numbers({k: v for k, v in measured.items() if k not in values})
            measured = values
        for name, (numerator, count) in sums(measured).items():
            if name in self._sums:
                before, counted = self._sums[name]
                numerator, count = before + numerator, counted + count
            self._sums[name] = numerator, count

    def end_step(self, step: int) -> None:
        """A step is whole. Raises Diverged, some steps later, for a metric that is not finite."""
        self._in_mean += 1
        if self._in_mean >= self._every:
            self._add_point(step)
        if self._block.full or time.monotonic() - self._last_block > INTERVAL:
            self._write(self._block.exchange(wait=self._block.full))
            self._last_block = time.monotonic()

    def flush(self) -> None:
        """Wait for the device and write every point so far. Raises Diverged as `end_step` does."""
        for _ in range(2):  # what is under way, then what was still on the device
            self._write(self._block.exchange(wait=True))

    def close(self, step: int) -> None:
        """Write the mean of the last steps too, if they are fewer than `every`."""
        if self._in_mean:
            self._add_point(step)
        self.flush()

    def since_last(self) -> dict[str, float]:
        """Return the means over the points written since the last call, as `train_<name>`, and the
        last values of numbers such as the learning rate."""
        totals = {name: total / count for name, (total, count) in self._totals.items() if count}
        self._totals.clear()
        return {f"train_{name}": mean for name, mean in totals.items()} | self._numbers

    def state_dict(self) -> dict[str, Any]:
        """Return the sums of a point that is not whole; all others are in the journal."""
        self.flush()
        return {
            "every": self._every,
            "in_mean": self._in_mean,
            "sums": dict(self._sums),
            "numbers": dict(self._numbers),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._every, self._in_mean = state["every"], state["in_mean"]
        self._numbers = state["numbers"]
        self._sums = {name: self._placed(*pair) for name, pair in state["sums"].items()}

    def _placed(self, numerator: Tensor, count: Tensor | int) -> Sum:
        count = count.to(self._device) if isinstance(count, Tensor) else count
        return numerator.to(self._device), count

    def _add_point(self, step: int) -> None:
        tensors = [
            part for pair in self._sums.values() for part in pair if isinstance(part, Tensor)
        ]
        counts = {k: n if isinstance(n, int) else None for k, (_, n) in self._sums.items()}
        self._block.add(tensors, _Point(step, now(), counts, dict(self._numbers)))
        self._sums, self._in_mean = {}, 0

    def _write(self, points: list[tuple[list[float], _Point]]) -> None:
        for values, point in points:
            means = dict(self._means(iter(values), point))
            named = {f"train_{name}": mean for name, mean in means.items()}
            self._journal.metrics(point.step, named | point.numbers, point.at)
            for name, mean in means.items():
                if name in self._declared and not math.isfinite(mean):
                    self._journal.flush()
                    at = f"by optimizer step {point.step}"
                    raise Diverged(f"train_{name} was not finite {at}; lower --lr")
        self._journal.flush()

    def _means(self, values: Any, point: _Point) -> Any:
        for name, count in point.counts.items():
            total = next(values)
            count = next(values) if count is None else count
            if count:
                self._totals[name][0] += total
                self._totals[name][1] += count
                yield name, total / count


class _Block:
    """Numbers on the device, with labels on the host, brought together a block at a time."""

    def __init__(self, device: torch.device) -> None:
        kind = torch.float32 if device.type == "mps" else torch.float64
        self._host = devices.pinned((BLOCK,), kind, device)
        self._ahead = devices.runs_ahead(device)
        self._copied = devices.event(device)
        self._numbers: list[Tensor] = []
        self._labels: list[tuple[int, _Point]] = []
        self._under_way: list[tuple[int, _Point]] = []

    @property
    def full(self) -> bool:
        """Whether another point may find no place."""
        return len(self._labels) >= BLOCK // 16 or len(self._numbers) > BLOCK // 2

    def add(self, numbers: list[Tensor], label: _Point) -> None:
        """Add a point's numbers."""
        self._numbers += numbers
        self._labels.append((len(numbers), label))

    def exchange(self, wait: bool) -> list[tuple[list[float], _Point]]:
        """Take what has arrived on the host and send off what has gathered on the device.

        Nothing happens while a copy is under way, unless it is to be waited for.
        """
        if self._under_way:
            if wait:
                self._copied.synchronize()
            elif not self._copied.query():
                return []
        values = iter(self._host[: sum(size for size, _ in self._under_way)].tolist())
        arrived = [([next(values) for _ in range(size)], label) for size, label in self._under_way]
        if self._numbers:
            block = torch.stack([number.to(self._host.dtype) for number in self._numbers])
            if len(block) > len(self._host):
                self._host = self._host.new_empty(2 * len(block))
            self._host[: len(block)].copy_(block, non_blocking=self._ahead)
        self._numbers, self._labels, self._under_way = [], [], self._labels
        self._copied.record()
        return arrived
