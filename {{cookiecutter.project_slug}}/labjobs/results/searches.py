"""Figures of a search: what its trials say of its settings, and what more trials would find.

A trial is one draw of a `search`, or one job that was proposed: all jobs with its settings, which
differ in repeats alone. Its result is the mean over them; if one of them diverged, so has the
trial, which counts as the worst. `halving` and `propose` choose by results, so their trials are no
sample of the ranges: they have neither bands nor tests, and captions say why.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from labjobs.cli.flags import as_text, option
from labjobs.cli.ranges import Range, meaning, parse
from labjobs.job.terminal import counted
from labjobs.results import figures, groups, intervals, samples, style, tables, text
from labjobs.results.metrics import CURE, Measured, NoResults, chooser, shown
from labjobs.results.paper_tables import COSTS
from labjobs.results.plots import OPEN, SINGLE, set_rows
from labjobs.results.style import COLOURS, GREY, Look

Drawn = tuple[Figure, str]
Numbers = NDArray[np.float64]

BEST = 4  # one in how many trials is among the best, which figures highlight
OUTER = 10  # one in how many trials, and at least four, are the outermost ones of a range
PANELS = 12  # the largest number of settings that slices show
COORDINATES = 8  # the largest number of settings with parallel coordinates
MANY = 1000  # trials from which their marks are stored in a PDF as an image
LONG = 100  # trials from which their axis is logarithmic
MARGIN = 0.04  # the part of an axis that is left empty beyond either end of a range
SLOT = 0.5  # the part of the distance between two choices that their trials take

PERMUTATIONS = 999
ENOUGH = 8  # trials from which importances are estimated
BINS = 8  # parts of a range at most, and three at least, with IN_BIN trials each
IN_BIN = 5

# Parallel coordinates, on axes from 0 to 1
ABSENT = -0.3  # where a trial lies that does not have a setting, or has no result
FAINT: dict[str, Any] = {"colors": GREY, "linewidths": 0.5, "alpha": 0.4}
BEST_LINES: dict[str, Any] = {"colors": COLOURS[0], "linewidths": 0.8}
WHITE = {"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 0.5}
BESIDE: dict[str, Any] = {"ha": "left", "va": "center", "bbox": WHITE}

# Columns of a table of trials besides their settings, whose names have no spaces.
INDEX, GENERATION = "index of the draw", "generation of proposals"
RESULT, STATE, HOURS = "result of the trial", "state of the trial", "hours of the trial"


@dataclass(frozen=True, eq=False)
class Search:
    """The trials of one search, a row for each in the order of their draws: their settings, and
    RESULT, NaN if they have none, STATE and HOURS. `ranges` are those of the settings that
    were drawn, and `declared` is how; `name` is empty if there is only one search."""

    name: str
    metric: Measured
    declared: Mapping[str, Any]
    ranges: Mapping[str, Range]
    trials: pd.DataFrame
    means: str = ""  # what each result is a mean of, if it is one: `means of 3 seeds`

    @cached_property
    def results(self) -> Numbers:
        """The results of all trials (N,)."""
        return self.metric.checked(self.trials[RESULT])

    @cached_property
    def order(self) -> NDArray[np.intp]:
        """The places of the trials that have ended, the best first, those that diverged last."""
        ended = np.flatnonzero(self.trials[STATE].isin(["finished", "diverged"]))
        worse = np.nan_to_num(-self.metric.sign * self.results[ended], nan=np.inf)
        return ended[np.argsort(worse, kind="stable")]

    @cached_property
    def best(self) -> NDArray[np.intp]:
        """The places of the best quarter of those that have ended."""
        first = self.order[: -(-len(self.order) // BEST)]
        return first[np.isfinite(self.results[first])]

    @cached_property
    def words(self) -> dict[str, NDArray[Any]]:
        """What was drawn for each setting in each trial (N,), as text; None in trials without."""
        words = self.trials[self.trials.attrs["settings"]].map(as_text).rename(columns=option)
        rows: list[dict[Any, Any]] = words.to_dict("records")
        for row in rows:
            for its in self.ranges.values():
                if not its.holds(row):
                    del row[its.flag]
        each = {name: [row.get(its.flag) for row in rows] for name, its in self.ranges.items()}
        return {name: np.array(words, dtype=object) for name, words in each.items()}

    def places(self, name: str) -> Numbers:
        """Return where the trials lie in the range of a setting (N,), from 0 to 1; NaN in trials
        without it."""
        its, words = self.ranges[name], self.words[name]
        if known := choices([its]):
            return (_of_choices(words, known) + 0.5) / len(known)
        return np.array([np.nan if word is None else its.place(word) for word in words])

    @property
    def selected(self) -> str:
        """Why its trials are no sample of the ranges; empty if they are one."""
        if "proposal" in self.declared:
            return "its settings follow from earlier results"
        stopped = int(self.trials[STATE].str.startswith("stopped").sum())
        return f"halving has stopped {stopped} of its trials" if stopped else ""

    @property
    def biased(self) -> str:
        """Why its trials with results are no sample of the ranges; empty if they are one."""
        missing = len(self.trials) - len(self.order)
        until = "its results decided when it ended" if "until" in self.declared else ""
        some = f"{missing} of its trials have no result" if missing else ""
        return self.selected or until or some


def choices(of: Sequence[Range]) -> dict[Any, int]:
    """Return the choices of ranges by their places, numbers in their order; none if all are
    drawn from intervals."""
    words = [word for its in of for word in its.choices]
    numbers = all(isinstance(meaning(word), float) for word in words)
    each = {meaning(word) if numbers else word for word in words}
    return {value: place for place, value in enumerate(style.names(each))}


def _of_choices(words: NDArray[Any], known: Mapping[Any, int]) -> Numbers:
    """The places of words (N,) among known choices; NaN without a word."""
    places = (known.get(word, known.get(meaning(word or ""), np.nan)) for word in words)
    return np.fromiter(places, dtype=float)


def searches(jobs: pd.DataFrame) -> list[Search]:
    """Return the searches of which jobs are trials. Raises NoResults if there are no validation
    results, or a setting that was drawn does not exist any more."""
    chooser(jobs)
    metric, cost = shown(jobs), cost_of(jobs)
    groups.having(jobs, metric.result)
    every = groups.with_task_of(jobs, tables.tried(jobs))
    every = every[every[tables.SEARCH] != ""]
    draws = [json.loads(draw) for draw in every[tables.SEARCH]]
    every[INDEX] = [draw.pop("index") for draw in draws]
    every[GENERATION] = [draw.pop("generation", 0) for draw in draws]
    keys = pd.Series([json.dumps(draw) for draw in draws], every.index)
    ranges = {key: _ranges(json.loads(key)["ranges"], every) for key in keys.unique()}
    drawn = {name for its in ranges.values() for name in its}
    labels = groups.label(every, [name for name in _chosen(every) if name not in drawn])
    ordered = list[tuple[str, int, Search]]()
    for key, alike in every.groupby(keys, sort=False):
        declared, its = json.loads(str(key)), ranges[str(key)]
        others = [name for name in _chosen(alike) if name not in its]
        for own in groups.groups(alike, others).values():
            line, label = declared.get("proposal", ""), labels[own.index[0]]
            name = ", ".join(filter(None, [line, str(label)])) or "search"
            search = Search(name, metric, declared, its, _trials(own, metric, cost), _means(own))
            ordered.append((line, int(labels.cat.codes[own.index[0]]), search))
    found = [search for *_, search in sorted(ordered, key=lambda each: each[:2])]
    if max(len(each.order) for each in found) < 2:
        line = "fewer than two trials of a search have trained to their end (without those that"
        raise NoResults(f"{line} halving has stopped); draw more in run.sh")
    if len(found) == 1:
        return [replace(found[0], name="")]
    names = [each.name for each in found]
    for place, name in enumerate(names):
        if names.count(name) > 1:
            number = names[: place + 1].count(name)
            found[place] = replace(found[place], name=f"{name} ({number})")
    return found


def _chosen(jobs: pd.DataFrame) -> list[str]:
    """The settings that somebody has varied: not those of which all jobs in which they count have
    the same value."""
    nested = {*jobs.attrs.get("nested", ())}
    return [n for n in groups.varied(jobs) if n not in nested or jobs[n].nunique() > 1]


def _ranges(texts: Mapping[str, str], jobs: pd.DataFrame) -> dict[str, Range]:
    """The ranges of the settings that a search has drawn, except repeats and tasks."""
    found = {flag[2:].replace("-", "_"): parse(flag, text) for flag, text in texts.items()}
    if gone := found.keys() - {*jobs.attrs["settings"]}:
        raise NoResults(f"a search has drawn {min(gone)}, which is no longer a setting")
    others = {*groups.repeated(jobs), *groups.with_role(jobs, "task")}
    return {name: its for name, its in found.items() if name not in others}


def _trials(jobs: pd.DataFrame, metric: Measured, cost: str) -> pd.DataFrame:
    """The jobs of one search by trial, in the order of their draws."""
    by = jobs[INDEX]
    values = jobs[metric.result].where(jobs["state"] == "finished")
    values = values.where(np.isfinite(values))
    lost = jobs["diverged"] | ((jobs["state"] == "finished") & values.isna())
    means = pd.Series(np.log(metric.checked(values)) if metric.log else values).groupby(by).mean()
    lost, ended = lost.groupby(by).any(), values.notna().groupby(by).any()
    trials = jobs.drop_duplicates(INDEX).set_index(INDEX).sort_index()
    state = np.select([lost, ended], ["diverged", "finished"], trials["state"])
    results = (np.exp(means) if metric.log else means).where(~lost)
    hours = jobs.get(cost, values * np.nan).groupby(by).sum(min_count=1)
    return trials.assign(**{STATE: state, RESULT: results, HOURS: hours})


def _means(jobs: pd.DataFrame) -> str:
    """What the results of trials are means of; empty if each trial is one job."""
    finished = jobs[jobs["state"] == "finished"]
    alike = [own for _, own in finished.groupby(INDEX)]
    if max(map(len, alike), default=1) == 1:
        return ""
    unlike = ", not of the same splits in all" * bool(groups.unlike_splits(alike))
    return f"means of {groups.counted(alike, groups.varying_repeats(finished))}{unlike}"


def cost_of(jobs: pd.DataFrame) -> str:
    """Return which costs the jobs have: a column of COSTS."""
    return "gpu_hours" if "gpu_hours" in jobs else "cpu_hours"


def slices(jobs: pd.DataFrame) -> Drawn:
    """Results by each setting that was drawn, in a panel of its own: every trial a mark."""
    every = searches(jobs)
    metric, names = every[0].metric, _drawn(every, PANELS)
    fig, axes = figures.panels([""] * len(names), "", metric)
    looks = style.looks(each.name for each in every)
    for name, ax in zip(names, axes, strict=True):
        own = [each for each in every if name in each.ranges]
        ranges = [each.ranges[name] for each in own]
        known = choices(ranges)
        for each in own:
            _marks(ax, each, _along(each, name, known), looks[each.name])
        _set_range(ax, name, ranges, known)
    cut = figures.limit_to_trials(axes, np.hstack([each.results for each in every]), metric)
    figures.legend(fig)
    return fig, (
        f"{metric.title} by each setting that was drawn, of {_counted(every)}; {_marked(every)}."
        f"{cut}{''.join(map(edges, every))}"
    )


def _drawn(every: Sequence[Search], most: int) -> list[str]:
    """The settings that any of some searches has drawn."""
    names = [*dict.fromkeys(name for each in every for name in each.ranges)]
    if not 0 < len(names) <= most:
        raise NoResults(f"{len(names)} settings were drawn; at most {most} fit")
    return names


def _counted(every: Sequence[Search]) -> str:
    """How many trials each search has."""
    about = {x: ", ".join(filter(None, [x.name, x.means])) for x in every}
    each = [f"{len(x.trials):,} trials{f' ({about[x]})' * bool(about[x])}" for x in every]
    return f"{', '.join(each[:-1])} and {each[-1]}" if len(each) > 1 else each[0]


def _marked(every: Sequence[Search]) -> str:
    """How trials are drawn."""
    lost = sum(int((each.trials[STATE] == "diverged").sum()) for each in every)
    crosses = f", crosses are {counted(lost, 'trial')} that diverged" if lost else ""
    left = sum(len(each.trials) - len(each.order) for each in every)
    unknown = f"; {counted(left, 'trial')} without a result not shown" if left else ""
    return f"the best quarter{' of those with results' * bool(left)} is filled{crosses}{unknown}"


def _along(search: Search, name: str, known: Mapping[Any, int]) -> Numbers:
    """Where trials lie on the axis of a setting (N,): at its value or, of a choice, side by side
    around its place."""
    words = search.words[name]
    if not known:
        return np.array([np.nan if word is None else float(word) for word in words])
    places = _of_choices(words, known)
    for place in known.values():
        alike = np.flatnonzero(places == place)
        places[alike] += SLOT * (np.arange(len(alike)) + 0.5 - len(alike) / 2) / len(alike)
    return places


def _marks(ax: Axes, search: Search, x: Numbers, look: Look) -> None:
    """Draw every trial as an open mark, the best quarter as filled ones, and those that diverged as
    crosses on the worse edge."""
    how: Any = {"color": look.colour, "linestyle": "none", "rasterized": len(x) > MANY}
    lost = (search.trials[STATE] == "diverged").to_numpy()
    edge = 0.02 if search.metric.sign > 0 else 0.98
    ax.plot(x[lost], np.full(lost.sum(), edge), "x", transform=ax.get_xaxis_transform(), **how)
    ax.plot(x, search.results, look.marker, **OPEN, **how)
    y, how["label"] = search.results[search.best], search.name or None
    ax.plot(x[search.best], y, look.marker, markersize=3.5, **how)


def _set_range(ax: Axes, name: str, of: Sequence[Range], known: Mapping[Any, int]) -> None:
    """Label the axis of a setting, which shows the ranges that it was drawn from."""
    ax.set_xlabel(style.setting(name))
    if known:
        ax.set_xlim(-0.6, len(known) - 0.4)
        figures.name_columns(ax, [*style.names(known).values()])
        return
    if any(its.kind.startswith("log") for its in of):
        figures.log_scale(ax.xaxis)
    if all(its.kind != "normal" for its in of):
        scale = ax.xaxis.get_transform()
        low, high = scale.transform(np.array([min(r.low for r in of), max(r.high for r in of)]))
        margin = MARGIN * (high - low) or MARGIN
        ax.set_xlim(*scale.inverted().transform(np.array([low - margin, high + margin])))


def edges(search: Search) -> str:
    """Say at which ends of ranges the best quarter lies: more of the outermost trials belong to it
    than by chance, at a level of 5 % for all ends together."""
    from scipy.stats import hypergeom  # which takes long to import

    said = ""
    for name, its in search.ranges.items():
        places = search.places(name)
        inside = search.order[np.isfinite(places[search.order])]
        near = max(4, len(inside) // OUTER)
        if its.kind in ("choice", "normal") or len(inside) < 2 * near:
            continue
        is_best = np.isin(inside[np.argsort(places[inside], kind="stable")], search.best)
        for end, outermost in {its.low: is_best[:near], its.high: is_best[-near:]}.items():
            chance = hypergeom.sf(outermost.sum() - 1, len(inside), is_best.sum(), near)
            if chance < 2 * intervals.TAIL / (2 * len(search.ranges)):
                of = f" of {search.name}" if search.name else ""
                said += f" The best quarter{of} touches the end of the range of "
                said += f"{style.setting(name)}, {style.number(end)}: a wider one may be better."
    return said


def expected(jobs: pd.DataFrame) -> Drawn:
    """The expected best result by the number of trials, with a band."""
    every = searches(jobs)
    fair = [each for each in every if not each.biased]
    unfair = [f"{each.name or 'the search'}: {each.biased}" for each in every if each.biased]
    if not fair:
        raise NoResults(f"no search is a sample of its ranges ({'; '.join(unfair)})")
    metric, looks = fair[0].metric, style.looks(each.name for each in fair)
    fig, ax = figures.figure("column", 2.4)
    figures.value_axis(ax.yaxis, metric)
    curves = {}
    for each in fair:
        counts = np.unique(np.geomspace(1, len(each.order), intervals.RANKS).astype(int))
        curves[each.name] = counts, *best_of(each.results[each.order], counts)
        line: Any = {"color": looks[each.name].colour, "linestyle": looks[each.name].line}
        ax.plot(counts, curves[each.name][1], label=each.name or None, **line)
    _trial_axis(ax, fair)
    medians = np.concatenate([median for _, median, *_ in curves.values()])
    cut = figures.limit_to_trials([ax], medians, metric, worst=0)
    edges = ax.get_ylim()[:: -metric.sign]
    for name, (counts, _, *ends) in curves.items():
        filled = (np.where(np.isfinite(y), y, edge) for y, edge in zip(ends, edges, strict=True))
        ax.fill_between(counts, *filled, color=looks[name].colour, alpha=0.12, linewidth=0)
        for end in ends:
            ax.plot(counts, end, color=looks[name].colour, linewidth=0.5)
    figures.legend(fig)
    missing = f" No curve, since not a sample of its ranges: {'; '.join(unfair)}." * bool(unfair)
    return fig, (
        f"Best {metric} by the number of trials, as expected from {_counted(fair)}: the "
        f"median, with a 95% band that holds for all numbers of trials at once, whatever the "
        f"distribution of results; where it has no edge line, it is unbounded.{cut}{missing}"
    )


def best_of(results: Numbers, counts: NDArray[np.int_]) -> tuple[Numbers, Numbers, Numbers]:
    """Return the median of the best result of each number of draws (K,), and the better and the
    worse end of its 95 % band, which are NaN where it is unbounded.

    `results` (N,) are those of independent draws, the best first and NaN last if there is none. The
    best of n draws is better than the median if a part p of all draws is better, with (1 - p)ⁿ = ½,
    so a band around the distribution of results is one around that curve: Lourie, Cho and He 2024,
    arxiv.org/abs/2311.09480.
    """
    part, n = 1 - 0.5 ** (1 / counts), len(results)
    ranks, least, most = intervals.of_ranks(n)
    median = results[np.ceil(part * n).astype(int) - 1]
    known = np.array([np.nan, *results[ranks - 1], np.nan])
    better = known[np.searchsorted(most, part, side="right")]
    return median, better, known[np.searchsorted(least, part) + 1]


def _trial_axis(ax: Axes, every: Sequence[Search]) -> None:
    ax.set_xlabel("trials")
    if max(len(each.trials) for each in every) > LONG:
        figures.log_scale(ax.xaxis)
    else:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_xlim(left=0)


def best(jobs: pd.DataFrame) -> Drawn:
    """The best result so far, by the number of trials and by what they cost."""
    every, cost = searches(jobs), COSTS[cost_of(jobs)].split()[0]
    metric, looks = every[0].metric, style.looks(each.name for each in every)
    is_known = all(each.trials[HOURS].notna().any() for each in every)
    fig, axes = figures.panels([""] * (1 + is_known), "", metric)
    for each in every:
        hours = each.trials[HOURS].fillna(0).cumsum().to_numpy()
        for ax, x in zip(axes, (np.arange(1.0, len(hours) + 1), hours), strict=False):
            _marks(ax, each, x, looks[each.name])
            _so_far(ax, each, x, looks[each.name])
    _trial_axis(axes[0], every)
    if is_known:
        axes[1].set_xlabel(f"{cost} hours")
        axes[1].set_xlim(left=0)
    cut = figures.limit_to_trials(axes, np.hstack([each.results for each in every]), metric)
    figures.legend(fig)
    grows = any("proposal" in each.declared for each in every)
    ticks = " Ticks are the first trials of generations." * grows
    unknown = sum(int(each.trials[HOURS].isna().sum()) for each in every)
    free = f" The cost of {counted(unknown, 'trial')} is not known." * bool(is_known and unknown)
    chosen = "".join(f" {x.name or 'The search'}: {x.selected}." for x in every if x.selected)
    return fig, (
        f"{metric.title} of the best of {_counted(every)} so far, in the order of their draws"
        f"{' (a), and by what they cost together (b)' * is_known}: one curve each, without a band;"
        f" {_marked(every)}.{ticks}{free}{cut}{chosen}"
    )


def _so_far(ax: Axes, search: Search, x: Numbers, look: Look) -> None:
    """Draw the best result so far, with a tick where a generation of proposals begins."""
    sign = search.metric.sign
    so_far = sign * np.fmax.accumulate(sign * search.results)
    new = np.flatnonzero(np.diff(search.trials[GENERATION].to_numpy(), prepend=0) > 0)
    line: Any = {"marker": "|", "markevery": [*new]} if len(new) else {}
    line |= {"color": look.colour, "linestyle": look.line, "label": search.name or None}
    ax.plot(x, so_far, drawstyle="steps-post", **line)


def importance(jobs: pd.DataFrame) -> Drawn:
    """How much of the differences between trials each setting explains alone, beside what it would
    explain by chance."""
    every = searches(jobs)
    names = _drawn(every, PANELS)
    found = {each: own for each in every if not each.selected and (own := importances(each))}
    if not found:
        why = max(f": {each.selected}" * bool(each.selected) for each in every)
        raise NoResults(f"importances need {ENOUGH} trials that are a sample{why}")
    rows, small, rare = [style.setting(name) for name in names], list[str](), list[str]()
    label = "fraction of the variance of ranks explained"
    fig, axes = figures.panels([each.name for each in found], label, label, rows)
    for ax, (search, own) in zip(axes, found.items(), strict=True):
        of = f" ({search.name})" * bool(search.name)
        rare += [f"{style.setting(name)}{of}" for name in search.ranges if name not in own]
        for name, (value, null, p) in own.items():
            row = names.index(name)
            small += [f"{style.setting(name)}{of}"] * (p >= samples.LEVEL)
            how: Any = {"orientation": "horizontal", "widths": 0.7, "showextrema": False}
            bodies: Any = ax.violinplot(null, [row], **how)["bodies"]
            bodies[0].set(color=GREY, alpha=0.3, linewidth=0)
            look: Any = SINGLE if p >= samples.LEVEL else {}
            ax.plot(value, row, "o", color=COLOURS[0], **look)
        set_rows(ax, rows)
        ax.set_xlim(0, 1)
    chance = f" Not above chance: {', '.join(small)}." * bool(small)
    chance += f" Drawn in fewer than {ENOUGH} trials: {', '.join(rare)}." * bool(rare)
    return fig, (
        f"How much of the variance of trials' ranks by {every[0].metric} a setting explains alone, "
        f"of {_counted([*found])}; grey is what it explains in {PERMUTATIONS} permutations of the "
        f"results. Filled dots are above chance (5% level for all settings of a search together)."
        f"{chance}"
    )


def importances(search: Search) -> dict[str, tuple[float, Numbers, float]]:
    """The importance of each setting, what it is in permutations of the results, and the
    probability of one as large by chance, adjusted for all settings."""
    found, ranks = dict[str, tuple[float, Numbers]](), np.full(len(search.trials), np.nan)
    worse = np.nan_to_num(-search.metric.sign * search.results[search.order], nan=np.inf)
    ranks[search.order] = pd.Series(worse).rank()
    for name, its in search.ranges.items():
        places = search.places(name)
        inside = np.isfinite(places) & np.isfinite(ranks)
        bins = len(choices([its])) or int(np.clip(inside.sum() // IN_BIN, 3, BINS))
        if inside.sum() >= ENOUGH:
            cells = np.minimum(places[inside] * bins, bins - 1).astype(int)
            found[name] = explained(cells, ranks[inside])
    p = {name: float(np.mean([1, *(null >= value)])) for name, (value, null) in found.items()}
    return {name: (*found[name], adjusted) for name, adjusted in intervals.holm(p).items()}


def explained(cells: NDArray[np.int_], ranks: Numbers) -> tuple[float, Numbers]:
    """Return which fraction of the variance of ranks (N,) lies between the means of cells (N,), the
    main effect of a setting in an analysis of variance (Hutter, Hoos and Leyton-Brown 2014,
    proceedings.mlr.press/v32/hutter14.html); and what it is (P,) where ranks are permuted."""
    known, numbers, counts = np.unique(cells, return_inverse=True, return_counts=True)
    member = np.eye(len(known))[numbers] / np.sqrt(counts)
    centred = ranks - ranks.mean()
    every = np.random.default_rng(0).permuted(np.tile(centred, (PERMUTATIONS, 1)), axis=1)
    total = (centred**2).sum() or 1.0
    between = ((np.vstack([centred, every]) @ member) ** 2).sum(axis=1) / total
    return float(between[0]), between[1:]


def parallel(jobs: pd.DataFrame) -> Drawn:
    """Every trial of a search as a line through its settings and the rank of its result."""
    every = searches(jobs)
    names = _drawn(every, COORDINATES)
    if (count := len(every)) > 1:
        raise NoResults(f"parallel coordinates are of one search, and there are {count}; {CURE}")
    (search,) = every
    fig, ax = figures.figure("full", 2.3)
    axes = {style.setting(name): _coordinate(search, name) for name in names}
    axes[str(search.metric)] = _ranks(search)
    below = ABSENT + 0.1 * np.linspace(0, 1, len(search.trials))
    table = np.stack([np.where(np.isfinite(y), y, below) for y, _ in axes.values()], axis=1)
    is_best = np.isin(np.arange(len(table)), search.best)
    for which, look in ((~is_best, FAINT), (is_best, BEST_LINES)):
        lines = [np.column_stack([np.arange(len(axes)), row]) for row in table[which]]
        ax.add_collection(LineCollection(lines, rasterized=len(table) > MANY, **look))
    wide = 0.9 * 72 * fig.get_figwidth() / len(axes)
    for x, (name, (_, labels)) in enumerate(axes.items()):
        ax.plot([x, x], [0, 1], color="black", linewidth=0.6, zorder=3)
        title = text.wrapped(name, wide, matplotlib.rcParams["font.size"])
        ax.text(x, 1.16, title, ha="center", va="bottom", linespacing=1)
        for y, label in labels.items():
            beside, above = 0 < y < 1, 0.03 * (1 if y == 1 else -1)
            where: Any = BESIDE if beside else {"ha": "center", "va": "bottom" if y == 1 else "top"}
            place = (x + 0.04, y) if beside else (x, y + above)
            ax.text(*place, label, fontsize=matplotlib.rcParams["ytick.labelsize"], **where)
    lowest = min(0 if np.isfinite(y).all() else ABSENT for y, _ in axes.values())
    ax.set(xlim=(-0.5, len(axes) - 0.5), ylim=(lowest - 0.12, 1.16))
    ax.set_axis_off()
    return fig, (
        f"{_counted(every)}, each a line through the settings that were drawn and its rank by "
        f"{search.metric}, the best at the top; the best quarter is coloured."
    )


def _coordinate(search: Search, name: str) -> tuple[Numbers, dict[float, str]]:
    """Where the trials lie on the axis of a setting (N,), and the labels of its places."""
    its = search.ranges[name]
    absent = {ABSENT: "not drawn"} if None in search.words[name] else {}
    if not (known := choices([its])):
        ends = {0.5: its.low} if its.kind == "normal" else {0.0: its.low, 1.0: its.high}
        texts = {place: figures.plain(end) for place, end in ends.items()}
        return search.places(name), texts | absent
    names = enumerate(style.names(known).values())
    places = {(place + 0.5) / len(known): each for place, each in names}
    return (_along(search, name, known) + 0.5) / len(known), places | absent


def _ranks(search: Search) -> tuple[Numbers, dict[float, str]]:
    """Where the trials lie by their ranks (N,), and what the first and the last results are."""
    ranks = np.full(len(search.trials), np.nan)
    known = search.order[np.isfinite(search.results[search.order])]
    ranks[known] = np.linspace(1, 0, len(known))
    first_and_last = search.metric.factor * search.results[known[[0, -1]]]
    ends = [style.rounded(each, None) for each in first_and_last]
    lost = {ABSENT: "no result"} if len(known) < len(ranks) else {}
    return ranks, dict(zip((1, 0), ends, strict=True)) | lost


FIGURES = {
    "search-slices": slices,
    "search-expected": expected,
    "search-best": best,
    "search-importance": importance,
    "search-parallel": parallel,
}
