"""What the student's code carries from step to step: variables that were there when the loop began,
and have changed since. If such a variable was not passed to job.resume(), a continued job does not
have its value.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from labjobs.checks import places
from labjobs.checks.answers import Answer, Finding
from labjobs.checks.digests import digest, digests, leaves
from labjobs.checks.draws import GENERATORS, GLOBAL
from labjobs.checks.operations import address, storages
from labjobs.sources import Place, is_students
from labjobs.stateful import Part

PLAIN = (bool, int, float, complex, str, type(None), Tensor, np.ndarray, np.generic)

MOST = 1000
"""Values in a container that is looked at, at most."""


class Change(NamedTuple):
    """A variable that has changed, where it is made, and whether it has a `state_dict()` or is a
    generator of random numbers."""

    name: str
    place: Place
    is_part: bool
    is_generator: bool

    @property
    def text(self) -> str:
        """What is wrong with the variable, if it is part of the state."""
        if self.is_generator:
            return f"{self.name} is not restored; draw from torch's own random numbers"
        if self.is_part:
            return f"{self.name} changes while training, but job.resume(…) was not given it"
        return (
            f"{self.name} changes while training and is not restored; keep it in an object with "
            "state_dict() and load_state_dict(), and give that to job.resume(…)"
        )


class _Variable(NamedTuple):
    name: str
    value: Any
    place: Callable[[], Place | None]


class Carried:
    """Looks for what changes, beside the parts that job.resume() was given and some datasets."""

    def __init__(self, parts: Mapping[str, Part], datasets: Iterable[Dataset[Any]]) -> None:
        self._parts, self._datasets = parts, list(datasets)
        self._frames = places.running()
        self._before = {key: _state(found.value) for key, found in self._variables()}
        self._changes: dict[tuple[int, str], Change] = {}

    def look(self) -> None:
        """Record what has changed."""
        known, addresses = _within(self._parts.values()), storages(self._parts.values())
        for key, (name, value, place) in self._variables():
            before, now = self._before.get(key), _state(value)
            is_part, is_generator = _is_part(value), bool(_reads_state(value))
            own = (id(value), "") if is_part or is_generator else key  # it may have several names
            if not before or before == now or id(value) in known or own in self._changes:
                continue
            if is_part and _lies_at(addresses, value, before):
                continue
            if at := place():
                self._changes[own] = Change(name, at, is_part, is_generator)

    def changes(self) -> tuple[Change, ...]:
        """Return what has changed: first what has a `state_dict()`, then random numbers."""
        return tuple(
            sorted(
                self._changes.values(), key=lambda each: (not each.is_part, not each.is_generator)
            )
        )

    def forgotten(self) -> Answer:
        """Return which objects with a `state_dict()` have changed."""
        parts = (each for each in self.changes() if each.is_part)
        return Answer(tuple(Finding(each.place, each.text) for each in parts))

    def _variables(self) -> Iterator[tuple[tuple[int, str], _Variable]]:
        """The variables of the functions that run, of the student's modules, and of the student's
        objects in them, by their owner and name."""
        for frame in self._frames:
            if frame.f_code.co_name != "<module>":
                for name, value in frame.f_locals.items():
                    place = partial(places.of_local, frame, name)
                    yield (id(frame), name), _Variable(name, value, place)
                    yield from _attributes(name, value)
        for module in [*sys.modules.values()]:
            file = getattr(module, "__file__", None)
            if file and is_students(file):
                for name, value in [*vars(module).items()]:
                    found = _Variable(name, value, partial(places.of_global, file, name))
                    yield (id(module), name), found
                    yield from _attributes(name, value)
        for dataset in self._datasets:
            yield from _attributes(type(dataset).__name__, dataset)


def _attributes(name: str, value: Any) -> Iterator[tuple[tuple[int, str], _Variable]]:
    """The attributes of an object of a class of the student's."""
    file = getattr(sys.modules.get(type(value).__module__), "__file__", None)
    if file and is_students(file) and hasattr(value, "__dict__"):
        for attribute, found in [*vars(value).items()]:
            place = partial(places.of_attribute, type(value), attribute)
            yield (id(value), attribute), _Variable(f"{name}.{attribute}", found, place)


def _is_part(value: Any) -> bool:
    wanted = ("state_dict", "load_state_dict")
    return not isinstance(value, type) and all(callable(getattr(value, n, None)) for n in wanted)


def _reads_state(value: Any) -> Callable[[Any], Any] | None:
    if any(value is each for each in GLOBAL):
        return None
    return next((read for kind, read in GENERATORS.items() if isinstance(value, kind)), None)


def _state(value: Any) -> dict[str, str] | None:
    """The state of what can be carried; None of anything else."""
    if read := _reads_state(value):
        return {"": digest(read(value))}
    if _is_part(value):
        return digests(value.state_dict())
    return {"": digest(value)} if _is_plain(value) else None


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple | set | deque):
        return len(value) <= MOST and all(map(_is_plain, value))
    return isinstance(value, PLAIN)


def _lies_at(addresses: set[int], part: Any, before: Mapping[str, str]) -> bool:
    """Whether all that has changed of a part is a tensor at one of these addresses."""
    state = part.state_dict()
    now = digests(state)
    changed = [leaf for path, leaf in leaves(state).items() if now[path] != before.get(path)]
    return all(isinstance(leaf, Tensor) and address(leaf) in addresses for leaf in changed)


def _within(parts: Iterable[Part]) -> set[int]:
    """The ids of the objects that parts consist of."""
    found: set[int] = set()
    waiting: list[Any] = [*parts]
    while waiting and len(found) < 100_000:
        value = waiting.pop()
        if id(value) in found or isinstance(value, (type, *PLAIN)):
            continue
        found.add(id(value))
        if isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, list | tuple | set | deque):
            waiting += value
        else:
            waiting += getattr(value, "__dict__", {}).values()
    return found
