"""What captions say of the jobs in a figure: what means stand on, who is missing, who is better."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.results import tables as results
from engine.results.statistics import paired_difference

if TYPE_CHECKING:
    import pandas as pd


def repeats(
    jobs: "pd.DataFrame", by: Sequence[str], metric: str, interval: str = ", 95% t interval"
) -> str:
    """What the means over jobs of the same settings stand on: `mean of 3 seeds, 95% t interval`.

    Raises NoResults where jobs differ in more than these settings and the seed, so that a mean over
    them would be of different things.
    """
    known = results.having(jobs, metric)
    if known.duplicated([*by, "seed"]).any():
        more = ", ".join(results.differing(known, [*by, "seed"]))
        alike = f"jobs alike in {', '.join(by)} and seed"
        raise results.NoResults(f"{alike} differ in {more}: it has to be told apart")
    counts = known.groupby(list(by), dropna=False).size()
    few, many = counts.min(), counts.max()
    if many == 1:
        return "one seed"
    return f"mean of {few if few == many else f'{few}–{many}'} seeds{interval}"


def lost(jobs: "pd.DataFrame", by: Sequence[str]) -> str:
    """Which jobs are in no mean because they diverged, as a sentence; nothing where none did."""
    parts = [
        f"{repeated['diverged'].sum()} of {len(repeated)} jobs of {name}"
        for name, repeated in results.groups(jobs, by).items()
        if repeated["diverged"].any()
    ]
    return f" Left out, as they diverged: {'; '.join(parts)}." if parts else ""


def compared(samples: "Sequence[pd.Series[float]]") -> str:
    """The difference of the first two samples, by seed, as a sentence; nothing where they share no
    seed."""
    if len(samples) < 2 or not (pairs := len((samples[0] - samples[1]).dropna())):
        return ""
    mean, half = paired_difference(*samples[:2])
    if pairs == 1:
        return f"First minus second: {mean:.4f} (one seed)."
    return f"First minus second: {mean:.4f} ± {half:.4f} (95% t interval, {pairs} pairs by seed)."
