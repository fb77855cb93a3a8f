"""Intervals contain what they should as often as they say: by simulation."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import simulate_intervals
from labjobs.results import intervals, samples
from labjobs.results.metrics import Measured
from labjobs.results.samples import Sample
from labjobs.settings import Metric

TRIALS = 4000


def held(low, high, truth):
    """How often intervals contain a value, with the standard error of that."""
    fraction = np.mean((low <= truth) & (truth <= high))
    return fraction, math.sqrt(fraction * (1 - fraction) / len(low))


def test_mean_interval():
    mean, low, high = intervals.mean([[1, 2, 3], [4, 4, 4]]).interval
    half = 4.302653 / math.sqrt(3)  # Student's t, .975, 2 d.f.
    assert mean == pytest.approx([2, 4])
    assert low == pytest.approx([2 - half, 4])
    assert high == pytest.approx([2 + half, 4])
    assert math.isnan(intervals.mean([5]).interval.low)


@pytest.mark.parametrize("n", [2, 3, 5, 10])
@pytest.mark.parametrize("log", [False, True])
def test_t_interval_contains_the_mean_as_often_as_it_says(n, log):
    samples = np.random.default_rng(n).normal(0.9, 0.02, (TRIALS, n))
    _, low, high = intervals.mean(np.exp(samples) if log else samples, log).interval
    fraction, error = held(low, high, np.exp(0.9) if log else 0.9)
    assert abs(fraction - 0.95) < 4 * error


def validated(results):
    metric, overlap = Measured("accuracy", Metric(better="higher"), "val"), results.attrs
    return Sample(results, metric, overlap=overlap.get("overlap", 0.0))


def difference(first, second):
    each = {"first": validated(first), "second": validated(second)}
    return samples.differences(each, "second")["first"]


def test_a_difference_of_pairs_drops_what_seeds_share():
    drawn = np.random.default_rng(1)
    seeds, found = range(5), []
    for _ in range(1000):
        shared, noise = drawn.normal(0, 1, 5), drawn.normal(0, 0.01, (2, 5))
        first = pd.Series(shared + 0.05 + noise[0], index=seeds)
        second = pd.Series(shared + noise[1], index=seeds).sample(frac=1, random_state=0)
        found.append(difference(first, second).estimate.interval)
    _, low, high = np.array(found).T
    fraction, error = held(low, high, 0.05)
    assert abs(fraction - 0.95) < 4 * error
    assert np.mean(high - low) < 0.1  # unpaired it would be about 2


@pytest.mark.full
def test_more_seeds_of_the_same_folds_do_not_narrow_an_interval():
    seeds = 3
    drawn = np.random.default_rng(seeds)
    index = pd.MultiIndex.from_product([range(1, 6), range(seeds)], names=["fold", "seed"])
    means, differences = [], []
    for _ in range(500):
        folds, noise = drawn.normal(0, 1, (2, 5)), drawn.normal(0, 1, (2, 5, seeds))
        first, second = (
            pd.Series((folds[i][:, None] + noise[i]).ravel(), index=index) for i in range(2)
        )
        first.attrs["overlap"] = 1 / 4
        means.append(validated(first).of_repeats.interval)
        differences.append(difference(first, second).estimate.interval)
    for each in (means, differences):
        _, low, high = np.array(each).T
        assert held(low, high, 0)[0] > 0.97  # the folds of this simulation are independent


def test_differences_of_some_or_no_shared_seeds():
    first = pd.Series([1.0, 2.0, 4.0, 3.0], index=[0, 1, 2, 3])
    found = difference(first, first[1:] - 1)
    assert found.paired and found.estimate.mean == 1 and not found.is_certain
    other = pd.Series([1.0, 2.0, 4.1, 2.9], index=[4, 5, 6, 7])
    found = difference(first, other - 50)
    assert not found.paired and found.is_certain and found.estimate.mean == pytest.approx(50)
    each = {"first": validated(first), "second": validated(first[:2])}
    assert samples.differences(each, "second") == {}  # of two repeats nothing is said


def test_of_two_splits_nothing_is_said_however_many_seeds_they_have():
    index = pd.MultiIndex.from_product([range(1, 4), range(4)], names=["fold", "seed"])
    first = pd.Series(np.arange(12.0), index=index)
    each = {"first": validated(first), "second": validated(first[:8] - 9)}
    assert samples.differences(each, "first") == {}
    shifted = first.rename({1: 7, 2: 8}) - 90  # one fold in common: not a pair for each of three
    assert not difference(first, shifted).paired


def test_results_that_are_equal_but_for_rounding_are_equal():
    """Without a spread there is no evidence, and what 0.94 - 0.89 has beside 0.05 is none."""
    one, other = pd.Series([0.93, 0.94, 0.95]), pd.Series([0.88, 0.89, 0.9])
    assert (one - other).nunique() > 1
    found = difference(one, other)
    assert (found.estimate.half(), found.p) == (0, 1)
    assert difference(1e6 * one, 1e6 * one - [0.1, 0.1, 0.1]).p == 1


def test_large_results_have_the_interval_of_their_small_differences():
    near = intervals.mean([0.1, 0.2, 0.4])
    assert intervals.mean([1e9 + 0.1, 1e9 + 0.2, 1e9 + 0.4]).half() == pytest.approx(near.half())


def test_probabilities_of_several_comparisons_are_adjusted():
    found = intervals.holm({"a": 0.01, "b": 0.04, "c": 0.03})
    assert found == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06})


@pytest.mark.parametrize("examples", [72, 359])
def test_intervals_over_seeds_and_examples_cover_the_truth(examples):
    found = simulate_intervals.covered(np.random.default_rng(0), 100, 3, examples, 0.08)
    assert found["accuracy"] > 0.9 and found["loss"] > 0.9 and found["loss, logarithmic"] > 0.9
    assert found["accuracy, seeds alone"] < 0.93


def test_an_example_with_most_of_the_loss_widens_an_interval():
    random = np.random.default_rng(0)
    losses = random.normal(1, 0.1, (72, 3))
    even = simulate_intervals.sample(losses, simulate_intervals.LOSS).estimate.parts[1]
    losses[0] += 20
    rare = simulate_intervals.sample(losses, simulate_intervals.LOSS).estimate.parts[1]
    assert even.freedom > 50 and rare.freedom == pytest.approx(2, abs=0.2)


def test_equal_methods_are_seldom_told_apart():
    random = np.random.default_rng(0)
    assert simulate_intervals.told_apart(random, 100, 5, 3, paired=True) <= 0.08


@pytest.mark.parametrize("kind", ["plain", "rounded", "diverged"])
def test_the_best_of_a_search_is_within_its_band(kind):
    random = np.random.default_rng(0)
    assert simulate_intervals.bands_hold(random, 100, 20, kind, spread=True)[0] >= 0.9


def test_a_search_without_effects_seldom_shows_any():
    random = np.random.default_rng(0)
    assert max(simulate_intervals.by_chance(random, 100, 40, 3)) <= 0.1


def test_a_fraction_is_within_its_interval_at_least_as_often_as_it_says():
    counts = np.random.default_rng(3).binomial(12, 0.8, TRIALS)
    _, low, high = intervals.of_counts(counts, 12)
    assert held(low, high, 0.8)[0] > 0.95
    fraction, low, high = intervals.of_counts([0, 3], 3)
    assert list(fraction) == [0, 1]
    assert low == pytest.approx([0, 0.025 ** (1 / 3)])
    assert high == pytest.approx([1 - 0.025 ** (1 / 3), 1])


def test_the_interval_of_a_ratio_contains_it_as_often_as_it_says():
    random = np.random.default_rng(0)
    noise = random.normal(0, 1, (TRIALS, 2, 12))
    noise[:, 1] += 0.5 * noise[:, 0]  # the two of a pair go together
    found = [intervals.ratio(6 + a, 2 + b) for a, b in noise]
    low, high = np.array([(each.low, each.high) for each in found]).T
    assert np.isfinite(low).mean() > 0.99
    fraction, error = held(low, high, 3)
    assert abs(fraction - intervals.LEVEL) < 4 * error


def test_a_ratio_to_what_may_be_0_can_be_anything():
    found = intervals.ratio([1.0, 1.1, 0.9], [0.1, -0.2, 0.2])
    assert (found.low, found.high) == (-math.inf, math.inf)
    assert math.isnan(intervals.ratio([1.0], [2.0]).low)


def test_intervals_over_groups_of_examples_cover_the_truth():
    """Of 24 groups of different sizes; as if examples were independent, they do not."""
    random, held = np.random.default_rng(0), {True: 0, False: 0}
    for _ in range(200):
        group = random.permutation(np.repeat(np.arange(24), random.integers(5, 20, 24)))
        shared = random.normal(size=24)[group]
        losses = 1 + 0.2 * (shared[:, None] + random.normal(size=(len(group), 3)))
        sample = simulate_intervals.sample(losses, simulate_intervals.LOSS)
        for known in held:
            one = replace(sample, group=group if known else None)
            held[known] += one.interval.low <= 1 <= one.interval.high
    assert one.over == f"3 seeds and {len(group)} test examples"
    assert replace(one, group=group).over == "3 seeds and 24 groups of test examples"
    assert held[True] >= 180 and held[False] < 140
    assert not replace(one, group=np.zeros(len(group))).is_shown
