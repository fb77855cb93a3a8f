"""Optimizers and schedules, by name.

An optimizer is a function of groups of parameters and the settings: a line in OPTIMIZERS. Each
group may have a learning rate of its own; without one it has --lr.

A schedule is a function of the training progress. It returns the factor that every group's learning
rate is multiplied by: a line in SCHEDULES. The warm-up comes before the schedule and is not a part
of it.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from labjobs import EarlyStopping, Job, Muon, Timing, hidden_groups
from settings import Settings

Groups = list[dict[str, Any]]

OPTIMIZERS: dict[str, Callable[[Groups, Settings], Optimizer]] = {
    "adam": lambda groups, settings: Adam(groups, settings.lr, fused=True),
    "adamw": lambda groups, settings: AdamW(groups, settings.lr, fused=True),
    "sgd": lambda groups, settings: SGD(
        groups, settings.lr, momentum=0.9, nesterov=True, fused=True
    ),
    "muon": lambda groups, settings: Muon(groups, settings.lr),
}
"""`adamw` and `muon` decay the weights themselves; `adam` and `sgd` add the decay to the gradient.
`muon` works with about the same learning rates as `adamw`, and updates biases, norms and the last
layer as `adamw` does."""


class Progress(NamedTuple):
    """Where training is."""

    done: float
    """Fraction of the job that is done, after the warm-up."""

    plateaus: int
    """How often the monitored metric has not improved for 5 evaluations in a row."""


SCHEDULES: dict[str, Callable[[Progress], float]] = {
    "constant": lambda at: 1.0,
    "cosine": lambda at: (1 + math.cos(math.pi * at.done)) / 2,  # arxiv.org/abs/1608.03983
    "linear": lambda at: 1 - at.done,  # to zero, arxiv.org/abs/2502.15938
    "one-cycle": lambda at: one_cycle(at.done),
    "wsd": lambda at: stable_decay(at.done),  # warm-up, stable, decay
    "exponential": lambda at: 0.01**at.done,  # down to a hundredth
    "step": lambda at: 0.1 ** min(2, int(3 * at.done)),  # a tenth after each third
    "plateau": lambda at: 0.1**at.plateaus,
    "range-test": lambda at: (
        10 ** (6 * (at.done - 1))
    ),  # from a millionth up, arxiv.org/abs/1506.01186
}


def one_cycle(done: float) -> float:
    """Rise from 1/25 over 30% of the job, then fall to nearly zero, both along half cosines.

    Smith & Topin 2018, arxiv.org/abs/1708.07120, with the numbers of torch's OneCycleLR.
    """
    low, end, rise = 1 / 25, 1 / 25 / 10_000, 0.3
    if done < rise:
        return 1 + (low - 1) * (1 + math.cos(math.pi * done / rise)) / 2
    return end + (1 - end) * (1 + math.cos(math.pi * (done - rise) / (1 - rise))) / 2


def stable_decay(done: float) -> float:
    """Stay constant for 80% of the job after the warm-up, then fall to zero as 1 − √x.

    Hägele et al. 2024, arxiv.org/abs/2405.18392.
    """
    return 1 - math.sqrt(max(0.0, done - 0.8) / 0.2)


def make(model: nn.Module, settings: Settings) -> Optimizer:
    """Return the optimizer of all parameters that are trained.

    Weight decay is for matrices and convolution kernels; biases and norms have none.
    """
    parts = groups(model.parameters(), settings)
    if settings.optimizer == "muon":
        parts = hidden_groups(parts, model)
    optimizer = OPTIMIZERS[settings.optimizer](parts, settings)
    for group in optimizer.param_groups:
        group["lr"] *= lr_factor(settings)
    return optimizer


def lr_factor(settings: Settings) -> float:
    """Return the factor that adapts --lr from the batch size --lr-for-batch to the actual one.

    Linear for SGD (Goyal et al. 2017, arxiv.org/abs/1706.02677), the square root for optimizers
    that divide by the gradient's size (Malladi et al. 2022, arxiv.org/abs/2205.10287).
    """
    if not settings.lr_for_batch:
        return 1.0
    ratio = settings.batch_size / settings.lr_for_batch
    return ratio if settings.optimizer == "sgd" else math.sqrt(ratio)


def groups(parameters: Iterable[nn.Parameter], settings: Settings) -> Groups:
    """Return the parameters in groups with and without weight decay; each group costs a call."""
    trained = [p for p in parameters if p.requires_grad]
    if not settings.weight_decay:
        return [{"params": trained, "weight_decay": 0.0}]
    return [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]


def set_lr(
    optimizer: Optimizer, settings: Settings, job: Job[Settings], stopping: EarlyStopping
) -> float:
    """Set the learning rates of the next step; returns the first group's.

    Each group has its own rate times the same factor.
    """
    scale = factor(settings, job, stopping.plateaus)
    for group in optimizer.param_groups:
        group["lr"] = scale * group.setdefault("initial_lr", group["lr"])
    return float(optimizer.param_groups[0]["lr"])


def factor(settings: Settings, job: Timing, plateaus: int) -> float:
    """Return what all learning rates are multiplied by in the job's next step.

    It rises linearly during the warm-up, and then follows the schedule.
    """
    warmup, total = job.span(settings.warmup), job.total_steps
    if job.step < warmup:
        return (job.step + 1) / (warmup + 1)
    before = min(warmup / total, 1.0) if total else 0.0  # the warm-up's fraction of the job
    done = (job.fraction_done - before) / (1 - before) if before < 1 else 1.0
    return SCHEDULES[settings.schedule](Progress(done, plateaus))
