"""Holding out examples for validation and test.

    train, test = split(dataset, 0.2, seed)                   # at random
    train, test = split(dataset, 0.2, seed, labels=labels)    # the same fraction of each label
    train, test = split(dataset, 0.2, seed, groups=patients)  # all examples of some patients
    train, val = fold(train, 1, 5, seed, groups=patients)     # the first of five folds
    check_groups(patients, train=train, val=val, test=test)   # wherever these parts come from

`labels` and `groups` have a value, such as a number, a text or a tuple, for each example of the
whole dataset, also where a part of it is split again. With both, each group must have one label.
Parts keep the dataset's order, and the same arguments, if labels and groups are the same objects,
give the same objects.
"""

from collections.abc import Callable, Hashable, Iterator, Sized
from functools import wraps
from heapq import heapreplace
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, Subset

from labjobs.data.order import generator, underlying
from labjobs.errors import SettingsError, require

Ints = NDArray[np.int64]

Values = Any  # (N,): a sequence, an array or a tensor with a value for each example of a dataset
FREE = 20  # groups chosen by their sizes: one of their million subsets nearly always fits exactly

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


@remembered
def split(
    dataset: Dataset[Any],
    fraction: float,
    seed: int,
    labels: Values | None = None,
    groups: Values | None = None,
) -> tuple[Subset[Any], Subset[Any]]:
    """Return the dataset without a random fraction of its examples, and those examples.

    With labels, the number of examples held out of each label is within one of that fraction. With
    groups, whole groups are held out, and their number of examples is as near to the fraction as
    the groups allow. Raises SettingsError if one of the two parts would be empty, or lack a label.
    """
    units = _Units(dataset, labels, groups, seed, "split")
    wanted = _apportioned(fraction, np.bincount(units.labels, units.sizes, 1), units.random)
    held_out = np.zeros(len(units.sizes), dtype=bool)
    for (alike, what), number in zip(units.by_label(), wanted, strict=True):
        chosen = nearest(units.sizes[alike], int(number))
        if not 0 < len(chosen) < len(alike):
            raise SettingsError(
                f"{fraction} of {what} is {len(chosen)}, but at least one must be held out and one "
                "kept; change --val-fraction or --dataset"
            )
        held_out[alike[chosen]] = True
    return _parts(dataset, held_out[units.of])


def _apportioned(fraction: float, sizes: NDArray[Any], random: torch.Generator) -> Ints:
    """The number of examples of each label to hold out (K,), where labels have `sizes` (K,).

    The sum is the fraction of all examples, rounded. Each number is the fraction of its label,
    rounded up where the remainder is largest (at random among equal ones), else down.
    """
    exact = fraction * sizes
    counts = np.floor(exact).astype(int)
    missing = round(fraction * float(sizes.sum())) - int(counts.sum())
    drawn = torch.randperm(len(sizes), generator=random).numpy()
    largest = drawn[np.argsort(counts[drawn] - exact[drawn], kind="stable")]
    counts[largest[:missing]] += 1
    return counts


def nearest(sizes: Ints, wanted: int) -> list[int]:
    """Return the indices of groups whose `sizes` (G,) add up to the wanted sum, or nearly.

    Earlier groups are preferred, so groups in a random order give a random choice. If more than
    FREE groups are needed, the first ones are taken whatever their sizes, and the last FREE are
    chosen by size.
    """
    unit = int(np.gcd.reduce(sizes)) or 1
    wanted = unit * round(wanted / unit)
    totals = np.cumsum(sizes)
    sure = max(0, int(np.searchsorted(totals, wanted)) - FREE)
    # For each sum that some groups come to: the last of these groups, as early as possible.
    last = {int(totals[sure - 1]) if sure else 0: -1}
    for place, size in enumerate(sizes[sure:].tolist(), sure):
        if wanted in last:
            break
        last = {total + size: place for total in last if total < wanted} | last
    total = min(last, key=lambda total: (abs(total - wanted), total))
    chosen = list(range(sure))
    while (place := last[total]) >= 0:
        chosen.append(place)
        total -= int(sizes[place])
    return chosen


@remembered
def fold(
    dataset: Dataset[Any],
    number: int,
    count: int,
    seed: int,
    labels: Values | None = None,
    groups: Values | None = None,
) -> tuple[Subset[Any], Subset[Any]]:
    """Return the dataset without one of its folds, and that fold; they are numbered from 1.

    Each example is in one fold. The folds have the same number of examples, within one; with
    labels, also the same number of each label. With groups, each group is in one fold, and folds
    differ by at most the size of the largest group; with both, this holds for the examples of each
    label. Raises SettingsError if there is no fold with this number, or if a fold would be empty,
    or lack a label.
    """
    require(count > 1, "folds", count, "at least 2")
    require(1 <= number <= count, "--fold", number, f"from 1 to {count}")
    return _parts(dataset, _folds(dataset, count, seed, labels, groups) == number - 1)


@remembered
def _folds(
    dataset: Dataset[Any], count: int, seed: int, labels: Values | None, groups: Values | None
) -> Ints:
    """The fold of each example (N,), from 0."""
    units = _Units(dataset, labels, groups, seed, "folds")
    folds, totals = np.zeros(len(units.sizes), dtype=int), [0] * count
    for alike, what in units.by_label():
        if len(alike) < count:
            raise SettingsError(f"--dataset: {what} are too few for {count} folds")
        # The largest first, each to the fold with the fewest examples of this label so far; in a
        # tie, to the one with the fewest of all.
        fewest = sorted((0, total, fold) for fold, total in enumerate(totals))
        for unit in alike[np.argsort(-units.sizes[alike], kind="stable")].tolist():
            size = int(units.sizes[unit])
            own, total, chosen = fewest[0]
            heapreplace(fewest, (own + size, total + size, chosen))
            folds[unit] = chosen
        totals = [total for _, total, _ in sorted(fewest, key=lambda each: each[2])]
    return cast(Ints, folds[units.of])


def check_groups(groups: Values, **parts: Dataset[Any] | Values | None) -> None:
    """Raise SettingsError if examples of a group are in more than one part.

    A part, such as one of another dataset, may also be given as the groups of its examples.
    """
    first: dict[Any, str] = {}
    twice: dict[Any, str] = {}
    datasets = [underlying(part)[0] for part in parts.values() if isinstance(part, Dataset)]
    if any(dataset is not datasets[0] for dataset in datasets):
        raise SettingsError(
            "--dataset: its parts come from several datasets; give groups for each part"
        )
    for dataset in datasets:
        _noted[id(dataset)] = dataset, groups
    for name, part in parts.items():
        if part is None:
            continue
        found = _values(part, groups, "groups") if isinstance(part, Dataset) else _listed(part)
        for group in _numbered(found, "groups")[1]:
            if first.setdefault(group, name) != name:
                twice.setdefault(group, name)
    for group, name in twice.items():
        of = f", as {len(twice)} groups are" if len(twice) > 1 else ""
        raise SettingsError(
            f"--dataset: group {group!r} is in two parts, {first[group]} and {name}{of}"
        )


_noted: dict[int, tuple[Any, Values]] = {}  # datasets, each with the groups of its examples


def groups_of(part: Dataset[Any]) -> Ints | None:
    """Return the number of the group of each example (N,) of the dataset that a part is of, if that
    was split, or checked, by groups."""
    _, groups = _noted.get(id(underlying(part)[0]), (None, None))
    return None if groups is None else _numbered(_listed(groups), "groups")[0]


class _Units:
    """The units that are held out as a whole: groups of examples, or single examples.

    `of` (N,) is the unit of each example; `sizes` and `labels` (U,) are the number of each unit's
    examples, and the number of its label; `random` are the numbers that order them.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        labels: Values | None,
        groups: Values | None,
        seed: int,
        use: str,
    ) -> None:
        count = len(cast(Sized, dataset))
        self.of, grouped = np.arange(count), list[Any]()
        label, self._names = np.zeros(count, dtype=int), list[Any]()
        if groups is not None:
            whole, _ = underlying(dataset)
            _noted[id(whole)] = whole, groups
            self.of, grouped = _numbered(_values(dataset, groups, "groups"), "groups")
        if labels is not None:
            label, self._names = _numbered(_values(dataset, labels, "labels"), "labels")
        _, example = np.unique(self.of, return_index=True)  # one of each unit
        self.sizes, self.labels = np.bincount(self.of), label[example]
        for unit in self.of[self.labels[self.of] != label]:
            raise SettingsError(f"--dataset: the group {grouped[unit]!r} has several labels")
        self._word = "groups" if grouped else "examples"
        self.random = generator(seed, use, len(self.sizes))
        self._order = torch.randperm(len(self.sizes), generator=self.random).numpy()

    def by_label(self) -> Iterator[tuple[Ints, str]]:
        """Yield the units of each label in a random order, and what they are in words."""
        order = self._order
        ends = np.cumsum(np.bincount(self.labels, minlength=1))[:-1]
        together = order[np.argsort(self.labels[order], kind="stable")]
        for number, alike in enumerate(np.split(together, ends)):
            label = f" with the label {self._names[number]!r}" if self._names else ""
            yield alike, f"{len(alike)} {self._word}{label}"


def _parts(dataset: Dataset[Any], held_out: NDArray[np.bool_]) -> tuple[Subset[Any], Subset[Any]]:
    rest, chosen = (np.flatnonzero(each).tolist() for each in (~held_out, held_out))
    return Subset(dataset, rest), Subset(dataset, chosen)


def _values(part: Dataset[Any], values: Values, what: str) -> list[Any]:
    """The values of a part's examples, taken from the values of the whole dataset."""
    dataset, indices = underlying(part)
    listed, count = _listed(values), len(cast(Sized, dataset))
    if len(listed) != count:
        raise SettingsError(f"--dataset: {len(listed)} {what} for {count} examples; give one each")
    return [listed[index] for index in indices.tolist()]


def _listed(values: Values) -> list[Any]:
    return list(values.tolist() if hasattr(values, "tolist") else values)


def _numbered(values: list[Any], what: str) -> tuple[Ints, list[Any]]:
    """A number for each value, and the values by number, in the order in which they appear."""
    numbers: dict[Any, int] = {}
    try:
        found = [numbers.setdefault(value, len(numbers)) for value in values]
    except TypeError as error:
        wanted = "give a number, a string or a tuple for each example"
        raise SettingsError(f"--dataset: {what}: they cannot be compared; {wanted}") from error
    return np.array(found, dtype=int), [*numbers]
