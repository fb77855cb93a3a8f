"""Networks divided among the processes of a job (--shard): each holds its part of every weight.

The weights of a block are gathered before it computes and dropped afterwards, in the backward pass
too; gradients are added up there, and each process keeps and updates those of its part. Source:
Zhao et al. 2023, arxiv.org/abs/2304.11277;
docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html.
"""

from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.optim import SGD, Optimizer

from labjobs.distributed.collectives import is_divided, own
from labjobs.errors import SettingsError

Blocks = Callable[[nn.Module], Iterable[nn.Module]]
"""From a network to its blocks, each of which is gathered by itself."""

MUON = "--shard: Muon needs whole matrices; choose another --optimizer"


def check(name: str, model: nn.Module, blocks: Blocks) -> None:
    """Raise SettingsError for a model that cannot be divided."""
    for weight_name, weight in model.named_parameters():
        if not weight.ndim:
            raise SettingsError(
                f"--shard: {name}.{weight_name} is a single number, which cannot be divided; "
                "give it a dimension, torch.zeros(1)"
            )
    owners: dict[int, nn.Module] = {}
    for block in blocks(model):
        for weight in block.parameters():
            owners.setdefault(id(weight), block)
    inside = {id(module): block for block in blocks(model) for module in block.modules()}
    # A weight that a block shares with what is outside of it would be gathered and dropped twice.
    for module in model.modules():
        for weight in module.parameters(recurse=False):
            if owners.get(id(weight)) is not inside.get(id(module)):
                both = next(each for each, other in model.named_parameters() if other is weight)
                raise SettingsError(
                    f"--shard: {name}.{both} is shared by a block and another layer"
                )


def divide(model: nn.Module, mesh: DeviceMesh, blocks: Blocks) -> None:
    """Divide a model's weights among the processes of a mesh, and put it on their devices.

    All processes have to have the same weights.
    """
    for weight in model.parameters():  # torch cannot divide those in channels last
        weight.data = weight.data.contiguous()
    empty = _without_weights(model, torch.device("meta"))
    _divide(model, mesh, blocks)
    vars(model)["__deepcopy__"] = partial(_copied, model, empty, mesh, blocks)


def prepare(optimizer: Optimizer) -> None:
    """Let an optimizer of divided weights load a state that is not divided. Raises SettingsError
    for one that needs whole weights."""
    if getattr(optimizer, "needs_matrices", False):
        raise SettingsError(MUON)
    optimizer.register_load_state_dict_pre_hook(_divided_optimizer)
    optimizer.register_load_state_dict_post_hook(_not_fused)  # a loaded state may say otherwise
    _not_fused(optimizer)


def _not_fused(optimizer: Optimizer) -> None:
    """Have SGD update by several operations: torch has no single one for divided weights."""
    if isinstance(optimizer, SGD):
        for group in optimizer.param_groups:
            group["fused"] = False


def _part_of(value: Any, like: Any) -> Any:
    """Return a whole tensor divided like another one of its shape, of which each process takes its
    own part; anything else as it is."""
    whole = isinstance(value, Tensor) and not is_divided(value)
    if not (whole and is_divided(like) and value.shape == like.shape):
        return value
    mesh, placements = like.device_mesh, like.placements
    return distribute_tensor(value.to(like.device), mesh, placements, src_data_rank=None)


def _divide(model: nn.Module, mesh: DeviceMesh, blocks: Blocks) -> None:
    for part in (*blocks(model), model):
        # The whole network drops its weights too: the EMA's, which has no backward pass, would
        # otherwise keep those of its first evaluation.
        made = fully_shard(part, mesh=mesh, reshard_after_forward=True)
        made.set_gradient_divide_factor(1.0)  # the losses are weighted by their part of the batch
        made.set_force_sum_reduction_for_comms(True)
    model.register_load_state_dict_pre_hook(_divided_weights)


def _without_weights(model: nn.Module, device: torch.device) -> nn.Module:
    """A copy with new weights, whose values are arbitrary."""
    made = {
        id(weight): nn.Parameter(torch.empty_like(weight, device=device), weight.requires_grad)
        for weight in model.parameters()
    }
    return deepcopy(model, made)


def _copied(
    model: nn.Module, empty: nn.Module, mesh: DeviceMesh, blocks: Blocks, _memo: object
) -> nn.Module:
    """What `copy.deepcopy` makes of a divided model, which torch refuses to copy."""
    copy = _without_weights(empty, torch.device("cpu"))  # pages that nobody writes take no memory
    copy.train(model.training)
    _divide(copy, mesh, blocks)
    theirs = (*model.parameters(), *model.buffers())
    for mine, other in zip((*copy.parameters(), *copy.buffers()), theirs, strict=True):
        own(mine).copy_(own(other))
    return copy


def _divided_weights(
    model: nn.Module, state: dict[str, Any], prefix: str, *_: object, **__: object
) -> None:
    """Divide the weights in a state that is to be loaded."""
    for name, mine in model.state_dict(prefix=prefix).items():
        if name in state:
            state[name] = _part_of(state[name], mine)


def _divided_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """The state of an optimizer, divided as its weights are."""
    saved = [number for group in state["param_groups"] for number in group["params"]]
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    of = dict(zip(saved, weights, strict=False))  # torch says what does not fit
    return state | {
        "state": {
            number: {name: _part_of(value, of[number]) for name, value in values.items()}
            for number, values in state["state"].items()
        }
    }
