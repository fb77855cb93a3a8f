"""The numbers of a training loop: they stay on the device until there is time for them.

What the steps measure is kept as it is. By time it is summed, many steps in a few operations, and
copied to the host while training goes on; the means are made there. So a step never waits for the
device, and a loss that is not finite is found soon, not at once: before a checkpoint is made, which
holds finite weights only (checkpoints.py).
"""

import math
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from labjobs import devices
from labjobs.data import trees
from labjobs.distributed import collectives
from labjobs.distributed.collectives import Processes
from labjobs.errors import Diverged, JobError, first_line
from labjobs.job.journal import Journal, now
from labjobs.job.terminal import log
from labjobs.settings import PARTS, Metric, is_name, outside
from labjobs.training.progress import Stateful

# What a forward pass measures, and means of it that stay on the device.
#
# A measurement is a tensor with a value per example or token, a single number, or a pair
# (numerator, denominator). What counts in the end are sums, each in 64 bits, in which counts are
# exact up to 2⁵³.


class Sum(NamedTuple):
    """A measurement as a numerator, still to be summed, and its weight: the number of values. What
    is no tensor, the host knows."""

    numerator: Tensor | float
    weight: Tensor | int

    @property
    def tensors(self) -> list[Tensor]:
        """The parts that are tensors."""
        numerator, weight = self
        found = [numerator] if isinstance(numerator, Tensor) else []
        return [*found, weight] if isinstance(weight, Tensor) else found

    @property
    def was_changed(self) -> bool:
        """Whether a part has been changed in place, or could be without a trace."""
        for part in self:  # at each step: faster than any()
            if isinstance(part, Tensor) and (part.is_inference() or part._version):
                return True
        return False

    def filled(self, values: Iterator[Any]) -> "Sum":
        """Return a sum with other values, tensors or numbers, in place of its tensors."""
        numerator, weight = self
        if isinstance(numerator, Tensor):
            numerator = next(values)
        return Sum(numerator, next(values) if isinstance(weight, Tensor) else weight)


class Measured(dict[str, Any]):
    """What a function measured, by name; with the sums that compiled code made, and the values that
    they are of, since the loop may put others in their place."""

    def __init__(
        self, values: Mapping[str, Any], made: Mapping[str, Sum], of: Mapping[str, Any]
    ) -> None:
        super().__init__(values)
        self.made, self.of = made, of

    def __or__(self, other: Mapping[str, Any], /) -> "Measured":  # type: ignore[override]
        """Return both together."""
        made, of = _made(other)
        return Measured({**self, **other}, {**self.made, **made}, {**self.of, **of})


def _made(measured: Mapping[str, Any]) -> tuple[Mapping[str, Sum], Mapping[str, Any]]:
    return (measured.made, measured.of) if isinstance(measured, Measured) else ({}, {})


def sums_of(measured: Mapping[str, Any]) -> dict[str, Sum]:
    """Return each measurement as a sum; nothing is computed."""
    made, of = _made(measured)
    return {
        name: made[name] if name in made and of[name] is value else sum_of(value)
        for name, value in measured.items()
    }


def sum_of(value: Any) -> Sum:
    """Return a measurement as a sum that is still to be computed."""
    if isinstance(value, Tensor):
        return Sum(value.detach() if value.requires_grad else value, value.numel())
    if isinstance(value, int | float):
        return Sum(float(value), 1)
    if isinstance(value, tuple | list) and len(value) == 2:  # torch 2.8 cannot compile `match`
        numerator, denominator = value
        if isinstance(numerator, Tensor) and isinstance(denominator, Tensor):
            return Sum(numerator.detach(), denominator.detach())
        if isinstance(numerator, Tensor) and isinstance(denominator, int):
            return Sum(numerator.detach(), denominator)
    wanted = "a tensor, a number or a pair (numerator, denominator)"
    raise JobError(f"a measurement is {wanted}, not a {type(value).__name__}")


def summed(measurement: Sum) -> Sum:
    """Return a sum that has been computed, in the widest number format of its device."""
    numerator, weight = measurement
    if isinstance(weight, Tensor):
        weight = weight.sum(dtype=wide(weight.device))
    if isinstance(numerator, Tensor):
        numerator = numerator.sum(dtype=wide(numerator.device))
    return Sum(numerator, weight)


def wide(device: torch.device) -> torch.dtype:
    """Return the number format of sums on a device: 64 bits, which MPS does not have."""
    return torch.float32 if device.type == "mps" else torch.float64


def totals(tensors: Sequence[Tensor]) -> Iterator[tuple[list[int], Tensor]]:
    """Yield the sums of tensors (N,), of those together that are alike, with their places. Some may
    be on the device and some on the CPU."""
    for indices in trees.alike(tensors):
        stacked = torch.stack([tensors[index] for index in indices])
        kind, whole = wide(stacked.device), stacked.ndim == 1
        yield indices, stacked.to(kind) if whole else stacked.flatten(1).sum(1, dtype=kind)


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return metrics as plain numbers, whether they are tensors (), NumPy's numbers or Python's.

    Raises JobError for what is no number, and for a name that a tracking store does not take.
    """
    found = {}
    for name, value in metrics.items():
        check_name(name)
        try:
            found[name] = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise JobError(f"metric {name}: must be a number ({first_line(error)})") from error
    return found


@cache
def check_name(name: str) -> None:
    """Raise JobError for a metric's name that a tracking store does not take."""
    if not is_name(name):
        wanted = "letters, digits, '_', '-' and '.', 200 at most"
        raise JobError(f"metric {name[:40]!r}: its name must be {wanted}")


def check_ranges(metrics: Mapping[str, float], declared: Mapping[str, Metric]) -> None:
    """Raise JobError for a metric outside of the range that it was declared to have."""
    for logged, value in metrics.items():
        part, _, name = logged.partition("_")
        metric = declared.get(logged) or declared.get(name if f"{part}_" in PARTS else "")
        if metric and outside(metric, value):
            low, high = metric.range
            line = f"{logged} is {value:.4g}, which is outside of its range ({low}, {high})"
            raise JobError(f"{line} in METRICS; see what forward() measures")


class Means:
    """Means over many batches of what forward() measures, weighted by the number of values.

    means = Means()
    for batch in batches:
        means.add(forward(model, batch, settings)[1])
    means.read()  # {"loss": 0.31, "accuracy": 0.92}
    """

    def __init__(self) -> None:
        self._sums: dict[str, Sum] = {}

    def add(self, measured: Mapping[str, Any]) -> None:
        """Add the measurements of a batch; nothing here waits for the device."""
        for name, measurement in sums_of(measured).items():
            numerator, count = summed(measurement)
            if name in self._sums:
                before = self._sums[name]
                numerator, count = before.numerator + numerator, before.weight + count
            self._sums[name] = Sum(numerator, count)

    def read(self) -> dict[str, float]:
        """Return the means over the batches of all processes. Waits for the device, once."""
        tensors = [tensor for each in self._sums.values() for tensor in each.tensors]
        found = [0.0] * len(tensors)
        for indices, made in totals(tensors):
            for index, value in zip(indices, made.tolist(), strict=True):
                found[index] = value
        values = iter(found)
        mine = [(name, *each.filled(values)) for name, each in self._sums.items()]
        sums: Sums = {}
        for name, total, count in chain.from_iterable(collectives.everyones(mine)):
            _add(sums, name, total, count)
        return dict.fromkeys(sums, math.nan) | _means(sums)


POINTS = 1000  # points of a training curve that --log-every auto aims at
UNKNOWN = 10  # steps for each point if the number of steps is not known from the start
STEPS = 64  # largest number of steps whose measurements are summed together
VALUES = 2**20  # largest number of measured values that wait on the device
INTERVAL = 1.0  # largest number of seconds between two copies to the host

NamedSum = tuple[str, Sum]  # a measurement's name and its sum
Sums = dict[str, tuple[float, float]]  # numerators and weights on the host, by name


class Step(NamedTuple):
    """A step, with its measurements and numbers from the host, such as the learning rate."""

    step: int
    at: int
    sums: list[NamedSum]
    numbers: dict[str, float]


class TrainMeter(Stateful):
    """Means of what a loop measures, by optimizer step, into the journal as `train_<name>`.

    A point is the mean over --log-every steps, under the number of the last of them; the state is
    that of a point that is not whole. `declared` names the metrics that must be finite; others that
    are not do not count where a GradScaler `skips` such steps. With CUDA `graphs` each step is
    summed at its end, as the next one writes over what it returned. Several processes have to
    exchange what they measured at the same step: when process 0 finds that it is `due`.
    """

    kept = ("every", "in_mean", "means", "numbers")
    due = skips = graphs = False
    _begun = _in_graph = False

    def __init__(
        self, journal: Journal, device: torch.device, declared: Container[str], processes: Processes
    ) -> None:
        self._journal, self._declared, self._processes = journal, declared, processes
        self.every = 0  # not chosen yet
        self.numbers: dict[str, float] = {}
        self._of_step: list[NamedSum] = []
        self._waiting: list[Step] = []
        self._values = 0
        self._copies = _Copies(device)
        self._sent = time.monotonic()
        self.means: Sums = {}
        self.in_mean = 0
        self._since_last: Sums = {}

    def choose_spacing(self, steps: int | None) -> None:
        """Choose the steps for each point: as the job began, or by the steps that it has."""
        if self.every:  # as its checkpoint has it: with --minutes the steps were not known yet
            return
        auto = max(1, steps // POINTS) if steps else UNKNOWN
        every = self._journal.log_every
        self.every = auto if every == "auto" else int(every)

    def add(self, measured: Mapping[str, Any]) -> None:
        """Add measurements of this step, several times if need be; numbers are kept as they are."""
        made, of = _made(measured)
        for name, value in measured.items():
            check_name(name)
            if isinstance(value, (Tensor, tuple, list)):  # all else is a number of the host
                each = made[name] if name in made and of[name] is value else sum_of(value)
                # Copied if it may be changed in place before it is summed, as a weight or a buffer
                # is; in the first step anything may be one.
                if not self._begun or each.was_changed:
                    each = each.filled(part.clone() for part in each.tensors)
                self.add_sum(name, each)
            elif self._in_graph:
                line = f"{name} is a number of the host; log it outside of the step"
                raise JobError(f"job.log: {line}")
            elif name in self._declared:  # such as loss.item()
                self.add_sum(name, Sum(float(value), 1))
            else:
                self.numbers[name] = float(value)

    def add_sum(self, name: str, measurement: Sum) -> None:
        """Add a measurement of this step that is a sum."""
        if self._in_graph and not all(part.is_cuda for part in measurement.tensors):
            raise JobError(f"job.log: {name} is on the CPU; put it on the device")
        self._of_step.append((name, measurement))
        if isinstance(measurement.numerator, Tensor):
            self._values += measurement.numerator.numel()

    @contextmanager
    def adding(self, in_graph: bool = False) -> Iterator[list[NamedSum]]:
        """Yield a list that has, at the end, what was added within. What is recorded `in_graph`
        does not count, and numbers of the host, which would stay as they are, are refused."""
        before, self._of_step, self._in_graph = self._of_step, [], in_graph
        try:
            yield self._of_step
        finally:
            self._of_step = before + ([] if in_graph else self._of_step)
            self._in_graph = False

    def end_step(self, step: int) -> None:
        """A step is whole. Raises Diverged, some steps later, for a metric that is not finite."""
        sums = self._of_step
        if self.graphs:
            sums = [(name, summed(each)) for name, each in sums]
        self._waiting.append(Step(step, now(), sums, dict(self.numbers)))
        self._of_step, self._begun = [], True
        full = len(self._waiting) >= STEPS or self._values > VALUES
        if full or time.monotonic() - self._sent > INTERVAL:
            if self._processes.rank.size == 1:
                self.exchange(wait=full)
            else:
                self.due = True

    def flush(self) -> None:
        """Wait for the device and write every point so far. Raises Diverged as `end_step` does."""
        self.exchange(wait=True)  # sends what waits
        self.exchange(wait=True)  # and takes it

    def check_finite(self, step: int) -> None:
        """Write every point so far, after an error in this step. Raises Diverged for a metric that
        is not finite, in a point that is not whole too."""
        self.flush()
        of_step = {name: float(summed(each).numerator) for name, each in self._of_step}
        self._check_finite(_means(self.means) | of_step, step)

    def close(self, step: int) -> None:
        """Write the mean of the last steps too, if they are fewer than --log-every. The state keeps
        their sums, because a longer job that continues from it adds more steps to that mean."""
        self.flush()
        if self.in_mean:
            before = self.means, self.in_mean
            self._write(step, now(), self.numbers)
            self.means, self.in_mean = before
            self._journal.flush()

    def since_last(self) -> dict[str, float]:
        """Return the means over the points written since the last call, as `train_<name>`, and the
        last values of numbers such as the learning rate."""
        means = _named(_means(self._since_last))
        self._since_last = {}
        return means | self.numbers

    def state_dict(self) -> dict[str, Any]:
        """Return the sums of a point that is not whole; all others are in the journal."""
        self.flush()
        return super().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        if self._journal.log_every not in ("auto", self.every):  # continuing another job
            log.warning("--log-every stays %s, the value that training began with", self.every)

    def exchange(self, wait: bool) -> None:
        """Take what has arrived on the host, and send what waits on the device.

        Nothing happens while a copy is under way, unless it is to be waited for, as all of several
        processes do.
        """
        self.due = False
        arrived = self._copies.take(wait)
        if arrived is None:
            return
        self._copies.send(self._waiting, _tensors_of(self._waiting))
        self._waiting, self._values, self._sent = [], 0, time.monotonic()
        steps, values = arrived
        for each, sums in zip(steps, self._read(steps, values), strict=True):
            for name, total, weight in sums:
                if not self.skips or name in self._declared or math.isfinite(total):
                    _add(self.means, name, total, weight)
            self.in_mean += 1
            if self.in_mean >= self.every:
                self._write(each.step, each.at, each.numbers)
        self._journal.flush()

    def _read(self, steps: list[Step], values: Iterator[float]) -> list[list[Any]]:
        """The name, numerator and weight of each sum of each step, of all processes."""
        mine = [[(name, *each.filled(values)) for name, each in step.sums] for step in steps]
        if self._processes.rank.size == 1 or not steps:
            return mine
        everyones = self._processes.everyones(mine)
        return [[*chain.from_iterable(of_step)] for of_step in zip(*everyones, strict=True)]

    def _write(self, step: int, at: int, numbers: dict[str, float]) -> None:
        means = _means(self.means)
        self._journal.metrics(step, _named(means) | numbers, at)
        for name, sums in self.means.items():
            _add(self._since_last, name, *sums)
        self.means, self.in_mean = {}, 0
        self._check_finite(means, step)

    def _check_finite(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            if name in self._declared and not math.isfinite(value):
                self._journal.flush()
                cure = "look at the data and the loss" if step == 1 else Diverged.CURE
                raise Diverged(f"train_{name} was not finite by optimizer step {step}; {cure}")


def _tensors_of(steps: list[Step]) -> list[Tensor]:
    """What steps measured, in order. Raises JobError for what is not as it was measured."""
    found: list[Tensor] = []
    for name, each in (named for step in steps for named in step.sums):
        for part in each.tensors:
            if not part.is_inference() and part._version:
                line = f"was changed in place after it was logged; log {name}.clone()"
                raise JobError(f"job.log: {name} {line}")
            found.append(part)
    return found


def _add(sums: Sums, name: str, total: float, count: float) -> None:
    before, counted = sums.get(name, (0.0, 0.0))
    sums[name] = before + total, counted + count


def _means(sums: Sums) -> dict[str, float]:
    return {name: total / count for name, (total, count) in sums.items() if count}


def _named(means: Mapping[str, float]) -> dict[str, float]:
    return {f"train_{name}": mean for name, mean in means.items()}


class _Copies:
    """The sums of steps on their way to the host, one copy at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._ahead = device, devices.runs_ahead(device)
        self._host = devices.pinned((1024,), wide(device), device)
        self._copied = devices.event(device)
        self._steps: list[Step] = []
        self._order: list[int] = []  # the place that each value on the host is to have

    def take(self, wait: bool) -> tuple[list[Step], Iterator[float]] | None:
        """Return the steps that have arrived and their sums; None while they are under way."""
        if self._steps:
            if wait:
                self._copied.synchronize()
            elif not self._copied.query():
                return None
        arrived = self._host[: len(self._order)].tolist()
        in_order = dict(zip(self._order, arrived, strict=True))
        return self._steps, map(in_order.__getitem__, range(len(arrived)))

    def send(self, steps: list[Step], tensors: Sequence[Tensor]) -> None:
        """Sum what the steps measured and have it copied; nothing may be under way."""
        self._steps, self._order = steps, []
        if len(tensors) > len(self._host):
            self._host = devices.pinned((2 * len(tensors),), self._host.dtype, self._device)
        # Put in order on the host: a list as an index would make the host wait for the device.
        for indices, made in totals(tensors):
            places = slice(len(self._order), len(self._order) + len(indices))
            self._host[places].copy_(made, non_blocking=self._ahead)
            self._order += indices
        if tensors:
            self._copied.record()
