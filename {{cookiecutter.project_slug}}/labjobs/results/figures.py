"""Figures at their printed size: what is drawn is what the page shows.

    figures.use(VENUES["icml"])
    fig, ax = figures.figure("column")
    plots.bands(ax, curves, "adam", metric)
    figure_files.save(fig, Path("figures/loss"), ...)

Figures have the widths of the venue's page and the text sizes that it should have: include the PDF
at its natural size, without `width=`, to keep them. Figures are not pyplot's: nothing is held open
and no display is needed. matplotlib is imported when the first is made.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labjobs.results import text
from labjobs.results.metrics import Measured
from labjobs.results.style import DEFAULT, VENUES, Venue, number, parameters

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

    from labjobs.results.comparison import Curves

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
    each = [line["value"] for lines in curves.values() for line in lines.values()]
    values = metric.checked(np.concatenate(each))
    finite = values[np.isfinite(values)]
    if not len(finite):
        return ""
    scale = ax.yaxis.get_transform()
    ends = [0.0, 1.0] if metric.log else [HIDDEN, 1.0] if metric.sign > 0 else [0.0, 1 - HIDDEN]
    low, high = np.quantile(scale.transform(finite), ends)
    margin = MARGIN * (high - low) or MARGIN * abs(high) or MARGIN
    least, most = scale.inverted().transform(np.array([low - margin, high + margin]))
    ax.set_ylim(least, most)
    beyond = ((finite < least) | (finite > most)).mean()
    said = f" Of all values {beyond:.1%} are beyond the axis." if beyond else ""
    return said + (CUT if any(low < least or high > most for low, high in _bands(ax)) else "")


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
    least, most = scale.inverted().transform(np.array([shown[0] - margin, shown[1] + margin]))
    change = axis.axes.set_xlim if axis is axis.axes.xaxis else axis.axes.set_ylim
    change(least, most)
    return CUT


def _bands(ax: "Axes") -> list[tuple[float, float]]:
    """The lowest and the highest value of each band in the panels of a figure."""
    from matplotlib.collections import PolyCollection

    fig = ax.get_figure(root=True)
    assert fig
    drawn = [(panel, each) for panel in fig.axes for each in panel.collections]
    return [
        each.get_datalim(panel.transData).intervaly
        for panel, each in drawn
        if isinstance(each, PolyCollection)
    ]


LEADING = 1.2
"""Ratio of the height of a line of text to its size."""

LINES = 3
"""The largest number of lines of a row's name, if a wider figure can avoid more."""

BESIDE = 5
"""Room that a legend takes beside its labels, in sizes of their text."""

LABEL = 0.62
"""Fraction of a panel's width or height that a line of its label may take."""

_venue = VENUES[DEFAULT]

limit = limit_to_curves
"""What `limits.of_curves` was called before version 1.0.0; older plot.py use it."""


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
        plain_ticks(ax.xaxis)
    for ax in spare:
        ax.remove()
    if len(names) > 1:
        letters(axes)
    return fig, axes


def rows(names: Sequence[str], height: float) -> tuple["Figure", Any]:
    """Return a figure for rows with these names, and its axes. Each row is this many inches high,
    or higher if its name needs it; the figure is a column wide, unless names would take too many
    lines."""
    width, inches = "column", _venue.column
    if _lines(names, inches) > LINES:
        width, inches = "full", _venue.full
    row = max(height, _lines(names, inches) * _venue.small / 72 + 0.12)
    return figure(width, 0.6 + row * len(names))


def _lines(names: Sequence[str], inches: float) -> int:
    """Lines of the longest row name in a figure that is this many inches wide."""
    return max(name.count("\n") + 1 for name in text.row_names(names, inches))


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
        plain_ticks(axis)


def plain_ticks(axis: "Axis") -> None:
    """Label the ticks of a linear axis in plain numbers."""
    from labjobs.results.style import PlainTicks

    axis.set_major_formatter(PlainTicks())


def log_scale(axis: "Axis") -> None:
    """Make an axis logarithmic, with few ticks, in plain numbers."""
    from matplotlib.ticker import NullFormatter

    from labjobs.results.style import LogTicks, plain

    change = axis.axes.set_xscale if axis is axis.axes.xaxis else axis.axes.set_yscale
    change("log")
    axis.set_major_locator(LogTicks())
    axis.set_major_formatter(plain)
    axis.set_minor_formatter(NullFormatter())


def letters(axes: Iterable["Axes"]) -> None:
    """Letter panels a, b, c, … in their upper left corners, above the axes."""
    for index, ax in enumerate(axes):
        ax.set_title(chr(ord("a") + index), loc="left", fontweight="bold")


def ticks_at(ax: "Axes", values: Iterable[float]) -> None:
    """Set ticks at these values of the x axis, labelled where labels do not touch.

    Call this last: it depends on the axes' limits and size.
    """
    from matplotlib.ticker import NullFormatter

    fig = ax.get_figure(root=True)
    assert fig
    fig.draw_without_rendering()
    end, labelled = -np.inf, {}
    for tick in sorted(set(values)):
        place = 72 / fig.dpi * float(ax.transData.transform((tick, 1))[0])
        half = 0.3 * _venue.small * len(number(tick))  # digits of either font are narrower
        if place - half > end:
            labelled[tick], end = number(tick), place + half + _venue.small / 2
    ax.set_xticks(list(labelled), list(labelled.values()))
    ax.set_xticks(sorted(set(values)), minor=True)
    ax.xaxis.set_minor_formatter(NullFormatter())


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
