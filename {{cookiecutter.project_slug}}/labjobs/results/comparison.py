"""Jobs as a figure compares them: which settings it distinguishes, and what its caption says about
them.

The settings that vary among the jobs are distributed over a figure's panels, lines and axes; for
the remaining settings, the values with the best validation results are chosen. Sentences for
captions begin with a space, and are empty if there is nothing to say.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from labjobs.results import tables
from labjobs.results.groups import (
    SEED,
    SPLIT_SEED,
    SPLITS,
    combinations,
    finite,
    groups,
    having,
    is_numeric,
    paired_difference,
    ranked,
    samples,
    tasks,
    varied,
    varying_repeats,
)
from labjobs.results.metrics import CURE, Measured, NoResults, Part, chooser
from labjobs.results.style import Look, looks, setting, settings, with_interval

if TYPE_CHECKING:
    import pandas as pd

    Curves = dict[str, dict[str, pd.DataFrame]]

MOST = 6
"""The largest number of settings whose missing jobs are named; otherwise they are only counted."""


@dataclass(frozen=True)
class Comparison:
    """The jobs of a figure, its metric, and the settings that each of its parts distinguishes."""

    jobs: "pd.DataFrame"
    metric: Measured
    parts: list[list[str]]
    along: list[str]
    """Settings that are an axis."""

    chosen: str
    """A sentence about the settings that were chosen; empty if none was."""

    @property
    def by(self) -> list[str]:
        """All settings that are distinguished."""
        return [*self.along, *(name for part in self.parts for name in part)]

    @cached_property
    def lines(self) -> "dict[str, pd.DataFrame]":
        """The jobs by the settings that the first part distinguishes: `mlp, learning rate
        0.001`."""
        return groups(self.jobs, self.parts[0])

    @cached_property
    def rows(self) -> "dict[str, pd.DataFrame]":
        """The jobs by the settings that the last part distinguishes."""
        return groups(self.jobs, self.parts[-1])

    @cached_property
    def looks(self) -> dict[str, Look]:
        """How each line is drawn."""
        return looks(self.lines)

    def curves(self) -> "Curves":
        """Return the metric's curves by panel, which the last part distinguishes, and line."""
        curves = tables.curves(self.jobs, self.metric.key)
        found: Curves = {}
        for panel, of_panel in self.rows.items():
            for line, of_line in self.lines.items():
                both = {*of_panel["job_id"]} & {*of_line["job_id"]}
                own = curves[curves["job_id"].isin(both)]
                if len(own):
                    found.setdefault(panel, {})[line] = own
        return found

    def results(
        self, most: int | None = None, part: Part | None = None
    ) -> "dict[str, pd.Series[Any]]":
        """Return the results of the jobs with the same settings, by seed: the best first, and at
        most this many. They are results on the metric's part of the data, or on another part."""
        metric = self.metric.of(part) if part else self.metric
        return dict(list(samples(self.jobs, self.by, metric).items())[:most])

    @property
    def means(self) -> str:
        """What means over jobs with the same settings are based on: `mean of 3 seeds`, `mean of 5
        folds with 3 seeds each`."""
        known = having(self.jobs, self.metric.result)
        alike = [*groups(known, self.by).values()]
        repeats = varying_repeats(self.jobs)
        if max(map(len, alike)) == 1:
            one = repeats or [SEED] * (SEED in self.jobs)
            return f"one {settings(one)}" if one else "single jobs"
        by = splits(self.jobs)
        within = [name for name in repeats if name not in by]
        many = _counted(
            [combinations(jobs, by) if by else len(jobs) for jobs in alike], by or within
        )
        each = [len(jobs) for of in alike for jobs in groups(of, by).values()]
        each_of = f" with {_counted(each, within)} each" if by and max(each) > 1 else ""
        return f"{'geometric ' if self.metric.log else ''}mean of {many}{each_of}"

    @property
    def repeats(self) -> str:
        """What means and intervals are based on: `mean of 3 seeds, 95% t interval`."""
        if "mean" not in self.means:
            return self.means
        scale = " of the logarithm" if self.metric.log else ""
        # Folds share most of their training examples: Bengio and Grandvalet 2004,
        # jmlr.org/papers/v5/grandvalet04a.html.
        over = " over folds, as if they were independent" if splits(self.jobs) else ""
        if SPLIT_SEED in splits(self.jobs):
            over = " over splits, corrected for the examples that they share"
        return f"{self.means}, 95% t interval{scale}{over}"

    @property
    def notes(self) -> str:
        """Sentences about the chosen settings, and about the jobs that are left out of the means:
        those that diverged, and those without a finite result."""
        parts = []
        for name, jobs in groups(self.jobs, self.by).items():
            diverged = int(jobs["diverged"].sum())
            unknown = len(jobs) - diverged - len(finite(jobs, self.metric.result))
            whose = f"of {len(jobs)} jobs{f' of {name}' if name else ''}"
            parts += [f"{diverged} {whose}, which diverged"] * bool(diverged)
            parts += [f"{unknown} {whose}, without a finite result"] * bool(unknown)
        if len(parts) > MOST:
            lost = len(self.jobs) - len(finite(self.jobs, self.metric.result))
            parts = [f"{lost} of {len(self.jobs)} jobs, which diverged or have no finite result"]
        return self.chosen + (f" Left out: {'; '.join(parts)}." if parts else "")

    def first(self, most: int) -> str:
        """Return how many of the settings are among the first: `the best 12 of 20 settings`."""
        count = len(self.results())
        if count <= 1:
            return "one setting"
        many = f"the best {most} of {count}" if most < count else f"all {count}"
        last = ", those of which a job diverged last" if self.jobs["diverged"].any() else ""
        return f"{many} settings{last}"

    @property
    def difference(self) -> str:
        """A sentence on how the best two settings differ, by seed and fold; empty if they have none
        in common."""
        best = [*self.results(2).values()]
        if len(best) < 2 or not (pairs := len((best[0] - best[1]).dropna())):
            return ""
        what = "First over second" if self.metric.log else "First minus second"
        difference = with_interval(*paired_difference(best[0], best[1], self.metric.log))
        repeat = settings(varying_repeats(self.jobs) or [SEED])
        if pairs == 1:
            return f" {what}: {difference}, of one {repeat}."
        shared = ", corrected for the examples that splits share" if splits(self.jobs) else ""
        return f" {what}: {difference}, 95% t interval of {pairs} pairs by {repeat}{shared}."


def splits(jobs: "pd.DataFrame") -> list[str]:
    """Return the settings by which the jobs split the examples in several ways."""
    return [name for name in varying_repeats(jobs) if name in SPLITS]


def _counted(counts: Sequence[int], repeats: Sequence[str]) -> str:
    """Numbers of repeats: `3 seeds`, `2–3 folds`."""
    many = "–".join(map(str, sorted({min(counts), max(counts)})))
    return f"{many} {' and '.join(f'{setting(name)}s' for name in repeats or [SEED])}"


def compare(
    jobs: "pd.DataFrame",
    *most: int,
    metric: Measured | None = None,
    along: Sequence[str] = (),
    needed: int = 0,
) -> Comparison:
    """Return the jobs as a figure compares them.

    `most` is how many values each part of the figure can distinguish: each takes one of the
    settings that vary, the last one several. For the remaining settings, the values with the best
    validation results are chosen. Settings `along` an axis are distinguished by it. The metric is
    by default the monitored one, on validation data.

    Raises NoResults if fewer parts than `needed` have a setting, if values must be chosen but there
    are no validation results, or if the jobs are of several tasks.
    """
    if len(found := tasks(jobs)) > 1:
        cure = "draw each of groups.tasks(jobs), or name one in ONLY of plot.py"
        raise NoResults(
            f"{' and '.join(found)} are different tasks, which are not compared; {cure}"
        )
    parts = _distributed(jobs, most, along, needed)
    by = [*along, *(name for part in parts for name in part)]
    rest, chosen = [name for name in varied(jobs) if name not in by], ""
    if rest:
        try:
            by_validation = chooser(jobs)
        except NoResults as none:
            many = f"too much varies ({settings(rest)} as well)"
            raise NoResults(f"{many}, and {none}; or {CURE}") from none
        kept: list[str] = []
        for alike in groups(jobs, by).values():
            best, *_ = ranked(alike, rest, by_validation).values()
            kept += [*best["job_id"]]
        jobs = jobs[jobs["job_id"].isin(kept)]
        where = " for each of the others" if by else ""
        chosen = f" Shown are the values of {settings(rest)} with the best {by_validation}{where}."
    return Comparison(jobs, metric or chooser(jobs), parts, [*along], chosen)


def _distributed(
    jobs: "pd.DataFrame", most: Sequence[int], along: Sequence[str], needed: int
) -> list[list[str]]:
    """The settings that vary, except those along an axis, by the part that distinguishes them."""
    left = [name for name in varied(jobs) if name not in along]
    if len(left) < needed:
        few = f"only {settings(left)} varies" if left else "no setting varies"
        raise NoResults(f"{few} among the jobs, besides the {setting(SEED)}; vary more in run.sh")
    parts: list[list[str]] = [[] for _ in most]
    for part, values in zip(parts, most, strict=True):
        for name in list(left):
            if (part is parts[-1] or not part) and combinations(jobs, [*part, name]) <= values:
                part.append(name)
                left.remove(name)
    if sum(map(bool, parts)) < needed:
        raise NoResults(f"too many values of {settings(left)} to tell apart; {CURE}")
    return parts


def numeric(jobs: "pd.DataFrame") -> str:
    """Return the setting that is a number in all jobs and varies most. Raises NoResults if no
    number varies."""
    for name in varied(jobs):
        if is_numeric(jobs, name):
            return name
    raise NoResults("no numeric setting varies among the jobs; vary one in run.sh")
