"""How jobs differ: groups of jobs with the same settings, and the best of them.

Jobs that differ only in the setting `seed` are repeats of one another. So are jobs that differ in
`fold`, if all of them belong to a cross-validation, with a fold of at least 1.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from labjobs.job import data_evidence
from labjobs.results.metrics import Measured, NoResults, chooser
from labjobs.results.style import names, setting
from labjobs.tracking.stored_jobs import folder_of

if TYPE_CHECKING:
    import pandas as pd

# Statistics of repeated jobs: means and fractions with intervals, differences.

LEVEL = 0.95
"""The confidence level: how often an interval should contain the true value."""


class Interval(NamedTuple):
    """A mean or a fraction and the ends of its interval, which are NaN for a single sample."""

    mean: Any
    low: Any
    high: Any


def mean_interval(samples: ArrayLike, log: bool = False) -> Interval:
    """Return the mean over the last axis with its 95 % t interval.

    With `log`, both are computed from logarithms and transformed back: a geometric mean, for
    samples above 0 that differ by factors. A t interval has its 95 % coverage down to two samples,
    while a percentile bootstrap of three samples covers 75 % (measured by simulation).
    """
    from scipy.stats import t

    values = np.asarray(samples, dtype=float)
    if log:
        return Interval(*map(np.exp, mean_interval(np.log(values))))
    n, mean = values.shape[-1], values.mean(axis=-1)
    if n == 1:
        return Interval(mean, mean * np.nan, mean * np.nan)
    half = t.ppf((1 + LEVEL) / 2, n - 1) * values.std(axis=-1, ddof=1) / np.sqrt(n)
    return Interval(mean, mean - half, mean + half)


def paired_difference(
    first: "pd.Series[float]", second: "pd.Series[float]", log: bool = False
) -> Interval:
    """Return the mean of first minus second over the seeds that both have, with its t interval;
    with `log` the geometric mean of first over second.

    Jobs with the same seed share their initial weights and their order of batches, so the effects
    of these cancel out. NaN if they have no seed in common.
    """
    paired = (first / second if log else first - second).dropna()
    return mean_interval(paired, log) if len(paired) else Interval(np.nan, np.nan, np.nan)


def ratio_interval(tops: ArrayLike, bottoms: ArrayLike) -> Interval:
    """Return the ratio of two means over pairs (n,), with its 95 % interval.

    The ends are infinite or NaN if the mean of `bottoms` cannot be distinguished from 0, so that
    the ratio can have any value. Source: Fieller 1954, doi.org/10.1111/j.2517-6161.1954.tb00159.x.
    """
    from scipy.stats import t

    above, below = np.asarray(tops, dtype=float), np.asarray(bottoms, dtype=float)
    n, top, bottom = len(above), above.mean(), below.mean()
    ratio = top / bottom
    if n == 1:
        return Interval(ratio, np.nan, np.nan)
    covariance = np.cov(above, below) * t.ppf((1 + LEVEL) / 2, n - 1) ** 2 / n
    a = bottom**2 - covariance[1, 1]
    b = top * bottom - covariance[0, 1]
    c = top**2 - covariance[0, 0]
    if a <= 0:
        return Interval(ratio, -np.inf, np.inf)
    half = np.sqrt(max(0.0, b * b - a * c))
    return Interval(ratio, (b - half) / a, (b + half) / a)


def fraction_interval(counts: ArrayLike, n: int) -> Interval:
    """Return each of some counts out of n as a fraction, with its exact 95 % binomial interval.

    Source: Clopper and Pearson 1934, doi.org/10.1093/biomet/26.4.404.
    """
    from scipy.stats import beta

    k, tail = np.asarray(counts), (1 - LEVEL) / 2
    low, high = beta.ppf(tail, k, n - k + 1), beta.ppf(1 - tail, k + 1, n - k)
    return Interval(k / n, np.nan_to_num(low, nan=0.0), np.nan_to_num(high, nan=1.0))


SEED, FOLD = "seed", "fold"
"""The settings in which repeats differ."""


def repeated(jobs: "pd.DataFrame") -> list[str]:
    """Return the settings that the jobs have in which repeats differ."""
    folds = FOLD in jobs and is_numeric(jobs, FOLD) and bool((jobs[FOLD] > 0).all())
    return [*([SEED] if SEED in jobs else []), *([FOLD] if folds else [])]


def varied(jobs: "pd.DataFrame") -> list[str]:
    """Return the settings that the jobs differ in, except those of repeats: those that vary most
    come first, numbers before words."""

    def rank(name: str) -> tuple[int, bool, str]:
        """Return what a setting is sorted by: first, how many jobs have its commonest value."""
        commonest = jobs[name].value_counts(dropna=False).max()
        return int(commonest), not is_numeric(jobs, name), name

    names = {*jobs.attrs["settings"]} - {*repeated(jobs)}
    return sorted((name for name in names if combinations(jobs, [name]) > 1), key=rank)


def groups(jobs: "pd.DataFrame", by: Sequence[str]) -> "dict[str, pd.DataFrame]":
    """Return the jobs with the same settings, in the order of their values, by those as text: `mlp,
    learning rate 0.001`."""
    labels = label(jobs, by)
    return {str(name): alike for name, alike in jobs.groupby(labels, observed=True)}


def label(jobs: "pd.DataFrame", by: Sequence[str]) -> "pd.Series[Any]":
    """Return the values of these settings as text, for each of the jobs, ordered as the values are.

    Words come first, without their setting's name if no other setting has words, and none of them
    is `none`.
    """
    import pandas as pd

    words = [name for name in by if all(isinstance(value, str) for value in jobs[name])]
    bare = len(words) == 1 and "none" not in set(jobs[words[0]])
    columns = []
    for name in [*words, *(name for name in by if name not in words)]:
        start = "" if bare and name in words else f"{setting(name)} "
        known = enumerate(names(jobs[name]).items())
        texts = {value: (place, f"{start}{text}") for place, (value, text) in known}
        columns.append([texts[value] for value in jobs[name]])
    rows = list(zip(*columns, strict=True)) if by else [()] * len(jobs)
    whole = {row: ", ".join(text for _, text in row) for row in sorted({*rows})}
    if len({*whole.values()}) < len(whole):  # there are commas in words
        whole = {row: f"{text} ({number})" for number, (row, text) in enumerate(whole.items(), 1)}
    labels = pd.Categorical([whole[row] for row in rows], [*whole.values()], ordered=True)
    return pd.Series(labels, index=jobs.index)


def described(job: "pd.DataFrame", jobs: "pd.DataFrame") -> str:
    """Return what distinguishes the single job in a table from others: `mlp, seed 2`."""
    names = [*varied(jobs), *repeated(jobs)]
    return str(label(jobs, names)[jobs["job_id"] == job["job_id"].item()].item())


def of_mixed_evidence(jobs: "pd.DataFrame") -> list[str]:
    """Return the ids of the repeats that differ in their code or their data: a mean over them would
    mix several programs."""
    if "code" not in jobs:
        return []
    names = [name for name in jobs.attrs["settings"] if name not in repeated(jobs)]
    mixed: list[str] = []
    for _, alike in jobs.astype(dict.fromkeys(names, str)).groupby(names, dropna=False):
        folders = [folder_of(str(folder)) for folder in alike["job_folder"]]
        if alike["code"].nunique() > 1 or data_evidence.conflict(folders):
            mixed += alike["job_id"].tolist()
    return sorted(mixed)


def combinations(jobs: "pd.DataFrame", by: Sequence[str]) -> int:
    """Return how many different values these settings have together."""
    return len(jobs[[*by]].drop_duplicates()) if by else 1


def ranked(jobs: "pd.DataFrame", by: Sequence[str], metric: Measured) -> "dict[str, pd.DataFrame]":
    """Return the jobs with the same settings, by those as text: the best mean result first.

    Settings of which a job diverged come after all others, and those without a result last.
    """

    def rank(item: "tuple[str, pd.DataFrame]") -> tuple[bool, bool, float]:
        """Return what a group of jobs is sorted by: first, whether it has no result."""
        results = metric.checked(finite(item[1], metric.result))
        mean = float(mean_interval(results, metric.log).mean) if len(results) else 0.0
        return not len(results), bool(item[1]["diverged"].any()), -metric.sign * mean

    return dict(sorted(groups(jobs, by).items(), key=rank))


def best(jobs: "pd.DataFrame") -> str:
    """Return the id of the job with the best validation result, the first in a tie. Raises
    NoResults if the jobs have none.
    """
    metric = chooser(jobs)
    results = finite(having(jobs, metric.result).set_index("job_id"), metric.result)
    return str((metric.sign * results.sort_index()).idxmax())


def samples(
    jobs: "pd.DataFrame", by: Sequence[str], metric: Measured
) -> "dict[str, pd.Series[Any]]":
    """Return the results of the jobs with the same settings, by seed and fold: the best first, and
    none of settings without a result."""
    index = repeated(jobs) or ["job_id"]
    found = ranked(jobs, by, metric)
    each = {name: finite(alike.set_index(index), metric.result) for name, alike in found.items()}
    return {name: results for name, results in each.items() if len(results)}


def finite(jobs: "pd.DataFrame", key: str) -> "pd.Series[float]":
    """Return the values of a column that are finite."""
    values: pd.Series[float] = jobs[key] if key in jobs else jobs["ended"] * np.nan
    return values[np.isfinite(values)]


def having(jobs: "pd.DataFrame", key: str) -> "pd.DataFrame":
    """Return the jobs that have a finite value in a column. Raises NoResults if no job has one."""
    found = jobs.loc[finite(jobs, key).index]
    if found.empty:
        raise NoResults(f"no finished job has a finite {key}")
    return found


def is_numeric(jobs: "pd.DataFrame", name: str) -> bool:
    """Return whether a setting is a number in all jobs."""
    values = jobs[name].tolist()
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
