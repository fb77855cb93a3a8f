"""Figures at their printed size: what is drawn is what the page shows.

    figures.use(VENUES["icml"])
    fig, ax = figures.figure("column")
    plots.bands(ax, curves, "adam")
    figure_files.save(fig, Path("figures/loss"), ...)

Widths are those of the venue's page and text is as large as it should be there: include the PDF at
its natural size, without `width=`, and it stays so. Figures are not pyplot's: nothing is held open
and no display is needed. matplotlib is imported when the first is made.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from engine.results.style import number, parameters, written
from engine.results.venues import DEFAULT, VENUES, Venue

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 6
"""Lines that are labelled at their ends; of more there is a legend."""

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
    """A figure as wide as a `column` or the `full` page, and its axes.

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
    names: Sequence[str], xlabel: str, ylabel: str, across: int = 3, height: float = 1.9
) -> tuple["Figure", list[Any]]:
    """A figure with a lettered and titled panel for each name, up to `across` in a row, sharing y.

    Page-wide, or a column for one panel; the height is in inches, for each row.
    """
    rows, across = -(-len(names) // across), min(across, len(names))
    width, inches = "full" if across > 1 else "column", 0.6 + rows * height
    fig, grid = figure(width, inches, nrows=rows, ncols=across, sharey=True, squeeze=False)
    axes, spare = list(grid.flat)[: len(names)], list(grid.flat)[len(names) :]
    for name, ax in zip(names, axes, strict=True):
        ax.set_title(written(name))
    for ax in grid[:, 0]:
        ax.set_ylabel(ylabel)
    for ax in axes[-across:]:
        ax.set_xlabel(xlabel)
    for ax in spare:
        ax.remove()
    if len(names) > 1:
        letters(axes)
    return fig, axes


def letters(axes: Iterable["Axes"]) -> None:
    """Letter panels a, b, c, … in their upper left corners, above the axes."""
    for index, ax in enumerate(axes):
        ax.set_title(chr(ord("a") + index), loc="left", fontweight="bold")


def log_ticks(ax: "Axes", values: Iterable[float]) -> None:
    """Ticks at these values on a logarithmic x axis, labelled where there is room.

    To be called last: it goes by the axes' limits and size.
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


def span(values: ArrayLike, low: float = 0.0) -> tuple[float, float]:
    """Limits of an axis around the values from a quantile on, with a margin of 5 %."""
    bottom, top = np.nanquantile(np.asarray(values, dtype=float), [low, 1])
    margin = 0.05 * (top - bottom) or 0.05
    return float(bottom - margin), float(top + margin)


def legend(fig: "Figure", title: str = "") -> None:
    """One legend above all panels, every label once, in as few rows as the width has room for."""
    handles = {
        label: handle
        for ax in fig.axes
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    for columns in range(len(handles), 0, -1):
        made = fig.legend(
            handles.values(), handles.keys(), loc="outside upper center", ncols=columns, title=title
        )
        if columns == 1 or made.get_window_extent().width <= fig.bbox.width:
            return
        made.remove()


def label_lines(ax: "Axes") -> None:
    """Write each line's label at its end, in its colour, moved apart where they would overlap; a
    legend where there are many.

    To be called last: it goes by the axes' limits and by what else has its place in the figure.
    """
    lines: list[Any] = [
        line for line in ax.get_lines() if not str(line.get_label()).startswith("_")
    ]
    fig = ax.get_figure(root=True)
    assert fig
    if len(lines) > MOST:
        legend(fig)
        return
    fig.draw_without_rendering()
    ends = [ax.transData.transform(line.get_xydata()[-1]) for line in lines]
    height = 1.2 * _venue.small * fig.dpi / 72
    place = -np.inf
    for index in sorted(range(len(lines)), key=lambda i: float(ends[i][1])):
        place = max(place + height, float(ends[index][1]))
        up = (place - float(ends[index][1])) * 72 / fig.dpi
        ax.annotate(
            str(lines[index].get_label()),
            lines[index].get_xydata()[-1],
            (4, up),
            textcoords="offset points",
            va="center",
            color=lines[index].get_color(),
            fontsize=_venue.small,
        )
