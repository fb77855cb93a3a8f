"""A batch in parts, whose gradients add up to the gradient of the whole batch."""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from labjobs.data import trees
from labjobs.errors import JobError

Count = Callable[[Any], Tensor]
"""From a batch to the number of its elements (), on the batch's device."""


def parts(
    batch: Any, count: int, elements: Count | None = None, exactly: bool = False
) -> Iterator[tuple[Any, Tensor]]:
    """Yield up to `count` parts of a batch, about equal, each with its fraction () of the batch.

    The fraction is that of the examples; with `elements`, that of the elements that this counts,
    such as the tokens that are not padding. With
    `exactly`, there are `count` parts. No part is a single example, unless the batch is:
    batch norm cannot take one. Raises JobError for a batch that cannot be split into examples.
    """
    size = trees.rows(batch)
    if not size:
        raise JobError(
            "--accumulate: this batch cannot be split into parts, since it is not made of tensors "
            "that have a row for each example"
        )
    split = trees.split(batch, _sizes(size, count) if exactly else _examples_in_part(size, count))
    if elements:
        whole = elements(batch)
        yield from ((part, elements(part) / whole) for part in split)
    else:
        for part in split:
            first = trees.leaves(part)[0]
            yield part, _constant(len(first) / size, first.device)


def _examples_in_part(size: int, count: int) -> int:
    """Examples in all parts but the last."""
    each = max(2, -(-size // count))
    while each < size and size % each == 1:
        each += 1
    return each


def _sizes(size: int, count: int) -> list[int]:
    """Examples in each of so many parts."""
    each, more = divmod(size, count)
    return [each + (number < more) for number in range(count)]


@lru_cache
def _constant(value: float, device: torch.device) -> Tensor:
    return torch.full((), value, device=device)  # filled there: a copy would wait for the device
