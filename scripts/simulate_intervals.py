"""How often the intervals and tests of figures and tables are right, where the truth is known.

    python scripts/simulate_intervals.py > docs/intervals.md
    python scripts/simulate_intervals.py --trials 100    # a twentieth

Each test example has a difficulty of its own, which all seeds share, and each seed a luck of its
own, which all examples share; so do the results of real networks.
"""

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import trim_mean

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "{{cookiecutter.project_slug}}"))
sys.path.insert(0, str(ROOT / "benchmarks"))

from labjobs.cli.ranges import parse  # noqa: E402
from labjobs.job.terminal import counted  # noqa: E402
from labjobs.results import groups, intervals, samples, searches  # noqa: E402
from labjobs.results.metrics import Measured  # noqa: E402
from labjobs.results.samples import Sample  # noqa: E402
from labjobs.results.searches import Search  # noqa: E402
from labjobs.settings import Metric  # noqa: E402
from labjobs.sweeps.search import point  # noqa: E402
from pages import machine, page, table  # noqa: E402

ACCURACY = Measured("accuracy", Metric(better="higher", range=(0, 1)), "test")
LOSS = Measured("loss", Metric(better="lower", range=(0, None)), "test")
LOG_LOSS = Measured("loss", Metric(better="lower", range=(0, None), scale="log"), "test")
RETURN = Measured("return", Metric(better="higher"), "test")

SHARED = 0.77
"""Fraction of the variance over examples that seeds share: measured in the digits of the
template."""

LUCK = 0.1
"""The standard deviation of a seed's luck, in standard deviations over examples."""


def outcomes(
    random: np.random.Generator, methods: int, seeds: int, examples: int
) -> NDArray[np.float64]:
    """Return how hard examples were (methods, examples, seeds), as standard normal numbers, with
    the luck of seeds added."""
    difficulty = random.normal(size=(1, examples, 1)) * SHARED**0.5
    own = random.normal(size=(methods, examples, seeds)) * (1 - SHARED) ** 0.5
    return difficulty + own + LUCK * random.normal(size=(methods, 1, seeds))


def sample(each: NDArray[Any], metric: Measured, known: bool = True) -> Sample:
    """Return the results (examples, seeds) of jobs, with those of single examples if `known`."""
    index = pd.Index(range(each.shape[1]), name=groups.SEED)
    results = pd.Series(each.mean(axis=0), index=index)
    which = (np.arange(len(each)),)
    return Sample(results, metric, each.astype(float) if known else None, which)


def right(hardness: NDArray[Any], error: float) -> NDArray[Any]:
    """Return whether examples are classified correctly, so that the expected error is `error`."""
    from scipy.stats import norm

    return hardness < norm.ppf(1 - error) * (1 + LUCK**2) ** 0.5


def losses(hardness: NDArray[Any], error: float) -> NDArray[Any]:
    """Return cross-entropies of a binary classifier whose logits are normal."""
    from scipy.stats import norm

    return np.logaddexp(0, 2 * (hardness - norm.ppf(1 - error)))


def expected_loss(error: float) -> float:
    """Return the mean of `losses` over all examples and seeds."""
    points, weights = np.polynomial.hermite_e.hermegauss(100)
    return float(weights @ losses(points * (1 + LUCK**2) ** 0.5, error) / weights.sum())


def covered(
    random: np.random.Generator, trials: int, seeds: int, examples: int, error: float
) -> dict[str, float]:
    """Return how often intervals contain the truth."""
    found = dict.fromkeys(["accuracy", "accuracy, seeds alone", "loss", "loss, logarithmic"], 0.0)
    truth = dict.fromkeys(found, expected_loss(error)) | {
        "accuracy": 1 - error,
        "accuracy, seeds alone": 1 - error,
    }
    for _ in range(trials):
        (hardness,) = outcomes(random, 1, seeds, examples)
        accuracy, loss = right(hardness, error), losses(hardness, error)
        each = {
            "accuracy": sample(accuracy, ACCURACY),
            "accuracy, seeds alone": sample(accuracy, ACCURACY, known=False),
            "loss": sample(loss, LOSS),
            "loss, logarithmic": sample(loss, LOG_LOSS),
        }
        for name, one in each.items():
            _, low, high = one.interval
            found[name] += bool(low <= truth[name] <= high) / trials
    return found


def told_apart(
    random: np.random.Generator, trials: int, methods: int, seeds: int, paired: bool
) -> float:
    """Return how often at least one of several equal methods is told apart from the first."""
    wrong = 0
    for _ in range(trials):
        hardness = outcomes(random, methods, seeds, 359)
        each = {str(n): sample(right(one, 0.08), ACCURACY) for n, one in enumerate(hardness)}
        if not paired:
            for n, one in enumerate(each.values()):
                one.results.index = pd.Index(n * seeds + np.arange(seeds), name=groups.SEED)
        wrong += any(one.is_certain for one in samples.differences(each, "0").values())
    return wrong / trials


FEATURES = 10  # of the examples of a ridge classifier; three of them tell the class


def data(random: np.random.Generator, count: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return examples and their classes."""
    x, weights = random.normal(size=(count, FEATURES)), np.where(np.arange(FEATURES) < 3, 1.0, 0.0)
    return x, np.sign(x @ weights + 1.5 * random.normal(size=count))


def classified(
    random: np.random.Generator, x: NDArray[Any], y: NDArray[Any], new: Any, true: Any
) -> NDArray[Any]:
    """Return which new examples a network with random features classifies correctly: a ridge
    classifier of examples `x` and their classes `y`."""
    inside, shift = random.normal(size=(FEATURES, 30)), random.uniform(0, 6.28, 30)
    hidden, tested = (np.cos(each @ inside * 0.3 + shift) for each in (x, new))
    outside = np.linalg.solve(hidden.T @ hidden + np.eye(30), hidden.T @ y)
    found: NDArray[Any] = np.sign(tested @ outside) == true
    return found


def expected(random: np.random.Generator, count: int) -> float:
    """Return the expected accuracy of a ridge classifier of this many examples."""
    many = data(random, 20_000)
    each = [classified(random, *data(random, count), *many).mean() for _ in range(300)]
    return float(np.mean(each))


def folds_covered(random: np.random.Generator, trials: int, seeds: int, folds: int) -> list[float]:
    """Return how often the interval over folds of a ridge classifier contains its expected
    accuracy, and how often two equal ones are told apart. Seeds draw random features."""
    size = 250
    truth = expected(random, size - size // folds)
    index = pd.MultiIndex.from_product([range(folds), range(seeds)], names=["fold", "seed"])
    inside = apart = 0
    for _ in range(trials):
        x, y = data(random, size)
        parts = np.array_split(np.arange(size), folds)
        results = []
        for part in parts:
            rest = np.setdiff1d(np.arange(size), part)
            results.append(
                [
                    [
                        classified(random, x[rest], y[rest], x[part], y[part]).mean()
                        for _ in range(2)
                    ]
                    for _ in range(seeds)
                ]
            )
        both = np.reshape(results, (-1, 2)).T
        each = {str(n): pd.Series(one, index=index) for n, one in enumerate(both)}
        shared, metric = 1 / (folds - 1), ACCURACY.of("val")
        of = {name: Sample(one, metric, overlap=shared) for name, one in each.items()}
        _, low, high = of["0"].interval
        inside += low <= truth <= high
        apart += samples.differences(of, "0")["1"].is_certain
    return [inside / trials, apart / trials]


TRAINED, VALIDATED = 128, 32  # numbers of examples in a random split


def splits_covered(
    random: np.random.Generator, trials: int, splits: int, tests: int, fixed: bool
) -> list[float]:
    """Return how often the interval of test results over random splits contains the expected
    accuracy of a ridge classifier, and how often two equal ones are told apart. The test examples
    are the same in all splits if they are `fixed`, and different ones in each if not."""
    truth, pool = expected(random, TRAINED), TRAINED + VALIDATED
    index = pd.Index(range(splits), name=groups.SPLIT_SEED)
    inside = apart = 0
    for _ in range(trials):
        x, y = data(random, pool + tests)
        results = np.empty((2, tests, splits))
        for split in range(splits):
            order = random.permutation(pool + tests)
            if fixed:
                order = np.append(random.permutation(pool), np.arange(pool, pool + tests))
            train, test = order[:TRAINED], order[pool:]
            for one in range(2):
                right = classified(random, x[train], y[train], x[test], y[test])
                results[one, :, split] = right
        of = {}
        for name, each in enumerate(results):
            kept, means = each if fixed else None, pd.Series(each.mean(axis=0), index=index)
            which = (np.arange(tests),) if fixed else ()
            of[str(name)] = Sample(means, ACCURACY, kept, which, overlap=tests / TRAINED)
        _, low, high = of["0"].interval
        inside += low <= truth <= high
        apart += samples.differences(of, "0")["1"].is_certain
    return [inside / trials, apart / trials]


def chosen(random: np.random.Generator, trials: int, methods: int, seeds: int) -> dict[str, float]:
    """Return how far the reported mean of the best of several equal methods is from the truth, in
    standard deviations of a job: half of a job's variance is luck that validation and test share.
    """
    shared, val, test = random.normal(size=(3, trials, methods, seeds)) * 0.5**0.5
    best = (shared + val).mean(axis=-1).argmax(axis=-1)
    reported = {"validation": shared + val, "test": shared + test}
    found = {name: each[np.arange(trials), best].mean() for name, each in reported.items()}
    fresh = random.normal(size=(trials, seeds))
    return {**found, "test, after confirm": float(fresh.mean())}


def best_chosen(
    random: np.random.Generator, trials: int, methods: int, seeds: int, spread: float
) -> list[float]:
    """Return how often the best of several methods is chosen on validation data, how far the chosen
    one is from the best, and how often the best is printed bold: it is chosen, or test results
    cannot tell it apart. The true results of methods are normal with this standard deviation, in
    those of a job, half of whose variance is luck that validation and test share."""
    chosen = behind = bold = 0.0
    for _ in range(trials):
        truth = spread * random.normal(size=methods)
        shared, val, test = random.normal(size=(3, methods, seeds)) * 0.5**0.5
        best, first = truth.argmax(), (truth[:, None] + shared + val).mean(axis=1).argmax()
        results = truth[:, None] + shared + test
        each = {str(n): sample(one[None], RETURN, known=False) for n, one in enumerate(results)}
        apart = samples.differences(each, str(first))
        chosen += best == first
        behind += truth[best] - truth[first]
        bold += best == first or not apart[str(best)].is_certain
    return [chosen / trials, behind / trials, bold / trials]


def tests(random: np.random.Generator, trials: int) -> Iterator[list[str]]:
    """Yield what was simulated with test examples, and how often each interval was right."""
    for examples, error, seeds in product((72, 359, 2000, 10_000), (0.02, 0.08, 0.3), (3, 5, 10)):
        found = covered(random, trials, seeds, examples, error)
        what = f"{examples:,} test examples, error {error:.0%}, {seeds} seeds"
        yield [what, *(f"{value:.1%}" for value in found.values())]


def folds(random: np.random.Generator, trials: int) -> Iterator[list[str]]:
    """Yield what was simulated with folds, and how often the interval and the test were right."""
    for count, seeds in product((3, 5, 10), (1, 3, 5, 10)):
        found = folds_covered(random, trials, seeds, count)
        yield [f"{count} folds, {counted(seeds, 'seed')}", *(f"{value:.1%}" for value in found)]


def splits(random: np.random.Generator, trials: int) -> Iterator[list[str]]:
    """Yield what was simulated with splits, and how often the interval and the test were right."""
    for fixed, tests, count in product((False, True), (32, 128), (3, 5, 10)):
        found = splits_covered(random, trials, count, tests, fixed)
        which = "the same" if fixed else "different ones in each"
        what = f"{count} splits, {tests} test examples, {which}"
        yield [what, *(f"{value:.1%}" for value in found)]


def methods(random: np.random.Generator, trials: int) -> Iterator[list[str]]:
    """Yield how many equal methods were compared, and how often one was told apart."""
    for paired, count in product((True, False), (2, 5, 13)):
        seeds = "the same 3 seeds" if paired else "each with 3 seeds of its own"
        found = told_apart(random, trials, count, 3, paired)
        yield [f"{count} equal methods, {seeds}", f"{found:.1%}"]


def choices(random: np.random.Generator, trials: int) -> Iterator[list[str]]:
    """Yield among how many methods was chosen, and how far what is reported is from the truth."""
    for count in (4, 12, 40):
        found = chosen(random, trials, count, 3)
        yield [f"the best of {count}, 3 seeds", *(f"{value:+.2f}" for value in found.values())]


def bests(random: np.random.Generator, trials: int) -> Iterator[list[str]]:
    """Yield among how many unequal methods was chosen, how often the best, and how often bold."""
    for count, spread, seeds in product((4, 12), (0.5, 2.0), (3, 10)):
        chosen, behind, bold = best_chosen(random, trials, count, seeds, spread)
        what = f"{count} methods that differ by {spread:g} SDs, {seeds} seeds"
        yield [what, f"{chosen:.1%}", f"{behind:.2f}", f"{bold:.1%}"]


def tasks(random: np.random.Generator, trials: int) -> Iterator[list[str]]:
    """Yield over how many tasks an interquartile mean was taken, and how often its interval has the
    mean of such means; results on tasks differ by far more than between seeds."""
    middle = partial(trim_mean, proportiontocut=0.25, axis=-1)
    for count, seeds in product((5, 10), (3, 5, 10)):
        means, spread = random.uniform(0.3, 0.9, (count, 1)), random.uniform(0.01, 0.05, (count, 1))
        drawn = means + spread * random.normal(size=(20 * trials, count, seeds))
        truth = middle(drawn.reshape(20 * trials, -1)).mean()
        ends = [intervals.over_tasks([*each], middle)[1:] for each in drawn[:trials]]
        held = np.mean([low <= truth <= high for low, high in ends])
        yield [f"{count} tasks, {seeds} seeds", f"{held:.1%}"]


FLAGS = ("--lr", "--width", "--dropout")


def tuned(u: NDArray[Any], kind: str) -> NDArray[Any]:
    """Return the losses of settings (N, 3), numbers in [0, 1); NaN if they diverged."""
    loss: NDArray[Any] = 0.1 + (u[:, 0] - 0.7) ** 2 + 0.1 * u[:, 1] + 0.05 * u[:, 2] ** 4
    if kind == "rounded":  # as the accuracy on few examples
        return loss.round(2)
    return np.where((u[:, 0] > 0.9) & (u[:, 1] > 0.3), np.nan, loss) if kind == "diverged" else loss


def drawn(random: np.random.Generator, count: int, spread: bool) -> NDArray[Any]:
    """Return settings (N, 3): independent ones, or those that `search` draws."""
    if not spread:
        return random.random((count, len(FLAGS)))
    seed = random.integers(1 << 30)
    return np.array([[point(f"{seed} {flag}", n) for flag in FLAGS] for n in range(count)])


def bands_hold(
    random: np.random.Generator, trials: int, count: int, kind: str, spread: bool
) -> list[float]:
    """Return how often the band around the best of 1, 2, … `count` draws contains all of the true
    medians, and the one of the best of `count`."""
    many = np.sort(tuned(random.random((10**6, 3)), kind))  # NaN is last
    counts = np.arange(1, count + 1)
    truth = many[np.ceil((1 - 0.5 ** (1 / counts)) * len(many)).astype(int) - 1]
    held = np.zeros(2)
    for _ in range(trials):
        found = np.sort(tuned(drawn(random, count, spread), kind))
        _, better, worse = searches.best_of(found, counts)
        known, low, high = (np.nan_to_num(each, nan=np.inf) for each in (truth, better, worse))
        inside = (np.where(np.isfinite(low), low, -np.inf) <= known) & (known <= high)
        held += inside.all(), inside[-1]
    return [*held / trials]


def tuning(random: np.random.Generator, trials: int) -> Iterator[list[str]]:
    """Yield how many settings were drawn, and how often the band around the best holds."""
    for count, kind, spread in product((8, 20, 40, 100), ("plain", "rounded"), (False, True)):
        yield _tuned(random, trials, count, kind, spread)
    yield _tuned(random, trials, 40, "diverged", spread=True)


def _tuned(
    random: np.random.Generator, trials: int, count: int, kind: str, spread: bool
) -> list[str]:
    how = "drawn by `search`" if spread else "independent"
    more = {"plain": "", "rounded": ", rounded results", "diverged": ", some diverge"}[kind]
    found = bands_hold(random, trials, count, kind, spread)
    return [f"{count} draws, {how}{more}", *(f"{each:.1%}" for each in found)]


def by_chance(random: np.random.Generator, trials: int, count: int, flags: int) -> list[float]:
    """Return how often any of some settings without an effect is called important, and how often
    the best quarter is said to touch an end of a range."""
    names = [f"flag_{n}" for n in range(flags)]
    ranges = {name: parse(f"--{name.replace('_', '-')}", "uniform 0 1") for name in names}
    wrong = np.zeros(2)
    for _ in range(trials):
        table = pd.DataFrame(random.random((count, flags)), columns=names)
        table[searches.RESULT], table[searches.STATE] = random.random(count), "finished"
        table.attrs["settings"] = names
        each = Search("", LOSS, {}, ranges, table)
        above = [p < samples.LEVEL for *_, p in searches.importances(each).values()]
        wrong += any(above), bool(searches.edges(each))
    return [*wrong / trials]


def chances(random: np.random.Generator, trials: int) -> Iterator[list[str]]:
    """Yield how large a search was, and how often it is said to show what it does not."""
    for count, flags in product((20, 40, 100), (1, 4)):
        found = by_chance(random, trials, count, flags)
        yield [
            f"{count} trials, {flags} setting{'s' * (flags > 1)}",
            *(f"{each:.1%}" for each in found),
        ]


OF_TESTS = """
If one test example of 72 has most of the loss, a sample without such an example has a mean and a
variance that are both too small. The examples' kurtosis lowers the degrees of freedom of their
variance, which corrects most of it; not all of it can be corrected, since no interval for a mean is
right for all distributions (Bahadur and Savage 1956, doi.org/10.1214/aoms/1177728077). Near 0 and 1
an accuracy has the binomial interval, which covers 95% or more; the fewer examples are wrong, the
more it covers.
"""

OF_FOLDS = """
Folds share most of their training examples, so that the variance over folds is too small, and has
no unbiased estimate (Bengio and Grandvalet 2004, jmlr.org/papers/v5/grandvalet04a.html). Intervals
of means and of differences are corrected as Nadeau and Bengio 2003 did for random splits
(doi.org/10.1023/A:1024068626366), which makes most of them a little too wide. Without it, the
mean's interval covered 89.0 to 94.8%: the more seeds averaged out the other noise, the less it
covered.
"""


OF_SPLITS = """
If each split has different test examples, two splits share some of them, and the correction is the
ratio of test to training examples. If all have the same, these are a part of the variance like any
test examples, and the splits are independent choices among the training examples at hand.
"""


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=2000)
    trials = parser.parse_args().trials
    random = np.random.default_rng  # of each table, so that they do not depend on one another
    about = (
        f"{machine('numpy', 'scipy')}. How often a 95% interval contains the truth, which is "
        f"known, in {trials:,} simulations each. `python scripts/simulate_intervals.py` makes this "
        "page."
    )
    head = ["", "accuracy", "the same, over seeds alone", "loss", "loss, logarithmic"]
    page("Intervals and tests, simulated", about, head, tests(random(0), trials))
    print(OF_TESTS, end="")
    print(f"\nCross-validation of a ridge classifier, {trials:,} times each:\n")
    table(["", "the mean's interval", "two equal told apart"], folds(random(5), trials))
    print(OF_FOLDS, end="")
    print(
        f"\nTest results of a ridge classifier of {TRAINED} examples over random splits, "
        f"{trials // 4:,} times each:\n"
    )
    table(["", "the mean's interval", "two equal told apart"], splits(random(8), trials // 4))
    print(OF_SPLITS, end="")
    print(
        "\nHow often any of several equal methods is told apart from the first, "
        f"{trials // 4:,} times each:\n"
    )
    table(["", "told apart"], methods(random(6), trials // 4))
    print("\nThe best of equal methods: what is reported, minus the truth, in SDs of a job:\n")
    table(["", "validation", "test", "test, after `confirm`"], choices(random(7), trials))
    print(
        f"\nHow often the best is the best, {trials // 2:,} times each: how often what validation "
        "results choose is, by how many SDs of a job it is worse than the best, and how often a "
        "table prints the best bold, as chosen or as not to be told apart:\n"
    )
    head = ["", "the chosen one is the best", "worse by", "the best is bold"]
    table(head, bests(random(4), trials // 2))
    print(f"\nAn interquartile mean over tasks, {trials // 4:,} times each:\n")
    table(["", "its interval"], tasks(random(1), trials // 4))
    print(
        "\nThe best of n draws of a search: how often its band holds for all n, and for the last:\n"
    )
    table(["", "all together", "the last"], tuning(random(2), trials))
    print(f"\nA search of settings without any effect, {trials // 2:,} times each:\n")
    head = ["", "any is called important", "an end is called too near"]
    table(head, chances(random(3), trials // 2))


if __name__ == "__main__":
    main()
