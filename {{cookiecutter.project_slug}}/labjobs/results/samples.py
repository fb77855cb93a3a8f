"""Results of jobs with the same settings, and how they differ from those of others.

Test results have an interval over repeats and test examples together, if the jobs have kept the
results of single examples under the metric's name: over seeds alone, a 95 % interval covers the
result on other examples in 24 to 69 % of cases (measured by simulation), and in fewer the more
seeds there are.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labjobs.results import groups, intervals, tables
from labjobs.results.intervals import NEEDED, Estimate, Interval
from labjobs.results.metrics import THROUGHPUT, Measured

MOST = 6  # things that captions name with `or` between them
LEVEL = 0.05  # the probability, for all comparisons, below which two results can be told apart


@dataclass(frozen=True)
class Sample:
    """The results (K,) of jobs by repeat, and the results (N, K) of single test examples, if these
    are known, with what says `which` examples these are, and the `group` (N,) of each if they are
    no independent ones, such as images of the same patient."""

    results: "pd.Series[float]"
    metric: Measured
    examples: NDArray[Any] | None = None
    which: tuple[NDArray[Any], ...] = ()
    overlap: float = 0.0  # of the splits of the repeats: intervals.mean
    lost: int = 0  # number of jobs that ended without a finite result
    group: NDArray[Any] | None = None
    fixed: bool = False  # whether all have the same test examples, without a result of each

    def __len__(self) -> int:
        return len(self.results)

    @cached_property
    def of_repeats(self) -> Estimate:
        """The mean over repeats alone."""
        values, log = self.metric.checked(self.results), self.metric.log
        each = groups.split_means(values, self.results.index.to_frame(), log)
        return intervals.mean(each, log, self.shared)

    @property
    def shared(self) -> float:
        """The correction for examples that splits share. There is none for one split, nor for test
        examples that are known to be the same in all: these are a part of the variance."""
        is_split = groups.split_by(self.results.index.to_frame())
        return self.overlap if is_split and self.examples is None else 0.0

    @cached_property
    def of_examples(self) -> NDArray[Any] | None:
        """The mean of each test example (N,) over splits, each with the mean of its repeats; of
        groups of examples a value each (G,), with the same mean."""
        if self.examples is None:
            return None
        # A logarithm changes by as much as its value, relative to that value.
        each = self.examples / self.results.to_numpy() if self.metric.log else self.examples
        means: NDArray[Any] = groups.split_means(each, self.results.index.to_frame()).mean(axis=-1)
        return means if self.group is None else intervals.of_groups(means, self.group)

    @property
    def estimate(self) -> Estimate:
        """The mean over repeats, and over test examples where they are known."""
        if self.of_examples is None:
            return self.of_repeats
        alone = self.group is None and self.is_fraction
        return intervals.with_examples(self.of_repeats, self.of_examples, alone)

    @cached_property
    def is_fraction(self) -> bool:
        """Whether the mean is a fraction of test examples: each result of one is 0 or 1, and either
        there are both or the metric is declared to lie between them."""
        each = set() if self.examples is None else {*np.unique(self.examples)}
        both = len(each) == 2 or (len(each) == 1 and self.metric.within == (0, 1))
        return both and each <= {0.0, 1.0}

    @property
    def interval(self) -> Interval:
        """The mean with its 95 % interval, within the metric's range: the t interval, or the
        binomial one, if the t interval leaves the range of a fraction or has no width. Its ends are
        NaN if there are too few repeats."""
        found, (least, most) = self.estimate.interval, self.metric.bounds(self.results)
        if not self.estimate.is_shown:
            return Interval(found.mean, np.nan, np.nan)
        within = least <= found.low < found.high <= most
        if self.of_examples is not None and self.is_fraction and not within:
            return intervals.fraction(self.estimate, len(self.of_examples))
        return Interval(found.mean, *np.clip(found[1:], least, most))

    @property
    def is_shown(self) -> bool:
        """Whether there are enough repeats for an interval."""
        return len(self) > 0 and self.estimate.is_shown

    @property
    def over(self) -> str:
        """What the interval is over: `3 seeds and 359 test examples`, `5 folds with 3 seeds
        each`."""
        frame = self.results.index.to_frame(index=False)
        repeats = [str(name) for name in frame if groups.combinations(frame, [str(name)]) > 1]
        many = groups.counted([frame], repeats)
        if self.of_examples is None:
            how = ["corrected for the examples that they share"] * bool(self.shared)
            how += ["not over test examples"] * self.fixed
            return f"{many} ({'; '.join(how)})" if how else many
        what = "test examples" if self.group is None else "groups of test examples"
        return f"{many} and {len(self.of_examples)} {what}"


def over(samples: Iterable[Sample]) -> str:
    """Return what the intervals of several samples are over; empty if none has one."""
    return either(each.over for each in samples if each.is_shown)


def either(words: Iterable[str]) -> str:
    """Return different words with `or` between them."""
    every = [*dict.fromkeys(words)]
    return f"{' or '.join(every[:MOST])}{' or others' if len(every) > MOST else ''}"


def sample(jobs: pd.DataFrame, metric: Measured) -> Sample:
    """Return the results of jobs that differ in repeats only; results that are not finite are left
    out."""
    results = groups.results(jobs, metric)
    known = jobs.loc[groups.finite(jobs, metric.result).index]
    found = tables.of_examples(known, metric.name) if metric.part == "test" and len(known) else None
    # The metric may be another mean, such as one weighted by length.
    each = None if found is None else found.values
    same = each is not None and np.allclose(each.mean(axis=0), results, rtol=1e-3, atol=1e-6)
    examples, which, group = found if found and same else (None, (), None)
    lost = int(jobs["ended"].notna().sum()) - len(results)
    overlap = 0.0 if metric == THROUGHPUT else groups.overlap(jobs, metric.part)
    fixed = found is not None and examples is None
    return Sample(results, metric, examples, which, overlap, lost, group, fixed)


class Difference(NamedTuple):
    """A sample's mean minus another's, or over it if the metric is logarithmic."""

    estimate: Estimate
    paired: bool
    n: int  # number of repeats: of pairs, or of the smaller sample
    of: tuple[Sample, Sample]  # with the results that are compared
    left_out: bool = False  # whether there are repeats that only one of the two has
    p: float = 1.0  # adjusted for all comparisons

    @property
    def has_interval(self) -> bool:
        """Whether there is an interval, which there is not if all repeats differ by the same."""
        return bool(self.estimate.half() > 0)

    @property
    def is_constant(self) -> bool:
        """Whether all repeats differ by the same, so that nothing tells how uncertain that is."""
        return bool(self.estimate.mean) and not self.has_interval

    @property
    def is_certain(self) -> bool:
        """Whether the two can be told apart."""
        return self.p < LEVEL


def differences(samples: Mapping[str, Sample], reference: str) -> dict[str, Difference]:
    """Return how samples differ from the one with a name; those with too few repeats for an
    interval are left out, and all if the reference has too few."""
    base = samples[reference]
    found = {
        name: _difference(each, base)
        for name, each in samples.items()
        if name != reference and each.is_shown and base.is_shown
    }
    alone = {}
    for name, each in found.items():
        better = samples[name] if base.metric.sign * each.estimate.mean > 0 else base
        alone[name] = 1.0 if better.lost else each.estimate.p  # lost jobs count as the worst
    return {name: found[name]._replace(p=p) for name, p in intervals.holm(alone).items()}


def _difference(first: Sample, second: Sample) -> Difference:
    """The difference of two samples, paired by repeat and example as far as that is possible."""
    if first.examples is None or second.examples is None:  # an interval over repeats alone
        first, second = (
            replace(each, examples=None, fixed=each.fixed or each.examples is not None)
            for each in (first, second)
        )
    shared = shared_repeats(first, second)
    one, other = _part(first, shared), _part(second, shared)
    log, n = first.metric.log, len(shared)
    pairs = one.results / other.results if log else one.results - other.results
    values = groups.split_means(pairs, pairs.index.to_frame(), log)
    if paired := len(values) >= NEEDED:
        size = max(float(np.abs(each.results).max()) for each in (one, other))
        found = intervals.mean(values, log, max(one.shared, other.shared), size)
    else:  # with different seeds: Welch 1947, doi.org/10.2307/2332510
        one, other, n = first, second, min(len(first), len(second))
        mine, its = one.of_repeats, other.of_repeats
        found = Estimate(mine.mean - its.mean, (*mine.parts, *its.parts), log)
    left_out = paired and leaves_out(first, second)
    if one.of_examples is not None and other.of_examples is not None:
        both = one.which, other.which
        if all(both) and len(both[0]) == len(both[1]) and all(map(np.array_equal, *both)):
            found = intervals.with_examples(found, one.of_examples - other.of_examples)
        else:  # not the same examples, even if there are as many
            paired = False
            found = intervals.with_examples(found, one.of_examples)
            found = intervals.with_examples(found, other.of_examples)
    return Difference(found, paired, n, (one, other), left_out)


def compared(first: Sample, second: Sample) -> tuple[Sample, Sample]:
    """Return what is compared of two samples with too few repeats for an interval: the repeats that
    both have, or all if they have none in common."""
    shared = shared_repeats(first, second)
    return (_part(first, shared), _part(second, shared)) if shared else (first, second)


def means_apart(first: Sample, second: Sample) -> float:
    """Return how far a mean is from another one, over what is `compared`; the ratio if the metric
    is logarithmic."""
    mine, its = (float(one.of_repeats.interval.mean) for one in compared(first, second))
    return mine / its if first.metric.log else mine - its


def leaves_out(first: Sample, second: Sample) -> bool:
    """Return whether a difference over shared repeats leaves some out that only one of two has."""
    return 0 < len(shared_repeats(first, second)) < max(len(first), len(second))


SHARED = " Differences are over the repeats that both have."  # if some leave out repeats


def shared_repeats(first: Sample, second: Sample) -> list[Any]:
    """Return the repeats that two samples both have."""
    return [repeat for repeat in first.results.index if repeat in second.results.index]


def _part(sample: Sample, repeats: list[Any]) -> Sample:
    """The results of these repeats, in this order."""
    order = [*sample.results.index]
    places = np.array([order.index(repeat) for repeat in repeats], dtype=int)
    examples = None if sample.examples is None else sample.examples[:, places]
    return replace(sample, results=sample.results.iloc[places], examples=examples)
