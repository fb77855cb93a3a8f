"""What captions say of the jobs in a figure: what means stand on, what is missing, what is better.

Sentences begin with a space and are empty where there is nothing to say.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.results.comparison import SEED, combinations, finite, groups, having, varied
from engine.results.metrics import Measured, NoResults
from engine.results.statistics import paired_difference
from engine.results.style import setting, settings, with_interval

if TYPE_CHECKING:
    import pandas as pd


def repeats(
    jobs: "pd.DataFrame", by: Sequence[str], metric: Measured, interval: bool = True
) -> str:
    """Return what the means over jobs of the same settings stand on: `mean of 3 seeds, 95% t
    interval`.

    Raises NoResults where jobs differ in more than these settings and the seed, so that a mean over
    them would be of different things.
    """
    known = having(jobs, metric.result)
    more = [name for name in varied(known) if name not in by]
    if more and combinations(known, [*by, *more]) > combinations(known, by):
        raise NoResults(f"a mean would be over different values of {settings(more)}")
    counts = [len(alike) for alike in groups(known, by).values()]
    few, many = min(counts), max(counts)
    if many == 1:
        return f"one {setting(SEED)}" if SEED in jobs else "single jobs"
    mean = "geometric mean" if metric.log else "mean"
    kind = "" if not interval else ", 95% t interval" + (" of the logarithm" if metric.log else "")
    return f"{mean} of {few if few == many else f'{few}–{many}'} {setting(SEED)}s{kind}"


def left_out(jobs: "pd.DataFrame", by: Sequence[str], metric: Measured) -> str:
    """Say which jobs are in no mean: those that diverged, and those without a finite result."""
    parts = []
    for name, alike in groups(jobs, by).items():
        lost = int(alike["diverged"].sum())
        missing = len(alike) - lost - len(finite(alike, metric.result))
        of = f" of {len(alike)} jobs" + (f" of {name}" if name else "")
        parts += [f"{lost}{of}, diverged"] if lost else []
        parts += [f"{missing}{of}, without a finite result"] if missing else []
    return f" Left out: {'; '.join(parts)}." if parts else ""


def compared(samples: "Sequence[pd.Series[float]]", metric: Measured) -> str:
    """Say how the first two samples differ, by seed; nothing where they share no seed."""
    if len(samples) < 2 or not (pairs := len((samples[0] - samples[1]).dropna())):
        return ""
    what = "First over second" if metric.log else "First minus second"
    difference = with_interval(*paired_difference(samples[0], samples[1], metric.log))
    if pairs == 1:
        return f" {what}: {difference}, of one {setting(SEED)}."
    return f" {what}: {difference}, 95% t interval of {pairs} pairs by {setting(SEED)}."


def first(word: str, shown: int, count: int) -> str:
    """Return how many settings a figure shows: `the best 12 of 20 settings`."""
    if count == 1:
        return "one setting"
    return f"all {count} settings" if shown == count else f"the {word} {shown} of {count} settings"
