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

from labjobs.results import limits, text
from labjobs.results.metrics import Measured
from labjobs.results.style import number, parameters
from labjobs.results.venues import DEFAULT, VENUES, Venue

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

LEADING = 1.2
"""Ratio of the height of a line of text to its size."""

LINES = 3
"""The largest number of lines of a row's name, if a wider figure can avoid more."""

BESIDE = 5
"""Room that a legend takes beside its labels, in sizes of their text."""

LABEL = 0.62
"""Fraction of a panel's width or height that a line of its label may take."""

_venue = VENUES[DEFAULT]

limit = limits.of_curves
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
    from labjobs.results.ticks import PlainTicks

    axis.set_major_formatter(PlainTicks())


def log_scale(axis: "Axis") -> None:
    """Make an axis logarithmic, with few ticks, in plain numbers."""
    from matplotlib.ticker import NullFormatter

    from labjobs.results.ticks import LogTicks, plain

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
