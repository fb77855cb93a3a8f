"""What a step costs: floating-point operations, and how many the device could do.

MFU is the fraction of the device's peak that training makes use of. Source: Chowdhery et al. 2022,
arxiv.org/abs/2204.02311, appendix B.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

PEAKS = {
    "H200": {"fp32": 67e12, "tf32": 494e12, "bf16": 989e12, "fp16": 989e12},
    "H100 PCIe": {"fp32": 51e12, "tf32": 378e12, "bf16": 756e12, "fp16": 756e12},
    "H100": {"fp32": 67e12, "tf32": 494e12, "bf16": 989e12, "fp16": 989e12},
    "A100": {"fp32": 19.5e12, "tf32": 156e12, "bf16": 312e12, "fp16": 312e12},
    "L40S": {"fp32": 91.6e12, "tf32": 183e12, "bf16": 362e12, "fp16": 362e12},
    "V100": {"fp32": 15.7e12, "fp16": 125e12},
}
"""Dense operations a second by a part of a GPU's name and by precision, from nvidia.com's data
sheets."""


def without_data(values: Any) -> Any:
    """Return nested values with each tensor replaced by one that has a shape but no data."""

    def without(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return torch.empty_like(value, device="meta", requires_grad=value.requires_grad)

    return tree_map(without, values)


def of_call(forward: Callable[..., Any], model: nn.Module, batch: Any, settings: Any) -> int | None:
    """Return the operations of forward(model, batch, settings) and of its loss's backward pass.

    It runs on shapes alone, so neither the model nor any random number changes. None where that is
    not possible: where values are looked at, or tensors come from elsewhere than these arguments.
    """
    whole = _Call(forward, model, settings)
    state = without_data({**dict(whole.named_parameters()), **dict(whole.named_buffers())})
    try:
        with FlopCounterMode(display=False) as counter:
            functional_call(whole, state, (without_data(batch),)).backward()
    except Exception:  # a forward function may do anything
        return None
    return int(counter.get_total_flops())


def peak(name: str, precision: str) -> float | None:
    """Return the operations a second that a GPU of this name can do, None if that is not known."""
    known = next((peaks for gpu, peaks in PEAKS.items() if gpu in name), {})
    return known.get(precision)


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
