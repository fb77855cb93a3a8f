"""What is drawn on axes, from tables of jobs (results.py) and their curves.

Every function shows all there is to see: each seed beside the mean, the interval that the mean
stands on, jobs that diverged or never came to where they should.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from engine.results.statistics import mean_interval, reached
from engine.results.style import GREY, PLAIN, Look, looks, names, written
from engine.results.tables import NoResults

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

ANY = (-np.inf, np.inf)

OPEN: dict[str, Any] = {"markersize": 3, "markerfacecolor": "white", "markeredgewidth": 0.6}

MANY = 10_000
"""Points of faint curves from which they are kept in a PDF as an image: it stays small."""

SLOTS = 0.5
"""Share of the way from a place to the next that the series around it take."""

NAMED = 20
"""Columns and rows of an image that are named at most."""

IN_CELL: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": "small"}
"""How a number stands in its cell."""


def bands(
    ax: "Axes",
    curves: "pd.DataFrame",
    label: str,
    look: Look = PLAIN,
    within: tuple[float, float] = ANY,
) -> None:
    """Draw repeated curves faintly, their mean over them, and its 95 % t interval as a band.

    curves: columns job_id, step (whole numbers) and value. Mean and band go as far as all curves
    do, and the band no further than the limits `within` which a value can be. One curve alone has
    no band.
    """
    from matplotlib.collections import LineCollection

    table = curves.pivot(index="step", columns="job_id", values="value")
    steps, values = table.index.to_numpy(), table.to_numpy(dtype=float)
    whole = np.isfinite(values).all(axis=1)
    mean, half = mean_interval(values[whole])
    low, high = np.clip([mean - half, mean + half], *within)
    each = [np.column_stack([steps, curve]) for curve in values.T]
    faint: Any = {"colors": look.colour, "linewidths": 0.4, "alpha": 0.45}
    ax.add_collection(LineCollection(each, rasterized=values.size > MANY, **faint))
    ax.fill_between(steps[whole], low, high, color=look.colour, alpha=0.15, linewidth=0)
    marker = look.marker if whole.sum() == 1 else None
    line = {"color": look.colour, "linestyle": look.line, "marker": marker, "label": label}
    ax.plot(steps[whole], mean, **line)
    ax.autoscale_view()
    ax.locator_params(axis="x", integer=True)


def points(
    ax: "Axes",
    jobs: "pd.DataFrame",
    x: str,
    y: str,
    series: str,
    within: tuple[float, float] = ANY,
) -> None:
    """Draw a metric `y` against a setting `x` on a logarithmic axis: each job an open point, and
    the means of each of the `series` joined by a line with 95 % t intervals.

    Series stand side by side around their place, and the points of a mean to its right, so that
    nothing hides another. Intervals end at the limits `within` which a value can be. A job that
    diverged is a cross on the lower edge. Raises NoResults where an `x` has no place on the axis.
    """
    if not all(value and value > 0 for value in jobs[x]):
        raise NoResults(f"{x} is not above 0 in all jobs, so it has no logarithm")
    look, labels = looks(jobs[series]), names(jobs[series])
    places = np.log10(np.sort(jobs[x].unique()))
    gap = np.diff(places).min() if len(places) > 1 else 1.0
    step = SLOTS * gap / len(look)
    ax.set_xscale("log")
    ax.set_xlim(10 ** (places[0] - 0.6 * gap), 10 ** (places[-1] + 0.7 * gap))
    edge = ax.get_xaxis_transform()
    for index, (name, how) in enumerate(look.items()):
        aside = (index - (len(look) - 1) / 2) * step
        centres = []
        own = jobs[[value == name for value in jobs[series]]]
        for place in sorted(own[x].unique()):
            repeated, at = own[own[x] == place], np.log10(place) + aside
            lost = int(repeated["diverged"].sum())
            ax.plot(_right_of(at, lost, step), [0.02] * lost, "x", color=how.colour, transform=edge)
            values = repeated[y].to_numpy(dtype=float)
            values = values[np.isfinite(values)]
            apart = _right_of(at, len(values), step)
            ax.plot(apart, values, how.marker, color=how.colour, **OPEN)
            if len(values):
                mean, half = mean_interval(values)
                ends = np.clip([mean - half, mean + half], *within)
                ax.plot([10**at] * 2, ends, color=how.colour, linewidth=0.7)
                centres.append((10**at, mean))
        line = {"color": how.colour, "linestyle": how.line, "marker": how.marker}
        ax.plot(*np.reshape(centres, (-1, 2)).T, label=labels[name], zorder=3, **line)


def _right_of(place: float, count: int, step: float) -> NDArray[Any]:
    """Places for so many marks to the right of another, given as a power of ten."""
    spread: NDArray[Any] = 10 ** (place + step * np.linspace(0.25, 0.7, count))
    return spread


def heatmap(ax: "Axes", jobs: "pd.DataFrame", x: str, y: str, metric: str) -> None:
    """Draw the mean of a metric for each pair of two settings as a map of colours, with the number
    in each cell where there is room. A pair without a value is a dash."""
    values = jobs.pivot_table(index=y, columns=x, values=metric, dropna=False)
    grid = values.to_numpy(dtype=float)
    image = ax.imshow(grid, aspect="auto")
    rows, columns = (list(names(each).values()) for each in (values.index, values.columns))
    shown = _shown(len(rows))
    ax.set_yticks(shown, [rows[row] for row in shown])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    cell = _columns(ax, columns)
    texts = [["–" if np.isnan(value) else f"{value:.3f}" for value in row] for row in grid]
    if max(_width(text) for row in texts for text in row) > cell:
        fig = ax.get_figure(root=True)
        assert fig
        fig.colorbar(image, ax=ax)
        return
    for (row, column), value in np.ndenumerate(grid):
        shade: Any = image.norm(value)
        colour = "white" if not np.isnan(value) and shade < 0.6 else "black"
        ax.text(column, row, texts[row][column], color=colour, **IN_CELL)


def _columns(ax: "Axes", texts: Sequence[str]) -> float:
    """Name the columns of an image, upright where they are too long, and not each where they are
    too many; the points that a column has."""
    fig = ax.get_figure(root=True)
    assert fig
    shown = _shown(len(texts))
    ax.set_xticks(shown, [texts[column] for column in shown])
    fig.draw_without_rendering()
    cell = 72 / fig.dpi * float(ax.get_window_extent().width) / len(texts)
    if max(_width(texts[column]) for column in shown) > cell * shown.step:
        ax.tick_params(axis="x", rotation=90)
    return cell


def _shown(count: int) -> range:
    """The columns or rows that are named: all, or every second, third, …"""
    return range(0, count, -(-count // NAMED))


def _width(text: str) -> float:
    """Points that a text in a cell needs, with a little room."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    small = FontProperties(size=IN_CELL["fontsize"])
    return float(TextPath((0, 0), text, prop=small).get_extents().width) + 3


def ranking(
    ax: "Axes", samples: "Mapping[str, pd.Series[Any]]", within: tuple[float, float] = ANY
) -> None:
    """Draw groups of values one below another: each value an open point, the mean a dot with its
    95 % t interval."""
    for row, values in enumerate(samples.values()):
        mean, half = mean_interval(values)
        ends = np.clip([mean - half, mean + half], *within)
        ax.plot(ends, [row, row], color=PLAIN.colour, linewidth=0.9)
        ax.plot(mean, row, PLAIN.marker, color=PLAIN.colour, zorder=3)
        ax.plot(values, np.full(len(values), row + 0.3), PLAIN.marker, color=GREY, **OPEN)
    ax.set_yticks(range(len(samples)), list(samples))
    ax.set_ylim(len(samples) - 0.4, -0.6)
    ax.grid(axis="y", linewidth=0.3)


def arrivals(
    ax: "Axes", times: ArrayLike, ended: ArrayLike, label: str, look: Look = PLAIN
) -> None:
    """Draw the share of jobs that has come to a target, by time, with its 95 % interval.

    `times` (n,) is when each came there, NaN if it never did: those are upright ticks at the time
    they ended, `ended` (n,). Lines end a little after the last of both.
    """
    came, last = np.asarray(times, dtype=float), np.asarray(ended, dtype=float)
    curve, never = reached(came, last), np.isnan(came)
    x = np.concatenate([[0], curve.times, [1.1 * np.where(never, last, came).max()]])
    shares = _from_the_start(curve.shares)
    step = {"drawstyle": "steps-post", "color": look.colour, "linestyle": look.line}
    ax.plot(x, shares, label=label, **step)
    low, high = _from_the_start(curve.low), _from_the_start(curve.high)
    ax.fill_between(x, low, high, step="post", color=look.colour, alpha=0.12, linewidth=0)
    at = shares[np.searchsorted(x, last[never], side="right") - 1]
    ax.plot(last[never], at, "|", color=look.colour, markersize=7, markeredgewidth=1)
    ax.set_ylim(-0.03, 1.03)
    ax.set_xlim(0, max(x[-1], ax.get_xlim()[1]))  # once set, limits follow nothing


def _from_the_start(shares: NDArray[Any]) -> NDArray[Any]:
    """From none at the start to the last for ever."""
    known = np.concatenate([[0], shares])
    return np.append(known, known[-1])


def confusion(
    ax: "Axes", labels: NDArray[Any], guesses: NDArray[Any], classes: Sequence[str]
) -> None:
    """Draw a confusion matrix of labels and guesses (N,), numbers of classes (K,): rows are true
    classes, colours a row's shares, and the counts are in the cells where there is room."""
    counts = np.zeros((len(classes), len(classes)), dtype=int)
    np.add.at(counts, (labels, guesses), 1)
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    ax.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    ax.spines[:].set_visible(True)
    texts, shown = [_shortened(written(name)) for name in classes], _shown(len(classes))
    ax.set_yticks(shown, [texts[row] for row in shown])
    cell = _columns(ax, texts)
    if _width(str(counts.max())) > cell:
        return
    for (row, column), count in np.ndenumerate(counts):
        if count:
            colour = "white" if shares[row, column] > 0.5 else "black"
            ax.text(column, row, str(count), color=colour, **IN_CELL)


def _shortened(name: str, most: int = 16) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"
