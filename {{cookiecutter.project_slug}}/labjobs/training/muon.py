"""Muon: momentum whose matrices are orthogonalized, and AdamW for everything else.

Source: Jordan et al. 2024, kellerjordan.github.io/posts/muon; the step size, scaled to suit the
learning rates of AdamW: Liu et al. 2025, arxiv.org/abs/2502.16982, section 2.2.
"""

from collections.abc import Callable, Container
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.adamw import adamw

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic polynomial that is applied to the singular values. It is steep at
zero, and brings them to between 0.7 and 1.2 in five steps."""

Groups = list[dict[str, Any]]

STEPS = 5
EPS = 1e-7


class Muon(Optimizer):
    """Muon for hidden layers. torch.optim.Muon takes matrices only; this takes convolution kernels
    too, as matrices with a row for each output channel, and orthogonalizes those of one shape
    together.

    Groups with `hidden=False` are updated by AdamW, and so are tensors with fewer than two
    dimensions in the others.
    """

    def __init__(
        self,
        groups: Groups,
        lr: float,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        made = [part for group in groups for part in _split(group)]
        defaults = {"lr": lr, "weight_decay": 0.0, "momentum": momentum, "betas": betas}
        super().__init__(made, defaults | {"eps": 1e-8, "hidden": True, "fused": True})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        if closure is not None:
            raise ValueError("Muon takes no closure")
        for group in self.param_groups:
            trained = [weight for weight in group["params"] if weight.grad is not None]
            if trained:
                (self._orthogonal if group["hidden"] else self._adamw)(group, trained)

    def _orthogonal(self, group: dict[str, Any], weights: list[Tensor]) -> None:
        kept, gradients = group["momentum"], _gradients(weights)
        momenta = self._state(weights, "momentum_buffer")
        torch._foreach_lerp_(momenta, gradients, 1 - kept)
        updates = list(torch._foreach_lerp(gradients, momenta, kept))  # Nesterov's
        if group["weight_decay"]:
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        for indices in _alike(weights):
            rows, columns = len(weights[indices[0]]), weights[indices[0]][0].numel()
            matrices = torch.stack([updates[index].flatten(1) for index in indices])
            size = -group["lr"] * 0.2 * max(rows, columns) ** 0.5
            made = orthogonalized(matrices).to(matrices.dtype)
            for index, update in zip(indices, made, strict=True):
                weights[index].add_(update.view(weights[index].shape), alpha=size)

    def _adamw(self, group: dict[str, Any], weights: list[Tensor]) -> None:
        for weight in weights:
            self.state[weight].setdefault("step", torch.zeros((), device=weight.device))
        adamw(
            weights,
            _gradients(weights),
            self._state(weights, "exp_avg"),
            self._state(weights, "exp_avg_sq"),
            [],
            [self.state[weight]["step"] for weight in weights],
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def _state(self, weights: list[Tensor], name: str) -> list[Tensor]:
        """The state of this name for each weight, zeros at first."""
        for weight in weights:
            if name not in self.state[weight]:
                self.state[weight][name] = torch.zeros_like(weight)
        return [self.state[weight][name] for weight in weights]


def orthogonalized(matrices: Tensor) -> Tensor:
    """Return matrices (N, R, C) with their singular vectors and singular values near 1.

    By Newton–Schulz iterations; on a GPU in bf16, which is precise enough for an update.
    """
    a, b, c = COEFFICIENTS
    tall = matrices.shape[-2] > matrices.shape[-1]
    made: Tensor = matrices.mT if tall else matrices
    if matrices.device.type != "cpu":
        made = made.bfloat16()
    made = made / made.norm(dim=(-2, -1), keepdim=True).clamp_min(EPS)
    for _ in range(STEPS):
        gram = made @ made.mT
        made = a * made + (b * gram + c * gram @ gram) @ made
    return made.mT if tall else made


def hidden_groups(groups: Groups, model: nn.Module) -> Groups:
    """Return the groups with the hidden layers' weights separated from the rest, which has
    `hidden=False` for AdamW: embeddings, the last layer, and all with fewer than two dimensions."""
    layers = [
        (layer, [weight for weight in layer.parameters(recurse=False) if weight.ndim >= 2])
        for layer in model.modules()
    ]
    layers = [(layer, weights) for layer, weights in layers if weights]
    ends = [weights for layer, weights in layers if isinstance(layer, nn.Embedding)]
    ends += [weights for _, weights in layers[-1:]]
    excluded = {id(weight) for weights in ends for weight in weights}
    return [part for group in groups for part in _split(group, excluded)]


def _split(group: dict[str, Any], excluded: Container[int] = ()) -> Groups:
    """Split a group by what updates its parameters; a part without parameters is left out."""
    hidden: list[Tensor] = []
    rest: list[Tensor] = []
    for weight in group["params"]:
        belongs = group.get("hidden", True) and weight.ndim >= 2 and id(weight) not in excluded
        (hidden if belongs else rest).append(weight)
    parts = ((hidden, True), (rest, False))
    return [group | {"params": weights, "hidden": kind} for weights, kind in parts if weights]


def _gradients(weights: list[Tensor]) -> list[Tensor]:
    return [weight.grad for weight in weights if weight.grad is not None]


def _alike(weights: list[Tensor]) -> list[list[int]]:
    """The places of weights of one shape and type, which can be stacked."""
    found: dict[Any, list[int]] = {}
    for index, weight in enumerate(weights):
        found.setdefault((weight.shape, weight.dtype, weight.device), []).append(index)
    return [*found.values()]
