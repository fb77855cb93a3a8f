"""Figures at their printed size: what is drawn is what the page shows.

    figures.use(VENUES["icml"])
    fig, ax = figures.figure("column")
    plots.bands(ax, curves, "adam", metric)
    figure_files.save(fig, Path("figures/loss"), ...)

Figures have the widths of the venue's page and the text sizes that it should have: include the PDF
at its natural size, without `width=`, to keep them. Figures are not pyplot's: nothing is held open
and no display is needed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import AutoLocator, Formatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import ArrayLike, NDArray

from labjobs.results import tables, text
from labjobs.results.comparison import Curves
from labjobs.results.metrics import Measured, NoResults
from labjobs.results.samples import Difference, Sample
from labjobs.results.style import DEFAULT, VENUES, Venue, number, parameters, signed

LEADING = 1.2  # ratio of the height of a line of text to its size
LINES = 3  # the largest number of lines of a row's name, if a wider figure can avoid more
BESIDE = 3  # width of a legend besides its labels, in units of their font size

LOWEST = 1.45  # inches of a figure of rows, so that its labels take less than a third of it
ABOVE = 0.12  # inches between the names of two rows

ACROSS, PANEL = 3, 2.1  # panels in a row, at most, and their height in inches
LABEL, TALL = 0.56, 0.72  # fractions of a panel's width and height that a label's line may take

DIRECT = 4  # the largest number of lines that are named at their ends instead of in a legend
NAME = 0.3  # the largest fraction of a figure's width that such a name may take
INTERVAL = "interval"  # the `gid` of lines that are intervals

_venue = VENUES[DEFAULT]


def use(venue: Venue) -> None:
    """Draw for a venue from now on."""
    global _venue
    _venue = venue

    matplotlib.rcdefaults()
    matplotlib.rcParams.update(parameters(venue))


def figure(
    width: str = "column", height: float | None = None, **subplots: Any
) -> tuple[Figure, Any]:
    """Return a figure as wide as a `column` or the `full` page, and its axes.

    The height is in inches, by default 0.62 of the width and never more than the venue's page has;
    `subplots` goes to Figure.subplots. Raises ValueError for an unknown width.
    """
    if width not in ("column", "full"):
        raise ValueError(f"no width {width!r}; known: column, full")
    inches = _venue.column if width == "column" else _venue.full
    # Constrained layout for this figure alone: by rcParam it would come on between two saves.
    size = inches, min(round(height, 2) if height else 0.62 * inches, _venue.height)
    fig = Figure(figsize=size, layout="constrained")
    return fig, fig.subplots(**subplots)


def panels(
    names: Sequence[str], xlabel: str, values: Measured | str, rows: Sequence[str] = ()
) -> tuple[Figure, list[Any]]:
    """Return a figure and its panels: one for each name, with a letter and a title, up to three in
    a row. They share an axis of values, for a metric or with this label, or else the `rows` with
    these names, with values of their own. It is as wide as the page, or as a column for one."""
    down = -(-len(names) // ACROSS)
    across = -(-len(names) // down)
    width, inches = ("full", _venue.full) if across > 1 else ("column", _venue.column)
    titles = [text.wrapped(name, 72 * (inches / across - 0.6), _venue.text) for name in names]
    lines = max(title.count("\n") + bool(title) for title in titles)
    panel = 0.2 + max(LOWEST, len(rows) * _row(rows, inches, 0.25)) if rows else PANEL
    size = 0.25 + down * (panel + lines * LEADING * _venue.text / 72)
    fig, grid = figure(width, size, nrows=down, ncols=across, sharey=True, squeeze=False)
    for ax in grid.flat[len(names) :]:
        ax.remove()
    axes = list(grid.flat)[: len(names)]
    for title, ax in zip(titles, axes, strict=True):
        ax.set_title(title)
        _label(ax.xaxis, "")
        value_axis(ax.xaxis if rows else ax.yaxis, values)
        ax.set(**{"xlabel" if rows else "ylabel": ""})
    fig.supxlabel(xlabel)
    if not rows:
        label = values if isinstance(values, str) else values.axis
        fig.supylabel(text.wrapped(label, TALL * 72 * size, _venue.text))
    if len(names) > 1:
        letters(axes)
    return fig, axes


def rows(names: Sequence[str], height: float) -> tuple[Figure, Any]:
    """Return a figure for rows with these names, and its axes. Each row is this many inches high,
    or higher if its name needs it; the figure is a column wide, unless names would take too many
    lines."""
    most = LINES * _venue.small / 72 + ABOVE
    width = "full" if _row(names, _venue.column, height) > max(height, most) else "column"
    row = _row(names, _venue.full if width == "full" else _venue.column, height)
    return figure(width, max(LOWEST, 0.5 + row * len(names)))


def _row(names: Sequence[str], inches: float, least: float) -> float:
    """The height of a row in a figure that is this wide: that of the longest name, at least."""
    lines = max(name.count("\n") + 1 for name in text.row_names(names, inches))
    return max(least, lines * _venue.small / 72 + ABOVE)


def letters(axes: Iterable[Axes]) -> None:
    """Letter panels a, b, c, … in their upper left corners, above the axes."""
    for index, ax in enumerate(axes):
        ax.set_title(chr(ord("a") + index), loc="left", fontweight="bold")


def legend(fig: Figure, labels: Mapping[str, str] = MappingProxyType({})) -> None:
    """Add one legend above all panels, every name once, in the order of `labels`, which say what
    names are written as, and in as few rows as the width allows. The figure becomes higher by the
    legend, so that the axes keep their height. A few lines in a single panel are named at their
    ends, if the names fit there, so call this after the limits of the axes are set."""
    handles = {
        label: handle
        for ax in fig.axes
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    order = [name for name in dict.fromkeys([*labels, *handles]) if name in handles]
    handles = {labels.get(name, name): handles[name] for name in order}
    if not handles or (len(fig.axes) == 1 and _name_ends(fig.axes[0], handles)):
        return
    size = matplotlib.rcParams["legend.fontsize"]
    room = 72 * fig.get_figwidth() - BESIDE * size
    names = [text.wrapped(name, room, size) for name in handles]
    for rows in range(1, len(handles) + 1):
        columns = -(-len(handles) // rows)
        made = fig.legend(handles.values(), names, ncols=columns, loc="outside upper center")
        box = made.get_window_extent()
        if columns == 1 or box.width <= fig.bbox.width:
            break
        made.remove()
    _heighten(fig, box.height / fig.dpi)


def _heighten(fig: Figure, inches: float) -> None:
    """Make a figure higher, as far as the page allows it."""
    fig.set_figheight(min(round(fig.get_figheight() + inches, 2), _venue.height))


def name_columns(ax: Axes, names: Sequence[str]) -> float:
    """Name the columns of an image, vertically and in a higher figure if names are long, and only
    some of them if there are too many; return the points that a column has. Raises NoResults for
    names that are too long."""
    fig, shown = text.figure_of(ax), text.named(len(names))
    ax.set_xticks(shown, [names[column] for column in shown])
    fig.draw_without_rendering()
    cell = 72 / fig.dpi * float(ax.get_window_extent().width) / len(names)
    upright = ax.get_xticklabels()[0].get_rotation()
    longest = max(text.width(names[column], _venue.small) for column in shown)
    if not upright and longest + text.MARGIN > cell * shown.step:
        if longest > text.ROW_NAMES * 72 * fig.get_figwidth():
            raise NoResults(text.too_long(max(names, key=len)))
        ax.tick_params(axis="x", rotation=90)
        _heighten(fig, longest / 72)
    return cell


def _name_ends(ax: Axes, lines: Mapping[str, Any]) -> bool:
    """Name lines at their ends, in their colours; return whether the names fit. Nothing is named if
    some are points alone, or have none, as of jobs that diverged at once."""
    fig, size = text.figure_of(ax), _venue.small
    widest = max((text.width(name, size) for name in lines), default=0)
    drawn = [
        isinstance(line, Line2D) and line.get_linestyle() != "None" and np.size(line.get_ydata())
        for line in lines.values()
    ]
    fit = widest <= NAME * 72 * fig.get_figwidth()
    if not (1 < len(lines) <= DIRECT and fit and all(drawn)):
        return False
    ends = {name: float(line.get_ydata()[-1]) for name, line in lines.items()}
    fig.draw_without_rendering()
    places = ax.transData.transform([(1, end) for end in ends.values()])[:, 1] * 72 / fig.dpi
    beyond = np.clip([*ends.values()], *ax.get_ylim()) != [*ends.values()]
    if min(np.diff(np.sort(places))) < LEADING * size or beyond.any():
        return False
    for name, end in ends.items():
        style: Any = {"color": lines[name].get_color(), "fontsize": size, "va": "center"}
        where: Any = {"xycoords": ax.get_yaxis_transform(), "textcoords": "offset points"}
        ax.annotate(name, (1, end), (3, 0), **where, **style)
    return True


# Axes: their labels and ticks, in plain numbers.

MOST, LEAST = 6, 3  # labelled ticks of a logarithmic axis
MANY = 12  # the largest number of values of a setting that each have a tick


def value_axis(axis: Axis, values: Measured | str) -> None:
    """Label an axis with a metric, and scale it as declared, or label it with a text; in lines that
    fit."""
    if isinstance(values, str):
        _label(axis, values)
    else:
        _label(axis, values.axis, values)


def difference_axis(axis: Axis, metric: Measured) -> None:
    """Label an axis of differences in a metric, or of ratios if it is logarithmic."""
    unit = " (percentage points)" if metric.factor > 1 else metric.axis.removeprefix(str(metric))
    label = f"ratio of {metric}" if metric.log else f"difference in {metric}{unit}"
    _label(axis, label, metric)


def _label(axis: Axis, label: str, metric: Measured | None = None) -> None:
    place, fig = axis.axes.get_subplotspec(), axis.get_figure(root=True)
    assert place and fig
    rows, columns, *_ = place.get_geometry()
    width, height = fig.get_size_inches()
    inches = LABEL * width / columns if axis is axis.axes.xaxis else TALL * height / rows
    axis.set_label_text(text.wrapped(label, 72 * inches, _venue.text))
    axis.set_major_locator(Ticks())
    axis.set_major_formatter(Plain(metric.factor if metric else 1))
    axis.isDefault_majloc = axis.isDefault_majfmt = True  # words and dates bring their own
    if metric and metric.log:
        log_scale(axis)


def log_scale(axis: Axis) -> None:
    """Make an axis logarithmic, with few ticks, in plain numbers."""
    change = axis.axes.set_xscale if axis is axis.axes.xaxis else axis.axes.set_yscale
    change("log")
    axis.set_major_locator(LogTicks())
    axis.set_major_formatter(Plain())
    axis.set_minor_formatter(NullFormatter())


def ticks_at(ax: Axes, values: Iterable[float]) -> None:
    """Set ticks at these values of the x axis, labelled where labels do not touch.

    Call this last: it depends on the axes' limits and size. Many values, as those of a search, get
    ticks of round numbers instead.
    """
    fig, every = text.figure_of(ax), sorted(set(values))
    if len(every) > MANY:
        return
    fig.draw_without_rendering()
    ax.xaxis.set_major_formatter(Plain())
    labelled = _apart(ax.xaxis, every)
    ax.set_xticks(labelled, Plain().format_ticks(labelled))
    ax.set_xticks(every, minor=True)
    ax.xaxis.set_minor_formatter(NullFormatter())


def plain(value: float, digits: int = 6) -> str:
    """Return a tick's label. Very small and very large numbers have their own exponents, rather
    than one at the end of the axis, which could be missed."""
    return signed(number(value, digits))


class Plain(Formatter):
    """Labels of ticks whose values are shown multiplied by a factor, with as many digits as say
    where each tick is."""

    def __init__(self, factor: int = 1) -> None:
        self._factor = factor

    def __call__(self, value: float, _place: int | None = None) -> str:
        """Return the label of a tick."""
        return plain(self._factor * value)

    def format_ticks(self, values: Iterable[float]) -> list[str]:
        """Return the labels of all ticks."""
        shown = [self._factor * value for value in values]
        gap = min(np.diff(np.unique(shown)), default=max(map(abs, shown), default=0.0) / 1000)
        for digits in range(6, 15):
            exact = [float(number(value, digits)) for value in shown]
            if np.all(np.abs(np.subtract(exact, shown)) <= gap / 100):
                break
        return [plain(value, digits) for value in shown]


class LogTicks(LogLocator):
    """Few ticks on a logarithmic axis: 1, 2, 3 and 5 in each decade, only powers of ten if there
    would be too many, and steps of equal size if there would be too few."""

    def tick_values(self, vmin: float, vmax: float) -> Any:
        """Return the places of ticks between two ends."""
        low, high = sorted((vmin, vmax))
        if not 0 < low < high:
            return np.array([])
        decades = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)))
        each = [np.outer(decades, steps).ravel() for steps in ((1, 2, 3, 5), (1, 3), (1,))]
        each = [places[(low <= places) & (places <= high)] for places in each]
        places = next((places for places in each if len(places) <= MOST), each[-1])
        if len(places) < LEAST:
            places = np.asarray(MaxNLocator(LEAST + 1, steps=[1, 2, 5, 10]).tick_values(low, high))
            places = places[(low <= places) & (places <= high)]
        fewer = (places[::step] for step in range(-(-len(places) // MOST) or 1, len(places)))
        return next((few for few in fewer if len(_apart(self.axis, few)) == len(few)), places[:1])


class Ticks(AutoLocator):
    """Ticks on a linear axis, so few that their labels do not touch."""

    def tick_values(self, vmin: float, vmax: float) -> Any:
        """Return the places of ticks between two ends."""
        each = [super().tick_values(vmin, vmax)]
        each += [MaxNLocator(n, steps=[1, 2, 5, 10]).tick_values(vmin, vmax) for n in (4, 3, 2)]
        return next((few for few in each if len(_apart(self.axis, few)) == len(few)), each[-1])


def _apart(axis: Axis | Any, places: Iterable[float]) -> list[float]:
    """Return those of some places, from left to right, whose labels have spaces between them."""
    ax, end, kept, places = axis.axes, -np.inf, list[float](), [*places]
    for tick, label in zip(places, axis.get_major_formatter().format_ticks(places), strict=True):
        place = 72 / text.figure_of(ax).dpi * float(ax.transData.transform((tick, 1))[0])
        half = 0.3 * _venue.small * len(label)  # digits of either font are narrower
        if axis is ax.yaxis or place - half > end:
            kept.append(tick)
            end = place + half + _venue.small / 2
    return kept


# Limits of axes, chosen to show what is worth seeing; captions say what lies beyond them.

HIDDEN = 0.02  # fraction of the values that an axis may leave out, the worst ones

WORST = 0.1  # the same for the trials of a search, many of which are bad, if without these
CROWDED = 0.5  # the others take less than this part of the axis

ABSURD = 1000
"""How many times larger than the median a result is that would flatten all others on a linear axis,
as after a step that nearly diverged."""

EXTRA = 1.2
"""Space for intervals on either side of the results, relative to the space that the results take.
The t intervals of three or more results never need more; those that are over test examples as well
may do."""

MARGIN = 0.05  # fraction of an axis that is left empty at either end

CUT = " of the axes cut intervals off."


def limit_to_curves(ax: Axes, curves: Curves, metric: Measured) -> str:
    """Set the limits of the y axis that panels share, by their curves and not by the intervals. On
    a linear axis, the worst values, such as those of the first steps, are left out. Return what the
    caption has to say about this."""
    lines = [line for of_panel in curves.values() for line in of_panel.values()]
    ends = [tables.moments(line).groupby(line["job_id"]).max().nunique() for line in lines]
    early = " Means end where the first of their jobs ends." * (max(ends, default=1) > 1)
    axes, each = [panel.yaxis for panel in text.figure_of(ax).axes], [x["value"] for x in lines]
    return early + _limit(axes, each, metric, hidden=0 if metric.log else HIDDEN, extra=0)


def limit_to_trials(
    axes: Sequence[Axes], results: ArrayLike, metric: Measured, worst: float = WORST
) -> str:
    """Set the limits of the y axis that panels share so that the `worst` trials of a search do not
    crowd the others out. Return what the caption has to say about this."""
    values = np.sort(metric.sign * np.asarray(results, dtype=float)[np.isfinite(results)])
    kept = values[int(worst * len(values)) :]
    is_crowded = not metric.log and np.ptp(kept) < CROWDED * np.ptp(values)
    axis, hidden = [ax.yaxis for ax in axes], worst if is_crowded else 0
    return _limit(axis, [metric.sign * values], metric, hidden, extra=0)


def limit_to_intervals(
    axis: Axis, samples: Iterable[Sample], metric: Measured, seen: float = np.nan
) -> str:
    """Set the limits of an axis so that intervals do not crowd the results out, and a value is
    `seen`. Return what the caption has to say about this."""
    results = [each.results for each in samples]
    return _limit([axis], results, metric, hidden=0, extra=EXTRA, seen=seen)


def limit_to_differences(axis: Axis, found: Iterable[Difference], metric: Measured) -> str:
    """Set the limits of an axis by differences in a metric, or ratios, with intervals of the usual
    width, so that only much wider ones are cut. Return what the caption has to say about this."""
    each = [one.estimate for one in found]
    half = float(np.median([one.half() for one in each]))
    ends = np.array([[one.mean - half, one.mean, one.mean + half] for one in each])
    free = replace(metric, declared=replace(metric.declared, range=(None, None)))
    values, seen = (np.exp(ends), 1.0) if metric.log else (ends, 0.0)
    return _limit([axis], values, free, hidden=0, extra=EXTRA, seen=seen)


def _limit(
    axes: Sequence[Axis],
    samples: Iterable[Iterable[float]],
    metric: Measured,
    hidden: float,
    extra: float,
    seen: float = np.nan,
) -> str:
    """Set the limits of axes to the sampled values, all but the fraction `hidden` of the worst;
    what else is drawn adds at most `extra`, a fraction of their range. The value `seen` is always
    within the limits. Return what the caption has to say of values beyond them."""
    values = metric.checked([value for each in samples for value in each])
    values = values[np.isfinite(values)]
    if not len(values):
        return ""
    scale = axes[0].get_transform()
    ends = [hidden, 1] if metric.sign > 0 else [0, 1 - hidden]
    largest = np.inf if metric.log else ABSURD * np.median(abs(values))
    kept = values[abs(values) <= (largest or np.inf)]
    low, high = np.quantile(scale.transform(kept), ends)
    low, high = np.nanmin([low, scale.transform(seen)]), np.nanmax([high, scale.transform(seen)])
    drawn = np.array([axis.get_data_interval() for axis in axes])
    known = [*drawn[np.isfinite(drawn)]] or [*values]  # an empty panel draws nothing
    lowest, highest = np.nanmin([*known, seen]), np.nanmax([*known, seen])
    space = extra * (high - low)
    shown = np.clip(scale.transform(np.array([lowest, highest])), low - space, high + space)
    margin = MARGIN * np.ptp(shown) or MARGIN * abs(high) or MARGIN
    # A little beyond the range of the metric, so that points on its end are seen whole.
    slack = 0.2 * margin
    with np.errstate(invalid="ignore", divide="ignore"):  # the logarithms of 0 and less
        within = scale.transform(np.array(metric.bounds(values)))
    within = np.where(np.isfinite(within), within, [-np.inf, np.inf]) + np.array([-slack, slack])
    edges = np.clip([shown[0] - margin, shown[1] + margin], *within)
    least, most = scale.inverted().transform(edges)
    change = axes[0].axes.set_xlim if axes[0] is axes[0].axes.xaxis else axes[0].axes.set_ylim
    change(least, most)
    seen_or_cut = values[(lowest <= values) & (values <= highest)]  # means may be drawn alone
    said = _outside(seen_or_cut, (least, most), len(values), "beyond the axis")
    said += _outside(values, metric.within, len(values), "outside the range that METRICS declares")
    is_cut = lowest < min(least, values.min()) or highest > max(most, values.max())
    arrows = [_point_beyond(axis) for axis in axes]
    where = "Arrows show where the edges" if any(arrows) else "The edges"
    return said + (f" {where}{CUT}" if is_cut else "")


def _outside(values: NDArray[Any], ends: tuple[float, float], n: int, where: str) -> str:
    """A sentence on how many of n values are not between two ends; empty if all are."""
    part = np.sum((values < ends[0]) | (values > ends[1])) / n
    percent = f"{part:.1%}" if part >= 0.0005 else "less than 0.1%"
    return f" {percent[:1].upper()}{percent[1:]} of all values are {where}." if part else ""


def _point_beyond(axis: Axis) -> bool:
    """Draw arrowheads where intervals go on beyond the edges of the axes; return whether any do."""
    ax, across = axis.axes, axis is axis.axes.xaxis
    low, high = sorted(axis.get_view_interval())
    lines = len(ax.lines)
    for line in [line for line in ax.lines if line.get_gid() == INTERVAL]:
        x, y = np.asarray(line.get_data(), dtype=float)
        ends, place = (x, y[0]) if across else (y, x[0])
        below, above = ("<", ">") if across else ("v", "^")
        for edge, marker, is_cut in (low, below, min(ends) < low), (high, above, max(ends) > high):
            where = (edge, place) if across else (place, edge)
            if is_cut:
                ax.plot(*where, marker, color=line.get_color(), markersize=3.5, clip_on=False)
    return len(ax.lines) > lines
