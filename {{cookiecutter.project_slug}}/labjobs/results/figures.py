"""Figures at their printed size: what is drawn is what the page shows.

    figures.use(VENUES["icml"])
    fig, ax = figures.figure("column")
    plots.bands(ax, curves, "adam", metric)
    figure_files.save(fig, Path("figures/loss"), ...)

Figures have the widths of the venue's page and the text sizes that it should have: include the PDF
at its natural size, without `width=`, to keep them. Figures are not pyplot's: nothing is held open
and no display is needed.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, ScalarFormatter

from labjobs.results import text
from labjobs.results.metrics import Measured
from labjobs.results.style import (
    DEFAULT,
    LARGE,
    SMALL,
    VENUES,
    Venue,
    names,
    number,
    parameters,
    signed,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

    from labjobs.results.comparison import Curves

LEADING = 1.2
"""Ratio of the height of a line of text to its size."""

LINES = 3
"""The largest number of lines of a row's name, if a wider figure can avoid more."""

BESIDE = 5
"""Room that a legend takes beside its labels, in sizes of their text."""

LABEL = 0.62
"""Fraction of a panel's width or height that a line of its label may take."""

_venue = VENUES[DEFAULT]


def use(venue: Venue) -> None:
    """Draw for a venue from now on."""
    global _venue
    _venue = venue
    import matplotlib

    matplotlib.rcdefaults()
    matplotlib.rcParams.update(parameters(venue))


def figure(
    width: str = "column", height: float | None = None, **subplots: Any
) -> tuple["Figure", Any]:
    """Return a figure as wide as a `column` or the `full` page, and its axes.

    The height is in inches, by default 0.62 of the width and never more than the venue's page has;
    `subplots` goes to Figure.subplots. Raises ValueError for an unknown width.
    """
    if width not in ("column", "full"):
        raise ValueError(f"no width {width!r}; known: column, full")
    from matplotlib.figure import Figure

    inches = _venue.column if width == "column" else _venue.full
    # Constrained layout for this figure alone: by rcParam it would come on between two saves.
    size = inches, min(height or 0.62 * inches, _venue.height)
    fig = Figure(figsize=size, layout="constrained")
    return fig, fig.subplots(**subplots)


def panels(
    names: Sequence[str],
    xlabel: str,
    values: Measured | str,
    across: int = 3,
    height: float = 1.9,
) -> tuple["Figure", list[Any]]:
    """Return a figure and its panels: one for each name, with a letter and a title, up to `across`
    in a row. They share an axis of values, for a metric or with this label.

    Page-wide, or a column for one panel; the height is in inches, for each row.
    """
    rows = -(-len(names) // across)
    across = -(-len(names) // rows)
    width = "full" if across > 1 else "column"
    inches = (_venue.full if across > 1 else _venue.column) / across - 0.6
    titles = [text.wrapped(name, 72 * inches, _venue.text) for name in names]
    lines = max(title.count("\n") for title in titles)
    size = 0.6 + rows * (height + lines * LEADING * _venue.text / 72)
    fig, grid = figure(width, size, nrows=rows, ncols=across, sharey=True, squeeze=False)
    axes, spare = list(grid.flat)[: len(names)], list(grid.flat)[len(names) :]
    for title, ax in zip(titles, axes, strict=True):
        ax.set_title(title)
    for ax in grid[:, 0]:
        value_axis(ax.yaxis, values)
    for ax in axes[-across:]:
        ax.set_xlabel(xlabel)
    for ax in axes:
        ax.xaxis.set_major_formatter(PlainTicks())
    for ax in spare:
        ax.remove()
    if len(names) > 1:
        letters(axes)
    return fig, axes


def rows(names: Sequence[str], height: float) -> tuple["Figure", Any]:
    """Return a figure for rows with these names, and its axes. Each row is this many inches high,
    or higher if its name needs it; the figure is a column wide, unless names would take too many
    lines."""

    def lines(inches: float) -> int:
        return max(name.count("\n") + 1 for name in text.row_names(names, inches))

    width, most = "column", lines(_venue.column)
    if most > LINES:
        width, most = "full", lines(_venue.full)
    row = max(height, most * _venue.small / 72 + 0.12)
    return figure(width, 0.6 + row * len(names))


def letters(axes: Iterable["Axes"]) -> None:
    """Letter panels a, b, c, … in their upper left corners, above the axes."""
    for index, ax in enumerate(axes):
        ax.set_title(chr(ord("a") + index), loc="left", fontweight="bold")


def legend(fig: "Figure", title: str = "") -> None:
    """Add one legend above all panels, every label once, in as few rows as the width allows; none
    where only one line would be named, but by its title."""
    import matplotlib

    handles = {
        label: handle
        for ax in fig.axes
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    points = 72 * fig.get_figwidth()
    title = text.wrapped(title, points, _venue.small)
    size, room = matplotlib.rcParams["legend.fontsize"], points - BESIDE * _venue.small
    names = [text.wrapped(name, room, size) for name in handles]
    place: dict[str, Any] = {"loc": "outside upper center", "title": title}
    for columns in range(max(1, len(handles)), 0, -1):
        made = fig.legend(handles.values(), names, ncols=columns, **place)
        if columns == 1 or made.get_window_extent().width <= fig.bbox.width:
            return
        made.remove()


# Axes: their labels and ticks, in plain numbers.

MOST, LEAST = 6, 3
"""Labelled ticks of a logarithmic axis."""


def value_axis(axis: "Axis", values: Measured | str) -> None:
    """Label an axis with a metric, and scale it as declared, or label it with a text; in lines that
    fit."""
    place, fig = axis.axes.get_subplotspec(), axis.get_figure(root=True)
    assert place and fig
    rows, columns, *_ = place.get_geometry()
    width, height = fig.get_size_inches()
    inches = width / columns if axis is axis.axes.xaxis else height / rows
    label = values if isinstance(values, str) else values.axis
    axis.set_label_text(text.wrapped(label, LABEL * 72 * inches, _venue.text))
    if isinstance(values, Measured) and values.log:
        log_scale(axis)
    else:
        axis.set_major_formatter(PlainTicks())


def log_scale(axis: "Axis") -> None:
    """Make an axis logarithmic, with few ticks, in plain numbers."""
    change = axis.axes.set_xscale if axis is axis.axes.xaxis else axis.axes.set_yscale
    change("log")
    axis.set_major_locator(LogTicks())
    axis.set_major_formatter(lambda value, _place: number(value))
    axis.set_minor_formatter(NullFormatter())


def ticks_at(ax: "Axes", values: Iterable[float]) -> None:
    """Set ticks at these values of the x axis, labelled where labels do not touch.

    Call this last: it depends on the axes' limits and size.
    """
    fig, every = text.figure_of(ax), sorted(set(values))
    fig.draw_without_rendering()
    end, labelled = -np.inf, {}
    for tick in every:
        place = 72 / fig.dpi * float(ax.transData.transform((tick, 1))[0])
        half = 0.3 * _venue.small * len(number(tick))  # digits of either font are narrower
        if place - half > end:
            labelled[tick], end = number(tick), place + half + _venue.small / 2
    ax.set_xticks(list(labelled), list(labelled.values()))
    ax.set_xticks(every, minor=True)
    ax.xaxis.set_minor_formatter(NullFormatter())


class PlainTicks(ScalarFormatter):
    """Labels of a linear axis; very small and very large numbers have their own exponents, rather
    than one at the end of the axis, which could be missed."""

    def format_ticks(self, values: Any) -> list[str]:
        """Return the labels of all ticks."""
        if SMALL <= max(map(abs, values), default=1) < LARGE:
            return super().format_ticks(values)
        places = [float(value) for value in values]
        texts = names(places)
        return [signed(texts[place]) for place in places]

    def get_offset(self) -> str:
        """Return no text for the axis' end."""
        return ""


class LogTicks(LogLocator):
    """Few ticks on a logarithmic axis: 1, 2, 3 and 5 in each decade, only powers of ten if there
    would be too many, and steps of equal size if there would be too few."""

    def tick_values(self, vmin: float, vmax: float) -> Any:
        """Return the places of ticks between two ends."""
        low, high = sorted((vmin, vmax))
        if not 0 < low < high:
            return np.array([])
        decades = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)))
        for each in ((1, 2, 3, 5), (1, 3), (1,)):
            places = np.multiply.outer(decades, each).ravel()
            places = places[(low <= places) & (places <= high)]
            if len(places) <= MOST:
                break
        if len(places) < LEAST:
            linear = MaxNLocator(LEAST + 1, steps=[1, 2, 5, 10])
            places = np.asarray(linear.tick_values(low, high))
            places = places[(low <= places) & (places <= high)]
        return places[:: -(-len(places) // MOST)]


# Limits of axes, chosen to show what is worth seeing; captions say what lies beyond them.

HIDDEN = 0.02
"""Fraction of the values that an axis may leave out, the worst ones."""

ROOM = 1.2
"""Space for intervals on either side of the results, relative to the space that the results take.
The t intervals of three or more results never need more; those of two nearly always do."""

MARGIN = 0.05
"""Fraction of an axis that is left empty at either end."""

CUT = " Intervals are cut off at the edges of the axes."


def limit_to_curves(ax: "Axes", curves: "Curves", metric: Measured) -> str:
    """Set the limits of the y axis that panels share, by their curves and not by the intervals. On
    a linear axis, the worst values, such as those of the first steps, are left out. Return what the
    caption has to say about this."""
    from matplotlib.collections import PolyCollection

    each = [line["value"] for lines in curves.values() for line in lines.values()]
    values = metric.checked(np.concatenate(each))
    finite = values[np.isfinite(values)]
    if not len(finite):
        return ""
    ends = [0.0, 1.0] if metric.log else [HIDDEN, 1.0] if metric.sign > 0 else [0.0, 1 - HIDDEN]
    low, high = np.quantile(ax.yaxis.get_transform().transform(finite), ends)
    margin = MARGIN * (high - low) or MARGIN * abs(high) or MARGIN
    least, most = _limit(ax.yaxis, low - margin, high + margin)
    beyond = ((finite < least) | (finite > most)).mean()
    said = f" Of all values {beyond:.1%} are beyond the axis." if beyond else ""
    for panel in text.figure_of(ax).axes:
        for band in panel.collections:
            if isinstance(band, PolyCollection):
                lowest, highest = band.get_datalim(panel.transData).intervaly
                if lowest < least or highest > most:
                    return said + CUT
    return said


def limit_to_intervals(axis: "Axis", results: "Iterable[pd.Series[Any]]", metric: Measured) -> str:
    """Set the limits of an axis so that intervals do not crowd the results out. Return what the
    caption has to say about this."""
    values = metric.checked([value for each in results for value in each])
    values = values[np.isfinite(values)]
    if not len(values):
        return ""
    scale = axis.get_transform()
    low, high = scale.transform(np.array([values.min(), values.max()]))
    drawn = scale.transform(axis.get_data_interval())
    room = ROOM * (high - low)
    shown = np.clip(drawn, low - room, high + room)
    if not room or np.array_equal(shown, drawn):
        return ""
    margin = MARGIN * (shown[1] - shown[0])
    _limit(axis, shown[0] - margin, shown[1] + margin)
    return CUT


def _limit(axis: "Axis", low: float, high: float) -> tuple[float, float]:
    """Set the ends of an axis, which are given as its scale transforms them; returns them."""
    least, most = axis.get_transform().inverted().transform(np.array([low, high]))
    change = axis.axes.set_xlim if axis is axis.axes.xaxis else axis.axes.set_ylim
    change(least, most)
    return least, most
