"""How jobs differ: groups of jobs with the same settings, and the best of them.

Each setting has a role (`labjobs.settings.Role`): jobs that differ in nothing but repeats, such as
the seed and the fold, are averaged; jobs of different tasks, such as datasets, are never compared.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labjobs.job import data_evidence
from labjobs.results.metrics import Measured, NoResults, chooser
from labjobs.results.style import names, setting
from labjobs.settings import ROLES, Role
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


def mean_interval(samples: ArrayLike, log: bool = False, overlap: float = 0.0) -> Interval:
    """Return the mean over the last axis with its 95 % t interval.

    `overlap` is the ratio of validation to training examples, for samples from several splits of
    the same examples, which are not independent: Nadeau and Bengio 2003,
    doi.org/10.1023/A:1024068626366. With `log`, both are computed from logarithms and transformed
    back: a geometric mean, for samples above 0 that differ by factors. A t interval has its 95 %
    coverage down to two samples, while a percentile bootstrap of three samples covers 75 %
    (measured by simulation).
    """
    from scipy.stats import t

    values = np.asarray(samples, dtype=float)
    if log:
        return Interval(*map(np.exp, mean_interval(np.log(values), overlap=overlap)))
    n, mean = values.shape[-1], values.mean(axis=-1)
    if n == 1:
        return Interval(mean, mean * np.nan, mean * np.nan)
    error = values.std(axis=-1, ddof=1) * np.sqrt(1 / n + overlap)
    half = t.ppf((1 + LEVEL) / 2, n - 1) * error
    return Interval(mean, mean - half, mean + half)


def paired_difference(
    first: "pd.Series[float]", second: "pd.Series[float]", log: bool = False
) -> Interval:
    """Return the mean of first minus second over the repeats that both have, with its t interval;
    with `log` the geometric mean of first over second.

    Jobs with the same seed share their initial weights and their order of batches, so the effects
    of these cancel out. Results of several folds are averaged over the seeds of each fold, and the
    interval is corrected for the training examples that folds share. NaN if they have no repeat in
    common.
    """
    paired = (first / second if log else first - second).dropna()
    if not len(paired):
        return Interval(np.nan, np.nan, np.nan)
    means = split_means(paired, paired.index.to_frame(), log)
    return mean_interval(means, log, first.attrs.get(OVERLAP, 0.0))


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


SEED, FOLD, SPLIT_SEED = "seed", "fold", "split_seed"
"""Settings in which repeats differ."""

SPLITS = (FOLD, SPLIT_SEED)
"""Those by which the examples are split. Seeds of the same split share its examples, so that only
splits are samples of what another choice of examples would give."""

OVERLAP = "overlap"
"""The attribute of results that says how much splits overlap, see `mean_interval`."""


def with_role(jobs: "pd.DataFrame", role: Role) -> list[str]:
    """Return the settings of the jobs that have a role."""
    roles = jobs.attrs.get("roles", ROLES)
    return [name for name, its in roles.items() if its == role and name in jobs]


def repeated(jobs: "pd.DataFrame") -> list[str]:
    """Return the settings that the jobs have in which repeats differ."""
    return with_role(jobs, "repeat")


def varying_repeats(jobs: "pd.DataFrame") -> list[str]:
    """Return the settings in which repeats do differ."""
    return [name for name in repeated(jobs) if combinations(jobs, [name]) > 1]


def tasks(jobs: "pd.DataFrame") -> "dict[str, pd.DataFrame]":
    """Return the jobs of each task, by its name, which is empty if there is only one.

    Raises NoResults if folds of a cross-validation would be averaged with jobs that have none.
    """
    names = [name for name in with_role(jobs, "task") if combinations(jobs, [name]) > 1]
    found = groups(jobs, names)
    for alike in found.values():
        folds = int(alike[FOLD].map(bool).sum()) if FOLD in alike else 0
        if 0 < folds < len(alike):
            cure = 'draw one kind: ONLY = {"fold": 0} in plot.py, or a list of folds'
            raise NoResults(f"{folds} of {len(alike)} jobs are folds, the others are not; {cure}")
    return found


def split_means(values: ArrayLike, repeats: "pd.DataFrame", log: bool = False) -> NDArray[Any]:
    """Return values (…, n) averaged over the repeats within each split, (…, splits). `repeats` has
    n rows; if they are all of one split, the values are returned as they are."""
    each = np.asarray(values, dtype=float)
    by = [name for name in SPLITS if name in repeats and combinations(repeats, [name]) > 1]
    if not by:
        return each
    split = repeats.reset_index(drop=True).groupby(by, dropna=False).ngroup().to_numpy()
    each = np.log(each) if log else each
    means = [each[..., split == number].mean(axis=-1) for number in range(split.max() + 1)]
    return np.exp(np.stack(means, -1)) if log else np.stack(means, -1)


def overlap(jobs: "pd.DataFrame") -> float:
    """Return the ratio of validation to training examples, if jobs are of several splits; else
    0."""
    splits = combinations(jobs, [name for name in SPLITS if name in jobs])
    if splits <= 1:
        return 0.0
    if FOLD in jobs and jobs[FOLD].map(bool).all():
        return 1 / max(1, int(jobs[FOLD].max()) - 1)
    held_out = float(jobs["val_fraction"].max()) if "val_fraction" in jobs else 1 / splits
    return held_out / (1 - held_out)


def estimate(
    values: ArrayLike, repeats: "pd.DataFrame", log: bool = False, overlap: float = 0.0
) -> Interval:
    """Return the mean of results (…, n) with its 95 % t interval: over splits, if there are
    several, each with the mean of its repeats. `repeats` has n rows. Folds validate on different
    examples, so only random splits are corrected for their `overlap`."""
    random = SPLIT_SEED in repeats and combinations(repeats, [SPLIT_SEED]) > 1
    return mean_interval(split_means(values, repeats, log), log, overlap if random else 0.0)


def varied(jobs: "pd.DataFrame") -> list[str]:
    """Return the settings that the jobs differ in, except repeats and tasks: those that vary most
    come first, numbers before words."""

    def rank(name: str) -> tuple[int, bool, str]:
        """Return what a setting is sorted by: first, how many jobs have its commonest value."""
        commonest = jobs[name].value_counts(dropna=False).max()
        return int(commonest), not is_numeric(jobs, name), name

    names = {*jobs.attrs["settings"]} - {*repeated(jobs), *with_role(jobs, "task")}
    return sorted((name for name in names if combinations(jobs, [name]) > 1), key=rank)


def groups(jobs: "pd.DataFrame", by: Sequence[str]) -> "dict[str, pd.DataFrame]":
    """Return the jobs with the same settings, in the order of their values, by those as text: `mlp,
    learning rate 0.001`."""
    labels = label(jobs, by)
    return {str(name): alike for name, alike in jobs.groupby(labels, observed=True)}


def label(jobs: "pd.DataFrame", by: Sequence[str]) -> "pd.Series[Any]":
    """Return the values of these settings as text, for each of the jobs, ordered as the values are.

    Words come first, without their setting's name if no other setting has words, and none of them
    is empty or `none`.
    """
    import pandas as pd

    words = [name for name in by if all(isinstance(value, str) for value in jobs[name])]
    # A value of `monitor` would read like the metric that is drawn.
    bare = len(words) == 1 and words != ["monitor"] and not {"", "none"} & {*jobs[words[0]]}
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
    names = [*varied(jobs), *varying_repeats(jobs)]
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
    """Return the jobs with the same settings, by those as text: the best mean result first, and
    those without a result last.

    If some jobs diverged or have no finite result, all are ranked by their median, with these jobs
    as the worst: one seed of ten that diverged costs little, and most of them cost everything.
    """
    by_median = lacks_results(jobs, metric)

    def rank(item: "tuple[str, pd.DataFrame]") -> tuple[bool, float, float]:
        """Return what a group of jobs is sorted by: first, whether it has no result."""
        found = results(item[1], metric)
        each = metric.checked(split_means(found, found.index.to_frame(), metric.log))
        mean = float(mean_interval(each, metric.log).mean) if len(each) else 0.0
        lost = [np.inf] * (len(item[1]) - len(found))
        median = float(np.median([*(-metric.sign * found), *lost])) if by_median else 0.0
        return not len(each), median, -metric.sign * mean

    return dict(sorted(groups(jobs, by).items(), key=rank))


def lacks_results(jobs: "pd.DataFrame", metric: Measured) -> bool:
    """Return whether some jobs diverged or have no finite result, so that medians rank them."""
    return len(finite(jobs, metric.result)) < len(jobs)


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
    each = {name: results(jobs, metric) for name, jobs in ranked(jobs, by, metric).items()}
    return {name: found for name, found in each.items() if len(found)}


def results(jobs: "pd.DataFrame", metric: Measured) -> "pd.Series[float]":
    """Return the finite results of the jobs by seed, fold and whatever else is a repeat."""
    index = repeated(jobs) or [name for name in ["job_id"] if name in jobs]
    found = finite(jobs.set_index(index) if index else jobs, metric.result)
    found.attrs[OVERLAP] = overlap(jobs)
    return found


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
