"""Choosing how many examples of each label to hold out, and which groups have that many."""

from heapq import heapreplace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Ints = NDArray[np.int64]

FREE = 20
"""Groups that are chosen by their sizes: of their million subsets one is nearly always exact."""


def apportioned(fraction: float, sizes: NDArray[Any], random: torch.Generator) -> Ints:
    """Return the number of examples of each label to hold out (K,), where labels have `sizes` (K,).

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
    """Return the places of the groups whose sizes, of all in `sizes` (G,), have the sum that is
    nearest to a wanted one.

    Earlier groups are preferred, so groups in a random order give a random choice. Where more than
    FREE are needed, the first are taken whatever their sizes, and the last FREE by them.
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


def dealt(sizes: Ints, totals: list[int]) -> tuple[Ints, list[int]]:
    """Return the fold (G,) of each group, by their sizes (G,), and the examples then in each fold.

    `totals` are those in it before. The largest group comes first, each into the fold with the
    fewest examples of these groups, of equal ones into that with the smallest total.
    """
    folds = np.zeros(len(sizes), dtype=int)
    smallest = sorted((0, total, number) for number, total in enumerate(totals))
    for place in np.argsort(-sizes, kind="stable").tolist():
        size = int(sizes[place])
        own, total, number = smallest[0]
        heapreplace(smallest, (own + size, total + size, number))
        folds[place] = number
    return folds, [total for _, total, _ in sorted(smallest, key=lambda each: each[2])]
