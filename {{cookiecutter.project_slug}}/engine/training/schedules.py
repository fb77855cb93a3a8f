"""The course of the learning rate.

The rate is a function of the optimizer steps taken, set on the optimizer before each step; only
`plateau` also looks at the validation metric.
"""

import math
from typing import Any

import torch

from engine.stateful import Stateful

PLATEAU_EPOCHS = 5
"""Epochs without improvement after which `plateau` cuts the rate to a tenth."""


class Schedule(Stateful):
    """Sets an optimizer's learning rate, `lr`: `step()` after each step, `epoch(improved)` after
    each evaluation."""

    kept = ("_taken", "_cut", "_epochs_without")

    def __init__(
        self, optimizer: torch.optim.Optimizer, kind: str, lr: float, steps: int, warmup: int
    ) -> None:
        self._optimizer, self._kind, self._highest = optimizer, kind, lr
        self._steps, self._warmup = steps, warmup
        self._taken = 0
        self._cut = 1.0
        self._epochs_without = 0
        self._set()

    def step(self) -> None:
        """An optimizer step was taken."""
        self._taken += 1
        self._set()

    def epoch(self, improved: bool) -> None:
        """An evaluation came out; `improved` if the monitored metric was the best so far."""
        self._epochs_without = 0 if improved else self._epochs_without + 1
        if self._kind == "plateau" and self._epochs_without == PLATEAU_EPOCHS:
            self._cut /= 10
            self._epochs_without = 0
            self._set()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        super().load_state_dict(state)
        self._set()

    def _shape(self) -> float:
        """The share of the highest rate after the warm-up, by the part of the job that is done."""
        part = max(0, self._taken - self._warmup) / max(1, self._steps - self._warmup)
        if self._kind == "cosine":  # Loshchilov & Hutter 2017, arxiv.org/abs/1608.03983
            return (1 + math.cos(math.pi * min(1.0, part))) / 2
        if self._kind == "step":
            return float(0.1 ** min(2, math.floor(3 * part)))
        return 1.0

    def _set(self) -> None:
        risen = min(1.0, (self._taken + 1) / (self._warmup + 1))
        self.lr = self._highest * risen * self._cut * self._shape()
        for group in self._optimizer.param_groups:
            group["lr"] = self.lr
