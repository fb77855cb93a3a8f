"""How jobs differ: groups of jobs with the same settings, and the best of them.

Each setting has a role (`labjobs.settings.Role`): jobs that differ in nothing but repeats, such as
the seed and the fold, are averaged; jobs of different tasks, such as datasets, are never compared.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from labjobs.errors import SettingsError, few, require_known
from labjobs.job import code_evidence, data_evidence
from labjobs.results import intervals, tables
from labjobs.results.metrics import CURE, Measured, NoResults, Part, chooser
from labjobs.results.style import names, setting
from labjobs.settings import CONFIRMING, HELD_OUT, ROLES, Role
from labjobs.tracking.stored_jobs import folder_of

SEED, FOLD, SPLIT_SEED = "seed", "fold", "split_seed"  # settings in which repeats differ

SPLITS = (FOLD, SPLIT_SEED)
"""Those by which the examples are split. Seeds of the same split share its examples, so that only
splits are samples of what another choice of examples would give."""


def is_one_of(setting: str, names: Sequence[str]) -> bool:
    """Return whether a setting is one of these, or that of a job from which others are derived:
    `job_fold` is of `fold`, as `tables.joined` names it."""
    return setting in names or setting.endswith(tuple(f"_{name}" for name in names))


def with_role(jobs: pd.DataFrame, role: Role) -> list[str]:
    """Return the settings of the jobs that have a role."""
    roles = jobs.attrs.get("roles", ROLES)
    return [name for name, its in roles.items() if its == role and name in jobs]


def repeated(jobs: pd.DataFrame) -> list[str]:
    """Return the settings that the jobs have in which repeats differ."""
    return with_role(jobs, "repeat")


def confirming(jobs: pd.DataFrame) -> "pd.Series[bool]":
    """Return which jobs confirm what others have chosen: those with the seeds of `confirm`."""
    seeds = jobs.get(SEED, pd.Series(0, index=jobs.index))
    return pd.to_numeric(seeds, errors="coerce") >= CONFIRMING


def choosing(jobs: pd.DataFrame) -> pd.DataFrame:
    """Return the jobs by which settings are chosen and compared: all but those that confirm; these
    if there are no others."""
    own = jobs[~confirming(jobs)]
    return own if len(own) else jobs


def varying_repeats(jobs: pd.DataFrame) -> list[str]:
    """Return the settings in which repeats do differ."""
    return [name for name in repeated(jobs) if combinations(jobs, [name]) > 1]


def tasks(jobs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the jobs of each task, by its name, which is empty if there is only one. Raises
    NoResults if folds of a cross-validation would be averaged with jobs that have none."""
    names = [name for name in with_role(jobs, "task") if combinations(jobs, [name]) > 1]
    found = groups(jobs, names)
    for task, alike in found.items():
        for name in split_settings(alike, [FOLD]):
            is_fold = alike[name].map(bool)
            if 0 < (folds := int(is_fold.sum())) < len(alike):
                others = few(sorted(alike.loc[is_fold != is_fold.mode()[0], "job_id"]), 3)
                cure = 'draw one kind: ONLY = {"fold": 0} in plot.py, or a list of folds'
                if task:  # for which ONLY would have to be another one
                    cure = f"draw other tasks with --task, or see whether {others} belong there"
                those = f"{folds} of {len(alike)} jobs{f' ({task})' * bool(task)}"
                raise NoResults(f"{those} are folds, the others are not; {cure}")
    return found


def with_task_of(jobs: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """Return those of other jobs that have the task of these, which all have the same."""
    for name in with_role(jobs, "task"):
        if name in others:
            others = others[others[name].map(str) == str(jobs[name].iloc[0])]
    return others


def counted(alike: Sequence[pd.DataFrame], repeats: Sequence[str]) -> str:
    """Return how many repeats jobs with the same settings have, by the settings in which they
    differ: `2–3 seeds`, `5 folds with 3 seeds each`."""
    by = [name for name in repeats if is_one_of(name, SPLITS)]
    within = [name for name in repeats if name not in by] or [SEED]
    single = [jobs for of in alike for _, jobs in of.groupby(by, dropna=False)] if by else alike
    splits = " and ".join(f"{setting(name)}s" for name in by)
    seeds = f"{setting(within[0])}s" if len(within) == 1 else "repeats"
    each = f"{between([*map(len, single)])} {seeds}"
    if not by:
        return each
    text = f"{between([combinations(jobs, by) for jobs in alike])} {splits}"
    return f"{text} with {each} each" if max(map(len, single)) > 1 else text


def between(counts: Sequence[int]) -> str:
    """Return numbers in short: `3`, `2–3`, `180–1,294`."""
    return "–".join(f"{count:,}" for count in sorted({min(counts), max(counts)}))


def split_by(repeats: pd.DataFrame) -> list[str]:
    """Return the settings by which the examples of some repeats are split differently."""
    return [name for name in split_settings(repeats) if combinations(repeats, [name]) > 1]


def split_settings(jobs: pd.DataFrame, those: Sequence[str] = SPLITS) -> list[str]:
    """Return the settings of jobs, or of the index of their results, that are one of `those`."""
    names = repeated(jobs) if "roles" in jobs.attrs else map(str, jobs)
    return [name for name in names if is_one_of(name, those)]


def unlike_splits(alike: Iterable[pd.DataFrame]) -> str:
    """Return a sentence for captions, which begins with a space, if the results of some settings
    are of other splits than those of others: one split is harder than another."""
    known = [own for own in alike if len(own)]
    each = (own[split_settings(own)].astype(str) for own in known)
    splits = {frozenset(own.itertuples(index=False, name=None)) for own in each}
    return " Not all have the same splits, which may be unequally hard." * (len(splits) > 1)


def split_means(values: ArrayLike, repeats: pd.DataFrame, log: bool = False) -> NDArray[Any]:
    """Return values (…, n) averaged over the repeats within each split, (…, splits). `repeats` has
    n rows; if they are all of one split, the values are returned as they are."""
    each = np.asarray(values, dtype=float)
    if not (by := split_by(repeats)):
        return each
    split = repeats.reset_index(drop=True).groupby(by, dropna=False).ngroup().to_numpy()
    each = np.log(each) if log else each
    means = [each[..., split == number].mean(axis=-1) for number in range(split.max() + 1)]
    return np.exp(np.stack(means, -1)) if log else np.stack(means, -1)


def overlap(jobs: pd.DataFrame, part: Part | None = "val") -> float:
    """Return the ratio of the examples on a part of the data to training examples, if jobs are of
    several splits; else 0. Unless it is known for test data, it is that of validation data."""
    if not (by := split_by(jobs)):
        return 0.0
    sizes = [tables.sizes(str(folder)) for folder in jobs.get("job_folder", ()) if part == "test"]
    if ratios := [each["test"] / each["train"] for each in sizes if {"test", "train"} <= {*each}]:
        return max(ratios)
    if folds := [name for name in split_settings(jobs, [FOLD]) if jobs[name].map(bool).all()]:
        return 1 / max(1, int(jobs[folds].to_numpy(dtype=int).max()) - 1)
    fractions = [name for name in map(str, jobs) if is_one_of(name, ["val_fraction"])]
    known = jobs[fractions].to_numpy(dtype=float)
    known = known[np.isfinite(known)]  # it has no value in jobs with a fold
    held_out = float(known.max()) if known.size else 1 / combinations(jobs, by)
    return held_out / (1 - held_out)


def varied(jobs: pd.DataFrame) -> list[str]:
    """Return the settings that the jobs differ in, except repeats and tasks: those that vary most
    come first, numbers before words."""

    def rank(name: str) -> tuple[int, bool, str]:
        """Return what a setting is sorted by: first, how many jobs have its commonest value."""
        commonest = jobs[name].value_counts(dropna=False).max()
        return int(commonest), not is_numeric(jobs, name), name

    task = with_role(jobs, "task")
    names = {*jobs.attrs["settings"]} - {*repeated(jobs), *task}
    names = {name for name in names if _count(jobs, name) > 1}
    if "monitor" in names and combinations(jobs, [*task, "monitor"]) == combinations(jobs, task):
        names.remove("monitor")  # each task has one of its own
    return sorted(names, key=rank)


def _count(jobs: pd.DataFrame, name: str) -> int:
    """How many values a setting has. What a fold takes the place of, such as `val_fraction`, has
    none in jobs with a fold, and does not tell them apart from those of a task without folds."""
    values = values_of(jobs, name)
    return len(values) - (None in values and is_one_of(name, HELD_OUT))


VALUES = "values of settings"  # the attribute of a part of a table that has those of all jobs


def values_of(jobs: pd.DataFrame, name: str) -> list[Any]:
    """Return the distinct values of a setting, of all jobs if these are a part of them."""
    of_all = jobs.attrs.get(VALUES)
    return list(of_all[name] if of_all else dict.fromkeys(jobs[name].tolist()))


def groups(jobs: pd.DataFrame, by: Sequence[str]) -> dict[str, pd.DataFrame]:
    """Return the jobs with the same settings, in the order of their values, by those as text: `mlp,
    learning rate 0.001`."""
    return {str(name): alike for name, alike in jobs.groupby(label(jobs, by), observed=True)}


def label(jobs: pd.DataFrame, by: Sequence[str]) -> "pd.Series[Any]":
    """Return the values of these settings as text, for each of the jobs, ordered as the values are.

    Words come first, without their setting's name if no other setting has words, and all of them
    begin with a letter and are not `none`. Settings that do not count are left out, if any does.
    """
    words, others = words_first(jobs, by)
    # A value of `monitor` would read like the metric that is drawn.
    bare = len(words) == 1 and words != ["monitor"]
    for each in values_of(jobs, words[0]) if bare else ():
        bare = bare and each[:1].isalpha() and each.lower() != "none"
    columns = []
    for name in [*words, *others]:
        start = "" if bare and name in words else f"{setting(name)} "
        nested = name in jobs.attrs.get("nested", ())
        texts = {
            value: (order, "" if value is None and nested else f"{start}{text}")
            for order, (value, text) in enumerate(names(values_of(jobs, name)).items())
        }
        columns.append([texts[value] for value in jobs[name].tolist()])
    rows = list(zip(*columns, strict=True)) if by else [()] * len(jobs)
    none = f"{setting(by[0])} none" if by else ""  # where nothing else is said
    whole = {row: ", ".join(text for _, text in row if text) or none for row in sorted({*rows})}
    if len({*whole.values()}) < len(whole):  # there are commas in words
        whole = {row: f"{text} ({number})" for number, (row, text) in enumerate(whole.items(), 1)}
    labels = pd.Categorical([whole[row] for row in rows], [*whole.values()], ordered=True)
    return pd.Series(labels, index=jobs.index)


def words_first(jobs: pd.DataFrame, by: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the settings that are words in all jobs, and the others, in the order of `label`."""
    words = [name for name in by if all(isinstance(value, str) for value in values_of(jobs, name))]
    return words, [name for name in by if name not in words]


def fitting(jobs: pd.DataFrame, by: Sequence[str], wanted: Mapping[str, Any]) -> str:
    """Return which group of jobs has these settings, the BASELINE of plot.py. Raises SettingsError
    for an unknown setting, NoResults if no group has them, or several have."""
    known = jobs.attrs["settings"]
    require_known(wanted, known, "BASELINE in plot.py: the jobs have no setting {}")
    if repeats := [name for name in repeated(jobs) if name in wanted]:
        raise SettingsError(f"BASELINE in plot.py: {repeats[0]} is a repeat; leave it out")
    every = groups(jobs, by)
    fits = [name for name, alike in every.items() if len(tables.with_values(alike, wanted))]
    if len(fits) == 1:
        return fits[0]
    of_fits = pd.concat([every[name] for name in fits or every]).map(str)
    left = [setting(name) for name in by if name not in wanted and of_fits[name].nunique() > 1]
    cure = f"name {' and '.join(left)} as well" if fits and left else CURE
    raise NoResults(f"BASELINE in plot.py fits {len(fits)} of the settings; {cure}")


def of_mixed_evidence(jobs: pd.DataFrame) -> list[str]:
    """Return the ids of jobs that were continued with changed code, and of those that differ in
    their code or, if they are repeats, in their data: means over them, and comparisons, would mix
    several programs. All count if it cannot be told which differ."""
    if code_evidence.conflict({folder_of(str(folder)) for folder in jobs["job_folder"]}):
        return sorted(jobs["job_id"])
    names = [name for name in jobs.attrs["settings"] if name not in repeated(jobs)]
    mixed: list[str] = jobs.loc[jobs[tables.CODE] == code_evidence.MIXED, "job_id"].tolist()
    for _, alike in jobs.astype(dict.fromkeys(names, str)).groupby(names, dropna=False):
        folders = [folder_of(str(folder)) for folder in alike["job_folder"]]
        if alike[tables.CODE].nunique() > 1 or data_evidence.conflict(folders):
            mixed += alike["job_id"].tolist()
    return sorted({*mixed})


def combinations(jobs: pd.DataFrame, by: Sequence[str]) -> int:
    """Return how many different values these settings have together."""
    return len(jobs[[*by]].drop_duplicates()) if by else 1


def ranked(
    jobs: pd.DataFrame, by: Sequence[str], metric: Measured, by_median: bool | None = None
) -> dict[str, pd.DataFrame]:
    """Return the jobs with the same settings, by those as text: the best mean result first, and
    those without a result last.

    If some jobs diverged or have no finite result, all are ranked by their median, with these jobs
    as the worst: one seed of ten that diverged costs little, and most of them cost everything.
    `by_median` decides this instead if the jobs are only a part of those that a figure compares.
    """
    if by_median is None:
        by_median = len(finite(jobs, metric.result)) < len(jobs)

    def rank(item: tuple[str, pd.DataFrame]) -> tuple[bool, float, float]:
        """Return what a group of jobs is sorted by: first, whether it has no result."""
        found = results(item[1], metric)
        each = metric.checked(split_means(found, found.index.to_frame(), metric.log))
        mean = float(intervals.mean(each, metric.log).mean) if len(each) else 0.0
        lost = [np.inf] * (len(item[1]) - len(found))
        median = float(np.median([*(-metric.sign * found), *lost])) if by_median else 0.0
        return not len(each), median, -metric.sign * mean

    return dict(sorted(groups(jobs, by).items(), key=rank))


def best(jobs: pd.DataFrame) -> str:
    """Return the id of the job with the best validation result, the first in a tie. Raises
    NoResults if the jobs have none."""
    metric = chooser(jobs)
    results = having(jobs, metric.result).set_index("job_id")[metric.result]
    return str((metric.sign * results.sort_index()).idxmax())


def results(jobs: pd.DataFrame, metric: Measured) -> "pd.Series[float]":
    """Return the finite results of the jobs by seed, fold and whatever else is a repeat."""
    index = repeated(jobs) or [name for name in ["job_id"] if name in jobs]
    found = finite(jobs, metric.result)
    return found.set_axis(jobs.loc[found.index, index].set_index(index).index) if index else found


def finite(jobs: pd.DataFrame, key: str) -> "pd.Series[float]":
    """Return the values of a column that are finite."""
    values: pd.Series[float] = jobs[key] if key in jobs else jobs["ended"] * np.nan
    return values[np.isfinite(values)]


def has(jobs: pd.DataFrame, metric: Measured) -> bool:
    """Return whether any job has a finite result."""
    return len(finite(jobs, metric.result)) > 0


def having(jobs: pd.DataFrame, key: str) -> pd.DataFrame:
    """Return the jobs that have a finite value in a column. Raises NoResults if no job has one."""
    found = jobs.loc[finite(jobs, key).index]
    if found.empty:
        raise NoResults(f"no finished job has a finite {key}")
    return found


def is_numeric(jobs: pd.DataFrame, name: str) -> bool:
    """Return whether a setting is a number in all jobs."""
    values = jobs[name].tolist()
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
