"""Whether an exported program gives the outputs of the network that it was made from."""

import math
from typing import Any

import torch
from torch import Tensor

from labjobs.errors import JobError, first_line
from labjobs.exporting import inputs
from labjobs.exporting.program import Call

COUNTS = (1, 2, 3, 8)
"""Numbers of examples to compare."""

TOLERANCE = 1e-4
"""The largest difference that is allowed, as a fraction of the largest number in an output."""


@torch.no_grad()
def difference(network: Call, exported: Call, example: inputs.Make, name: str) -> float:
    """Return the largest difference between the outputs of a network and of what was exported, as
    a fraction of the largest number in an output.

    Raises JobError if it is above TOLERANCE.
    """
    worst = 0.0
    for count in COUNTS:
        given, counted = inputs.make(example, count), f"{count} example{'s' * (count > 1)}"
        wanted = tensors(network(given))
        try:
            found = tensors(exported(given))
        except Exception as error:
            raise JobError(f"{name} fails for {counted}: {first_line(error)}") from error
        apart = _apart(wanted, found)
        if apart > TOLERANCE:
            raise JobError(
                f"{name} gives other outputs than the network for {counted}: "
                f"they differ by {apart:.2g} of the largest number, and {TOLERANCE:g} is allowed"
            )
        worst = max(worst, apart)
    return worst


def tensors(output: Any) -> list[Tensor]:
    """Return the tensors of an output. Raises JobError if it is no nesting of tensors."""
    if isinstance(output, Tensor):
        return [output]
    parts = output.values() if isinstance(output, dict) else output
    if not isinstance(output, dict | tuple | list):
        raise JobError(f"the network returns {type(output).__name__}; only tensors can be compared")
    return [tensor for part in parts for tensor in tensors(part)]


def _apart(wanted: list[Tensor], found: list[Tensor]) -> float:
    """The largest difference; infinite if shapes, types or which numbers are finite differ."""
    kinds = [[(each.shape, each.dtype) for each in output] for output in (wanted, found)]
    if kinds[0] != kinds[1]:
        return math.inf
    return max(map(_fraction, wanted, found), default=0.0)


def _fraction(wanted: Tensor, found: Tensor) -> float:
    same = (wanted == found) | (wanted.isnan() & found.isnan())
    if same.all():
        return 0.0
    if not (wanted.is_floating_point() or wanted.is_complex()):
        return math.inf
    apart = (wanted - found).abs()[~same].nan_to_num(nan=math.inf).max().item()
    largest = wanted[wanted.isfinite()].abs()
    return float(apart / largest.max().item()) if largest.any() else math.inf


def in_words(fraction: float) -> str:
    """Return a difference that was found as a sentence."""
    *first, last = COUNTS
    counts = f"{', '.join(map(str, first))} and {last} examples"
    found = f"differ by {fraction:.2g} of the largest one" if fraction else "are equal bit for bit"
    return f"the outputs for {counts} {found} ({TOLERANCE:g} is allowed)"
