"""Operations of torch, observed as they run, including those in the backward pass and in
libraries."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from labjobs.stateful import Part

Listener = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]
"""Receives each operation, with its arguments and its result."""


class Operations(TorchDispatchMode):
    """Within its context, tells listeners of each operation.

    Source: docs.pytorch.org/docs/stable/notes/extending.html (`__torch_dispatch__`).
    """

    def __init__(self, *listeners: Listener) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._listeners = listeners

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Do the operation."""
        result = func(*args, **(kwargs or {}))
        for listener in self._listeners:
            listener(func, args, kwargs or {}, result)
        return result


def tensors(tree: Any) -> list[Tensor]:
    """Return the tensors in nested values."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def written(func: Any, args: tuple[Any, ...]) -> list[Tensor]:
    """Return the arguments that an operation writes to."""
    schema = zip(func._schema.arguments, args, strict=False)
    return [t for about, arg in schema if about.is_write for t in tensors(arg)]


def draws(func: Any, kwargs: dict[str, Any]) -> bool:
    """Return whether an operation draws from torch's global random numbers."""
    return torch.Tag.nondeterministic_seeded in func.tags and kwargs.get("generator") is None


def weights(parts: Iterable[Part]) -> list[Tensor]:
    """Return the parameters and buffers of those parts that are modules."""
    modules = [part for part in parts if isinstance(part, nn.Module)]
    return [t for module in modules for t in (*module.parameters(), *module.buffers())]


def storages(parts: Iterable[Part]) -> set[int]:
    """Return the addresses at which the tensors in the state of parts lie."""
    return {address(each) for part in parts for each in tensors(part.state_dict())}


def address(tensor: Tensor) -> int:
    """Return the address at which a tensor's memory begins."""
    return tensor.untyped_storage().data_ptr()
