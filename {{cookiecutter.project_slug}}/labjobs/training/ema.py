"""The exponential moving average (EMA) of a model's weights, often better than the last ones.

Source: Polyak & Juditsky 1992, doi.org/10.1137/0330046; Morales-Brotons et al. 2024,
arxiv.org/abs/2411.18704.
"""

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from labjobs.training.divided import copied, is_divided, own

M = TypeVar("M", bound=nn.Module)


class EMA(Generic[M]):
    """The EMA of a model's weights over the steps; `model` is the model itself if `decay` is 0.

    At each step the EMA keeps the fraction `decay` of itself; less at first, (1 + step) / (10 +
    step). Buffers, such as those of batch norm, are copied.
    """

    def __init__(self, model: M, decay: float) -> None:
        self.model = copied(model) if decay else model  # as trainable: shares compiled code
        self._decay = decay
        self._steps = 0
        self._weights = _by_type(self.model.parameters(), model.parameters())
        self._buffers = _by_type(self.model.buffers(), model.buffers())

    def update(self) -> None:
        """Take in the weights after a step; nothing is read from the device."""
        if not self._decay:
            return
        self._steps += 1
        kept = min(self._decay, (1 + self._steps) / (10 + self._steps))
        for mine, theirs in self._weights:
            torch._foreach_lerp_(_held(mine), _held(theirs), 1 - kept)
        for mine, theirs in self._buffers:
            torch._foreach_copy_(_held(mine), _held(theirs))

    def state_dict(self) -> dict[str, Any]:
        """Return the EMA; empty if there is none."""
        return {"steps": self._steps, "model": self.model.state_dict()} if self._decay else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        if self._decay:
            self._steps = state["steps"]
            self.model.load_state_dict(state["model"])


def _held(tensors: list[Tensor]) -> list[Tensor]:
    """The tensors or, if they are divided, this process's parts, which torch 2.8 puts elsewhere
    when training begins."""
    return [own(tensor) for tensor in tensors] if is_divided(tensors[0]) else tensors


def _by_type(
    mine: Iterable[Tensor], theirs: Iterable[Tensor]
) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Pairs of lists of one data type each: over mixed ones torch launches a copy for each."""
    groups: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for one, other in zip(mine, theirs, strict=True):
        group = groups.setdefault(one.dtype, ([], []))
        group[0].append(one if is_divided(one) else one.detach())
        group[1].append(other if is_divided(other) else other.detach())
    return list(groups.values())
