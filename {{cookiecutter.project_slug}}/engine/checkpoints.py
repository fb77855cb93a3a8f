"""Weights on disk: a whole file or none, and nothing but data in it."""

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


def weights(model: nn.Module) -> dict[str, Tensor]:
    """A copy of a model's weights in the host's memory, so that any machine can open them."""
    return {name: tensor.to("cpu", copy=True) for name, tensor in model.state_dict().items()}


def save(path: Path, content: dict[str, Any]) -> None:
    """Write tensors and plain values: beside the file, onto the disk, then renamed over it."""
    beside = path.with_suffix(".part")
    with beside.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def load(path: Path, device: torch.device) -> dict[str, Any]:
    """Read what `save` wrote; refuses a file that holds code."""
    content: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    return content
