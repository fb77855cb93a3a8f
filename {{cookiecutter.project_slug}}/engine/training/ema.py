"""The exponential moving average of a model's weights, which often does better than the last ones.

Source: Polyak & Juditsky 1992, doi.org/10.1137/0330046; Morales-Brotons et al. 2024,
arxiv.org/abs/2411.18704.
"""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn


class Average:
    """The average of a model's weights over the steps; the model itself if `decay` is 0.

    At each step the average keeps `decay` of itself and takes the rest from the model; less is kept
    at first, (1 + step) / (10 + step). Buffers, such as those of batch norm, are the model's.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = deepcopy(model).requires_grad_(False) if decay else model
        self._decay = decay
        self._steps = 0
        self._weights = _detached(self.model.parameters()), _detached(model.parameters())
        self._buffers = _detached(self.model.buffers()), _detached(model.buffers())

    def update(self) -> None:
        """Take in the weights after a step; nothing is read from the device."""
        if not self._decay:
            return
        self._steps += 1
        kept = min(self._decay, (1 + self._steps) / (10 + self._steps))
        torch._foreach_lerp_(*self._weights, 1 - kept)
        if self._buffers[0]:
            torch._foreach_copy_(*self._buffers)

    def state_dict(self) -> dict[str, Any]:
        """The average; nothing if there is none."""
        return {"steps": self._steps, "model": self.model.state_dict()} if self._decay else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        if self._decay:
            self._steps = state["steps"]
            self.model.load_state_dict(state["model"])


def _detached(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The same numbers, of which no gradient is asked."""
    return [tensor.detach() for tensor in tensors]
