"""Jobs as a figure compares them: which settings it distinguishes, and what its caption says about
them.

The settings that vary among the jobs are distributed over a figure's panels, lines and axes; for
the remaining settings, the values with the best validation results are chosen. Sentences for
captions begin with a space, and are empty if there is nothing to say.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from labjobs.cli.flags import as_plain, as_text
from labjobs.job.terminal import counted as number_of
from labjobs.results import groups, tables
from labjobs.results.intervals import NEEDED
from labjobs.results.metrics import CURE, THROUGHPUT, Measured, NoResults, Part, chooser, shown
from labjobs.results.samples import SHARED, Difference, Sample, differences, either, over, sample
from labjobs.results.style import Look, looks, setting, settings
from labjobs.settings import CONFIRMING

Curves = dict[str, dict[str, pd.DataFrame]]

MOST = 6  # settings, at most, that a caption names: with missing jobs, or chosen


@dataclass(frozen=True)
class Comparison:
    """The jobs of a figure, its metric, and the settings that each of its parts distinguishes."""

    jobs: pd.DataFrame
    metric: Measured
    parts: list[list[str]]
    along: list[str]  # settings that are an axis
    ranked_by: Measured  # by default the monitored metric, also if another one is shown
    chosen: str  # a sentence about the settings that were chosen; empty if none was
    among: str = ""  # among how many values they were chosen, `2` or `4–9`

    @property
    def by(self) -> list[str]:
        """All settings that are distinguished."""
        return [*self.along, *(name for part in self.parts for name in part)]

    @cached_property
    def lines(self) -> dict[str, pd.DataFrame]:
        """The jobs by the settings that the first part distinguishes: `mlp, learning rate
        0.001`."""
        return groups.groups(self.jobs, self.parts[0])

    @cached_property
    def rows(self) -> dict[str, pd.DataFrame]:
        """The jobs by the settings that the last part distinguishes."""
        return groups.groups(self.jobs, self.parts[-1])

    @cached_property
    def looks(self) -> dict[str, Look]:
        """How each line is drawn: without intervals if something was chosen; not joined where jobs
        differ in settings that the figure does not distinguish."""
        of_lines = self.parts[0]
        ordered = len(of_lines) == 1 and groups.is_numeric(self.jobs, of_lines[0])
        each = looks(self.lines, ordered)
        alone, joined = not self.among, bool(self.among or not self.chosen)
        return {n: look._replace(interval=alone, joined=joined) for n, look in each.items()}

    @property
    def labels(self) -> dict[str, str]:
        """What each line is called, with its number of jobs if these differ: `mlp (n = 2–3)`."""
        counts = {}
        for name, jobs in self.lines.items():
            known = jobs.loc[groups.finite(jobs, self.metric.result).index]
            each = [len(alike) for alike in groups.groups(known, self.by).values()]
            counts[name] = groups.between(each or [0])
        alike = len({*counts.values()}) == 1
        return {name: name if alike else f"{name} (n = {n})" for name, n in counts.items()}

    def curves(self, along: str = "step") -> Curves:
        """Return the metric's curves by panel, which the last part distinguishes, and line, along
        one of `tables.ALONG`."""
        curves = tables.curves(groups.having(self.jobs, self.metric.result), self.metric.key, along)
        codes, ids = pd.factorize(curves["job_id"])  # to compare each point's id takes long
        found: Curves = {}
        for panel, of_panel in self.rows.items():
            for line, of_line in self.lines.items():
                both = {*of_panel["job_id"]} & {*of_line["job_id"]}
                own = curves[ids.isin(both)[codes]]
                if len(own):
                    found.setdefault(panel, {})[line] = own
        return found

    def samples(self, most: int | None = None, part: Part | None = None) -> dict[str, Sample]:
        """Return the results of the jobs with the same settings: the best first, and at most this
        many. They are results on the metric's part of the data, or on another part. Raises
        NoResults if no job has a result on the metric's own."""
        metric = self.metric.of(part) if part else self.metric
        first = [name for name in self._ranked if name in self._known][:most]
        return {name: found for name in first if (found := sample(self._ranked[name], metric))}

    @cached_property
    def _ranked(self) -> dict[str, pd.DataFrame]:
        """All jobs by settings, the best first."""
        return groups.ranked(self.jobs, self.by, self.ranked_by)

    @cached_property
    def _known(self) -> dict[str, pd.DataFrame]:
        """The jobs that have a result, by settings. Raises NoResults if there are none."""
        return groups.groups(groups.having(self.jobs, self.metric.result), self.by)

    @property
    def means(self) -> str:
        """What means over jobs with the same settings are based on: `mean of 3 seeds`, `mean of 5
        folds with 3 seeds each`."""
        alike, repeats = [*self._known.values()], groups.varying_repeats(self.jobs)
        best = f"best of {self.among}, " if self.among else ""
        if max(map(len, alike)) == 1:
            one = repeats or [groups.SEED] * (groups.SEED in self.jobs)
            return best + (f"one {settings(one)}" if one else "single jobs")
        best += "geometric " * self.metric.log
        return f"{best}mean of {groups.counted(alike, repeats)}"

    @property
    def repeats(self) -> str:
        """What means and intervals are based on: `mean of 3 seeds, 95% t interval`."""
        alike = [*self._known.values()]
        split = [groups.split_by(jobs) for jobs in alike]
        each = zip(split, alike, strict=True)
        counts = [groups.combinations(jobs, by) if by else len(jobs) for by, jobs in each]
        if self.among or max(counts) < NEEDED:
            return self.means
        scale = " of the logarithm" if self.metric.log else ""
        by = {groups.is_one_of(name, [groups.FOLD]) for each in split for name in each}
        kind = "fold" if all(by) else "split"
        shares = any(split) and self.metric != THROUGHPUT
        which = f" over {kind}s, corrected for the examples that they share" if shares else ""
        if which and any(n >= NEEDED and not by for n, by in zip(counts, split, strict=True)):
            which += f", or over seeds where there is one {kind}"
        few = " (of three or more)" if min(counts) < NEEDED else ""
        return f"{self.means}, 95% t interval{scale}{which}{few}"

    @property
    def notes(self) -> str:
        """Sentences about the chosen settings, and about the jobs that are left out of the means:
        those that diverged, and those without a finite result."""
        jobs, diverged = self.jobs, self.jobs["diverged"]
        unknown = ~diverged & ~jobs.index.isin(groups.finite(jobs, self.metric.result).index)
        said = self._counted("Diverged, so left out of means", jobs, diverged) + self._failed
        # A figure may show test results, which these jobs have.
        said += self._counted(f"No finite {self.metric}, left out of its means", jobs, unknown)
        return self.chosen + said + self.unlike_splits

    def _without_results(self, *states: str) -> Counter[str]:
        """How many jobs of the same task have ended in one of some states, by settings."""
        found = Counter[str]()
        if not (rows := _others(self.jobs, *states)):
            return found
        alike = groups.groups(self.jobs, self.by).items()
        names = {_texts(_first(own), self.by): name for name, own in alike}
        nested = self.jobs.attrs.get("nested", ())
        known = [n for n in self.by if n not in nested and self.jobs[n].notna().all()]
        order = [*chain(*groups.words_first(self.jobs, self.by))]
        for row in rows:
            if any(row.get(name) is None for name in known):
                continue  # of jobs that have not begun, the hardware or an input is unknown
            each = zip(order, _texts(row, order), strict=True)
            words = [f"{setting(name)} {text}" for name, text in each if row.get(name) is not None]
            found[names.get(_texts(row, self.by), ", ".join(words))] += 1
        return found

    @property
    def _failed(self) -> str:
        """A sentence about the jobs that failed, by their settings."""
        counts = self._without_results("failed")
        counts = counts if len(counts) <= MOST else Counter({"": counts.total()})
        each = [f"{number_of(n, 'job')}{f' ({name})' * bool(name)}" for name, n in counts.items()]
        return f" Failed, so in no mean: {'; '.join(each)}." * bool(each)

    @property
    def unlike_splits(self) -> str:
        """A sentence, if some settings have results of other splits than others."""
        known = self.jobs.loc[groups.finite(self.jobs, self.metric.result).index]
        return groups.unlike_splits(groups.groups(known, self.by).values())

    def _counted(self, said: str, jobs: pd.DataFrame, lost: "pd.Series[bool]") -> str:
        """A sentence about those of the jobs that have lost something, by their settings."""
        alike = groups.groups(jobs, self.by).items()
        parts = [_of(n, own, name) for name, own in alike if (n := int(lost[own.index].sum()))]
        parts = parts if len(parts) <= MOST else [_of(int(lost.sum()), jobs)]
        return f" {said}: {'; '.join(parts)}." * bool(parts)

    def first(self, most: int, best: str = "best") -> str:
        """Return how many of the settings are among the first: `the best 12 of 20 settings`."""
        known, by = len(self.samples()), f" by {self.ranked_by}" * (self.ranked_by != self.metric)
        # Better ones may not have the metric that is shown.
        shown, count = min(most, known), known
        if not by and self.metric != THROUGHPUT:  # nothing says how fast the others would be
            count = len({*self._ranked, *self._without_results("failed", "stopped")})
        if count <= 1:
            return "one setting"
        every = "both" if count == 2 else f"all {count}"
        many = every if shown == count else f"the {best} {shown} of {count}"
        return f"{many} settings{by}{by_median(self.jobs, self.ranked_by)}"

    def differences(
        self, most: int, baseline: Mapping[str, Any]
    ) -> tuple[str, dict[str, Difference]]:
        """Return the name of a baseline, and how the test results of other settings differ from its
        own, at most this many: the best by validation results, which also choose the baseline if
        its settings are not named. Raises NoResults if no setting has enough repeats."""
        reference, metric = next(iter(self.samples(1))), self.metric.of("test")
        if baseline:
            reference = groups.fitting(self.jobs, self.by, baseline)
        own = sample(self._ranked[reference], metric)
        found = differences({**self.samples(most, "test"), reference: own}, reference)
        if found:
            return reference, found
        need = f"differences of test results need {NEEDED} repeats"
        if not 0 < len(own) < NEEDED:
            raise NoResults(f"{need} of two settings at least, such as seeds in run.sh")
        has = f"the baseline{f', {reference},' * bool(reference)} has {len(own)}"
        cure = "give it more seeds in run.sh, or set BASELINE in plot.py"
        raise NoResults(f"{need}, and {has}; {cure}")

    def over(self, most: int, found: Mapping[str, Difference] = MappingProxyType({})) -> str:
        """Return sentences on what the intervals of test results are over, or those of the
        differences that were found; which have none, and which jobs have no test results."""
        tested = self.samples(most, "test")
        known, few = over(tested.values()), [n for n, one in tested.items() if not one.is_shown]
        known = either(one.over for each in found.values() for one in each.of) or known
        why = f" Fewer than {NEEDED} repeats, so neither interval nor comparison: {listed(few)}."
        said = f" Test intervals are over {known}.{why * bool(few)}" if known else ""
        said += SHARED * any(each.left_out for each in found.values())
        if same := [name for name, each in found.items() if each.is_constant]:
            said += f" Differ by the same amount in all repeats, so not tested: {listed(same)}."
        return said + self._untested

    @property
    def _untested(self) -> str:
        """A sentence about the jobs that have a result on validation data and none on test data."""
        metric, every = self.metric.of("test"), groups.having(self.jobs, self.metric.result)
        if metric.result not in every:
            return ""
        lost = ~every[metric.result].between(-np.inf, np.inf, inclusive="neither")
        if lost.all():
            return f" No job has a finite {metric}."
        return self._counted(f"No finite {metric}, which counts as the worst", every, lost)

    def told_apart(self, most: int) -> str:
        """Return sentences on the test results of the first settings, at most this many: what their
        intervals are over, and which can be told apart from the very first, which validation
        results have chosen."""
        said = self.over(most)
        with suppress(NoResults):
            first, found = self.differences(most, {})
            said += apart(first, found, self.metric.of("test"))
            said += SHARED * any(each.left_out for each in found.values())
        return said


def on_tasks(jobs: pd.DataFrame, most: int) -> dict[str, Comparison]:
    """Return the jobs of each task, by at most this many values of the same settings on all. Raises
    NoResults if there are no test results."""
    groups.having(jobs, shown(jobs).of("test").result)
    (by,), metric = distributed(jobs, [most]), shown(jobs)
    found = groups.tasks(jobs)
    for own in found.values():  # so that the same name has the same meaning on all tasks
        own.attrs[groups.VALUES] = {n: groups.values_of(jobs, n) for n in jobs.attrs["settings"]}
    compared = {}
    for task, own in found.items():
        try:
            compared[task] = compare(own, along=by, metric=metric)
            groups.having(own, metric.result)
        except NoResults as none:
            raise NoResults(f"{task}: {none}; leave it out with ONLY of plot.py") from none
    kept, varied = pd.concat([each.jobs for each in compared.values()]), groups.varied(jobs)
    said = _differ(kept, [name for name in varied if name not in by])
    return {t: each if each.among else replace(each, chosen=said) for t, each in compared.items()}


def apart(reference: str, found: Mapping[str, Difference], metric: Measured) -> str:
    """Return sentences on which settings can be told apart from the first, and how."""
    first = f"the first ({reference})"
    better, worse = f"Better in {metric} than {first}", f"Worse in {metric} than {first}"
    unclear = f"Cannot be told apart from {first} in {metric}"
    alike = f"Differ from {first} in {metric} by the same amount in all repeats, so not tested"
    words: dict[str, list[str]] = {better: [], worse: [], unclear: [], alike: []}
    for name, each in found.items():
        kind = better if metric.sign * each.estimate.mean > 0 else worse
        kind = alike if each.is_constant else kind if each.is_certain else unclear
        words[kind].append(name)
    parts = [f"{said}: {listed(names)}" for said, names in words.items() if names]
    how = "paired by repeat" if all(each.paired for each in found.values()) else "not all paired"
    return f" {'. '.join(parts)} ({how}; 5% level for all comparisons together)."


def _of(count: int, jobs: pd.DataFrame, name: str = "") -> str:
    """How many of the jobs with the same settings: `1 of 3 jobs (mlp)`."""
    return f"{count} of {number_of(len(jobs), 'job')}{f' ({name})' if name else ''}"


def listed(names: Sequence[str]) -> str:
    """Return names in short: their number, if there are many."""
    return "; ".join(names) if len(names) <= MOST else f"{len(names)} settings"


def compare(
    jobs: pd.DataFrame,
    *most: int,
    metric: Measured | None = None,
    along: Sequence[str] = (),
    needed: int = 0,
) -> Comparison:
    """Return the jobs as a figure compares them.

    `most` is how many values each part of the figure can distinguish: each takes one of the
    settings that vary, the last one several. For the remaining settings, the values with the best
    validation results are chosen. Settings `along` an axis are distinguished by it. The metric is
    by default the one of --metric, or the monitored one, on validation data; the monitored one
    ranks the settings, unless a metric is given.

    Raises NoResults if fewer parts than `needed` have a setting, if values must be chosen but there
    are no validation results, if no job has a result of the metric and none is given, or if the
    jobs are of several tasks.
    """
    if len(tasks := groups.tasks(jobs)) > 1:
        which = f"{' and '.join(tasks)} are different tasks, which are not compared"
        varied = (n for n in groups.with_role(jobs, "task") if groups.combinations(jobs, [n]) > 1)
        one = {name: jobs[name].tolist()[0] for name in varied}
        raise NoResults(f"{which}; draw each of groups.tasks(jobs), or tables.only(jobs, {one})")
    parts = distributed(jobs, most, along, needed)
    by = [*along, *(name for part in parts for name in part)]
    rest, chosen, among = [name for name in groups.varied(jobs) if name not in by], "", ""
    if rest:
        try:
            by_validation = chooser(jobs)
        except NoResults as none:
            many = f"too much varies ({settings(rest)} as well)"
            raise NoResults(f"{many}, and {none}; or {CURE}") from none
        median = by_median(jobs, by_validation)
        kept, counts = list[str](), list[int]()
        values, nested = groups.label(jobs, rest), jobs.attrs.get("nested", ())
        best, counting = dict[str, str](), dict[str, str]()  # where any of the settings counts
        for cell, alike in groups.groups(jobs, by).items():
            of_cell = groups.ranked(alike, rest, by_validation, bool(median))
            first = next(iter(of_cell.values()))
            best[cell] = str(values[first.index[0]])
            if any(first.iloc[0][name] is not None or name not in nested for name in rest):
                counting[cell] = best[cell]
            kept += [*first["job_id"]]
            counts.append(len(of_cell) + _count_others(alike, by, rest))
        jobs = jobs[jobs["job_id"].isin(kept)]
        chosen = _differ(jobs, rest)
        if max(counts) > 1:
            among = groups.between(counts)
            chosen = f" Shown is the best of {among} values of {settings(rest)} by {by_validation}"
            chosen += f"{median}{_named(counting or best)}."
    ranked_by = metric or chooser(jobs)
    if metric is None:
        metric = shown(jobs)
        groups.having(jobs, metric.result)
    return Comparison(jobs, metric, parts, [*along], ranked_by, chosen, among)


def _differ(jobs: pd.DataFrame, rest: Sequence[str]) -> str:
    """A sentence about those of some settings in which jobs differ where they count."""
    nested = jobs.attrs.get("nested", ())
    each = {n: {as_text(v) for v in jobs[n] if v is not None or n not in nested} for n in rest}
    names = [name for name, values in each.items() if len(values) > 1]
    return f" The jobs differ in {settings(names)} as well." if names else ""


def _count_others(alike: pd.DataFrame, by: Sequence[str], rest: Sequence[str]) -> int:
    """How many further values of the settings `rest` were tried with these values of `by`, in jobs
    that failed, or that halving has stopped by their validation results."""
    if not (every := _others(alike, "failed", "stopped")):
        return 0
    rows, own = alike.to_dict("records"), _texts(_first(alike), by)
    tried = {_texts(row, rest) for row in every if _texts(row, by) == own}
    return len(tried.difference(_texts(row, rest) for row in rows))


def _first(jobs: pd.DataFrame) -> dict[Any, Any]:
    return dict(jobs.iloc[0])


def _texts(row: Mapping[Any, Any], names: Sequence[str]) -> tuple[str, ...]:
    """The values of some settings as texts, by which rows of any kind are compared."""
    return tuple(str(as_plain(row.get(name))) for name in names)


def _others(jobs: pd.DataFrame, *states: str) -> list[Mapping[str, Any]]:
    """The jobs of the same task that have ended in one of some states, without results; those that
    confirm only beside others that do."""
    rows = [r for r in jobs.attrs.get(tables.UNFINISHED, ()) if r["state"].startswith(states)]
    if not rows:
        return []
    task, found = groups.with_role(jobs, "task"), list[Mapping[str, Any]]()
    own, confirm = _texts(_first(jobs), task), groups.confirming(jobs).any()
    for row in rows:
        seed = row.get(groups.SEED)
        chooses = confirm or not (isinstance(seed, int) and seed >= CONFIRMING)
        if chooses and _texts(row, task) == own:
            found.append(row)
    return found


def _named(best: dict[str, str]) -> str:
    """What was chosen, by what it was chosen for; the most frequent ones if there are many."""
    counts = Counter(best.values())
    if len(counts) == 1:
        return f": {counts.popitem()[0]}"
    if len(best) <= MOST:
        return f": {'; '.join(f'{name} (for {cell})' for cell, name in best.items())}"
    each = [f"{name} ({n} of {len(best)})" for name, n in counts.most_common(MOST)]
    return f": {'; '.join(each)}{'; …' if len(counts) > MOST else ''}"


def by_median(jobs: pd.DataFrame, metric: Measured) -> str:
    """How settings are ranked, if some jobs diverged or have no finite result."""
    lost = jobs.drop(groups.finite(jobs, metric.result).index)
    whose = "diverged jobs" if lost["diverged"].all() else f"jobs without a finite {metric}"
    return (
        "" if lost.empty else f", ranked by the median with {whose} as the worst, then by the mean"
    )


def distributed(
    jobs: pd.DataFrame, most: Sequence[int], along: Sequence[str] = (), needed: int = 0
) -> list[list[str]]:
    """Return the settings that vary, except those along an axis, for each part of a figure: those
    that it distinguishes, which together have at most as many values as `most` says for it. A
    setting that does not always count, such as momentum, goes with the one that decides this, such
    as the optimizer, unless parts are `needed`, as for axes."""
    nested = {*jobs.attrs.get("nested", ())}
    left = [name for name in groups.varied(jobs) if name not in along]
    left = _not_drawn(jobs, left, needed) if needed > 1 else left  # the axes of a map
    if len(left) < needed:
        few = f"only {settings(left)} varies" if left else "no setting varies"
        besides = settings(groups.varying_repeats(jobs) or [groups.SEED])
        raise NoResults(f"{few} among the jobs, besides the {besides}; vary more in run.sh")
    parts: list[list[str]] = [[] for _ in most]
    for part, values in zip(parts, most, strict=True):
        for name in list(left):
            count = groups.combinations(jobs, [*part, name])
            decided = nested & {*part} and count == groups.combinations(jobs, part)
            joins = part is parts[-1] or not part or (decided and not needed)
            if joins and count <= values:
                part.append(name)
                left.remove(name)
    if sum(map(bool, parts)) < needed:
        raise NoResults(f"too many values of {settings(left)} to tell apart; {CURE}")
    return parts


def numeric(jobs: pd.DataFrame) -> str:
    """Return the setting that is a number in all jobs and varies most, of those that no search has
    drawn. Raises NoResults if there is none."""
    names = [name for name in groups.varied(jobs) if groups.is_numeric(jobs, name)]
    if not names:
        raise NoResults("no numeric setting varies among the jobs; vary one in run.sh")
    return _not_drawn(jobs, names, 1)[0]


def _not_drawn(jobs: pd.DataFrame, names: Sequence[str], needed: int) -> list[str]:
    """The settings that no search has drawn. Raises NoResults if a search leaves fewer than are
    needed: jobs with a value that was drawn also differ in whatever else was drawn."""
    drawn = tables.drawn(jobs) & {*groups.varied(jobs)}
    left = [name for name in names if name not in drawn]
    if len(left) < min(needed, len(names)):
        were = "was" if len(drawn) == 1 else "were"
        raise NoResults(f"{settings(sorted(drawn))} {were} drawn by a search; see search-slices")
    return left
