"""What captions say of jobs, computed again by pandas and SciPy from what was stored.

A caption is taken apart sentence by sentence: each has to be one of those below, and its numbers,
names and signs those that are found here. Nothing of the engine is used.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from odd_grids import DEVICES, Grid
from pytest import approx
from scipy import optimize, stats

CONFIRMING = 4_000_000_000
LABELS = {"lr": "learning rate", "weight_decay": "weight decay", "split_seed": "split seed"}
REPEATS = ("seed", "fold", "split_seed")
SPLITS = ("fold", "split_seed")
ARROWS = ("<", ">", "^", "v")  # at the ends of intervals that go on
BARE = ("model", "optimizer")  # whose values may stand without their names
ENDED = ("finished", "diverged", "unknown")
WORDS = {"val": "validation", "test": "test"}
Name = frozenset[str]
"""The name of a group of jobs, whichever order its settings have: {mlp, learning rate 0.1}."""


@dataclass(frozen=True)
class Metric:
    """A metric on a part of the data."""

    name: str
    declared: Any
    part: str = "val"

    @property
    def text(self) -> str:
        return f"{WORDS[self.part]} {self.declared.label or self.name}"

    @property
    def column(self) -> str:
        return f"best_val_{self.name}" if self.part == "val" else f"test_{self.name}"

    @property
    def log(self) -> bool:
        return self.declared.scale == "log"

    @property
    def factor(self) -> int:
        return 100 if self.declared.scale == "percent" else 1

    @property
    def unit(self) -> str:
        return "%" if self.factor == 100 else self.declared.unit

    @property
    def sign(self) -> int:
        return 1 if self.declared.better == "higher" else -1


def short(value: Any) -> str:
    """A value of a setting, in three digits."""
    if isinstance(value, float):
        return f"{value:.3g}".replace("e-0", "e-")
    return str(value)


def between(counts: Iterable[int]) -> str:
    return "\N{EN DASH}".join(map(str, sorted({min(counts := [*counts]), max(counts)})))


# Means, intervals and tests.


def places(jobs: pd.DataFrame) -> list[str]:
    """The settings by which examples are split differently."""
    return [name for name in SPLITS if name in jobs and jobs[name].nunique() > 1]


def units(values: "pd.Series[float]", jobs: pd.DataFrame, log: bool) -> "pd.Series[float]":
    """One value for each split, or each seed of one split."""
    values = np.log(values) if log else values
    by = places(jobs)
    return values.groupby([jobs[name] for name in by]).mean() if by else values


def overlap(jobs: pd.DataFrame, metric: Metric) -> float:
    """The correction for examples that splits share: none if all have the same test examples, and
    these are known."""
    own = known(jobs, metric)
    if not places(own) or by_example(own, metric) is not None:
        return 0.0
    if metric.part == "test":
        return max(held_out / train for train, held_out in jobs["sizes"])
    return 1 / (jobs["fold"].max() - 1) if "fold" in places(jobs) else 0.2 / 0.8


@dataclass(frozen=True)
class Mean:
    """A mean, or a geometric mean's logarithm, with the variances and degrees of freedom of what it
    is over."""

    middle: float
    parts: list[tuple[float, float]]
    log: bool

    def half(self, tail: float = 0.025) -> float:
        return float(np.sqrt(sum(v * stats.t.isf(tail, n) ** 2 for v, n in self.parts)))

    @property
    def ends(self) -> tuple[float, float, float]:
        three = self.middle, self.middle - self.half(), self.middle + self.half()
        return tuple(np.exp(three)) if self.log else three

    @property
    def p(self) -> float:
        """Twice the tail beyond no difference."""
        if not self.half() > 0:
            return 1.0
        far = abs(self.middle)
        at = lambda tail: self.half(tail) - far  # noqa: E731
        if at(1e-12) < 0:
            return 0.0
        return 1.0 if at(0.5 - 1e-12) > 0 else float(2 * optimize.brentq(at, 1e-12, 0.5 - 1e-12))


def known(jobs: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    return jobs[(jobs["state"] == "finished") & jobs[metric.column].notna()]


def lost(jobs: pd.DataFrame, metric: Metric) -> bool:
    """Whether some of the jobs ended without a result, which counts as the worst."""
    return bool(jobs["state"].isin(ENDED).sum() > len(known(jobs, metric)))


def by_example(jobs: pd.DataFrame, metric: Metric) -> Any:
    """Whether each test example was right in each job (N, jobs); None if that is not the metric."""
    if metric.part != "test" or metric.name != "accuracy" or not jobs["kept"].all():
        return None
    return np.stack([a == b for a, b in zip(jobs["label"], jobs["predicted"], strict=True)], -1)


def example_means(each: Any, jobs: pd.DataFrame) -> Any:
    table = pd.DataFrame(each.T * 1.0, index=jobs.index)
    by = places(jobs)
    return (table.groupby([jobs[n] for n in by]).mean() if by else table).mean().to_numpy()


def mean(jobs: pd.DataFrame, metric: Metric) -> Mean | None:
    """The mean over repeats, and test examples if these are known; None for fewer than three."""
    every, jobs = jobs, known(jobs, metric)
    each = units(jobs[metric.column], jobs, metric.log)
    if len(each) < 3:
        return None
    parts = [(each.var() * (1 / len(each) + overlap(every, metric)), len(each) - 1)]
    if (right := by_example(jobs, metric)) is not None:
        means = example_means(right, jobs)
        parts.append((means.var(ddof=1) / len(means), len(means) - 1))
    return Mean(float(each.mean()), parts, metric.log)


def interval(jobs: pd.DataFrame, metric: Metric) -> tuple[float, float, float]:
    """The mean with its 95 % interval within the range of the metric; NaN where there is none."""
    own = known(jobs, metric)
    if not len(own):
        return (np.nan,) * 3
    each, found = units(own[metric.column], own, metric.log), mean(jobs, metric)
    middle = float(np.exp(each.mean()) if metric.log else each.mean())
    if not found:
        return middle, np.nan, np.nan
    _, low, high = found.ends
    least, most = (end if end is not None else np.inf for end in metric.declared.range)
    right = by_example(own, metric)
    if right is not None and not least <= low < high <= most:  # Korn and Graubard 1998
        n = len(right)
        alike = middle * (1 - middle) * (stats.t.isf(0.025, n - 1) / found.half()) ** 2
        alike, k = (alike, middle * alike) if found.half() else (n, middle * n)
        low = stats.beta.ppf(0.025, k, alike - k + 1) if k else 0.0
        high = stats.beta.ppf(0.975, k + 1, alike - k) if k < alike else 1.0
        return middle, float(low), float(high)
    return middle, max(low, least), min(high, most)


def freedom(each: Any) -> float:
    """The degrees of freedom of a variance, by the kurtosis: O'Neill 2014."""
    n = len(each)
    kurtosis = max(3.0, float(stats.kurtosis(each, fisher=False))) if np.ptp(each) else 3.0
    return 2 * n / (kurtosis - (n - 3) / (n - 1))


def difference(one: pd.DataFrame, other: pd.DataFrame, metric: Metric) -> tuple[Mean, bool] | None:
    """The difference of two means or logarithms, and whether it is paired; None for too few."""
    if not (mean(one, metric) and mean(other, metric)):
        return None
    every, correction = (one, other), max(overlap(one, metric), overlap(other, metric))
    one, other = known(one, metric), known(other, metric)
    by = [name for name in REPEATS if name in one]
    scale = np.log if metric.log else np.asarray
    first, second = (x.set_index(by).sort_index() for x in (one, other))
    shared = first.index.intersection(second.index)
    pairs = [x.loc[shared].reset_index() for x in (first, second)]
    delta = pd.Series(scale(pairs[0][metric.column]) - scale(pairs[1][metric.column]))
    each = units(delta, pairs[0], log=False)
    if paired := len(each) >= 3:
        one, other = pairs
        correction *= bool(places(one))
        parts = [(each.var() * (1 / len(each) + correction), len(each) - 1)]
        middle = each.mean()
    else:
        both = [replace(of, parts=of.parts[:1]) for of in map(mean, every, [metric] * 2)]
        parts = [part for of in both for part in of.parts]
        middle = both[0].middle - both[1].middle
    right = [by_example(x, metric) for x in (one, other)]
    if right[0] is not None and right[1] is not None:
        means = [example_means(*pair) for pair in zip(right, (one, other), strict=True)]
        first, second = (x.iloc[0][["index", "label"]].map(list) for x in (one, other))
        paired &= (same := first.equals(second))
        means = [means[0] - means[1]] if same else means
        parts += [(each.var(ddof=1) / len(each), freedom(each)) for each in means]
    return Mean(float(middle), parts, metric.log), paired


def on_shared(one: pd.DataFrame, other: pd.DataFrame, metric: Metric) -> list[pd.DataFrame]:
    """The jobs with results that have the repeats of both; all if they share none."""
    each = [known(x, metric) for x in (one, other)]
    repeats = [name for name in REPEATS if name in one]
    keys = [x[repeats].astype(str).agg(" ".join, axis=1) if len(x) else x.index for x in each]
    shared = {*keys[0]} & {*keys[1]}
    return [x[key.isin(shared)] for x, key in zip(each, keys, strict=True)] if shared else each


def holm(p: dict[Any, float]) -> dict[Any, float]:
    order = sorted(p, key=lambda name: p[name])
    steps = [min(1.0, (len(p) - rank) * p[name]) for rank, name in enumerate(order)]
    return dict(zip(order, np.maximum.accumulate(steps), strict=True)) if p else {}


def differences(
    groups: "dict[Name, pd.DataFrame]", first: Name, metric: Metric
) -> dict[Name, tuple[Mean, bool, float]]:
    """How groups differ from one of them: with whether it is paired, and its adjusted p."""
    found = {
        name: one
        for name, jobs in groups.items()
        if name != first and (one := difference(jobs, groups[first], metric))
    }
    p = {name: each.p for name, (each, _) in found.items()}
    for name, (each, _) in found.items():
        better = groups[name if metric.sign * each.middle > 0 else first]
        p[name] = 1.0 if lost(better, metric) else p[name]
    adjusted = holm(p)
    return {name: (*found[name], adjusted[name]) for name in found}


# Groups of jobs, and the best of them.


def varied(jobs: pd.DataFrame, settings: Iterable[str]) -> list[str]:
    others = ("dataset", "monitor", *REPEATS)
    return [n for n in settings if n not in others and jobs[n].nunique(dropna=False) > 1]


def label(row: Any, by: list[str]) -> Name:
    """The values of settings, without those that do not count."""
    some = [n for n in by if not pd.isna(row[n])]
    return frozenset(row[n] if n in BARE else f"{LABELS.get(n, n)} {short(row[n])}" for n in some)


def parts_of(text: str) -> Name:
    bare = [part.removeprefix("model ").removeprefix("optimizer ") for part in text.split(", ")]
    return frozenset(bare) - {"", "momentum none"}


def grouped(jobs: pd.DataFrame, by: list[str]) -> dict[Name, pd.DataFrame]:
    names = [label(row, by) for row in jobs.to_dict("records")]
    found = {name: jobs[[each == name for each in names]] for name in dict.fromkeys(names)}
    return {name: own for name, own in found.items() if len(own)}


def lacks(jobs: pd.DataFrame, metric: Metric) -> bool:
    return len(known(jobs, metric)) < len(jobs)


def score(jobs: pd.DataFrame, metric: Metric, by_median: bool) -> tuple[bool, float, float]:
    """What groups are ranked by, higher is better: whether they have a result, then the median, and
    the mean of those whose medians are equal, such as that of lost jobs."""
    own = known(jobs, metric)
    if own.empty:
        return False, 0.0, 0.0
    worst = [-np.inf] * (len(jobs) - len(own))
    median = float(np.median([*(metric.sign * own[metric.column]), *worst])) if by_median else 0.0
    return True, median, metric.sign * float(units(own[metric.column], own, metric.log).mean())


def ranked(groups: dict[Name, pd.DataFrame], metric: Metric) -> list[Name]:
    """The names of groups, the best first, without those that have no results."""
    by_median = any(lacks(jobs, metric) for jobs in groups.values())
    some = {name: jobs for name, jobs in groups.items() if len(known(jobs, metric))}
    return sorted(some, key=lambda name: score(some[name], metric, by_median), reverse=True)


def median_of(jobs: pd.DataFrame, metric: Metric) -> str:
    """How settings are ranked if some jobs lack the metric."""
    lost = jobs.drop(known(jobs, metric).index)
    whose = "diverged jobs"
    if (lost["state"] != "diverged").any():
        whose = f"jobs without a finite {metric.text}"
    return (
        f", ranked by the median with {whose} as the worst, then by the mean" if len(lost) else ""
    )


class Caption:
    """A caption, compared with the jobs of its figure or table."""

    def __init__(self, grid: Grid, text: str, task: str, figure: Any = None) -> None:
        self.grid, self.text, self.figure = grid, text, figure
        every = grid.jobs
        self.tried = every[every["dataset"] == task] if task else every
        self.shown = Metric(grid.shown, grid.metrics[grid.shown])
        self.chooser = Metric(grid.monitored, grid.metrics[grid.monitored])
        ended = self.tried[self.tried["state"].isin(ENDED)]
        voting = ended[ended["seed"] < CONFIRMING]
        self.jobs = voting if len(voting) else ended
        self.rest = self._rest()
        self.by = [n for n in varied(self.jobs, grid.settings) if n not in self.rest]
        self.best = self._chosen()
        self.most = 12
        self.reference: Name | None = None  # the baseline, if differences are shown

    def _rest(self) -> list[str]:
        """The settings for which the best values were chosen."""
        found = re.search(r"Shown is the best of \S+ values of (.+?) by validation", self.text)
        names = {LABELS.get(name, name): name for name in self.grid.settings}
        return [names[each] for each in re.split(", | and ", found[1])] if found else []

    def _chosen(self) -> dict[Name, Name]:
        """The best values of these for each group; their jobs are those that are shown."""
        if not self.rest:
            return {}
        self.among, best, kept = [], {}, []
        for name, own in grouped(self.jobs, self.by).items():
            cells = grouped(own, self.rest)
            by_median = lacks(self.jobs, self.chooser)
            scores = {cell: score(of, self.chooser, by_median) for cell, of in cells.items()}
            first = max(scores, key=lambda cell: scores[cell])
            best[name] = first
            kept.append(cells[first])
            self.among.append(len(cells))
        self.lacking, self.jobs = lacks(self.jobs, self.chooser), pd.concat(kept)
        return best

    @property
    def groups(self) -> dict[Name, pd.DataFrame]:
        return grouped(self.jobs, self.by)

    def ranked(self, metric: Metric | None = None) -> list[Name]:
        """The names of the groups with results in what is shown, the best first by the monitored
        metric; with another `metric`, such as the speed, by that."""
        shown = metric or self.shown
        first = ranked(self.groups, self.chooser if shown == self.shown else shown)
        return [name for name in first if len(known(self.groups[name], shown))]

    def check(self, stem: str, first: str = " ") -> None:
        """Compare each sentence. Raises AssertionError."""
        text = first + self.text
        while text:
            for pattern, test in SENTENCES:
                if found := re.match(pattern, text, re.DOTALL):
                    assert test(self, *found.groups()) is not False, (stem, found[0], self.text)
                    text = text[found.end() :]
                    break
            else:
                raise AssertionError(f"{stem}: no such sentence: {text!r}")

    # What sentences have to be.

    def means(self, metric: Metric) -> str:
        own = [x for jobs in self.groups.values() if len(x := known(jobs, metric))]
        repeats = [n for n in REPEATS if n in self.jobs and self.jobs[n].nunique() > 1]
        best = f"best of {between(self.among)}, " if self.among_many else ""
        if max(map(len, own)) == 1:
            names = [LABELS.get(name, name) for name in repeats or ["seed"]]
            return best + f"one {', '.join(names[:-1])}{' and ' * (len(names) > 1)}{names[-1]}"
        text, by = "", [name for name in repeats if name in SPLITS]
        each = [one for jobs in own for _, one in (jobs.groupby(by) if by else [(0, jobs)])]
        seeds = f"{between(map(len, each))} seeds"
        for name in by:
            many = between(jobs[name].nunique() for jobs in own)
            text = f"{many} {LABELS.get(name, name)}s"
            text += f" with {seeds} each" * (max(map(len, each)) > 1)
        return f"{best}{'geometric ' * metric.log}mean of {text or seeds}"

    @property
    def among_many(self) -> bool:
        return bool(self.rest) and max(self.among) > 1

    def repeats(self, said: str, metric: Metric | None = None) -> None:
        metric = metric or self.shown
        wanted = self.means(metric)
        own = [x for jobs in self.groups.values() if len(x := known(jobs, metric))]
        split = [places(x) for x in own]
        counts = [len(units(x[metric.column], x, log=False)) for x in own]
        if not self.among_many and max(counts) >= 3:
            wanted += f", 95% t interval{' of the logarithm' * metric.log}"
            kind = "split" if ["split_seed"] in split else "fold"
            if any(split):
                wanted += f" over {kind}s, corrected for the examples that they share"
            if any(split) and any(n >= 3 and not by for n, by in zip(counts, split, strict=True)):
                wanted += f", or over seeds where there is one {kind}"
            wanted += " (of three or more)" * (min(counts) < 3)
        assert said == wanted, (said, wanted)

    def first(self, said: str, metric: Metric | None = None, best: str = "best") -> None:
        metric = metric or self.shown
        chooser = self.chooser if metric == self.shown else metric
        some, every = self.ranked(metric), self.groups
        every = every if chooser == metric else some
        shown = min(12, len(some))
        whole = "both" if len(every) == 2 else f"all {len(every)}"
        many = whole if shown == len(every) else f"the {best} {shown} of {len(every)}"
        median = f" by {chooser.text}" * (chooser != metric) + median_of(self.jobs, chooser)
        assert said == ("one setting" if len(every) <= 1 else f"{many} settings{median}"), said

    def title(self, text: str, part: str = "val") -> None:
        wanted = replace(self.shown, part=part).text
        assert text.lower() == wanted.lower(), (text, wanted)

    def of_repeats(self, jobs: pd.DataFrame, metric: Metric) -> str:
        own = known(jobs, metric)
        by = places(own)
        each = [x for _, x in own.groupby(by)] if by else [own]
        text = f"{between(map(len, each))} seeds"
        for name in by:
            more = f" with {text} each" * (max(map(len, each)) > 1)
            text = f"{own[name].nunique()} {LABELS.get(name, name)}s{more}"
        right = by_example(own, metric)
        if right is None:
            corrected = " (corrected for the examples that they share)"
            return text + corrected * (overlap(jobs, metric) > 0)
        return f"{text} and {len(right)} test examples"

    @property
    def tested(self) -> dict[Name, pd.DataFrame]:
        """The groups with test results, the best first by validation."""
        first = self.ranked()[: self.most]
        metric = replace(self.shown, part="test")
        return {name: self.groups[name] for name in first if len(known(self.groups[name], metric))}

    def intervals_over(self, said: str, samples: "list[tuple[pd.DataFrame, Metric]]") -> None:
        each = [*dict.fromkeys(self.of_repeats(*one) for one in samples if mean(*one))]
        found = said.split(" or ")
        few = ["others"] * (len(each) > 6)
        assert {*found} <= {*each, *few} and len(found) == len(each[:6] + few), (said, each)

    def over(self, said: str) -> None:
        """What intervals are over: those of results, or of differences from a baseline."""
        metric, each = replace(self.shown, part="test"), [*self.tested.values()]
        if self.reference:
            each, first = [], self.groups[self.reference]
            for name in differences(self.tested | {self.reference: first}, self.reference, metric):
                whole = self.groups[name], first
                shared = on_shared(*whole, metric)
                enough = len(units(shared[0][metric.column], shared[0], metric.log)) >= 3
                each += shared if enough and all(map(len, shared)) else whole
        self.intervals_over(said, [(own, metric) for own in each])

    def leaves_out(self) -> None:
        """Whether some repeats of two settings are not shared."""
        reference = self.ranked()[0] if self.reference is None else self.reference
        metric, first = replace(self.shown, part="test"), self.groups[reference]
        pairs = [(known(own, metric), known(first, metric)) for own in self.tested.values()]
        assert any(len(on_shared(*pair, metric)[0]) < max(map(len, pair)) for pair in pairs)

    def untested(self, said: str) -> None:
        """Jobs with a result on validation data and none on test data."""
        metric, wanted = replace(self.shown, part="test"), set()
        own = {name: known(jobs, self.shown) for name, jobs in self.groups.items()}
        counts = {name: (len(x) - len(known(x, metric)), len(x)) for name, x in own.items()}
        wanted = {(name, *n) for name, n in counts.items() if n[0]}
        one = r"(\d+) of (\d+) jobs?(?: \((.*)\))?"
        each = [re.fullmatch(one, part).groups() for part in said.split("; ")]
        if len(wanted) > 6:
            wanted = {(frozenset(), *(sum(n[k] for n in counts.values()) for k in (0, 1)))}
        assert {(parts_of(name or ""), int(k), int(n)) for k, n, name in each} == wanted, (
            said,
            wanted,
        )

    def few(self, said: str) -> None:
        metric = replace(self.shown, part="test")
        self.listed(said, [n for n, own in self.tested.items() if not mean(own, metric)])

    def listed(self, said: str, names: "list[Name]") -> None:
        if re.fullmatch(r"\d+ settings", said):
            assert len(names) == int(said.split()[0]) > 6, (said, names)
        else:
            assert {*map(parts_of, said.split("; "))} == {*names}, (said, names)

    def apart(self, said: str) -> None:
        metric = replace(self.shown, part="test")
        first = self.ranked()[0]
        found = differences({**self.tested, first: self.groups[first]}, first, metric)
        kinds: dict[str, list[Name]] = {}
        for name, (each, _, p) in found.items():
            better = "Better" if metric.sign * each.middle > 0 else "Worse"
            same = each.middle != 0 and not each.half() > 0
            kind = "Differ" if same else better if p < 0.05 else "Cannot"
            kinds.setdefault(kind, []).append(name)
        body, how = re.fullmatch(
            r"(.*) \((paired by repeat|not all paired); .*\)", said, re.S
        ).groups()
        assert (how == "paired by repeat") == all(each[1] for each in found.values()), said
        sentences = re.split(r"\. (?=Better|Worse|Cannot|Differ)", body)
        assert {each.split()[0] for each in sentences} == {*kinds}, (said, kinds)
        for each in sentences:
            start, names = each.split(": ", 1)
            assert f"({' '.join([])}" in start and metric.text in start
            reference = re.search(r"than the first \((.*)\)|from the first \((.*?)\) in", start)
            assert parts_of(next(filter(None, reference.groups()))) == first
            self.listed(names, kinds[each.split()[0]])

    def baseline(self, said: str) -> None:
        first, metric = self.ranked()[0], replace(self.shown, part="test")
        assert parts_of(said) == first
        self.reference = first
        found = differences({**self.tested, first: self.groups[first]}, first, metric)
        for name, dots in self.rows():
            each, _, p = found[name]
            assert [x for x, _ in dots] == approx([each.ends[0]]), (name, dots, each.ends)
            assert [filled for _, filled in dots] == [p < 0.05], (name, p)

    def rows(self) -> "Iterable[tuple[Name, list[tuple[float, bool]]]]":
        """The rows that are drawn, and where their dots are, and whether these are filled."""
        if self.figure is None:
            return
        axis = self.figure.axes[0]
        single = [
            (float(line.get_xdata()[0]), float(line.get_ydata()[0]), line)
            for line in axis.lines
            if len(line.get_xdata()) == 1 and line.get_marker() not in ARROWS
        ]
        for row, tick in enumerate(axis.get_yticklabels()):
            own = [(x, line) for x, y, line in single if abs(y - row) < 0.5]
            dots = [(x, line.get_markerfacecolor() != "white") for x, line in own]
            yield parts_of(" ".join(tick.get_text().split())), dots

    def choice(self, among: str, _names: str, metric: str, median: str, named: str) -> None:
        assert among == between(self.among) and metric == self.chooser.text
        assert bool(median) == self.lacking
        counts = Counter(self.best.values())
        if len(counts) == 1:
            assert parts_of(named) == next(iter(counts)), (named, counts)
        elif len(self.best) <= 6:
            for each in named.split("; "):
                chosen, cell = re.fullmatch(r"(.*) \(for (.*)\)", each).groups()
                assert self.best[parts_of(cell)] == parts_of(chosen), (each, self.best)
        else:
            for each in filter("…".__ne__, named.split("; ")):
                chosen, n, of = re.fullmatch(r"(.*) \((\d+) of (\d+)\)", each).groups()
                assert (counts[parts_of(chosen)], len(self.best)) == (int(n), int(of)), named

    def differ(self, said: str) -> None:
        """What the figure does not distinguish differs between its groups, not within them."""
        names = {LABELS.get(name, name): name for name in self.grid.settings}
        rest = [names[each] for each in re.split(", | and ", said)]
        by = [name for name in self.by if name not in rest]
        one = self.jobs.astype(object).groupby(by, dropna=False)[rest].nunique(dropna=False)
        assert rest and (one == 1).all(axis=None), (said, one)
        self.by = by

    def left_out(self, why: str, metric: str | None, said: str) -> None:
        assert metric in (None, self.shown.text), said
        wanted = {}
        for name, own in self.groups.items():
            diverged = int((own["state"] == "diverged").sum())
            unknown = len(own) - diverged - len(known(own, self.shown))
            if lost := unknown if metric else diverged:
                wanted[name] = (lost, len(own))
        one = r"(\d+) of (\d+) jobs?(?: \((.*)\))?"
        each = [re.fullmatch(one, part).groups() for part in said.split("; ")]
        found = {parts_of(name or ""): (int(k), int(n)) for k, n, name in each}
        if len(wanted) > 6:
            lost, every = sum(k for k, _ in wanted.values()), len(self.jobs)
            assert [*found.values()] == [(lost, every)], (said, wanted)
            return
        assert found == wanted, (why, said, wanted)

    def failed(self, said: str) -> None:
        jobs = self.tried[self.tried["state"] == "failed"]
        counts = {name: len(own) for name, own in grouped(jobs, self.by).items()}
        one = r"(\d+) jobs?(?: \((.*)\))?"
        each = [re.fullmatch(one, part).groups() for part in said.split("; ")]
        found = {parts_of(name or ""): int(n) for n, name in each}
        assert found == (counts if len(counts) <= 6 else {frozenset(): len(jobs)}), (said, counts)

    def beyond(self, said: str) -> None:
        """How many values are beyond the axes: the points that are drawn, single jobs and means."""
        if self.figure is None:
            return
        axis = self.figure.axes[0]
        if "by optimizer step" in self.text:
            jobs, (low, high) = known(self.jobs, self.shown), axis.get_ylim()
            values = np.concatenate([row[f"val_{self.shown.name}"] for row in jobs["curves"]])
        elif "Nothing is chosen by test results" in self.text:
            (low, high), test = axis.get_xlim(), replace(self.shown, part="test")
            first = self.ranked()[:12]
            some = [
                known(self.groups[name], m)[m.column]
                for name in first
                for m in (self.shown, test)
                if m.column in self.jobs
            ]
            values = np.concatenate(some)
        else:
            return
        part = ((values < low) | (values > high)).mean()
        assert said == (f"{part:.1%}" if part >= 0.0005 else "less than 0.1%") and part, (
            said,
            part,
        )

    def have_reached(self, count: str, of: str) -> None:
        reached = self.reached(self.target())
        assert (int(count), int(of)) == (int(reached.sum()), len(reached)), (count, of)

    def target(self) -> Metric:
        return self.chooser

    def reached(self, metric: Metric) -> "pd.Series[bool]":
        def there(row: Any) -> bool:
            values = np.array(row["curves"][f"val_{metric.name}"]) * metric.sign
            return bool((values >= metric.sign * metric.declared.target).any())

        return self.jobs.apply(there, axis=1)

    def goal(self, title: str, goal: str) -> None:
        metric = self.target()
        number = f"{metric.factor * metric.declared.target:.3g}"
        unit = metric.unit if metric.unit in ("", "%") else f" {metric.unit}"
        wanted = f"{'≥' if metric.sign > 0 else '≤'} {number}{unit}"
        assert (title, goal) == (metric.text, wanted), (title, goal, wanted)

    def hardware(self, said: str) -> None:
        jobs = self.jobs
        assert {*said.split(", ")} == {*jobs["device"]}, (said, {*jobs["device"]})

    def wrong(self, wrong: str, count: str, job: str, of: str, metric: str, what: str) -> None:
        row = self.tried.set_index("job_id").loc[job]
        assert int(wrong) == (row["label"] != row["predicted"]).sum() and int(count) == 40
        some = known(self.jobs, self.chooser).set_index("job_id")
        best = (self.chooser.sign * some[self.chooser.column]).idxmax()
        assert (job, int(of), metric) == (best, len(self.jobs), self.chooser.text)
        settings = dict.fromkeys([*varied(self.jobs, self.grid.settings), *self.varying])
        assert parts_of(what or "") == label({**row}, [*settings]), (what, settings)

    @property
    def varying(self) -> list[str]:
        return [n for n in REPEATS if n in self.jobs and self.jobs[n].nunique() > 1]

    def about(self, said: str, every: pd.DataFrame | None = None) -> None:
        jobs = self.behind
        wanted = []
        for name in ("dataset", "model"):
            if jobs[name].nunique() == 1:
                wanted.append(f"{name} {jobs[name].iloc[0]}")
        train = between(each[0] for each in jobs["sizes"])
        wanted.append(f"{train} training, 40 validation and 40 test examples")
        if not places(jobs):
            wanted.append("one split")
        text = ", ".join(wanted)
        assert said == text[0].upper() + text[1:], (said, text)

    @property
    def behind(self) -> pd.DataFrame:
        """The jobs behind the figure, before something is chosen."""
        ended = self.tried[self.tried["state"].isin(ENDED)]
        voting = ended[ended["seed"] < CONFIRMING]
        return voting if len(voting) else ended

    def devices(self, said: str) -> None:
        counts = Counter(self.behind["device"])
        wanted = ", ".join(f"{counts[name]} on {name}" for name in DEVICES)
        assert said == wanted, (said, wanted)

    def confirming(self, count: str) -> None:
        ended = self.tried[self.tried["state"].isin(ENDED)]
        assert int(count) == (ended["seed"] >= CONFIRMING).sum()

    def diverged(self) -> None:
        assert (self.tried["state"] == "diverged").any()

    def constant(self, said: str) -> None:
        first, metric = self.ranked()[0], replace(self.shown, part="test")
        found = differences({**self.tested, first: self.groups[first]}, first, metric)
        self.listed(said, [n for n, (each, *_) in found.items() if not each.half() > 0])

    def all_finished(self, tried: str) -> None:
        assert {*self.tried["state"]} <= {"finished", "unknown"}
        assert int(tried) == len(self.tried)

    def counts(self, tried: str, finished: str, why: str) -> None:
        states = Counter(self.tried["state"].replace("unknown", "finished"))
        states["paused or interrupted"] = states.pop("paused", 0)
        each = {name: n for name, n in sorted(states.items()) if n and name != "finished"}
        assert (int(tried), int(finished)) == (len(self.tried), states["finished"]), (tried, states)
        assert why == ", ".join(f"{n} {name}" for name, n in each.items()), (why, each)


class OfOne(Caption):
    """The caption of a figure of the best job."""

    @property
    def behind(self) -> pd.DataFrame:
        job = re.search(r"job (\w+)", self.text)[1]
        return self.tried[self.tried["job_id"] == job]


Test = Callable[..., Any]


def _curves(c: Caption, title: str, repeats: str, single: str) -> None:
    c.title(title)
    c.repeats(repeats)
    assert bool(single) == ("mean" in repeats)


def _results(c: Caption, title: str, repeats: str, crosses: str) -> None:
    c.title(title)
    c.repeats(repeats)
    assert bool(crosses) == (c.jobs["state"] == "diverged").any()


def _map(c: Caption, title: str, means: str) -> None:
    c.title(title)
    assert means == c.means(c.shown), (means, c.means(c.shown))


def _ranking(c: Caption, title: str, first: str, repeats: str) -> None:
    c.title(title)
    c.first(first)
    c.repeats(repeats)
    assert c.figure is None or [n for n, _ in c.rows()] == c.ranked()[:12]
    for name, dots in c.rows():
        for metric in (c.shown, replace(c.shown, part="test")):
            if metric.column in c.jobs and len(known(c.groups[name], metric)):
                mean = interval(c.groups[name], metric)[0]
                assert any(x == approx(mean) for x, _ in dots), (name, metric.text, mean, dots)


def _throughput(c: Caption, devices: str, first: str, repeats: str) -> None:
    speed = Metric("speed", replace(c.shown.declared, scale="linear", better="higher"))
    c.jobs = c.jobs[c.jobs["state"] != "diverged"].assign(best_val_speed=1.0, state="finished")
    c.by = varied(c.jobs, c.grid.settings) + ["device"] * (c.jobs["device"].nunique() > 1)
    c.hardware(devices)
    c.first(first, speed, "fastest")
    c.repeats(repeats, speed)


def _costs(c: Caption, title: str, devices: str, repeats: str) -> None:
    c.title(title)
    c.hardware(devices)
    c.repeats(repeats)


def _reached(c: Caption, title: str, goal: str, devices: str, interval: str) -> None:
    c.goal(title, goal)
    c.hardware(devices)
    assert bool(interval) != c.among_many
    for line in c.figure.axes[0].lines if c.figure else ():
        name = line.get_label()
        own = c.groups[parts_of("" if name.startswith("_") else name)]  # matplotlib's: it has none
        assert line.get_ydata()[-1] == approx(c.reached(c.target())[own.index].mean())


def _early(c: Caption) -> None:
    ends = [
        {len(row) for row in known(own, c.shown)["curves"].map(lambda x: next(iter(x.values())))}
        for own in c.groups.values()
    ]
    assert max(map(len, ends)) > 1


M, R = r"((?:Validation|Test|validation|test) [\w-]+)", r"(.+?)"
SENTENCES: list[tuple[str, Test]] = [
    (rf" {M} by optimizer step: {R}(; single jobs are faint)?\.(?= |$)", _curves),
    (
        rf" {M} of the weights kept: {R}; open points are single jobs"
        r"(, crosses jobs that diverged)?\.",
        _results,
    ),
    (rf" {M} of the weights kept: {R}; brighter is better\.", _map),
    (
        rf" {M} of the weights kept, by the mean cost of a job on {R}: {R}\. No other settings are "
        r"both cheaper and better than those on the line\.",
        _costs,
    ),
    (
        r" Training examples per second in the last evaluation interval, on (.+?), of (.+?): "
        r"(.+?); open points are single jobs\.",
        _throughput,
    ),
    (
        rf" {M} of (.+?): (.+?); open points are single jobs\. Nothing is chosen by test results\.",
        _ranking,
    ),
    (
        r" Test results compared with those of the baseline \((.*?)\), with 95% intervals; filled "
        r"dots can be told from no difference \(5% level for all together\)\.",
        Caption.baseline,
    ),
    (
        rf" Fraction of jobs that have reached a {M} of (.+?), by the time of training and "
        r"evaluation on (.+?)(, with its exact 95% binomial interval from the first on)?\.(?= \d)",
        _reached,
    ),
    (r" (\d+) of (\d+) jobs have reached it\.", Caption.have_reached),
    (r" Test intervals are over (.+?)\.(?= |$)", Caption.over),
    (r" Differences are over the repeats that both have\.", Caption.leaves_out),
    (
        r" Differ by the same amount in all repeats, so not tested: (.+?)\.(?= [A-Z]|$)",
        Caption.constant,
    ),
    (r" No finite test [\w-]+, which counts as the worst: (.+?)\.(?= |$)", Caption.untested),
    (
        r" Fewer than 3 repeats, so neither interval nor comparison: (.+?)\.(?= [A-Z]|$)",
        Caption.few,
    ),
    (
        r" ((?:Better in|Worse in|Cannot be told apart|Differ from)"
        r".+?5% level for all comparisons together\))\.",
        Caption.apart,
    ),
    (
        r" Shown is the best of (\S+) values of (.+?) by ((?:validation) [\w-]+)(, ranked by the "
        r"median with (?:diverged jobs|jobs without a finite [\w -]+) as the worst, then by the "
        r"mean)?: "
        r"(.+?)\.(?= [A-Z]|$)",
        Caption.choice,
    ),
    (r" The jobs differ in (.+?) as well\.", Caption.differ),
    (
        r" (Diverged, so left out of means|No finite (.+?), left out of its means): "
        r"(.+?)\.(?= [A-Z]|$)",
        Caption.left_out,
    ),
    (r" Failed, so in no mean: (.+?)\.(?= [A-Z]|$)", Caption.failed),
    (r" Not all have the same splits, which may be unequally hard\.", lambda c: None),
    (r" (\S+%|Less than 0\.1%) of all values are beyond the axis\.", Caption.beyond),
    (r" (?:Arrows show where the|The) edges of the axes cut intervals off\.", lambda c: None),
    (r" Means end where the first of their jobs ends\.", _early),
    (r" Jobs that diverged are left out\.", Caption.diverged),
    (r" Series are moved sideways, so that none hides another\.", lambda c: None),
    (
        r" Test examples by true and predicted class, coloured by their fraction of the true "
        r"class; (\d+) of (\d+) misclassified: job (\w+), the best of (\d+) by ([\w -]+?)"
        r"(?: \((.*?)\))?\.",
        Caption.wrong,
    ),
    (
        r" ((?:Dataset|Model|\d+[\d\N{EN DASH}]* training).+?examples(?:, one split)?)\.",
        Caption.about,
    ),
    (r" The jobs ran on different kinds of devices: (.+?)\.(?= |$)", Caption.devices),
    (r" Not shown: (\d+) jobs? with the seeds of confirm\.", Caption.confirming),
    (r" Of (\d+) jobs tried, (\d+) finished: (.+?)\.$", Caption.counts),
    (r" (\d+) jobs? tried; all finished\.$", Caption.all_finished),
]
