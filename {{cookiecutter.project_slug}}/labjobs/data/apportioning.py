"""Choosing how many examples of each label to hold out, and which groups have that many."""

from heapq import heapreplace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Ints = NDArray[np.int64]

FREE = 20
"""Number of groups that are chosen by their sizes: one of their million subsets nearly always fits
exactly."""


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
    """Return the indices of groups whose sizes, taken from `sizes` (G,), add up to the wanted sum
    as nearly as possible.

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


def dealt(sizes: Ints, totals: list[int]) -> tuple[Ints, list[int]]:
    """Return the fold (G,) of each group, given their sizes (G,), and the number of examples then
    in each fold; `totals` are the numbers before. The groups are assigned by size, the largest
    first, each to the fold with the fewest examples of these groups so far; in a tie, to the one
    with the smallest total.
    """
    folds = np.zeros(len(sizes), dtype=int)
    smallest = sorted((0, total, number) for number, total in enumerate(totals))
    for place in np.argsort(-sizes, kind="stable").tolist():
        size = int(sizes[place])
        own, total, number = smallest[0]
        heapreplace(smallest, (own + size, total + size, number))
        folds[place] = number
    return folds, [total for _, total, _ in sorted(smallest, key=lambda each: each[2])]
