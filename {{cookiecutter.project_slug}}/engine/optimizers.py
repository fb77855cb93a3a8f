"""Optimizers by name, and the gradient that they are given."""

import torch
from torch import Tensor, nn

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


def guard(
    optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, loss: Tensor, clip_norm: float
) -> None:
    """Before a step: cut the gradient of all weights together down to a norm, unless that is 0, and
    have the optimizer leave the weights as they are if the loss, or that norm, is not finite.

    The host learns nothing of either, so it does not wait. The clipping is that of torch's
    clip_grad_norm_, in a third of the host's time: that one sorts the gradients by device and type
    first. Sources: Pascanu et al. 2013, arxiv.org/abs/1211.5063; torch's fused optimizers, which
    read `found_inf` on the device.
    """
    watched = loss.detach()
    if clip_norm:
        scaler.unscale_(optimizer)
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        watched = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        torch._foreach_mul_(gradients, (clip_norm / (watched + 1e-6)).clamp(max=1.0))
    if not scaler.is_enabled():  # which looks for itself
        bad = torch.nan_to_num(watched * 0, nan=1.0)  # 1 or 0: infinity times 0 is not a number
        optimizer.grad_scale, optimizer.found_inf = None, bad.float()  # type: ignore[attr-defined]
