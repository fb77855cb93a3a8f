"""Text that fits its place: labels in lines, names of rows and columns, numbers in cells."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from labjobs.results.groups import (
    FOLD,
    SEED,
    combinations,
    finite,
    groups,
    having,
    paired_difference,
    repeated,
    varied,
)
from labjobs.results.metrics import CURE, Measured, NoResults
from labjobs.results.style import setting, settings, with_interval

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMED = 20
"""Largest number of columns or rows of an image that are named."""

ROW_NAMES = 0.42
"""Fraction of a figure's width that the names of rows may take."""

LINES = 6
"""Largest number of lines of a row's name."""

IN_CELL: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": "small"}
"""How a number is placed in its cell."""

MARGIN = 3
"""Points beside a text in its cell."""


def width(text: str, size: float | str) -> float:
    """Return the points that a line of text takes."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    is_math = "$" in text.replace(r"\$", "")
    line = text if is_math else text.replace(r"\$", "$")
    font = FontProperties(size=size)
    return float(text_to_path.get_text_width_height_descent(line, font, ismath=is_math)[0])


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
    """Return the names of rows, in lines, for a figure that is this many inches wide.

    Raises NoResults for names that take too many lines, or lines that are too long.
    """
    import matplotlib

    size, points = matplotlib.rcParams["ytick.labelsize"], ROW_NAMES * 72 * inches
    texts = [wrapped(name, points, size) for name in names]
    for lines in (text.split("\n") for text in texts):
        if len(lines) > LINES or any(width(line, size) > 2 * points for line in lines):
            raise NoResults(f"the jobs differ in too many settings to be named in a figure; {CURE}")
    return texts


def name_rows(ax: "Axes", names: Sequence[str]) -> None:
    """Name the rows at 0, 1, …"""
    texts = row_names(names, _figure(ax).get_figwidth())
    ax.set_yticks(range(len(texts)), texts, linespacing=1.1)


def named(count: int) -> range:
    """Return which columns or rows of an image are named: all, or every second, third, …"""
    return range(0, count, -(-count // NAMED))


def name_columns(ax: "Axes", texts: Sequence[str]) -> float:
    """Name the columns of an image, vertically if names are too long, and only some of them if
    there are too many; return the points that a column has."""
    fig, shown = _figure(ax), named(len(texts))
    ax.set_xticks(shown, [texts[column] for column in shown])
    fig.draw_without_rendering()
    cell = 72 / fig.dpi * float(ax.get_window_extent().width) / len(texts)
    if any(not fits(texts[column], cell * shown.step) for column in shown):
        ax.tick_params(axis="x", rotation=90)
    return cell


def fits(text: str, points: float) -> bool:
    """Return whether a text fits in a cell that is this many points wide."""
    return width(text, IN_CELL["fontsize"]) + MARGIN <= points


def _figure(ax: "Axes") -> "Figure":
    fig = ax.get_figure(root=True)
    assert fig
    return fig


# What captions say about the jobs in a figure: what means are based on, what is missing, what is
# better.
#
# Sentences begin with a space, and are empty if there is nothing to say.

MOST = 6
"""The largest number of settings that are named; further ones are only counted."""


def repeats(jobs: "pd.DataFrame", by: Sequence[str], metric: Measured) -> str:
    """Return what the means over jobs with the same settings are based on: `mean of 3 seeds`.
    Raises NoResults if jobs differ in more than these settings, the seed and the fold, because a
    mean over them would mix different things.
    """
    known = having(jobs, metric.result)
    more = [name for name in varied(known) if name not in by]
    if more and combinations(known, [*by, *more]) > combinations(known, by):
        raise NoResults(f"a mean would be over different values of {settings(more)}")
    counts = [len(alike) for alike in groups(known, by).values()]
    few, many = min(counts), max(counts)
    if many == 1:
        return f"one {settings(names)}" if (names := repeated(jobs)) else "single jobs"
    mean = "geometric mean" if metric.log else "mean"
    return f"{mean} of {few if few == many else f'{few}–{many}'} {_repeats(known)}"


def interval(jobs: "pd.DataFrame", metric: Measured) -> str:
    """Return what kind of intervals these means have."""
    scale = " of the logarithm" if metric.log else ""
    # They share most of their training examples: Bengio and Grandvalet 2004,
    # jmlr.org/papers/v5/grandvalet04a.html.
    folds = ", as if folds were independent" if FOLD in _varying(jobs) else ""
    return f"95% t interval{scale}{folds}"


def _repeats(jobs: "pd.DataFrame") -> str:
    """What several repeats are: `seeds`, or `jobs over seeds and folds`."""
    names = [f"{setting(name)}s" for name in _varying(jobs) or [SEED]]
    return names[0] if len(names) == 1 else f"jobs over {' and '.join(names)}"


def _varying(jobs: "pd.DataFrame") -> list[str]:
    return [name for name in repeated(jobs) if combinations(jobs, [name]) > 1]


def left_out(jobs: "pd.DataFrame", by: Sequence[str], metric: Measured) -> str:
    """Say which jobs are left out of the means: those that diverged, and those without a finite
    result."""
    parts = [
        text
        for name, alike in groups(jobs, by).items()
        for text in _missing(alike, metric, f" of {name}" if name else "")
    ]
    if len(parts) > MOST:
        parts = _missing(jobs, metric, "")
    return f" Left out: {'; '.join(parts)}." if parts else ""


def _missing(jobs: "pd.DataFrame", metric: Measured, whose: str) -> list[str]:
    diverged = int(jobs["diverged"].sum())
    unknown = len(jobs) - diverged - len(finite(jobs, metric.result))
    whys = {"which diverged": diverged, "without a finite result": unknown}
    return [f"{n} of {len(jobs)} jobs{whose}, {why}" for why, n in whys.items() if n]


def compared(samples: "Sequence[pd.Series[float]]", metric: Measured) -> str:
    """Say how the first two samples differ, by seed and fold; empty if they have none in common."""
    if len(samples) < 2 or not (pairs := len((samples[0] - samples[1]).dropna())):
        return ""
    what = "First over second" if metric.log else "First minus second"
    difference = with_interval(*paired_difference(samples[0], samples[1], metric.log))
    repeat = settings([str(name) for name in samples[0].index.names])
    if pairs == 1:
        return f" {what}: {difference}, of one {repeat}."
    return f" {what}: {difference}, 95% t interval of {pairs} pairs by {repeat}."


def first(jobs: "pd.DataFrame", shown: int, count: int) -> str:
    """Return how many settings a ranking shows: `the best 12 of 20 settings`."""
    many = f"all {count}" if shown == count else f"the best {shown} of {count}"
    last = ", those of which a job diverged last" if jobs["diverged"].any() else ""
    return f"{many} settings{last}" if count > 1 else "one setting"
