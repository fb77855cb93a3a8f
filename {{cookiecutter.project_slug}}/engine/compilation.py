"""torch.compile, where it pays."""

import torch
from torch import nn

WORTH_STEPS = 10_000
"""Optimizer steps from which `auto` compiles: compiling takes about half a minute, earned back over
this many steps at a gain of 3 ms a step."""


def compiled(model: nn.Module, choice: str, device: torch.device, steps: int) -> nn.Module:
    """The model as the loop calls it: compiled for `on`, as it is for `off`; `auto` compiles on a
    CUDA GPU for jobs of at least WORTH_STEPS steps. Weights are shared with the model."""
    worth = device.type == "cuda" and steps >= WORTH_STEPS
    if choice == "on" or (choice == "auto" and worth):
        wrapped: nn.Module = torch.compile(model)  # type: ignore[assignment]
        return wrapped
    return model
