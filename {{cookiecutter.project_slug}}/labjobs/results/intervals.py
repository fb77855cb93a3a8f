"""Means and fractions of repeated results, with their intervals and tests.

What the results are a sample of decides the interval: of seeds, of splits that share examples, or
of seeds and test examples together.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special  # scipy.stats takes half a second longer to import

LEVEL = 0.95  # the confidence level: how often an interval should contain the true value
TAIL = (1 - LEVEL) / 2
LEAST = 1e-12  # the smallest probability that is told from 0
DRAWS = 2000  # how often results are drawn again for a bootstrap
RANKS = 200  # at how many ranks, at most, a band holds; between two of them it is as wide as there

NEEDED = 3  # repeats from which intervals are shown: that of two is so wide that it says nothing


class Interval(NamedTuple):
    """A mean or a fraction and the ends of its interval, which are NaN for a single sample."""

    mean: Any
    low: Any
    high: Any


class Variance(NamedTuple):
    """A part of a mean's variance, and its degrees of freedom."""

    value: Any
    freedom: float


class Estimate(NamedTuple):
    """A mean, and the parts of its variance; with `log` they are of logarithms, so that a mean is a
    geometric one, and a difference a ratio."""

    mean: Any
    parts: tuple[Variance, ...]
    log: bool = False

    def half(self, tail: float = TAIL) -> Any:
        """Return half of the width of the interval that leaves this probability out on each side:
        that of a t distribution, the widths of several parts added as orthogonal. It is a little
        too wide, while Satterthwaite's degrees of freedom make it too narrow for three seeds
        (measured in docs/intervals.md)."""
        widths = [special.stdtrit(part.freedom, tail) ** 2 * part.value for part in self.parts]
        return np.sqrt(sum(widths))

    @property
    def is_shown(self) -> bool:
        """Whether there are enough repeats for an interval, and more than one test example or group
        of them."""
        return self.parts[0].freedom >= NEEDED - 1 and all(part.freedom > 0 for part in self.parts)

    @property
    def interval(self) -> Interval:
        """The mean with its 95 % interval. A t interval has its coverage down to two samples, while
        a percentile bootstrap of three samples covers 75 % (measured by simulation)."""
        half = self.half()
        each = Interval(self.mean, self.mean - half, self.mean + half)
        return Interval(*map(np.exp, each)) if self.log else each

    @property
    def p(self) -> float:
        """The probability of a mean so far from 0 if the true one is 0. It is 1 if the variance is
        unknown, or 0, which is a lack of samples and no evidence."""
        far = abs(self.mean)
        if not 0 < self.half() < np.inf or self.half(0.5 - LEAST) >= far:
            return 1.0
        if self.half(LEAST) < far:
            return 0.0
        low, high = LEAST, 0.5 - LEAST
        for _ in range(40):  # to 1e-12
            middle = (low + high) / 2
            low, high = (middle, high) if self.half(middle) > far else (low, middle)
        return low + high


def mean(
    samples: ArrayLike, log: bool = False, overlap: float = 0.0, size: float = 0.0
) -> Estimate:
    """Return the mean over the last axis. `overlap` is the ratio of validation to training
    examples, for results of several splits of the same examples, which are not independent: Nadeau
    and Bengio 2003, doi.org/10.1023/A:1024068626366. `size` is how large the numbers are that the
    samples are differences of. The variance of a single sample is NaN."""
    values = np.asarray(samples, dtype=float)
    values = np.log(values) if log else values
    n, middle = values.shape[-1], values.mean(axis=-1)
    if n == 1:
        return Estimate(middle, (Variance(middle * np.nan, np.nan),), log)
    spread = values.std(axis=-1, ddof=1)
    rounding = 1e-13 * np.maximum(abs(middle), 1.0 if log else size)
    spread = np.where(spread > rounding, spread, 0.0)
    return Estimate(middle, (Variance(spread**2 * (1 / n + overlap), n - 1),), log)


def with_examples(results: Estimate, examples: NDArray[Any], outcomes: bool = False) -> Estimate:
    """Return the mean of some results as one over repeats and test examples: both are random, as
    crossed effects. `examples` (N,) are the means of single test examples over the repeats; in
    units of the mean if the results are logarithms. `outcomes` says that each result of an example
    was 0 or 1, so that `fraction` may take the place of the t interval."""
    (part,) = mean(examples).parts
    n, from_mean = len(examples), examples - examples.mean()
    if not outcomes and from_mean.any():
        # Fewer degrees of freedom if a few examples have most of the loss, by the kurtosis of the
        # values: O'Neill 2014, doi.org/10.1080/00031305.2014.966589.
        excess = (from_mean**4).mean() / (from_mean**2).mean() ** 2 - 3
        part = part._replace(freedom=(n - 1) / (1 + max(0.0, excess) * (n - 1) / (2 * n)))
    return results._replace(parts=(*results.parts, part))


def of_groups(values: NDArray[Any], group: NDArray[Any]) -> NDArray[Any]:
    """Return a value for each group (G,) of examples: their mean is that of the values (N,), and
    has the variance of that over independent groups, however many examples these have. Source:
    Cochran 1977, Sampling Techniques, chapter 9A: the mean is a ratio of sums over groups."""
    names, places = np.unique(group, return_inverse=True)
    middle, scale = values.mean(), len(names) / len(values)
    return np.asarray(middle + np.bincount(places, values - middle) * scale)


def fraction(found: Estimate, n: int) -> Interval:
    """Return a fraction of n test examples with its interval from the binomial distribution, for as
    many independent examples as have the interval that was found: Korn and Graubard 1998, Survey
    Methodology 24, 193. Without variance, at 0 and 1, it is the exact interval of n examples."""
    p, alike, half = float(found.mean), float(n), float(found.half())
    if half > 0:
        alike = p * (1 - p) * (special.stdtrit(n - 1, TAIL) / half) ** 2
    _, low, high = of_counts(p * alike, alike)
    return Interval(p, float(low), float(high))


def of_counts(counts: ArrayLike, n: float) -> Interval:
    """Return each of some counts out of n as a fraction, with its exact 95 % binomial interval;
    neither has to be a whole number. Source: Clopper and Pearson 1934,
    doi.org/10.1093/biomet/26.4.404."""
    k = np.asarray(counts)
    low, high = special.betaincinv(k, n - k + 1, TAIL), special.betaincinv(k + 1, n - k, 1 - TAIL)
    return Interval(k / n, np.nan_to_num(low, nan=0.0), np.nan_to_num(high, nan=1.0))


@cache
def of_ranks(n: int) -> tuple[NDArray[np.int_], NDArray[Any], NDArray[Any]]:
    """Return ranks (K,) among n results, 1 being the best, and for each the ends (K,) between which
    the part of all possible results lies that is better; at all ranks together with a probability
    of 0.95, whatever the distribution. Between them the ranks are spread geometrically.

    Source: Lourie, Cho and He 2024, arxiv.org/abs/2311.09480, after Learned-Miller and DeStefano
    2008, doi.org/10.1109/TIT.2008.924667. The level at each rank, which they have equal as well, is
    found by simulation.
    """
    ranks = np.unique(np.geomspace(1, n, RANKS).astype(int))
    gaps = np.diff([0, *ranks, n + 1])
    steps = np.random.default_rng(0).gamma(gaps, size=(5 * DRAWS, len(gaps)))
    better = steps.cumsum(axis=1)[:, :-1] / steps.sum(axis=1, keepdims=True)
    below = special.betainc(ranks, n + 1 - ranks, better)
    tail = np.quantile(np.minimum(below, 1 - below).min(axis=1), 1 - LEVEL)
    ends = (special.betaincinv(ranks, n + 1 - ranks, each) for each in (tail, 1 - tail))
    return ranks, *ends


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """Return the probabilities of several comparisons, adjusted so that, if there is no difference
    at all, all of them are at least 0.05 in 95 % of cases: Holm 1979, jstor.org/stable/4615733."""
    order = sorted(p, key=lambda name: p[name])
    each = (min(1.0, (len(p) - rank) * p[name]) for rank, name in enumerate(order))
    adjusted = dict(zip(order, accumulate(each, max), strict=True))
    return {name: adjusted[name] for name in p}


def over_tasks(
    results: Sequence[NDArray[Any]], statistic: Callable[[NDArray[Any]], Any]
) -> Interval:
    """Return a statistic, over the last axis, of the results (n,) on each of several tasks, with
    its 95 % interval over repeats by a stratified bootstrap: Agarwal et al. 2021,
    arxiv.org/abs/2108.13264. What is drawn again from n results has (n - 1) / n of their variance,
    and its quantiles are normal ones, so both are widened (measured in docs/intervals.md)."""
    drawn, again = np.random.default_rng(0), []
    freedom = sum(len(each) - 1 for each in results)
    for each in results:
        n, middle = len(each), each.mean()
        wider = np.sqrt(n / (n - 1)) * special.stdtrit(freedom, TAIL) / special.ndtri(TAIL)
        again.append(middle + (each[drawn.integers(0, n, (DRAWS, n))] - middle) * wider)
    ends = np.quantile(statistic(np.concatenate(again, axis=-1)), [TAIL, 1 - TAIL], axis=0)
    return Interval(statistic(np.concatenate(results)), *ends)


def ratio(tops: ArrayLike, bottoms: ArrayLike) -> Interval:
    """Return the ratio of two means over pairs (n,), with its 95 % interval. The ends are infinite
    or NaN if the mean of `bottoms` cannot be distinguished from 0, so that the ratio can have any
    value. Source: Fieller 1954, doi.org/10.1111/j.2517-6161.1954.tb00159.x."""
    above, below = np.asarray(tops, dtype=float), np.asarray(bottoms, dtype=float)
    n, top, bottom = len(above), above.mean(), below.mean()
    if n == 1:
        return Interval(top / bottom, np.nan, np.nan)
    covariance = np.cov(above, below) * special.stdtrit(n - 1, TAIL) ** 2 / n
    a = bottom**2 - covariance[1, 1]
    b = top * bottom - covariance[0, 1]
    c = top**2 - covariance[0, 0]
    if a <= 0:
        return Interval(top / bottom, -np.inf, np.inf)
    half = np.sqrt(max(0.0, b * b - a * c))
    return Interval(top / bottom, (b - half) / a, (b + half) / a)
