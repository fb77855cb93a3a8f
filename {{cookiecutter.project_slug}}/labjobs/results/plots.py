"""What is drawn on axes, from tables of jobs and their curves.

Every function shows all results: each seed in addition to the mean, its interval, and jobs that
diverged or never reached a target. Metrics with a logarithmic scale have geometric means.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.image import AxesImage
from numpy.typing import ArrayLike, NDArray

from labjobs.results import groups, intervals, style, tables, text
from labjobs.results.figures import INTERVAL, LABEL, Plain, log_scale, name_columns
from labjobs.results.intervals import Interval
from labjobs.results.metrics import Measured, NoResults
from labjobs.results.samples import Difference, Sample, sample
from labjobs.results.style import GREY, PLAIN, Look

Jobs = Mapping[str, pd.DataFrame]  # by the name of the series or row that they are
Samples = Mapping[str, Sample]

OPEN: dict[str, Any] = {"markersize": 3, "markerfacecolor": "white", "markeredgewidth": 0.6}

SINGLE: dict[str, Any] = {"markerfacecolor": "white", "markeredgewidth": 0.8}  # a mean of one job

MANY = 10_000  # points from which faint curves are an image in a PDF, so that it stays small
SLOTS = 0.5  # fraction of the distance between two positions that the series around a position take
WIDEST = 0.1  # fraction of the axis, at most: no series should seem to have another value
DECADE = 10  # ratio of the largest to the smallest value from which an axis is logarithmic
FILLED = 0.5  # fraction of a map's cells that must have a value
LONGEST = 16  # characters of a class's name, at most


def bands(ax: Axes, curves: pd.DataFrame, label: str, metric: Measured, look: Look = PLAIN) -> None:
    """Draw repeated curves faintly, their mean over them, and its 95 % t interval as a band.

    curves: columns job_id, step (whole numbers), value and perhaps `at`, the place of a step, which
    is that of the mean over jobs for their mean. Mean and band end where the first curve
    ends, and the band stays within the metric's range. Fewer than three curves have no band. Raises
    NoResults if the curves have no step in common, as with folds of different sizes."""
    each = curves.assign(at=curves.get("at", curves["step"]), moment=tables.moments(curves))
    table = each.pivot(index="moment", columns="job_id", values=["value", "at"])
    places, values = table["at"].to_numpy(dtype=float), metric.checked(table["value"])
    whole = np.isfinite(values).all(axis=1)
    if (each.groupby("moment").size() < values.shape[1]).all():
        whose = f" ({label})" if label else ""
        cure = "give --eval-every in steps, such as 50, or draw them along epochs (ALONG)"
        raise NoResults(f"the jobs{whose} have values at different steps; {cure}")
    steps = places.mean(axis=1)
    of = curves.drop_duplicates("job_id").set_index("job_id").loc[table["value"].columns]
    splits = groups.split_means(values[whole], of, metric.log)
    estimate = intervals.mean(splits, metric.log, groups.overlap(of))
    found, has_interval = estimate.interval, look.interval and estimate.is_shown
    low, high = np.clip(found[1:], *metric.bounds(values))
    lines = [np.column_stack(pair) for pair in zip(places.T, values.T, strict=True)]
    faint: Any = {"colors": look.colour, "linewidths": 0.4, "alpha": 0.45}
    ax.add_collection(LineCollection(lines, rasterized=values.size > MANY, **faint))
    if has_interval:
        ax.fill_between(steps[whole], low, high, color=look.colour, alpha=0.15, linewidth=0)
    marker = look.marker if whole.sum() == 1 else None
    if marker:  # neither lines nor bands have a single step
        ax.plot(places, values, "o", color=look.colour, **OPEN)
        if has_interval:
            ax.vlines(steps[whole], low, high, color=look.colour, linewidth=0.7)
    line = {"color": look.colour, "linestyle": look.line, "marker": marker, "label": label}
    ax.plot(steps[whole], found.mean, **line)
    ax.autoscale_view()
    ax.locator_params(axis="x", integer=True, nbins=5)


def points(
    ax: Axes, jobs: Jobs, x: str, metric: Measured, drawn: Mapping[str, Look] | None = None
) -> None:
    """Draw the results of series of jobs, by their names, against a setting `x`: each job an open
    point, and the means of several filled points with 95 % t intervals, joined by a line.

    Series stand side by side around their place, and the points of a mean to its right, so that
    nothing hides another. The axis is logarithmic if values span a decade, with a place for 0
    beside the smallest. A job that diverged is a cross on the worse edge."""
    values = np.unique([value for own in jobs.values() for value in own[x]])
    least = min((value for value in values if value), default=0)
    if values[0] >= 0 and least and values[-1] >= DECADE * least:
        log_scale(ax.xaxis)
        if not values[0]:
            ax.set_xscale("symlog", linthresh=least)
    scale = ax.xaxis.get_transform()

    def beside(value: Any, aside: Any) -> Any:
        """Return positions next to a value, by offsets on the axis."""
        return scale.inverted().transform(scale.transform(np.array([value])) + aside)

    gaps = np.diff(scale.transform(values))
    gap = gaps.min() if len(gaps) else 1.0
    margin = max(0.7 * gap, 0.05 * gaps.sum())
    step = min(SLOTS * gap / len(jobs), WIDEST * (gaps.sum() + 2 * margin))
    ax.set_xlabel(style.setting(x))
    ax.set_xlim(*beside(values[0], -margin), *beside(values[-1], margin))
    edge, height = ax.get_xaxis_transform(), 0.02 if metric.sign > 0 else 0.98
    for index, (name, look) in enumerate((drawn or style.looks(jobs)).items()):
        aside, means = (index - (len(jobs) - 1) / 2) * step, []
        for value, repeated in jobs[name].groupby(x):
            found, diverged = sample(repeated, metric), int(repeated["diverged"].sum())
            lost, kept = (
                beside(value, aside + step * np.linspace(0.25, 0.7, count))
                for count in (diverged, len(found))
            )
            ax.plot(lost, [height] * diverged, "x", color=look.colour, transform=edge)
            if not len(found):
                continue
            (place,) = beside(value, aside)
            mean, low, high = found.interval
            means.append((place, mean))
            if len(found) > 1:
                ax.plot(kept, found.results, look.marker, color=look.colour, **OPEN)
            if look.interval:
                ax.plot([place] * 2, [low, high], color=look.colour, linewidth=0.7, gid=INTERVAL)
            if len(found) == 1:
                ax.plot(place, mean, look.marker, color=look.colour, zorder=4, **SINGLE)
        line: Any = {"color": look.colour, "linestyle": look.line if look.joined else "none"}
        ax.plot(*np.reshape(means, (-1, 2)).T, marker=look.marker, label=name, zorder=3, **line)


def heatmap(ax: Axes, rows: Jobs, x: str, metric: Measured) -> None:
    """Draw the mean result for each row of jobs, by their names, and each value of a setting `x` as
    a map of colours: better is brighter, with the number in each cell that is wide enough. A cell
    without a result has a dash. Raises NoResults if most cells have none."""
    columns = style.names(value for row in rows.values() for value in row[x])
    grid, spans = np.full((len(rows), len(columns)), np.nan), list[Any]()
    for place, row in enumerate(rows.values()):
        for column, value in enumerate(columns):
            found = sample(row[[each == value for each in row[x]]], metric)
            if len(found):
                grid[place, column] = found.interval.mean
                spans.append(metric.factor * np.array(found.interval))
    if np.isfinite(grid).mean() < FILLED:
        known = f"only {np.isfinite(grid).sum()} of {grid.size} pairs have a result"
        raise NoResults(f"{known}, too few for a map; make a grid of two settings in run.sh")
    colours = "viridis" if metric.sign > 0 else "viridis_r"
    image = ax.imshow(grid, cmap=colours, norm="log" if metric.log else None, aspect="auto")
    text.name_rows(ax, list(rows))
    ax.set_xlabel(style.setting(x))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    cell = name_columns(ax, list(columns.values()))
    shown = (metric.factor * grid).ravel()
    digits = None if metric.log else style.decimals(spans, shown[np.isfinite(shown)])
    texts = [style.rounded(value, digits).replace("nan", "–") for value in shown.tolist()]
    if not _fill_cells(ax, image, texts, cell):
        fig, ticks = text.figure_of(ax), Plain(metric.factor)
        bar = fig.colorbar(image, ax=ax, format=ticks)
        name_columns(ax, list(columns.values()))  # which are narrower now
        high = LABEL * 72 * fig.get_figheight()
        bar.ax.set_ylabel(text.wrapped(metric.axis, high, bar.ax.yaxis.label.get_fontsize()))


def _fill_cells(ax: Axes, image: AxesImage, texts: Sequence[str], points: float) -> bool:
    """Write a text in each cell of an image, row by row, if all fit in cells of this width. Return
    whether they do."""
    if not all(text.fits(each, points) for each in texts):
        return False
    colours = image.to_rgba(np.ma.asarray(image.get_array())).reshape(-1, 4)
    light = colours[:, :3] @ (0.2126, 0.7152, 0.0722) + 1 - colours[:, 3]  # by Rec. 709
    for place, (each, luminance) in enumerate(zip(texts, light, strict=True)):
        row, column = divmod(place, image.get_size()[1])
        ax.text(column, row, each, color="black" if luminance > 0.5 else "white", **text.IN_CELL)
    return True


def _mean(
    ax: Axes, place: float, found: Interval, look: Look, filled: bool, label: str | None = None
) -> None:
    """Draw a mean with its interval along the x axis, as a filled dot or an open one."""
    mean, low, high = found
    ax.plot([low, high], [place] * 2, color=look.colour, linewidth=0.9, gid=INTERVAL)
    line: dict[str, Any] = {"linestyle": "none", "zorder": 3, **({} if filled else SINGLE)}
    ax.plot(mean, place, look.marker, color=look.colour, label=label, **line)


def ranking(
    ax: Axes, samples: Samples, tested: Samples | None = None, rows: Sequence[str] = ()
) -> None:
    """Draw groups of results one below another: each result an open point, the mean of several a
    filled one with its 95 % interval, and the number of results where these differ. The same
    groups' test results stand below them, in another colour. `rows` are the names of all rows, if
    some of them have no results."""
    rows = rows or list(samples)
    of_tests = tested or {}, Look(style.COLOURS[1], marker="s"), 0.2
    for each, look, up in [(samples, PLAIN, -0.2 if tested else -0.08), of_tests]:
        for row, name in enumerate(rows):
            if found := each.get(name):
                n = len(found)
                _mean(ax, row + up, found.interval, look, n > 1, str(found.metric))
                if n > 1:
                    beside = np.full(n, row + up + 0.16)
                    ax.plot(found.results, beside, look.marker, color=look.colour, **OPEN)
    set_rows(ax, rows, [len(samples.get(name, ())) for name in rows])
    ax.grid(axis="y", linewidth=0.3)
    if not any(each.metric.log for each in samples.values()):
        ax.locator_params(axis="x", nbins=4)


def set_rows(ax: Axes, names: Sequence[str], counts: Sequence[int] = ()) -> None:
    """Give axes rows with these names, the first one at the top."""
    text.name_rows(ax, names, counts)
    ax.set_ylim(len(names) - 0.4, -0.6)


def costs(ax: Axes, jobs: Jobs, cost: str, metric: Measured, drawn: Mapping[str, Look]) -> None:
    """Draw the mean results of series of jobs, by their names, with 95 % intervals, by the mean of
    a column of costs, and a line along those that no other beats in both, which ends at the edge.
    Raises NoResults if some of them have no record of it."""
    known = {name: own.loc[groups.finite(own, metric.result).index] for name, own in jobs.items()}
    prices = {name: groups.finite(own, cost).mean() for name, own in known.items()}
    prices = {name: price for name, price in prices.items() if price > 0}
    if lacking := [name for name, own in known.items() if len(own) and name not in prices]:
        whose = f" ({'; '.join(lacking)})" if len(lacking) < len(known) else ""
        raise NoResults(f"the jobs{whose} have no record of what they cost ({cost})")
    each = {name: sample(known[name], metric) for name in prices}
    best, front = -np.inf, []
    for name in sorted(each, key=lambda n: (prices[n], -metric.sign * each[n].interval.mean)):
        look, price, (mean, low, high) = drawn[name], prices[name], each[name].interval
        if metric.sign * mean > best:
            best = metric.sign * mean
            front.append((price, mean))
        if look.interval:
            ax.plot([price] * 2, [low, high], color=look.colour, linewidth=0.7, gid=INTERVAL)
        face = {} if len(each[name]) > 1 else SINGLE
        ax.plot(price, mean, look.marker, color=look.colour, label=name, **face)
    if max(prices.values()) > DECADE * min(prices.values()):
        log_scale(ax.xaxis)
    else:  # so that costs that are about the same look so
        ax.set_xlim(0, 1.05 * max(prices.values()))
    front.append((ax.get_xlim()[1], best * metric.sign))  # what more would not have improved
    ax.set_xlim(right=front[-1][0])
    ax.plot(*zip(*front, strict=True), color=GREY, linewidth=0.8, drawstyle="steps-post", zorder=1)


def differences(ax: Axes, found: Mapping[str, Difference], metric: Measured) -> None:
    """Draw differences from a baseline one below another, each a dot with its 95 % interval: filled
    if it can be told from none, and open if not. Differences of a logarithmic metric are ratios."""
    for row, each in enumerate(found.values()):
        _mean(ax, row, each.estimate.interval, PLAIN, each.is_certain)
    ax.axvline(1 if metric.log else 0, color=GREY, linewidth=0.6, zorder=0)
    set_rows(ax, list(found), [each.n for each in found.values()])
    if not metric.log:
        ax.locator_params(axis="x", nbins=4)


def reached(ax: Axes, times: ArrayLike, ended: ArrayLike, label: str, look: Look = PLAIN) -> None:
    """Draw the fraction of jobs that has reached a target, by time, with its exact 95 % interval
    from the first job on.

    `times` (n,) is when each job reached it, NaN if it never did, and `ended` (n,) when it ended.
    Lines end a little after the last job that reached it."""
    each = np.asarray(times, dtype=float)
    came = np.sort(each[np.isfinite(each)])
    end = 1.1 * np.max(came if len(came) else ended)
    counts = np.array([*range(len(came) + 1), len(came)])
    x, (fractions, low, high) = [0, *came, end], intervals.of_counts(counts, len(each))
    step = {"drawstyle": "steps-post", "color": look.colour, "linestyle": look.line}
    ax.plot(x, fractions, label=label, **step)
    if look.interval:
        filled: dict[str, Any] = {"color": look.colour, "alpha": 0.12, "linewidth": 0}
        ax.fill_between(x[1:], low[1:], high[1:], step="post", **filled)
    ax.set_ylim(-0.03, 1.03)
    ax.set_xlim(0, max(end, ax.get_xlim()[1]))  # limits that are set do not adapt any more


def confusion(
    ax: Axes, labels: NDArray[Any], predicted: NDArray[Any], classes: Sequence[str]
) -> None:
    """Draw a confusion matrix of true and predicted classes, numbers or booleans (N,), by the names
    of the classes (K,): rows are true classes, colours the fractions of a row, and the counts are
    in the cells that are wide enough."""
    counts = np.zeros((len(classes), len(classes)), dtype=int)
    np.add.at(counts, (labels.astype(int), predicted.astype(int)), 1)
    fractions = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    image = ax.imshow(fractions, cmap="Blues", vmin=0, vmax=1)
    ax.spines[:].set_visible(True)
    texts = [str(name).replace("$", r"\$") for name in classes]
    texts = [name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…" for name in texts]
    shown = text.named(len(classes))
    ax.set_yticks(shown, [texts[row] for row in shown])
    cell = name_columns(ax, texts)
    _fill_cells(ax, image, [str(count or "") for count in counts.flat], cell)
