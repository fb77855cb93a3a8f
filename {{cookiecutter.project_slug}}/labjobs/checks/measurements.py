"""Do measurements have as many values as a batch has examples, tokens or pixels?

A prediction (B, 1) minus a target (B,) has the shape (B, B); its mean is not the error of the
predictions.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from labjobs.checks import places
from labjobs.checks.answers import Answer, Finding
from labjobs.checks.operations import Operations, tensors
from labjobs.sources import Place

aten = torch.ops.aten

DIFFERENCES = {
    aten.huber_loss.default,
    aten.mse_loss.default,
    aten.smooth_l1_loss.default,
    aten.sub.Tensor,
}
"""Operations on a prediction and its target."""


class Measurements:
    """The numbers of values that training steps measure, and differences of unlike shapes."""

    def __init__(self) -> None:
        self._counts: defaultdict[str, dict[int, int]] = defaultdict(dict)
        self._logged: dict[str, Place | None] = {}
        self._unlike: dict[Place, str] = {}

    @contextmanager
    def step(self) -> Iterator[None]:
        """Look at a training step."""
        with Operations(self._done):
            yield

    def log(self, measured: Mapping[str, Any], examples: int) -> None:
        """Record what was measured on a number of examples."""
        for name, value in measured.items():
            if found := tensors(value):
                self._counts[name][examples] = found[0].numel()
                self._logged[name] = places.here()

    def answer(self) -> Answer:
        """Return which measurements have too many values, or the differences that cause them."""
        if self._unlike:
            return Answer(tuple(Finding(*each) for each in self._unlike.items()))
        if not self._counts:
            return Answer(unknown="since nothing is given to job.log(…)")
        squares = {name: counts for name, counts in self._counts.items() if _grows(counts)}
        return Answer(tuple(self._finding(name, counts) for name, counts in squares.items()))

    def _finding(self, name: str, counts: Mapping[int, int]) -> Finding:
        examples, values = max(counts.items())
        text = f"{name} has {values} values for {examples} examples, as if each met all others"
        return Finding(self._logged[name], text)

    def _done(self, func: Any, args: Any, _kwargs: dict[str, Any], result: Any) -> None:
        if func not in DIFFERENCES or len(found := tensors(args[:2])) != 2:
            return
        one, other = found
        place = places.here()
        expanded = func is not aten.sub.Tensor  # as torch's losses do with what they are given
        shapes = [_own_shape(each) if expanded else tuple(each.shape) for each in found]
        if place and one.requires_grad != other.requires_grad and _crossed(shapes):
            text = f"{shapes[0]} minus {shapes[1]} is {tuple(result.shape)}; give both one shape"
            self._unlike.setdefault(place, text)


def _grows(counts: Mapping[int, int]) -> bool:
    """Whether values grow with the square of the examples, in batches of several sizes."""
    rates = {values / examples**2 for examples, values in counts.items() if examples > 1}
    return len({each for each in counts if each > 1}) > 1 and len(rates) == 1 and min(rates) >= 1


def _crossed(shapes: list[tuple[int, ...]]) -> bool:
    """Whether one shape is a column, and the other a row with the same number of elements."""
    match sorted(shapes, key=len):
        case [(row,), (column, 1)]:
            return row == column and row > 1
    return False


def _own_shape(tensor: Tensor) -> tuple[int, ...]:
    """The shape that a tensor had before it was expanded."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    own = [1 if stride == 0 else size for size, stride in pairs]
    return tuple(own[1:] if own[:1] == [1] else own)
