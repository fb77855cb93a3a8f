"""Intervals contain what they should as often as they say: by simulation."""

import math

import numpy as np
import pandas as pd
import pytest
from labjobs.results import groups, style

TRIALS = 4000


def held(low, high, truth):
    """How often intervals contain a value, with the standard error of that."""
    fraction = np.mean((low <= truth) & (truth <= high))
    return fraction, math.sqrt(fraction * (1 - fraction) / len(low))


def test_mean_interval():
    mean, low, high = groups.mean_interval([[1, 2, 3], [4, 4, 4]])
    half = 4.302653 / math.sqrt(3)  # Student's t, .975, 2 d.f.
    assert mean == pytest.approx([2, 4])
    assert low == pytest.approx([2 - half, 4])
    assert high == pytest.approx([2 + half, 4])
    assert math.isnan(groups.mean_interval([5]).low)


@pytest.mark.parametrize("n", [2, 3, 5, 10])
@pytest.mark.parametrize("log", [False, True])
def test_t_interval_contains_the_mean_as_often_as_it_says(n, log):
    samples = np.random.default_rng(n).normal(0.9, 0.02, (TRIALS, n))
    _, low, high = groups.mean_interval(np.exp(samples) if log else samples, log)
    fraction, error = held(low, high, np.exp(0.9) if log else 0.9)
    assert abs(fraction - 0.95) < 4 * error


def test_paired_difference_drops_what_seeds_share():
    drawn = np.random.default_rng(1)
    seeds, intervals = range(5), []
    for _ in range(1000):
        shared, noise = drawn.normal(0, 1, 5), drawn.normal(0, 0.01, (2, 5))
        first = pd.Series(shared + 0.05 + noise[0], index=seeds)
        second = pd.Series(shared + noise[1], index=seeds).sample(frac=1, random_state=0)
        intervals.append(groups.paired_difference(first, second))
    _, low, high = np.array(intervals).T
    fraction, error = held(low, high, 0.05)
    assert abs(fraction - 0.95) < 4 * error
    assert np.mean(high - low) < 0.1  # unpaired it would be about 2


@pytest.mark.parametrize("seeds", [3, 10])
def test_more_seeds_of_the_same_folds_do_not_narrow_an_interval(seeds):
    drawn = np.random.default_rng(seeds)
    index = pd.MultiIndex.from_product([range(1, 6), range(seeds)], names=["fold", "seed"])
    repeats, means, differences = index.to_frame(), [], []
    for _ in range(1500):
        folds, noise = drawn.normal(0, 1, (2, 5)), drawn.normal(0, 1, (2, 5, seeds))
        first, second = (
            pd.Series((folds[i][:, None] + noise[i]).ravel(), index=index) for i in range(2)
        )
        first.attrs["overlap"] = 1 / 4
        means.append(groups.estimate(first, repeats))
        differences.append(groups.paired_difference(first, second))
    _, low, high = np.array(means).T
    fraction, error = held(low, high, 0)
    assert abs(fraction - 0.95) < 4 * error
    _, low, high = np.array(differences).T
    assert held(low, high, 0)[0] > 0.97  # the folds of this simulation are independent


def test_an_end_of_an_interval_never_becomes_0():
    ends = style.with_interval(-13.4, -26.5, -0.29).replace("\N{MINUS SIGN}", "-")
    assert ends == "-13 (-26 to -0.29)"
    assert style.with_interval(0.0, 0.0, 0.0) == "0.00"


def test_paired_difference_of_some_or_no_shared_seeds():
    first = pd.Series([1.0, 2.0, 4.0], index=[0, 1, 2])
    assert groups.paired_difference(first, first[1:] - 1).mean == 1
    assert groups.paired_difference(first, first[1:] / 2, log=True).mean == pytest.approx(2)
    assert math.isnan(groups.paired_difference(first[:1], first[1:]).mean)


def test_a_fraction_is_within_its_interval_at_least_as_often_as_it_says():
    counts = np.random.default_rng(3).binomial(12, 0.8, TRIALS)
    _, low, high = groups.fraction_interval(counts, 12)
    assert held(low, high, 0.8)[0] > 0.95
    fraction, low, high = groups.fraction_interval([0, 3], 3)
    assert list(fraction) == [0, 1]
    assert low == pytest.approx([0, 0.025 ** (1 / 3)])
    assert high == pytest.approx([1 - 0.025 ** (1 / 3), 1])


def test_the_interval_of_a_ratio_contains_it_as_often_as_it_says():
    random = np.random.default_rng(0)
    noise = random.normal(0, 1, (TRIALS, 2, 12))
    noise[:, 1] += 0.5 * noise[:, 0]  # the two of a pair go together
    intervals = [groups.ratio_interval(6 + a, 2 + b) for a, b in noise]
    low, high = np.array([(each.low, each.high) for each in intervals]).T
    assert np.isfinite(low).mean() > 0.99
    fraction, error = held(low, high, 3)
    assert abs(fraction - groups.LEVEL) < 4 * error


def test_a_ratio_to_what_may_be_0_can_be_anything():
    found = groups.ratio_interval([1.0, 1.1, 0.9], [0.1, -0.2, 0.2])
    assert (found.low, found.high) == (-math.inf, math.inf)
    assert math.isnan(groups.ratio_interval([1.0], [2.0]).low)
