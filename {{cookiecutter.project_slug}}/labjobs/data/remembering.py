"""Functions of a dataset that remember their results, so that they work only once for each
dataset."""

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def remembered(function: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Return a function that remembers its results, by the dataset itself and the other arguments.

    All jobs of a grid are checked in one process, and most of them have the same data. Unlike
    `functools.cache` it takes datasets, arrays and lists, which have no hash.
    """
    results: dict[Hashable, tuple[Any, R]] = {}

    @wraps(function)
    def remembering(dataset: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        named = sorted((name, _key(value)) for name, value in kwargs.items())
        key = (_key(dataset), *map(_key, args), *named)
        if key not in results:  # keeps the objects, so that their addresses are not reused
            results[key] = (dataset, args, kwargs), function(dataset, *args, **kwargs)
        return results[key][1]

    return remembering


def _key(value: Any) -> Hashable:
    """Numbers and texts are identified by their value, everything else by its address."""
    return value if isinstance(value, int | float | str) else id(value)
