"""Optimizers by name."""

import torch
from torch import nn

KINDS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


def make(model: nn.Module, name: str, lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """An optimizer of all of a model's parameters, in one fused kernel where torch has one.

    Weight decay is for matrices and convolution kernels; biases, norms and other vectors have
    none. `adamw` decays the weights themselves, `adam` and `sgd` add it to the gradient.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    extra = {"momentum": 0.9, "nesterov": True} if name == "sgd" else {}
    optimizer: torch.optim.Optimizer = KINDS[name](groups, lr=lr, fused=True, **extra)
    return optimizer
