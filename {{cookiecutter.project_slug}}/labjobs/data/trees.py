"""Batches of any shape: tuples, lists, dicts and dataclasses, nested in any way, of tensors."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor


def mapped(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Return a tree of the same shape, of what the function makes of each leaf.

    With several trees of one shape, the function takes a leaf of each. Anything other than a tuple,
    list, mapping (which becomes a dict) or dataclass is a leaf, and so is a tuple with its own way
    to move to a device, such as torch's PackedSequence.
    """
    trees = (tree, *others)
    if isinstance(tree, Mapping):
        return {key: mapped(function, *(each[key] for each in trees)) for key in tree}
    if is_dataclass(tree) and not isinstance(tree, type):
        made = copy(tree)  # what its __post_init__ asks of values need not hold for what is made
        for name in (field.name for field in fields(tree)):
            new = mapped(function, *(getattr(each, name) for each in trees))
            object.__setattr__(made, name, new)  # it may be frozen
        return made
    if isinstance(tree, tuple | list) and not hasattr(tree, "to"):
        parts = [mapped(function, *each) for each in zip(*trees, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)  # a namedtuple
    return function(*trees)


def leaves(tree: Any) -> list[Any]:
    """Return the leaves of a tree, in order."""
    found: list[Any] = []
    mapped(found.append, tree)
    return found


def tensors(tree: Any) -> list[Tensor]:
    """Return the tensors among the leaves of a tree, in order."""
    return [leaf for leaf in leaves(tree) if isinstance(leaf, Tensor)]


def form(tensor: Tensor) -> tuple[Any, ...]:
    """Return all of a tensor but its values."""
    return tensor.shape, tensor.dtype, tensor.device


def alike(found: Sequence[Tensor], kind: Callable[[Tensor], Any] = form) -> list[list[int]]:
    """Return the places of tensors of one kind each, to work on them together. What torch does with
    tensors of mixed data types it does one by one."""
    groups: dict[Any, list[int]] = {}
    for index, each in enumerate(found):
        groups.setdefault(kind(each), []).append(index)
    return [*groups.values()]


def filled(tree: Any, new_leaves: Iterable[Any]) -> Any:
    """Return a tree of the same shape with other leaves, in order."""
    new = iter(new_leaves)
    return mapped(lambda _: next(new), tree)


def stacked(examples: Sequence[Any]) -> Any:
    """Return one batch of some examples: tensors, arrays and numbers along a new first dimension.

    Raises TypeError for anything else in an example.
    """

    def stack(*values: Any) -> Tensor:
        if isinstance(values[0], float):
            return torch.tensor(values)  # in torch's default number format
        return torch.stack([_tensor(value) for value in values])

    return mapped(stack, *examples)


def _tensor(value: Any) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, RuntimeError) as error:
        kind = type(value).__name__
        raise TypeError(
            f"an example holds a {kind}, not a tensor or a number; see collate in job.batches()"
        ) from error


def rows(batch: Any) -> int | None:
    """Return the length of the first dimension, if it is the same for all tensors of a batch; None
    if it is not, or if the batch contains something else."""
    found = {
        leaf.shape[0] if isinstance(leaf, Tensor) and leaf.ndim else None for leaf in leaves(batch)
    }
    return found.pop() if len(found) == 1 else None


def split(batch: Any, size: int | list[int]) -> Iterator[Any]:
    """Yield parts of a batch with `size` examples each, fewer in the last, or as a list says."""
    for parts in zip(*(leaf.split(size) for leaf in leaves(batch)), strict=True):
        yield filled(batch, parts)
