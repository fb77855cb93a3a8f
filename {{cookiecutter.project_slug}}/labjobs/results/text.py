"""Text that fits its place: labels in lines, names of rows and columns, numbers in cells."""

from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from labjobs.errors import SettingsError
from labjobs.results.metrics import CURE, NoResults

NAMED = 20  # largest number of columns or rows of an image that are named
ROW_NAMES = 0.42  # fraction of a figure's width that the names of rows may take
LINES = 6  # largest number of lines of a row's name

IN_CELL: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": "small"}  # a number
MARGIN = 3  # points beside a text in its cell


def figure_of(ax: Axes) -> Figure:
    """Return the figure that axes are in."""
    fig = ax.get_figure(root=True)
    assert fig
    return fig


def width(text: str, size: float | str) -> float:
    """Return the points that a line of text takes."""
    is_math = "$" in text.replace(r"\$", "")
    line, font = text if is_math else text.replace(r"\$", "$"), FontProperties(size=size)
    return float(text_to_path.get_text_width_height_descent(line, font, ismath=is_math)[0])


def check_labels(where: str, labels: Iterable[str]) -> None:
    """Raise SettingsError for a label whose mathematics matplotlib cannot set."""
    for label in labels:
        try:
            width(label, 10)
        except ValueError as error:
            unknown = str(error).strip().splitlines()[-1].partition(", found")[0]
            line = f"{where}: matplotlib cannot set {label} ({unknown})"
            raise SettingsError(f"{line}; write other mathematics, or \\$ for a dollar") from None


def wrapped(text: str, points: float, size: float | str) -> str:
    """Return a text in lines no longer than this many points, if its words allow it; broken at
    commas if that is enough."""
    lines: list[str] = []
    for parts in (text.replace(", ", ",\n").split("\n"), text.split(" ")):
        lines = parts[:1]
        for part in parts[1:]:
            longer = f"{lines[-1]} {part}"
            if width(longer, size) <= points:
                lines[-1] = longer
            else:
                lines.append(part)
        if all(width(line, size) <= points for line in lines):
            break
    return "\n".join(lines)


def row_names(names: Sequence[str], inches: float) -> list[str]:
    """Return the names of rows, in lines, for a figure that is this many inches wide. Raises
    NoResults for names that take too many lines, or lines that are too long."""
    size, points = matplotlib.rcParams["ytick.labelsize"], ROW_NAMES * 72 * inches
    texts = [wrapped(name, points, size) for name in names]
    for lines in (text.split("\n") for text in texts):
        if len(lines) > LINES or any(width(line, size) > 2 * points for line in lines):
            raise NoResults(too_long(max(names, key=len)))
    return texts


def too_long(name: str) -> str:
    """Return what is said of a name that no figure has a place for."""
    short = f"{name[:40]}…" if len(name) > 40 else name
    return f"{short} is too long a name for a figure; shorten LABELS, or {CURE}"


def name_rows(ax: Axes, names: Sequence[str], counts: Sequence[int] = ()) -> None:
    """Name the rows at 0, 1, …, and write their numbers of repeats at the right if these differ."""
    texts = row_names(names, figure_of(ax).get_figwidth())
    ax.set_yticks(range(len(texts)), texts, linespacing=1.1)
    if len({*counts}) > 1:
        right = ax.secondary_yaxis("right")
        right.set_yticks(range(len(counts)), [f"n = {count}" for count in counts])
        right.tick_params(length=0)
        right.spines[:].set_visible(False)


def named(count: int) -> range:
    """Return which columns or rows of an image are named: all, or every second, third, …"""
    return range(0, count, -(-count // NAMED))


def fits(text: str, points: float) -> bool:
    """Return whether a text fits in a cell that is this many points wide."""
    return width(text, IN_CELL["fontsize"]) + MARGIN <= points
