"""How fast jobs are, as measured in them by pace.py in training."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from labjobs.results.statistics import Interval, mean_interval

ENOUGH = 0.95
"""The fraction of the highest speed that counts as equally good."""


class Speed(NamedTuple):
    """The speed of jobs with some value of a setting or flag, over several windows of time."""

    value: int
    rates: Sequence[float]
    """Examples per second, in each window."""

    @property
    def median(self) -> float:
        """The median of the rates."""
        return float(np.median(self.rates))

    @property
    def interval(self) -> Interval:
        """The mean of the rates, with its interval."""
        return mean_interval(self.rates)

    @property
    def error(self) -> float:
        """The standard error of the mean, as a fraction of it; infinite for one window."""
        if len(self.rates) < 2:
            return np.inf
        of_mean = np.std(self.rates, ddof=1) / np.sqrt(len(self.rates))
        return float(of_mean / np.mean(self.rates))


def smallest_good(speeds: Sequence[Speed]) -> tuple[Speed | None, str]:
    """Return the smallest value whose speed is within 5 % of the highest, and a line that says why.

    The first is None if the windows vary so much that a difference of 5 % cannot be measured.
    """
    best = max(speeds, key=lambda speed: speed.median)
    good = next(speed for speed in speeds if speed.median >= ENOUGH * best.median)
    error = max(good.error, best.error)
    if error > 1 - ENOUGH:
        return None, (
            f"the speed varies too much between windows of time (standard error {error:.0%}) to "
            f"measure a difference of {1 - ENOUGH:.0%}; try again with --force when nothing else "
            "runs"
        )
    return good, (
        f"{good.median:,.0f} examples/s, {good.median / best.median:.0%} of the highest speed, "
        f"which {best.value} has"
    )
