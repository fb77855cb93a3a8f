"""Gradients of several processes, added up as if one process had computed the whole batch.

Each process computes the gradients of its slice of the batch, weighted by the fraction of the batch
that it is. When its last part is done, they are added up, once an optimizer step. Source: Li et al.
2020, arxiv.org/abs/2006.15704, without their overlap with the backward pass.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from labjobs.errors import JobError
from labjobs.training.divided import is_divided
from labjobs.training.processes import Processes


class Gradients:
    """The gradients of some models' weights, and their buffers, of all processes of a job."""

    def __init__(self, models: Iterable[nn.Module], processes: Processes) -> None:
        self._processes = processes
        listed = list(models)
        self._weights = [weight for weight in _once(listed) if weight.requires_grad]
        self._added = any(is_divided(weight) for weight in self._weights)
        self._buffers = list({id(each): each for m in listed for each in m.buffers()}.values())

    def begin(self) -> None:
        """Raise JobError if there are gradients already, which would be added up twice."""
        if any(weight.grad is not None for weight in self._weights):
            raise JobError(
                "job.parts: there are gradients from before, which several processes cannot add "
                "up again; call optimizer.zero_grad() before job.parts(batch)"
            )

    def add_up(self) -> None:
        """Replace each gradient by its sum over all processes. A weight has one afterwards if it
        has in any of them; with --shard that was done in the backward pass. Buffers become those of
        process 0."""
        if not self._added:
            self._add_up()
        self._processes.copy_from_first(self._buffers)

    def _add_up(self) -> None:
        here = [float(weight.grad is not None) for weight in self._weights]
        anywhere = self._processes.largest(here)
        self._processes.add_up(
            _gradient(weight)
            for weight, has_one in zip(self._weights, anywhere, strict=True)
            if has_one
        )


def _once(models: Iterable[nn.Module]) -> Iterator[Tensor]:
    """Yield the weights of some models, each once."""
    seen = set[int]()
    for model in models:
        for weight in model.parameters():
            if id(weight) not in seen:
                seen.add(id(weight))
                yield weight


def _gradient(weight: Tensor) -> Tensor:
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    return weight.grad
