"""What a forward pass measures, and means of it that stay on the device.

A measurement is a tensor with a value per example or token, a single number, or a pair (numerator,
denominator). What counts in the end are sums, each in 64 bits, in which counts are exact up to 2⁵³.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from labjobs.cli.metrics import Metric, is_name, outside
from labjobs.errors import JobError, first_line
from labjobs.job.terminal import log
from labjobs.training import processes

PARTS = ("train_", "val_", "test_")
"""Prefixes of the logged names of measurements."""


class Sum(NamedTuple):
    """A measurement as a numerator, still to be summed, and its weight: the number of values."""

    numerator: Tensor
    weight: Tensor | int

    @property
    def tensors(self) -> list[Tensor]:
        """The parts that are on the device."""
        return [part for part in self if isinstance(part, Tensor)]


class Measured(dict[str, Any]):
    """What a function measured, by name; with `sums` that were made with it, as compiled code
    does."""

    def __init__(self, values: Mapping[str, Any], sums: Mapping[str, Sum]) -> None:
        super().__init__(values)
        self.sums = dict(sums)

    def __or__(self, other: Mapping[str, Any], /) -> "Measured":  # type: ignore[override]
        """Return both together."""
        made = other.sums if isinstance(other, Measured) else {}
        return Measured({**self, **other}, {**self.sums, **made})


def sums_of(measured: Mapping[str, Any]) -> dict[str, Sum]:
    """Return each measurement as a sum; nothing is computed."""
    made = sums_made(measured)
    return {name: made.get(name) or sum_of(value) for name, value in measured.items()}


def sums_made(measured: Mapping[str, Any]) -> Mapping[str, Sum]:
    """Return the sums that were made together with the measurements."""
    return measured.sums if isinstance(measured, Measured) else {}


def sum_of(value: Any) -> Sum:
    """Return a measurement as a sum that is still to be computed."""
    if isinstance(value, Tensor):
        return Sum(value.detach() if value.requires_grad else value, value.numel())
    if isinstance(value, int | float):
        return Sum(torch.tensor(float(value)), 1)
    if isinstance(value, tuple | list) and len(value) == 2:  # torch 2.8 cannot compile `match`
        numerator, denominator = value
        if isinstance(numerator, Tensor) and isinstance(denominator, Tensor):
            return Sum(numerator.detach(), denominator.detach())
        if isinstance(numerator, Tensor) and isinstance(denominator, int):
            return Sum(numerator.detach(), denominator)
    kind = type(value).__name__
    raise JobError(
        f"a measurement is a tensor, a number or a pair (numerator, denominator), no {kind}"
    )


def summed(measurement: Sum) -> Sum:
    """Return a sum that has been computed."""
    weight = measurement.weight
    whole = total(weight) if isinstance(weight, Tensor) else weight
    return Sum(total(measurement.numerator), whole)


def total(values: Tensor) -> Tensor:
    """Return the sum () of a tensor, in the widest number format of its device."""
    return values.sum(dtype=wide(values.device))


def wide(device: torch.device) -> torch.dtype:
    """Return the number format of sums on a device: 64 bits, which MPS does not have."""
    return torch.float32 if device.type == "mps" else torch.float64


def totals(tensors: Iterable[Tensor]) -> Tensor:
    """Return the sum of each tensor, (N,): those of one shape together, in two operations."""
    listed = list(tensors)
    groups: dict[tuple[Any, ...], list[int]] = {}
    for index, each in enumerate(listed):
        groups.setdefault((each.shape, each.dtype), []).append(index)
    made, order = [], list[int]()
    for (shape, _), indices in groups.items():
        stacked = torch.stack([listed[index] for index in indices])
        kind = wide(stacked.device)
        made.append(stacked.flatten(1).sum(1, dtype=kind) if len(shape) else stacked.to(kind))
        order += indices
    back = sorted(range(len(order)), key=order.__getitem__)
    together = torch.cat(made)
    return together if len(groups) == 1 else together[back]


def own(sums: Sequence[tuple[str, Sum]]) -> list[tuple[str, Sum]]:
    """Return sums made, in memory of their own, with their names."""
    tensors = [tensor for _, each in sums for tensor in each.tensors]
    made = iter(totals(tensors).unbind() if tensors else ())
    return [
        (name, Sum(next(made), next(made) if isinstance(weight, Tensor) else weight))
        for name, (_, weight) in sums
    ]


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


def check_name(name: str) -> None:
    """Raise JobError for a metric's name that a tracking store does not take."""
    if not is_name(name):
        raise JobError(
            f"metric {name[:40]!r}: its name must be letters, digits, '_', '-' and '.', 200 at most"
        )


def warn_of_unmeasured(declared: Iterable[str], logged: Iterable[str]) -> None:
    """Log which of the metrics that METRICS declares were not measured under any logged name."""
    measured = {name.partition("_")[2] for name in logged if name.startswith(PARTS)}
    for name in declared:
        if name not in measured:
            known = ", ".join(sorted(measured)) or "nothing"
            log.warning("METRICS declares %s, which was not measured, only %s", name, known)


def check_ranges(metrics: Mapping[str, float], declared: Mapping[str, Metric]) -> None:
    """Raise JobError for a metric outside of the range that it was declared to have."""
    for logged, value in metrics.items():
        metric = declared.get(logged) or declared.get(logged.partition("_")[2])
        if metric and outside(metric, value):
            low, high = metric.range
            raise JobError(
                f"{logged} is {value:.4g}, which is outside of its range ({low}, {high}) in "
                "METRICS; see what forward() measures"
            )


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
        """Return the means, over the batches of all processes of the job. Waits for the device,
        once."""
        read = self._on_host()
        if processes.connected():
            read = processes.added(read)
        return {name: top / count if count else float("nan") for name, (top, count) in read.items()}

    def _on_host(self) -> dict[str, tuple[float, float]]:
        if not self._sums:
            return {}
        tensors = [tensor for each in self._sums.values() for tensor in each.tensors]
        values = iter(totals(tensors).tolist())
        return {
            name: (next(values), each.weight if isinstance(each.weight, int) else next(values))
            for name, each in self._sums.items()
        }
