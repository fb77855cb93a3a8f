"""How many examples of each label are held out, and which groups of examples come to that many."""

from heapq import heapreplace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Ints = NDArray[np.int64]

FREE = 20
"""How many groups are chosen by their sizes where there are more: of a million choices one fits."""


def apportioned(fraction: float, sizes: NDArray[Any], random: torch.Generator) -> Ints:
    """Return how many examples of each label to hold out (K,), of so many (K,).

    Each is the fraction rounded up or down, so that the sum is rounded to the nearest: by largest
    remainders, equal ones at random.
    """
    exact = fraction * sizes
    numbers = np.floor(exact).astype(int)
    missing = round(fraction * float(sizes.sum())) - int(numbers.sum())
    drawn = torch.randperm(len(sizes), generator=random).numpy()
    largest = drawn[np.argsort(numbers[drawn] - exact[drawn], kind="stable")]
    numbers[largest[:missing]] += 1
    return numbers


def nearest(sizes: Ints, wanted: int) -> list[int]:
    """Return the places of groups whose sizes (G,) add up as nearly to a number as any groups' do.

    The first groups that do are chosen, so in a random order they are a random choice. Where more
    than FREE are needed, all but the last FREE of them are chosen whatever their sizes.
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
