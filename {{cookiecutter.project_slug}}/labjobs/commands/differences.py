"""Where the weights, or the outputs for each test example, of two attempts first differ."""

import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray

from labjobs import layout
from labjobs.commands.repeat import Difference
from labjobs.errors import JobError
from labjobs.training import checkpoints

WEIGHTS, PREDICTIONS = layout.BEST, layout.PREDICTIONS

Arrays = Mapping[str, NDArray[Any]]


def compare(before: Path, after: Path) -> tuple[dict[str, int], Difference | None]:
    """Return the number of arrays in each file of two attempts, and where they first differ.

    Raises JobError if a file is damaged, OSError if it cannot be read.
    """
    counts: dict[str, int] = {}
    for name, read in ((WEIGHTS, _weights), (PREDICTIONS, _predictions)):
        there = [(attempt / name).exists() for attempt in (before, after)]
        if there[0] != there[1]:
            return counts, Difference(name, None, *map(_there, there))
        if all(there):
            found = read(before / name)
            if apart := _difference(found, read(after / name)):
                return counts, apart._replace(what=f"{name}: {apart.what}")
            counts[f"arrays in {name}"] = len(found)
    return counts, None


def _weights(path: Path) -> Arrays:
    return dict(_arrays("", checkpoints.load(path, torch.device("cpu"))["models"]))


def _arrays(name: str, nested: Any) -> Iterator[tuple[str, NDArray[Any]]]:
    """The tensors in nested dictionaries, by the names on the way to them; NumPy does not know all
    of torch's small floats, so that these become larger ones."""
    if isinstance(nested, torch.Tensor):
        small = nested.is_floating_point() and nested.itemsize < 4
        yield name, (nested.float() if small else nested).contiguous().numpy()
    elif isinstance(nested, Mapping):
        for key, value in nested.items():
            yield from _arrays(f"{name}.{key}".lstrip("."), value)


def _predictions(path: Path) -> Arrays:
    try:
        with np.load(path) as kept:
            return dict(kept)
    except (ValueError, EOFError, BadZipFile, zlib.error) as error:
        raise JobError(f"{path.name} is damaged") from error


def _difference(before: Arrays, after: Arrays) -> Difference | None:
    for name in {**before, **after}:
        if name not in before or name not in after:
            return Difference(name, None, _there(name in before), _there(name in after))
        one, other = before[name], after[name]
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            return Difference(name, None, _kind(one), _kind(other))
        if one.tobytes() != other.tobytes():
            return _first(name, one, other)
    return None


def _first(name: str, one: NDArray[Any], other: NDArray[Any]) -> Difference:
    """The first element whose bytes differ."""
    size = one.dtype.itemsize
    rows = [np.frombuffer(each.tobytes(), np.uint8).reshape(-1, size) for each in (one, other)]
    differing = np.flatnonzero((rows[0] != rows[1]).any(1))
    place = np.unravel_index(differing[0], one.shape)
    was, now = (repr(each[place].item()) for each in (one, other))
    at = ", ".join(map(str, place))
    return Difference(f"{name}[{at}]", None, was, now, f"{len(differing)} of {one.size} differ")


def _there(there: bool) -> str:
    return "there" if there else "missing"


def _kind(array: NDArray[Any]) -> str:
    return f"{array.dtype} {array.shape}"
