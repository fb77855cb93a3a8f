"""What a forward pass measures, and means of it that stay on the device.

A measurement is a tensor with a value per example or token, a single number, or a pair (numerator,
denominator). Its sum is made where it arises, inside the compiled region.
"""

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

Sum = tuple[Tensor, Tensor | int]
"""A numerator () on the device and the number of values in it, on the device or the host."""


class Measured(dict[str, Any]):
    """What a function measured, by name, as it returned it; `sums` holds the sum of each."""

    def __init__(self, values: Mapping[str, Any], sums: Mapping[str, Sum]) -> None:
        super().__init__(values)
        self.sums = dict(sums)

    def __or__(self, other: Mapping[str, Any], /) -> Self:  # type: ignore[override]
        """Return both together, with the sums of both."""
        return type(self)({**self, **other}, self.sums | sums(other))


def sums(measured: Mapping[str, Any]) -> dict[str, Sum]:
    """Return the sum of each measurement; those that a prepared function made are taken as is."""
    made = measured.sums if isinstance(measured, Measured) else {}
    return {name: made.get(name) or summed(value) for name, value in measured.items()}


def summed(value: Any) -> Sum:
    """Return the sum of a measurement in 64 bits, in which counts are exact up to 2⁵³."""
    if isinstance(value, tuple):
        numerator, denominator = value
        count = denominator if isinstance(denominator, int) else summed(denominator)[0]
        return summed(numerator)[0], count
    value = value.detach()
    kind = torch.float32 if value.device.type == "mps" else torch.float64  # which MPS lacks
    return value.sum(dtype=kind), value.numel()


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
        for name, (numerator, count) in sums(measured).items():
            if name in self._sums:
                before, counted = self._sums[name]
                numerator, count = before + numerator, counted + count
            self._sums[name] = numerator, count

    def read(self) -> dict[str, float]:
        """Return the means. Waits for the device, once."""
        if not self._sums:
            return {}
        numbers = [part for pair in self._sums.values() for part in pair]
        tensors = [part for part in numbers if isinstance(part, Tensor)]
        read = iter(torch.stack([part.to(tensors[0].dtype) for part in tensors]).tolist())
        values = [next(read) if isinstance(part, Tensor) else part for part in numbers]
        pairs = zip(self._sums, values[::2], values[1::2], strict=True)
        return {name: total / count if count else float("nan") for name, total, count in pairs}
