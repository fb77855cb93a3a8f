"""A batch in parts, whose gradients add up to the gradient of the whole batch."""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from engine.data import trees

Count = Callable[[Any], Tensor]
"""From a batch to the number of its elements (), on the batch's device."""


def parts(batch: Any, count: int, elements: Count | None = None) -> Iterator[tuple[Any, Tensor]]:
    """Yield up to `count` parts of a batch, about equal, each with its fraction () of the batch.

    The fraction is that of the examples; with `elements`, that of the elements that this counts,
    such as the tokens that are not padding.
    """
    first = trees.leaves(batch)[0]
    size = len(first)
    if count == 1:
        yield batch, _constant(1.0, first.device)
        return
    whole = elements(batch) if elements else None
    for part in trees.split(batch, -(-size // count)):
        if elements:
            yield part, elements(part) / whole
        else:
            yield part, _constant(len(trees.leaves(part)[0]) / size, first.device)


@lru_cache
def _constant(value: float, device: torch.device) -> Tensor:
    return torch.full((), value, device=device)  # filled there: a copy would wait for the device
