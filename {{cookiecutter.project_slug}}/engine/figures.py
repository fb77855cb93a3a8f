"""Figures at their printed size: what is drawn is what the page shows.

    fig, ax = figures.figure("column")
    figures.band(ax, steps, curves, "adam")
    figures.save(fig, Path("figures"), "loss")

Widths are those of the page and text is 10 pt, never under 8 (scripts inside mathtext excepted):
include the PDF at its natural size, without `width=`, and it stays so. Figures are not pyplot's:
nothing is held open and no display is needed. matplotlib is imported when the first is made.
"""

import os
from collections.abc import Collection, Hashable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTHS = {"column": 3.25, "full": 6.75}
"""Printed widths in inches: a column and the page of ICML, AISTATS and UAI (their style files)."""

STYLE: Any = {
    "font.family": "STIXGeneral",
    "mathtext.fontset": "stix",
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "legend.title_fontsize": 9,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "legend.columnspacing": 1.4,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.xmargin": 0.02,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,
}
"""matplotlib's rcParams, in points; the rest are its own defaults, whatever a matplotlibrc says."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""Told apart with any colour vision: Okabe and Ito's (jfly.uni-koeln.de/color) without yellow."""
LINES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)))
MARKERS = "osD^v"
OPEN: dict[str, Any] = {"markersize": 3, "markerfacecolor": "white", "markeredgewidth": 0.6}
ANY = (-np.inf, np.inf)


class Look(NamedTuple):
    """How one series is drawn, told apart without its colour too."""

    colour: str = COLOURS[0]
    line: Any = LINES[0]
    marker: str = MARKERS[0]


PLAIN = Look()


def looks(series: Iterable[Hashable]) -> dict[Any, Look]:
    """A look for each series, the same in all panels."""
    return {
        name: Look(COLOURS[i % len(COLOURS)], LINES[i % len(LINES)], MARKERS[i % len(MARKERS)])
        for i, name in enumerate(series)
    }


@cache
def _use_style() -> None:
    import matplotlib

    matplotlib.rcdefaults()
    matplotlib.rcParams.update(STYLE)


def figure(
    width: str = "column", height: float | None = None, **subplots: Any
) -> tuple["Figure", Any]:
    """A figure as wide as a `column` or the `full` page, and its axes.

    The height is in inches, by default 0.62 of the width; `subplots` goes to Figure.subplots.
    Raises ValueError for an unknown width.
    """
    if width not in WIDTHS:
        raise ValueError(f"no width {width!r}; known: {', '.join(WIDTHS)}")
    _use_style()
    from matplotlib.figure import Figure

    inches = WIDTHS[width]
    # Constrained layout for this figure alone: by rcParam it would come on between two saves.
    fig = Figure(figsize=(inches, height or 0.62 * inches), layout="constrained")
    return fig, fig.subplots(**subplots)


def panels(
    names: Sequence[str], xlabel: str, ylabel: str, across: int = 3, height: float = 1.9
) -> tuple["Figure", list[Any]]:
    """A figure with a titled panel for each name, up to `across` in a row, sharing y.

    Page-wide, or a column for one panel; the height is in inches, for each row.
    """
    rows, across = -(-len(names) // across), min(across, len(names))
    width, inches = "full" if across > 1 else "column", 0.6 + rows * height
    fig, grid = figure(width, inches, nrows=rows, ncols=across, sharey=True, squeeze=False)
    axes, spare = list(grid.flat)[: len(names)], list(grid.flat)[len(names) :]
    for name, ax in zip(names, axes, strict=True):
        ax.set_title(name)
    for ax in grid[:, 0]:
        ax.set_ylabel(ylabel)
    for ax in axes[-across:]:
        ax.set_xlabel(xlabel)
    for ax in spare:
        ax.remove()
    return fig, axes


def mean_interval(samples: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    """The mean over the last axis and half the width of its 95 % t interval, NaN for one sample.

    A t interval holds its 95 % down to three samples, where a bootstrap holds 75 %.
    """
    from scipy.stats import t

    values = np.asarray(samples, dtype=float)
    n = values.shape[-1]
    if n == 1:
        return values[..., 0], np.full(values.shape[:-1], np.nan)
    error = values.std(axis=-1, ddof=1) / np.sqrt(n)
    return values.mean(axis=-1), t.ppf(0.975, n - 1) * error


def band(
    ax: "Axes",
    x: ArrayLike,
    curves: ArrayLike,
    label: str,
    look: Look = PLAIN,
    within: tuple[float, float] = ANY,
) -> None:
    """Draw repeated curves faintly, their mean over them, and its 95 % t interval as a band.

    x: (T,), whole numbers; curves: (T, n), NaN where one has ended. Mean and band go as far as all
    curves do, and the band no further than the limits `within` which a value can be. One curve
    alone has no band.
    """
    steps, values = np.asarray(x), np.asarray(curves, dtype=float)
    whole = ~np.isnan(values).any(axis=1)
    mean, half = mean_interval(values[whole])
    low, high = np.clip([mean - half, mean + half], *within)
    marker = look.marker if whole.sum() == 1 else None
    ax.plot(steps, values, color=look.colour, linewidth=0.4, alpha=0.45)
    ax.fill_between(steps[whole], low, high, color=look.colour, alpha=0.15, linewidth=0)
    line = {"color": look.colour, "linestyle": look.line, "marker": marker, "label": label}
    ax.plot(steps[whole], mean, **line)
    ax.locator_params(axis="x", integer=True)


def points(
    ax: "Axes",
    x: Collection[float],
    samples: Collection[Sequence[float]],
    label: str,
    look: Look = PLAIN,
    within: tuple[float, float] = ANY,
    aside: float = 0,
) -> None:
    """Draw every sample as an open point, and the means joined by a line with 95 % t intervals.

    `samples[i]` lie at `x[i]`, moved `aside` points to the right, and side by side to the right of
    their mean, so that nothing hides another. Intervals end at the limits `within` which a value
    can be.
    """
    from matplotlib.transforms import offset_copy

    drawn: list[tuple[Artist, float]] = []  # and how far each is moved, in points
    means = []
    for place, values in zip(x, samples, strict=True):
        mean, half = mean_interval(values)
        means.append(mean)
        ends = np.clip([mean - half, mean + half], *within)
        drawn += [(ax.plot([place] * 2, ends, color=look.colour, linewidth=0.7)[0], aside)]
        for right, value in zip(np.linspace(4, 10, np.size(values)), values, strict=True):
            (point,) = ax.plot(place, value, look.marker, color=look.colour, **OPEN)
            drawn.append((point, aside + right))
    line = {"color": look.colour, "linestyle": look.line, "marker": look.marker, "label": label}
    drawn.append((ax.plot(list(x), means, **line, zorder=3)[0], aside))
    figure = ax.get_figure(root=True)
    for artist, right in drawn:  # moved only now, so that the axes' limits are those of the data
        artist.set_transform(offset_copy(ax.transData, figure, x=right, units="points"))


def number(value: float) -> str:
    """A number in few characters and no small script: 0.001, 1e-5."""
    return f"{value:g}".replace("e-0", "e-").replace("e+0", "e")


def log_ticks(ax: "Axes", values: Iterable[float]) -> None:
    """A logarithmic x axis with ticks at these values, labelled where there is room."""
    from matplotlib.ticker import NullFormatter

    ticks = sorted(set(values))
    decades = np.log10(ticks[-1] / ticks[0])
    labelled = ticks[:1]
    for tick in ticks[1:]:
        if np.log10(tick / labelled[-1]) >= decades / 5:
            labelled.append(tick)
    edge = 10 ** (0.1 + decades / 10)
    ax.set_xscale("log")
    ax.set_xlim(ticks[0] / edge, ticks[-1] * edge)
    ax.set_xticks(labelled, [number(tick) for tick in labelled])
    ax.set_xticks(ticks, minor=True)
    ax.xaxis.set_minor_formatter(NullFormatter())


def span(values: ArrayLike, low: float = 0.0, high: float = 1.0) -> tuple[float, float]:
    """Limits of an axis around the values between two quantiles, with a margin of 5 %."""
    bottom, top = np.nanquantile(np.asarray(values, dtype=float), [low, high])
    margin = 0.05 * (top - bottom) or 0.05
    return float(bottom - margin), float(top + margin)


def repeats(counts: Iterable[int]) -> str:
    """What a mean and its interval stand on: `mean of 3 seeds, 95% t interval`."""
    few, many = min(counts), max(counts)
    if many == 1:
        return "one seed"
    return f"mean of {few if few == many else f'{few}–{many}'} seeds, 95% t interval"


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
        if made.get_window_extent().width <= fig.bbox.width:
            return
        made.remove()


def save(fig: "Figure", out: Path, name: str) -> list[tuple[Path, float, float]]:
    """Write a figure as PDF and PNG; each path with its printed width and height in inches.

    The same figure gives the same bytes. A file is whole or absent. Raises OSError where the folder
    cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    saved = []
    for kind, metadata in (("pdf", {"CreationDate": None}), ("png", {})):
        path = out / f"{name}.{kind}"
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        fig.savefig(beside, format=kind, metadata=metadata)
        beside.replace(path)
        saved.append((path, float(fig.get_figwidth()), float(fig.get_figheight())))
    return saved
