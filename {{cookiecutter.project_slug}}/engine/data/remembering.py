"""Functions of a dataset that work only once for the same one."""

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def remembered(function: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Return a function that remembers its results, by the dataset itself and the other arguments.

    All jobs of a grid are checked in one process, and most of them have the same data. Unlike
    `functools.cache` it takes datasets without a hash.
    """
    results: dict[Hashable, tuple[Any, R]] = {}

    @wraps(function)
    def remembering(dataset: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        key = (id(dataset), args, tuple(sorted(kwargs.items())))
        if key not in results:  # with the dataset, as an address alone would be used again
            results[key] = dataset, function(dataset, *args, **kwargs)
        return results[key][1]

    return remembering
