"""Gradients between the backward pass and the optimizer's step."""

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from labjobs.training.divided import is_divided, norm_of_all, own


def clip_gradients(parameters: Iterable[Tensor], norm: float) -> Tensor:
    """Scale the gradients of all parameters together down to a norm; returns their norm () before.

    Does what torch's clip_grad_norm_ does in half of the host's time: that one sorts the gradients
    by device and type first. The host learns nothing of the norm, so it does not wait. Source:
    Pascanu et al. 2013, arxiv.org/abs/1211.5063.
    """
    gradients = [weight.grad for weight in parameters if weight.grad is not None]
    divided = [gradient for gradient in gradients if is_divided(gradient)]
    groups = _by_type([own(gradient) for gradient in gradients] if divided else gradients)
    norms = {number: each for group in groups for number, each in _norms(group)}
    whole: Tensor = torch.linalg.vector_norm(torch.stack([norms[n] for n in range(len(norms))]))
    if divided:
        whole = norm_of_all(whole, divided[0])
    scale = (norm / (whole + 1e-6)).clamp(max=1.0)
    for group in groups:
        torch._foreach_mul_([*group.values()], scale)
    return whole


def _norms(gradients: Mapping[int, Tensor]) -> Iterator[tuple[int, Tensor]]:
    return zip(gradients, torch._foreach_norm([*gradients.values()]), strict=True)


def _by_type(gradients: Iterable[Tensor]) -> list[dict[int, Tensor]]:
    """Return gradients by their number in groups of one data type each: over mixed ones torch
    launches an operation for each."""
    groups: dict[torch.dtype, dict[int, Tensor]] = {}
    for number, each in enumerate(gradients):
        groups.setdefault(each.dtype, {})[number] = each
    return list(groups.values())
