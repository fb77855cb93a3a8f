"""What captions say about the jobs in a figure: what means are based on, what is missing, what is
better.

Sentences begin with a space, and are empty if there is nothing to say.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from labjobs.results.groups import (
    FOLD,
    SEED,
    combinations,
    finite,
    groups,
    having,
    repeated,
    varied,
)
from labjobs.results.metrics import Measured, NoResults
from labjobs.results.statistics import paired_difference
from labjobs.results.style import setting, settings, with_interval

if TYPE_CHECKING:
    import pandas as pd

MOST = 6
"""The largest number of settings that are named; further ones are only counted."""


def repeats(jobs: "pd.DataFrame", by: Sequence[str], metric: Measured) -> str:
    """Return what the means over jobs with the same settings are based on: `mean of 3 seeds`.
    Raises NoResults if jobs differ in more than these settings, the seed and the fold, because a
    mean over them would mix different things.
    """
    known = having(jobs, metric.result)
    more = [name for name in varied(known) if name not in by]
    if more and combinations(known, [*by, *more]) > combinations(known, by):
        raise NoResults(f"a mean would be over different values of {settings(more)}")
    counts = [len(alike) for alike in groups(known, by).values()]
    few, many = min(counts), max(counts)
    if many == 1:
        return f"one {settings(names)}" if (names := repeated(jobs)) else "single jobs"
    mean = "geometric mean" if metric.log else "mean"
    return f"{mean} of {few if few == many else f'{few}–{many}'} {_repeats(known)}"


def interval(jobs: "pd.DataFrame", metric: Measured) -> str:
    """Return what kind of intervals these means have."""
    scale = " of the logarithm" if metric.log else ""
    # They share most of their training examples: Bengio and Grandvalet 2004,
    # jmlr.org/papers/v5/grandvalet04a.html.
    folds = ", as if folds were independent" if FOLD in _varying(jobs) else ""
    return f"95% t interval{scale}{folds}"


def _repeats(jobs: "pd.DataFrame") -> str:
    """What several repeats are: `seeds`, or `jobs over seeds and folds`."""
    names = [f"{setting(name)}s" for name in _varying(jobs) or [SEED]]
    return names[0] if len(names) == 1 else f"jobs over {' and '.join(names)}"


def _varying(jobs: "pd.DataFrame") -> list[str]:
    return [name for name in repeated(jobs) if combinations(jobs, [name]) > 1]


def left_out(jobs: "pd.DataFrame", by: Sequence[str], metric: Measured) -> str:
    """Say which jobs are left out of the means: those that diverged, and those without a finite
    result."""
    parts = [
        text
        for name, alike in groups(jobs, by).items()
        for text in _missing(alike, metric, f" of {name}" if name else "")
    ]
    if len(parts) > MOST:
        parts = _missing(jobs, metric, "")
    return f" Left out: {'; '.join(parts)}." if parts else ""


def _missing(jobs: "pd.DataFrame", metric: Measured, whose: str) -> list[str]:
    diverged = int(jobs["diverged"].sum())
    unknown = len(jobs) - diverged - len(finite(jobs, metric.result))
    whys = {"which diverged": diverged, "without a finite result": unknown}
    return [f"{n} of {len(jobs)} jobs{whose}, {why}" for why, n in whys.items() if n]


def compared(samples: "Sequence[pd.Series[float]]", metric: Measured) -> str:
    """Say how the first two samples differ, by seed and fold; empty if they have none in common."""
    if len(samples) < 2 or not (pairs := len((samples[0] - samples[1]).dropna())):
        return ""
    what = "First over second" if metric.log else "First minus second"
    difference = with_interval(*paired_difference(samples[0], samples[1], metric.log))
    repeat = settings([str(name) for name in samples[0].index.names])
    if pairs == 1:
        return f" {what}: {difference}, of one {repeat}."
    return f" {what}: {difference}, 95% t interval of {pairs} pairs by {repeat}."


def first(jobs: "pd.DataFrame", shown: int, count: int) -> str:
    """Return how many settings a ranking shows: `the best 12 of 20 settings`."""
    many = f"all {count}" if shown == count else f"the best {shown} of {count}"
    last = ", those of which a job diverged last" if jobs["diverged"].any() else ""
    return f"{many} settings{last}" if count > 1 else "one setting"
