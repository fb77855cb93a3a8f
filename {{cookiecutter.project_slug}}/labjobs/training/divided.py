"""Tensors of which each process of a job holds a part (--shard), in code that meets others as well.

Nothing here imports what torch has for them, which takes a second.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)

copiers: WeakKeyDictionary[nn.Module, Callable[[Any], Any]] = WeakKeyDictionary()
"""How networks are copied that are divided among processes."""


def is_divided(tensor: Any) -> bool:
    """Return whether each process of the job holds a part of a tensor (torch's DTensor)."""
    return hasattr(tensor, "placements")


def own(tensor: Any) -> Tensor:
    """Return the part of a tensor that this process holds; all of it if it is not divided."""
    held: Tensor = tensor.detach().to_local() if is_divided(tensor) else tensor.detach()
    return held


def gathered(tensor: Any) -> Tensor:
    """Return a divided tensor as a whole in process 0, and an empty one in the others, so that the
    host holds it once. All processes call it."""
    whole: Tensor = tensor.detach().full_tensor()
    return whole if tensor.device_mesh.get_rank() == 0 else whole.new_empty(0)


def norm_of_all(norm: Tensor, tensor: Any) -> Tensor:
    """Return the norm () over all processes, of the norms of their parts; `tensor` is one of those
    that are divided."""
    squared = norm.square()
    torch.distributed.all_reduce(squared, group=tensor.device_mesh.get_group())
    return squared.sqrt()


def copied(model: M) -> M:
    """Return a copy of a model, divided if the model is."""
    copy: M = copiers.get(model, deepcopy)(model)
    return copy
