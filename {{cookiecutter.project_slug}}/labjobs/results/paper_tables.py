"""Tables as a paper prints them: results with their intervals, and which can be told apart.

    table = paper_tables.results(jobs, rows=["model"], shown=["accuracy"])
    return table, f"{table.what}.{table.about}"

Rows are settings, columns are tasks and metrics. Settings are chosen by validation results; what is
said of differences is said of test results.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from labjobs.errors import SettingsError, require_known
from labjobs.job.terminal import counted
from labjobs.results import comparison, groups, samples, style, tables
from labjobs.results.figure_files import plain
from labjobs.results.intervals import NEEDED, Interval, mean
from labjobs.results.metrics import SHOWN, WORDS, Measured, NoResults, Part, chooser, declared
from labjobs.results.samples import SHARED, Difference, Sample
from labjobs.settings import CONFIRMING

MOST_COLUMNS = 3  # largest number of columns, if plot.py does not say which metrics are shown
MOST_TASKS = 4  # largest number of tasks that are columns; more are rows
MOST_ROWS = 20  # if plot.py does not say which settings have rows of their own

ALL = "all jobs"  # the only row, if no setting varies
TOTAL = "whole project"  # the last row of a table that has one for all jobs
NOTHING = "–"  # a cell for which no job was run
LOST = ("diverged", "failed", "no result")  # jobs without which a mean would be too good

COSTS = {
    "gpu_hours": "GPU (h)",
    "cpu_hours": "CPU (h)",
    "energy_kwh": "energy (kWh)",
    "peak_device_memory_gb": "GPU memory (GB)",
    "peak_host_memory_gb": "memory (GB)",
    "examples_per_second": "examples/s",
}
"""The columns of a table of costs, by metric."""

TOTALS = ("gpu_hours", "cpu_hours", "energy_kwh")  # those that add up over jobs


@dataclass(frozen=True)
class Cell:
    """A text, and half of the width of its interval if that is symmetric."""

    text: str
    half: str = ""
    bold: bool = False
    chosen: bool = False  # chosen on validation data; marked by a dagger


@dataclass(frozen=True)
class Column:
    """What stands above a column, and above several: their task."""

    title: str
    task: str = ""


@dataclass
class Table:
    """Cells by row and column, and what the caption has to say about them."""

    corner: str  # what stands above the names of the rows
    columns: list[Column] = field(default_factory=list)
    rows: dict[str, list[Cell]] = field(default_factory=dict)
    total: list[Cell] = field(default_factory=list)  # the last row, for the whole project
    records: list[dict[str, Any]] = field(default_factory=list)  # rows of the .csv, one for a cell
    what: str = "Results"  # with which a caption begins: `Test results`
    about: str = ""  # sentences for the caption: what was measured, chosen and compared

    def add(self, column: Column, cells: Iterable[Cell]) -> None:
        """Add a column with a cell for each row."""
        self.columns.append(column)
        for row, cell in zip(self.rows.values(), cells, strict=True):
            row.append(cell)


Tabulating = Callable[[pd.DataFrame], tuple[Table, str]]  # from jobs to a table and its caption


def results(jobs: pd.DataFrame, rows: Sequence[str] = (), shown: Sequence[str] = ()) -> Table:
    """Return the results of settings, a row for each, on all tasks.

    `rows` are the settings with rows of their own, by default as many of those that vary as
    MOST_ROWS allow; for the others, the values with the best validation results are chosen, for
    each task. `shown` are the metrics, by default as many as MOST_COLUMNS allow. The best row by
    validation results has a dagger; it is bold, and so are those whose test results cannot be told
    apart from its own. Raises NoResults if there are no results, SettingsError for an unknown
    setting or metric."""
    _check_rows(rows, jobs)
    every_job = tables.tried(jobs)
    by = [*dict.fromkeys(rows)] or _fitting(jobs, every_job)
    grid, compared = _Grid(every_job, by), dict[str, comparison.Comparison]()
    of_tasks = groups.tasks(grid.jobs)
    columns, others = _columns(of_tasks, jobs, shown)
    for task, own in of_tasks.items():
        voting = groups.choosing(_with_results(own, task))
        if columns[task]:
            compared[task] = comparison.compare(voting, along=by, metric=columns[task][0])
    best = {task: grid.first(each.jobs) for task, each in compared.items()}
    kept = [first for first, _ in best.values()]
    names, fewer = ([*grid.settings], "") if rows else grid.fewer([*grid.settings], kept)
    table = Table(grid.corner, rows={name: [] for name in names})
    metrics = [metric for each in columns.values() for metric in each]
    table.what = f"{WORDS.get(metrics[0].part or '', '')} results".strip().capitalize()
    every, constant, better = list[Sample](), dict[str, list[str]](), dict[str, list[str]]()
    some_left_out = False
    said = {task: compared[task].chosen + best[task][1] for task in best}
    splits = max(each.unlike_splits for each in compared.values())
    for task, (first, _) in best.items():
        alike = grid.alike(names, of_tasks[task], compared[task].jobs)
        for metric in columns[task]:
            each = {name: samples.sample(found, metric) for name, found in alike.items()}
            found = samples.differences(each, first) if metric.part == "test" and first else {}
            every += each.values()
            whole = {n: one for n, one in found.items() if not _lost(alike[n], len(each[n]))}
            same = [name for name, one in whole.items() if one.is_constant]
            unclear = {name for name, one in whole.items() if not one.is_certain}
            bold = (unclear | {first}) - {*same} if found else set()
            column = f"{task} {metric}".strip()
            constant[column] = same
            certain = {n: one.estimate.mean for n, one in whole.items() if one.is_certain}
            better[column] = [n for n, apart in certain.items() if metric.sign * apart > 0]
            some_left_out |= any(one.left_out for one in found.values())
            made = _column(each, alike).items()
            cells = [replace(cell, bold=n in bold, chosen=n == first) for n, cell in made]
            table.add(Column(_title(metric), task), cells)
            for name, one in each.items():
                among = compared[task].among or "1"
                chosen = {"chosen_on_validation": name == first, "among": among}
                record = _record(grid, name, alike[name], task, one, found.get(name), **chosen)
                table.records.append(record)
    some_lack = any(len(each) and not _has_width(each.interval) for each in every)
    geometric = GEOMETRIC * any(metric.log for metric in metrics)
    table.about = _intervals(samples.over(every), some_lack) + geometric + _bold(table)
    table.about += SHARED * some_left_out + _named("Better than †, not bold", better)
    table.about += _constant(constant, "†")
    table.about += _by_task(said) + fewer + others + splits + _confirmed(table, grid.jobs)
    one_each = len(table.columns) == len(best)
    return _turned(table) if one_each and len(table.columns) > MOST_TASKS else table


def _turned(table: Table) -> Table:
    """A table with a row for each task and a column for each of the settings."""
    about = table.about.replace(_bold(table), _bold(table, "columns", "row"))
    titles = {column.title for column in table.columns}
    corner, same = min(titles), len(titles) == 1
    names = [each.task if same else f"{each.task}, {each.title}" for each in table.columns]
    tasks = dict(zip(names, map(list, zip(*table.rows.values(), strict=True)), strict=True))
    heads = [Column(name) for name in table.rows]
    return replace(table, corner=corner if same else "task", columns=heads, rows=tasks, about=about)


def ablation(jobs: pd.DataFrame, baseline: Mapping[str, Any], shown: Sequence[str] = ()) -> Table:
    """Return how results change if one setting of a baseline is changed: the baseline's results,
    and a row for each setting that differs from it, with the difference, or the ratio for a
    logarithmic metric. Differences that test results show are bold.

    Without a baseline, it is the settings with the best validation results. Raises NoResults if no
    jobs differ from it in exactly one setting, SettingsError for an unknown setting or metric."""
    every = tables.tried(jobs)
    grid = _Grid(every, groups.varied(every))
    if not grid.by:
        raise NoResults("no setting varies among the jobs; vary one in run.sh")
    of_tasks = groups.tasks(grid.jobs)
    if not baseline and len(of_tasks) > 1:
        raise NoResults("several tasks have no baseline in common; declare BASELINE in plot.py")
    own = groups.choosing(_with_results(grid.jobs))
    reference = groups.fitting(own, grid.by, baseline) if baseline else grid.first(own)[0]
    if not reference:
        raise NoResults("no results choose a baseline; declare BASELINE in plot.py")
    once = grid.changes(reference)
    if not once:
        line = f"no settings differ from the baseline ({reference}) in exactly one"
        raise NoResults(f"{line}; vary one in run.sh, or declare BASELINE in plot.py")
    names, fewer = grid.fewer([*once])
    changes = {name: once[name] for name in names}
    table = Table("change", rows={name: [] for name in ["baseline", *changes.values()]})
    known, (columns, others) = list[Sample](), _columns(of_tasks, jobs, shown)
    some_left_out, some_lack, splits, constant = False, False, "", dict[str, list[str]]()
    for task, own in of_tasks.items():
        alike = grid.alike([reference, *changes], own, own)
        for metric in columns[task]:
            each = {name: samples.sample(alike[name], metric) for name in (reference, *changes)}
            base, found = each[reference], samples.differences(each, reference)
            alone = [name for name in changes if each[name] and name not in found]
            some_left_out |= any(one.left_out for one in found.values())
            some_left_out |= any(samples.leaves_out(each[name], base) for name in alone)
            pairs = [one.of for one in found.values()]
            pairs += [samples.compared(each[name], base) for name in alone]
            for pair in pairs:
                repeats = (one.results.index.to_frame() for one in pair)
                splits = splits or groups.unlike_splits(repeats)
            known += [base] * base.is_shown
            known += [part for one in found.values() for part in one.of]
            some_lack |= bool(alone) or not all(one.has_interval for one in found.values())
            some_lack |= bool(base) and not _has_width(base.interval)
            widths = [_scaled(one.estimate.interval, each[n]) for n, one in found.items()]
            same = [changes[name] for name, one in found.items() if one.is_constant]
            constant[f"{task} {metric}".strip()] = same
            sizes = [metric.factor * samples.means_apart(*pair) for pair in pairs if all(pair)]
            decimals = None if metric.log else style.decimals(widths, sizes)
            first = _column({reference: base}, alike)[reference]
            cells = [_change(each[n], base, found.get(n), alike[n], decimals) for n in changes]
            table.add(Column(_title(metric), task), [first, *cells])
            for name, one in each.items():
                table.records.append(_record(grid, name, alike[name], task, one, found.get(name)))
    intervals = _intervals(samples.either(one.over for one in known), some_lack)
    some_log = any(metric.log for each in columns.values() for metric in each)
    ratios = ", or ratios (×) to it for a logarithmic metric" * some_log
    table.about = (
        f"Rows below the baseline ({reference}) are differences from it{ratios}."
        f"{SHARED * some_left_out}{intervals}{GEOMETRIC * some_log}{splits}"
    )
    if any(cell.bold for row in table.rows.values() for cell in row):
        level = "5% level for all rows of a column together"
        table.about += f" Bold: what can be told from no difference ({level})."
    table.about += _constant(constant, "the baseline")
    if further := len(grid.settings) - len(once) - 1:
        table.about += f" Not shown: {counted(further, 'setting')} with more than one change."
    table.about += fewer + others + _confirmed(table, grid.jobs)
    return table


def cost(jobs: pd.DataFrame, rows: Sequence[str] = ()) -> Table:
    """Return what a job with each of the settings cost, and what the whole project has cost, with
    the attempts that failed, diverged, became stale or were made by `jobs.py find`. Raises
    NoResults if the jobs have no record of it."""
    jobs = jobs[~jobs["diverged"]]
    _check_rows(rows, jobs)
    by = [*rows] or _fitting(jobs, jobs)
    names = [name for name in COSTS if len(groups.finite(jobs, name))]
    if not names:
        raise NoResults("the jobs have no record of what they cost")
    grid = _Grid(jobs, by)
    shown, fewer = ([*grid.settings], "") if rows else grid.fewer([*grid.settings])
    alike = {name: jobs[grid.labels == name] for name in shown}
    table = Table(grid.corner, rows={name: [] for name in alike})
    table.add(Column("jobs"), [Cell(str(len(found))) for found in alike.values()])
    spent = tables.spent(jobs.attrs["experiment"])
    table.total = [Cell(str(len(spent)))]
    for name in names:
        each = [_cost(found, name) for found in alike.values()]
        decimals = style.decimals(each, [one.mean for one in each if math.isfinite(one.mean)])
        table.add(Column(COSTS[name]), [_price(one.mean, decimals) for one in each])
        whole = math.fsum(groups.finite(spent, name))
        table.records += [
            {"row": plain(row), "cost": name, "mean": one.mean, "jobs": len(found)}
            for (row, found), one in zip(alike.items(), each, strict=True)
        ]
        table.total.append(_price(whole, decimals) if name in TOTALS else Cell(""))
        if name in TOTALS:
            table.records.append({"row": TOTAL, "cost": name, "sum": whole, "jobs": len(spent)})
    devices = ", ".join(sorted(jobs["hardware"].unique()))
    table.about = (
        f"Means of jobs that finished, on {devices}. The last row is the sum over all {len(spent)} "
        f"attempts of the project that were not started over or deleted, whatever became of them."
        f"{fewer}"
    )
    return table


def _cost(jobs: pd.DataFrame, name: str) -> Interval:
    """What a job cost on average, with the interval that decides its number of decimals."""
    known = groups.finite(jobs, name)
    if known.empty:
        return Interval(math.nan, math.nan, math.nan)
    found = mean(known)
    return found.interval if found.is_shown else Interval(found.mean, math.nan, math.nan)


def _price(value: float, decimals: int | None) -> Cell:
    if not math.isfinite(value):
        return Cell(NOTHING)
    least = 10.0 ** -(decimals or 0)
    if decimals is not None and 0 < value < least / 2:
        return Cell(f"<{least:.{decimals}f}")
    return Cell(style.rounded(value, decimals if value < style.LARGE else None))


# Which jobs and metrics a table shows.


@dataclass(frozen=True)
class _Grid:
    """All jobs that were tried, by the settings that have rows of their own."""

    jobs: pd.DataFrame
    by: list[str]

    @property
    def corner(self) -> str:
        words, others = groups.words_first(self.jobs, self.by)
        return ", ".join(map(style.setting, [*words, *others])) or "settings"

    @cached_property
    def labels(self) -> "pd.Series[Any]":
        """The row of each job."""
        return groups.label(self.jobs, self.by).astype(str).replace("", ALL)

    @cached_property
    def settings(self) -> "dict[str, pd.Series[Any]]":
        """The settings of each row."""
        every = groups.groups(self.jobs, self.by)
        kept = self.jobs[self.by].astype(object)  # else 64 beside 0.1 would be 64.0
        return {name or ALL: kept.loc[found.index[0]] for name, found in every.items()}

    def fewer(self, names: list[str], kept: Sequence[str] = ()) -> tuple[list[str], str]:
        """Return as many rows as MOST_ROWS allows, those that are `kept` and those with the best
        validation results if there are any, and a sentence about the others."""
        if len(names) <= MOST_ROWS:
            return names, ""
        first, how = names, ""
        own = groups.choosing(self.jobs[self.jobs["ended"].notna()])
        with suppress(NoResults):
            if len(groups.tasks(own)) == 1:
                ranked = groups.ranked(own, self.by, chooser(own)).values()
                first = [self.labels[jobs.index[0]] for jobs in ranked]
                how = ", with worse validation results or none"
        those = [name for name in dict.fromkeys([*kept, *first]) if name in names][:MOST_ROWS]
        left = f" Not shown: {counted(len(names) - len(those), 'more row')}{how}."
        return [name for name in names if name in those], left

    def alike(
        self, names: Iterable[str], own: pd.DataFrame, chosen: pd.DataFrame
    ) -> dict[str, pd.DataFrame]:
        """Return the jobs of one task by row, those with the settings that were chosen for it."""
        rest = groups.varied(self.jobs)
        found = {}
        for name in names:
            of_row = own[self.labels[own.index] == name]
            kept = of_row.index.intersection(chosen.index)
            if len(kept):
                texts = of_row[rest].map(str)
                of_row = of_row[(texts == texts.loc[kept[0]]).all(axis=1)]
                confirming = groups.confirming(of_row)
                of_row = of_row[confirming] if confirming.any() else of_row
            found[name] = of_row
        return found

    def first(self, jobs: pd.DataFrame) -> tuple[str, str]:
        """Return the row that validation results choose, and a sentence about it; both are empty if
        there is nothing to choose among, or by."""
        if groups.combinations(jobs, self.by) < 2:
            return "", ""
        try:
            metric = chooser(jobs)
        except NoResults:
            return "", " Nothing is marked, since there are no validation results."
        best = next(iter(groups.ranked(jobs, self.by, metric).values()))
        how = f" †: the best by {metric}{comparison.by_median(jobs, metric)}."
        return str(self.labels[best.index[0]]), how

    def changes(self, reference: str) -> dict[str, str]:
        """Return what rows are called that differ from the reference in one setting."""
        base, found = self.settings[reference], {}
        nested = {*self.jobs.attrs.get("nested", ())}
        texts = {name: style.names(own[name] for own in self.settings.values()) for name in self.by}
        for row, own in self.settings.items():
            changed = [name for name in self.by if own[name] != base[name]]
            # Momentum, if only the baseline's optimizer or the other one has any.
            also = {name for name in nested & {*changed} if None in (own[name], base[name])}
            if len({*changed} - also) == 1:
                (name,) = {*changed} - also
                before, after = (texts[name][each[name]] for each in (base, own))
                more = [(style.setting(n), own[n]) for n in sorted(also) if own[n] is not None]
                text = "".join(f", {n} {value}" for n, value in more)
                found[row] = f"{style.setting(name)}: {before} → {after}{text}"
        return found


def _with_results(tried: pd.DataFrame, task: str = "") -> pd.DataFrame:
    found = tried[tried["state"].isin(["finished", "diverged"])]
    if found["diverged"].all():
        cure = "leave it out with ONLY of plot.py"
        raise NoResults(f"no job of {task or 'the task'} has finished; {cure}")
    return found


def _check_rows(rows: Sequence[str], jobs: pd.DataFrame) -> None:
    """Raise SettingsError for settings that cannot have rows: unknown ones, and repeats."""
    where = "ROWS in plot.py, or of a table there"
    require_known(rows, jobs.attrs["settings"], f"{where}: the jobs have no setting {{}}")
    if repeats := [name for name in rows if name in groups.repeated(jobs)]:
        line = "is a repeat, over which a table has means, so it has no rows"
        raise SettingsError(f"{where}: {repeats[0]} {line}")


def _fitting(jobs: pd.DataFrame, every: pd.DataFrame) -> list[str]:
    """As many of the settings that vary as MOST_ROWS allows, at least one; then those in which only
    the jobs without results differ, among `every` job that was tried."""
    varied = groups.varied(jobs)
    (by,) = comparison.distributed(jobs, [MOST_ROWS])
    by = by or varied[:1]
    for name in groups.varied(every):
        if name not in varied and groups.combinations(every, [*by, name]) <= MOST_ROWS:
            by.append(name)
    return by


def _metrics(jobs: pd.DataFrame, shown: Sequence[str]) -> tuple[list[Measured], str]:
    """The metrics on test data, or on validation data if there are no test results, and a sentence
    about those that are not shown."""
    every = declared(jobs)
    require_known(shown, every, "SHOWN in plot.py, or of a table there: no metric {} is declared")
    names = [*shown] or [*every]
    parts: tuple[Part | None, ...] = ("test", "val", None)
    lacking = list[str]()
    for part in parts:
        each = [Measured(name, every[name], part) for name in names]
        found = [metric for metric in each if len(groups.finite(jobs, metric.result))]
        for metric in each:
            known = metric.result in jobs or (found and (shown or metric.of("val").result in jobs))
            lacking += [str(metric)] * bool(metric not in found and known)
        if found:
            return found, f" Without results: {', '.join(lacking)}." * bool(lacking)
    raise NoResults("no finished job has a result of a declared metric")


def _columns(
    tasks: Mapping[str, pd.DataFrame], jobs: pd.DataFrame, shown: Sequence[str]
) -> tuple[dict[str, list[Measured]], str]:
    """The metrics of each task: of those that any of its jobs has, all that are `shown`, or as many
    as MOST_COLUMNS allow, the monitored one and that of --metric first; and sentences about other
    metrics, and tasks that have none."""
    metrics, lacking = _metrics(jobs, shown)
    most = len(metrics) if shown else max(1, MOST_COLUMNS // len(tasks))
    columns = {}
    for task, own in tasks.items():
        known = [m for m in metrics if any(groups.has(own, each) for each in (m, m.of("val")))]
        names = [jobs.attrs.get(SHOWN)]
        with suppress(NoResults):
            names.insert(0, chooser(own).name)
        first = [] if shown else [m for name in names for m in known if m.name == name]
        columns[task] = [*dict.fromkeys([*first, *known])][:most]
    used = [metric for each in columns.values() for metric in each]
    others = ", ".join(str(metric) for metric in metrics if metric not in used)
    without = ", ".join(task for task, each in columns.items() if not each)
    said = f" Not shown: {others}." * bool(others)
    return columns, said + f" Without these metrics: {without}." * bool(without) + lacking


# What stands in cells: one number of decimals in a column, as many as its intervals justify.


def _column(every: Mapping[str, Sample], alike: Mapping[str, pd.DataFrame]) -> dict[str, Cell]:
    known = {name: _scaled(each.interval, each) for name, each in every.items() if each}
    decimals = style.decimals(known.values(), [float(each.mean) for each in known.values()])
    decimals = None if any(each.metric.log for each in every.values()) else decimals
    return {
        name: _lost(alike[name], len(each)) or _cell(known.get(name), decimals, style.rounded)
        for name, each in every.items()
    }


def _scaled(found: Interval, each: Sample) -> Interval:
    """An interval in the unit in which its metric is shown."""
    return found if each.metric.log else Interval(*(each.metric.factor * end for end in found))


def _lost(tried: pd.DataFrame, n: int) -> Cell | None:
    """A cell in place of a mean: what became of jobs without which it would be too good, or of all
    jobs, if none of them has a result."""
    # Short, since it may stand in several columns.
    states = Counter(tried["state"].replace("paused or interrupted", "unfinished"))
    states["no result"] = states.pop("finished", 0) - n
    lost = [state for state in (LOST if n else states) if states[state]]
    each = [f"{states[state]}/{len(tried)} {state}" for state in lost]
    return Cell(", ".join(each)) if each else None


def _cell(
    found: Interval | None, decimals: int | None, text: Callable[[float, int | None, int], str]
) -> Cell:
    """A mean with its interval in this many decimals; if that is None, as many as it needs."""
    if found is None:
        return Cell(NOTHING)
    if decimals is None:
        decimals = style.decimals([found], [found.mean])
    if np.nanmax(np.abs(found)) >= style.LARGE:
        decimals = None
    if not _has_width(found):
        return Cell(text(found.mean, decimals, 3))
    up, down = found.high - found.mean, found.mean - found.low
    larger = abs(found.mean) / (up + down) or 1  # than its interval: by how many times
    digits = 3 + max(0, math.floor(math.log10(larger)))
    middle, *ends = (text(each, decimals, digits) for each in found)
    if decimals is None or not math.isclose(up, down, rel_tol=1e-6):
        return Cell(f"{middle} ({ends[0]} to {ends[1]})")
    half = f"{up:.{decimals}f}"
    return Cell(middle, half if float(half) else f"<{10.0**-decimals:.{decimals}f}")


def _has_width(found: Interval) -> bool:
    """Whether there is an interval, which there is not if all results are the same."""
    return bool(found.high > found.low)


def _change(
    each: Sample, base: Sample, found: Difference | None, tried: pd.DataFrame, decimals: int | None
) -> Cell:
    """How a row differs from the baseline; without an interval if there are too few repeats."""
    log = each.metric.log

    def text(value: float, decimals: int | None, digits: int) -> str:
        """Return a ratio, or a difference with its sign."""
        return f"{'×' if log else '+' if value > 0 else ''}{style.rounded(value, decimals, digits)}"

    if (lost := _lost(tried, len(each))) or base.lost or not (len(each) and len(base)):
        return lost or Cell(NOTHING)
    alone = Interval(samples.means_apart(each, base), math.nan, math.nan)
    cell = _cell(_scaled(found.estimate.interval if found else alone, each), decimals, text)
    # Validation results have chosen the baseline: they cannot tell what differs from it.
    return replace(cell, bold=bool(found and found.is_certain and each.metric.part == "test"))


def _title(metric: Measured) -> str:
    return f"{metric.axis} {'↑' if metric.sign > 0 else '↓'}"


# What the .csv says of cells and differences.


def _record(
    grid: _Grid,
    row: str,
    tried: pd.DataFrame,
    task: str,
    each: Sample,
    difference: Difference | None,
    **more: Any,
) -> dict[str, Any]:
    metric, values, states = each.metric, each.results, Counter(tried["state"])
    found = each.interval if len(each) else Interval(*[math.nan] * 3)
    apart = difference.estimate.interval._asdict() if difference else {}
    if difference and not difference.has_interval:
        apart |= {"low": math.nan, "high": math.nan}
    return {
        "row": plain(row),
        **grid.settings[row],
        "task": task,
        "metric": metric.key,
        "better": metric.declared.better,
        "unit": metric.declared.unit,
        "tried": len(tried),
        **{state: states[state] for state in ("finished", "diverged", "failed")},
        "n": len(each),
        **found._asdict(),
        "interval": f"95% over {each.over}" if _has_width(found) else "",
        "sd": values.std() if len(each) > 1 else math.nan,
        "min": values.min(),
        "max": values.max(),
        "job_ids": " ".join(sorted(tried["job_id"])),
        **more,
        **{f"difference_{name}": value for name, value in apart.items()},
        **({"difference_repeats": difference.n, "adjusted_p": difference.p} if difference else {}),
    }


# Sentences for captions; they begin with a space.


def _intervals(known: str, some_lack: bool = False) -> str:
    lacking = f" Means of fewer than {NEEDED} repeats, or of equal results, have no interval."
    if not known:
        return lacking
    return f" ± and parentheses: 95% intervals over {known}.{lacking * some_lack}"


def _constant(rows: Mapping[str, Sequence[str]], reference: str) -> str:
    """A sentence about the rows of each column that differ by the same amount in all repeats."""
    why = f"as they differ from {reference} by the same amount in all repeats"
    return _named(f"Not compared, {why}", rows)


def _named(said: str, rows: Mapping[str, Sequence[str]]) -> str:
    """A sentence about some rows of each column; empty if there are none."""
    column = len(rows) > 1
    names = [f"{n} ({of})" if column else n for of, each in rows.items() for n in each]
    each = "; ".join(names) if len(names) <= comparison.MOST else f"{len(names)} cells"
    return f" {said}: {each}." * bool(names)


def _by_task(said: Mapping[str, str]) -> str:
    """Sentences about each task, once if they are the same for all."""
    if len({*said.values()}) == 1:
        return next(iter(said.values()))
    return "".join(f" {task[:1].upper()}{task[1:]}:{how}" for task, how in said.items() if how)


GEOMETRIC = " Means of logarithmic metrics are geometric."


def _confirmed(table: Table, jobs: pd.DataFrame) -> str:
    shown = {job for record in table.records for job in record["job_ids"].split()}
    if not jobs.loc[groups.confirming(jobs), "job_id"].isin(shown).any():
        return ""
    which = f"Settings that have seeds from {CONFIRMING:,} on are shown by these jobs alone"
    return f" {which}, which had no part in the choice."


def _bold(table: Table, each: str = "rows", of: str = "column") -> str:
    """What bold cells and dashes are, if there are any."""
    cells = [cell for row in table.rows.values() for cell in row]
    lost = any(cell.text.endswith(LOST) for cell in cells)
    few = any(record["n"] > 0 and not record["interval"] for record in table.records)
    those = f"{each} of {NEEDED} repeats or more" if few else each
    those += ", none of whose jobs has diverged, failed or lacks a result," if lost else ""
    where = f" in each {of} with comparisons" * any(c.chosen > c.bold for c in cells)
    bold = f" Bold{where}: † and all {those} whose test results cannot be told apart from its own"
    bold += f" (5% level for all {each} of a {of} together)."
    dash = f" {NOTHING}: not run."
    return bold * any(c.bold for c in cells) + dash * any(c.text == NOTHING for c in cells)
