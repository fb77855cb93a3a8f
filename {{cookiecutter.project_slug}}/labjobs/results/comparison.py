"""Jobs as a figure compares them: which settings it distinguishes, and what its caption says about
them.

The settings that vary among the jobs are distributed over a figure's panels, lines and axes; for
the remaining settings, the values with the best validation results are chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from labjobs.results import tables, text
from labjobs.results.groups import apart, groups, is_numeric, ranked, samples, varied
from labjobs.results.metrics import CURE, Measured, NoResults, Part, chooser
from labjobs.results.style import Look, looks, settings

if TYPE_CHECKING:
    import pandas as pd

    Curves = dict[str, dict[str, pd.DataFrame]]


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

    @cached_property
    def means(self) -> str:
        """What means are based on: `mean of 3 seeds`."""
        return text.repeats(self.jobs, self.by, self.metric)

    @property
    def repeats(self) -> str:
        """What means and intervals are based on: `mean of 3 seeds, 95% t interval`."""
        if "mean" not in self.means:
            return self.means
        return f"{self.means}, {text.interval(self.jobs, self.metric)}"

    @property
    def notes(self) -> str:
        """Sentences about the chosen settings, and about the jobs that are left out of the
        means."""
        return self.chosen + text.left_out(self.jobs, self.by, self.metric)

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

    def first(self, most: int) -> str:
        """Return how many of the settings are among the first: `the best 12 of 20 settings`."""
        count = len(self.results())
        return text.first(self.jobs, min(most, count), count)

    @property
    def difference(self) -> str:
        """A sentence on how the best two settings differ."""
        return text.compared([*self.results().values()], self.metric)


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

    Raises NoResults if fewer parts than `needed` have a setting, or if values must be chosen but
    there are no validation results.
    """
    parts = apart(jobs, *most, but=along, needed=needed)
    by = [*along, *(name for part in parts for name in part)]
    shown, chosen = _best_of_rest(jobs, by)
    return Comparison(shown, metric or chooser(jobs), parts, [*along], chosen)


def numeric(jobs: "pd.DataFrame") -> str:
    """Return the setting that is a number in all jobs and varies most. Raises NoResults if no
    number varies."""
    for name in varied(jobs):
        if is_numeric(jobs, name):
            return name
    raise NoResults("no numeric setting varies among the jobs; vary one in run.sh")


def _best_of_rest(jobs: "pd.DataFrame", by: Sequence[str]) -> tuple["pd.DataFrame", str]:
    """The jobs that differ only in these settings and the seed, and a sentence about how the other
    settings were chosen."""
    rest = [name for name in varied(jobs) if name not in by]
    if not rest:
        return jobs, ""
    try:
        metric = chooser(jobs)
    except NoResults as none:
        raise NoResults(
            f"too much varies ({settings(rest)} as well), and {none}; or {CURE}"
        ) from none
    kept: list[str] = []
    for alike in groups(jobs, by).values():
        best, *_ = ranked(alike, rest, metric).values()
        kept += [*best["job_id"]]
    where = " for each of the others" if by else ""
    said = f" Shown are the values of {settings(rest)} with the best {metric}{where}."
    return jobs[jobs["job_id"].isin(kept)], said
