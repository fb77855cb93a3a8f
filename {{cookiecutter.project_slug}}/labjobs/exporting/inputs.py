"""Example inputs of a network, as example_input() in the student's models.py makes them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.export import Dim

from labjobs.errors import JobError

Make = Callable[[int], Any]
"""Returns inputs for a number of examples."""

NAME = "example_input"

TRACED, OTHER = 4, 3
"""Numbers of examples to tell by which dimensions grow with it. torch.export would take 1 for a
constant, and an even and an odd number have no factor in common."""


class Inputs(NamedTuple):
    """Tensors that a network is called with: by position, or by the names of its parameters."""

    args: tuple[Tensor, ...]
    kwargs: dict[str, Tensor]

    @property
    def tensors(self) -> list[Tensor]:
        """All of them, in order."""
        return [*self.args, *self.kwargs.values()]


def make(example: Make, examples: int) -> Inputs:
    """Return inputs for a number of examples, the same each time.

    Raises JobError if they are not tensors.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(examples)
        made = example(examples)
    by_name = made if isinstance(made, dict) else {}
    by_place = made if isinstance(made, tuple) else () if isinstance(made, dict) else (made,)
    found = Inputs(by_place, by_name)
    if not found.tensors or not all(isinstance(each, Tensor) for each in found.tensors):
        raise JobError(f"{NAME} in models.py: must return a tensor, a tuple or a dict of tensors")
    return found


def dynamic_shapes(example: Make) -> list[dict[int, Any]]:
    """Return for each tensor the dimensions that grow with the number of examples, as torch.export
    takes them. Raises JobError if none do."""
    one, other = (make(example, count).tensors for count in (TRACED, OTHER))
    shapes = [
        {
            place: Dim.DYNAMIC
            for place, sizes in enumerate(zip(a.shape, b.shape, strict=True))
            if len({*sizes}) > 1
        }
        for a, b in zip(one, other, strict=True)
    ]
    if not any(shapes):
        raise JobError(
            f"{NAME} in models.py: must return the number of examples that it is asked for"
        )
    return shapes
