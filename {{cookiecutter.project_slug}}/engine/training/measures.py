"""What a forward pass measures, and means of it that stay on the device.

A measurement is a tensor with a value per example or token, a single number, or a pair (numerator,
denominator). What counts in the end are sums, each in 64 bits, in which counts are exact up to 2⁵³.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor


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
    """Return a measurement as a sum that is still to be made."""
    if isinstance(value, tuple):
        numerator, denominator = value
        known = isinstance(denominator, int)
        return Sum(numerator.detach(), denominator if known else denominator.detach())
    return Sum(value.detach() if value.requires_grad else value, value.numel())


def summed(measurement: Sum) -> Sum:
    """Return a sum that is made."""
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


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return metrics as plain numbers, whether they are tensors (), NumPy's numbers or Python's."""
    return {name: float(value) for name, value in metrics.items()}


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
        """Return the means. Waits for the device, once."""
        if not self._sums:
            return {}
        tensors = [tensor for each in self._sums.values() for tensor in each.tensors]
        values = iter(totals(tensors).tolist())
        read = {
            name: (next(values), each.weight if isinstance(each.weight, int) else next(values))
            for name, each in self._sums.items()
        }
        return {name: top / count if count else float("nan") for name, (top, count) in read.items()}
