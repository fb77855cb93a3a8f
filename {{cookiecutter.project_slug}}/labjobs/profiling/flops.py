"""What a step costs, in floating-point operations."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode


def without_data(values: Any) -> Any:
    """Return nested values with each tensor replaced by one that has a shape but no data."""

    def without(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return torch.empty_like(value, device="meta", requires_grad=value.requires_grad)

    return tree_map(without, values)


def of_call(forward: Callable[..., Any], model: nn.Module, batch: Any, settings: Any) -> int | None:
    """Return the operations of forward(model, batch, settings) and of its loss's backward pass.

    It runs only on shapes, so neither the model nor any random number changes. Returns None if that
    is not possible, because the code looks at values or uses tensors other than these arguments.
    """
    whole = _Call(forward, model, settings)
    state = without_data({**dict(whole.named_parameters()), **dict(whole.named_buffers())})
    try:
        with FlopCounterMode(display=False) as counter:
            functional_call(whole, state, (without_data(batch),)).backward()
    except Exception:  # a forward function may do anything
        return None
    return int(counter.get_total_flops())


class _Call(nn.Module):
    """A forward function's loss, as a function of a batch."""

    def __init__(self, function: Callable[..., Any], model: nn.Module, settings: Any) -> None:
        super().__init__()
        self.model = model
        self._function, self._settings = function, settings

    def forward(self, batch: Any) -> Tensor:
        """Return the loss () of a batch."""
        loss: Tensor = self._function(self.model, batch, self._settings)[0]
        return loss
