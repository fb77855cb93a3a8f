"""Nested values as short texts, which are equal where all bits are."""

import hashlib
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


def digest(value: Any) -> str:
    """Return the digest of a nested value."""
    return _short(repr(digests(value)).encode())


def digests(value: Any, path: str = "") -> dict[str, str]:
    """Return the digest of each leaf of nested values, by its path such as `layers.0.weight`."""
    return {name: _of_leaf(leaf) for name, leaf in leaves(value, path).items()}


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Return the leaves of nested dicts, sequences and dataclasses, by their paths."""
    if isinstance(value, Mapping):
        return _all(value.items(), path)
    if isinstance(value, list | tuple):
        return _all(enumerate(value), path)
    if is_dataclass(value) and not isinstance(value, type):
        return _all(((each.name, getattr(value, each.name)) for each in fields(value)), path)
    return {path: value}


def _all(children: Iterable[tuple[Any, Any]], path: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, child in children:
        found |= leaves(child, f"{path}.{name}" if path else str(name))
    return found


def _of_leaf(leaf: Any) -> str:
    if isinstance(leaf, Tensor):
        data = leaf.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
        return _short(f"{leaf.dtype} {tuple(leaf.shape)} ".encode() + data)
    if isinstance(leaf, np.ndarray):
        return _short(f"{leaf.dtype} {leaf.shape} ".encode() + leaf.tobytes())
    try:
        return _short(pickle.dumps(leaf))
    except (pickle.PicklingError, TypeError, AttributeError):
        return type(leaf).__name__


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
