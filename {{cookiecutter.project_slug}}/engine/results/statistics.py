"""What repeated jobs allow to say: intervals over seeds, differences, many tasks, times.

mean, half = mean_interval(accuracies)              # a 95 % t interval: mean ± half
mean, half = paired_difference(ours, theirs)        # by seed, both a Series with seeds as index
low, high = iqm_interval(scores)                    # scores: (seeds, tasks)
curve = reached(times, ended)                       # the share that has come to a target by then
"""

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.95
"""How often an interval should hold what it estimates."""

Floats = NDArray[np.float64]


def mean_interval(samples: ArrayLike) -> tuple[Any, Any]:
    """The mean over the last axis and half the width of its t interval, NaN for one sample.

    A t interval holds its 95 % down to two samples (tests/test_statistics.py), where a percentile
    bootstrap of three holds 75 %.
    """
    from scipy.stats import t

    values = np.asarray(samples, dtype=float)
    n = values.shape[-1]
    if n == 1:
        return values[..., 0], np.full(values.shape[:-1], np.nan)
    error = values.std(axis=-1, ddof=1) / np.sqrt(n)
    return values.mean(axis=-1), t.ppf((1 + LEVEL) / 2, n - 1) * error


def paired_difference(first: "pd.Series[float]", second: "pd.Series[float]") -> tuple[Any, Any]:
    """The mean of first minus second over the seeds that both have, and half its t interval.

    Jobs of the same seed share their first weights and their order of batches: what these add to
    both drops out. NaN where they share no seed.
    """
    differences = (first - second).dropna()
    return mean_interval(differences) if len(differences) else (np.nan, np.nan)


def iqm(scores: ArrayLike) -> float:
    """The mean of the middle half of all scores.

    Source: Agarwal et al. 2021, Deep Reinforcement Learning at the Edge of the Statistical
    Precipice, arxiv.org/abs/2108.13264.
    """
    from scipy.stats import trim_mean

    return float(trim_mean(np.asarray(scores, dtype=float), 0.25, axis=None))


def iqm_interval(scores: ArrayLike, resamples: int = 2000, seed: int = 0) -> tuple[float, float]:
    """The ends of a percentile interval of the interquartile mean of scores (seeds, tasks).

    A stratified bootstrap: seeds are drawn anew within each task. Made for many tasks of a few
    seeds each; for one task take mean_interval. Source: as for iqm.
    """
    from scipy.stats import trim_mean

    values = np.asarray(scores, dtype=float)
    seeds, tasks = values.shape
    drawn = np.random.default_rng(seed).integers(seeds, size=(resamples, seeds, tasks))
    samples = np.take_along_axis(values[None], drawn, axis=1).reshape(resamples, -1)
    low, high = np.quantile(trim_mean(samples, 0.25, axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


class Reached(NamedTuple):
    """The share of jobs that has come to a target: from each time on, with its interval."""

    times: Floats
    shares: Floats
    low: Floats
    high: Floats


def reached(times: ArrayLike, ended: ArrayLike) -> Reached:
    """The share of jobs that has come to a target, by time: Kaplan and Meier's estimate.

    `times` (n,) is when each job came there, NaN if it never did; `ended` (n,) is when each job
    ended: of one that never came there it is known that it takes longer. The interval is
    Greenwood's on a log-log scale. Source: Kaplan and Meier 1958, doi.org/10.2307/2281868.
    """
    from scipy.stats import CensoredData, ecdf

    came, last = np.asarray(times, dtype=float), np.asarray(ended, dtype=float)
    never = np.isnan(came)
    found = ecdf(CensoredData(uncensored=came[~never], right=last[never])).cdf
    with warnings.catch_warnings(action="ignore"):  # where there is no interval its ends are NaN
        low, high = found.confidence_interval(LEVEL, method="log-log")
    return Reached(found.quantiles, found.probabilities, low.probabilities, high.probabilities)
