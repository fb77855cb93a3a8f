"""Operations of torch, observed as they run, including those in the backward pass and in
libraries.
"""

import hashlib
import os
import pickle
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from types import FrameType
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from labjobs.checks import places
from labjobs.sources import Place, is_students
from labjobs.training.progress import Part

# The result for a guarantee: it is fine, broken somewhere, or nobody can know.


class Finding(NamedTuple):
    """What breaks a guarantee, in one line, and where in the student's code it does."""

    place: Place | None
    text: str


class Answer(NamedTuple):
    """The answer for one guarantee: fine if there are no findings, and nothing is unknown."""

    findings: tuple[Finding, ...] = ()
    unknown: str = ""
    """Why it cannot be known."""

    def lines(self, guarantee: str) -> Iterator[str]:
        """Yield the answer in lines: one for each finding, or just one."""
        for place, text in self.findings:
            yield f"{guarantee}: {place}: {text}" if place else f"{guarantee}: {text}"
        if not self.findings:
            yield f"{guarantee}: {f'cannot know, {self.unknown}' if self.unknown else 'fine'}"


FINE = Answer()

NAMED = 2
"""The largest number of names in a line."""


def some(names: Sequence[str]) -> str:
    """Return names in words, the first few of them."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"


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


# Nested values as short texts, which are equal where all bits are.


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


# Generators of random numbers, and clocks: which lines of the student's code use them.

GENERATORS: dict[type, Callable[[Any], Any]] = {
    random.Random: random.Random.getstate,
    np.random.Generator: lambda generator: generator.bit_generator.state,
    np.random.RandomState: lambda generator: generator.get_state(),
    torch.Generator: torch.Generator.get_state,
}
"""How to read the state of a generator of random numbers."""

GLOBAL = (random._inst, np.random.mtrand._rand, torch.default_generator)
"""The generators whose states a job saves."""

CLOCKS = (time.time, time.time_ns, time.monotonic, time.perf_counter, datetime.now)


class Draws:
    """Within its context, notes each line that asks a clock or for an unpredictable number.

    `on_draw` is called when Python's, NumPy's or torch's global generator is used. Before Python
    3.12, NumPy's generators are not seen: Python does not report calls of Cython's functions.
    Source: docs.python.org/3/library/sys.html#sys.setprofile.
    """

    def __init__(self, on_draw: Callable[[], None]) -> None:
        self._on_draw = on_draw
        self.unpredictable: list[Place] = []
        self.clocks: list[Place] = []

    def __enter__(self) -> Self:
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, called: Any) -> None:
        if event != "c_call":
            return
        owner = getattr(called, "__self__", None)
        if isinstance(owner, tuple(GENERATORS)):
            self._used(owner, called.__name__, frame)
        elif called is os.urandom:
            self._note(self.unpredictable, places.asking(frame))
        elif called in CLOCKS and is_students(frame.f_code.co_filename):
            self._note(self.clocks, places.of(frame))

    def _used(self, generator: object, method: str, frame: FrameType) -> None:
        if method in ("getstate", "get_state"):
            return
        if any(generator is each for each in GLOBAL):
            self._on_draw()
        elif method == "seed":  # by chance, as `random.Random()` does
            self._note(self.unpredictable, places.asking(frame))

    def _note(self, noted: list[Place], place: Place | None) -> None:
        if place and place not in noted:
            noted.append(place)
