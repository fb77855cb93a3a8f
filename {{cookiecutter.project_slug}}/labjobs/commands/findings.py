"""What was found: a table, a suggestion or why there is none, a figure, and what to run next."""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labjobs.commands import short_jobs
from labjobs.files import PROJECT, shown
from labjobs.job.folder import JobFolder
from labjobs.job.identity import identity
from labjobs.results import figure_files, figures, style
from labjobs.results.metrics import Measured
from labjobs.results.style import DEFAULT, VENUES

if TYPE_CHECKING:
    from labjobs.commands.find import Span, Speed

# Where a loss is low while the learning rate rises, and whether it stands out from the noise.

WINDOW = 7
"""Number of points in the running mean."""

BEFORE = 0.1
"""Fraction of the points, at the start, whose rates are too low to change the loss."""

SIGMAS = 2.0
"""A fall must exceed this many standard deviations of a single point to stand out."""

OF_THE_FALL = 0.9
"""The loss counts as low once it has fallen by this fraction of its whole fall."""

TO_NORMAL = 1.4826
"""Ratio of the standard deviation to the median absolute deviation of normal values."""

Floats = NDArray[np.float64]


class Valley(NamedTuple):
    """The result of range tests, at the `rates` (n,) before training broke down."""

    rates: Floats
    smooth: Floats
    """The running mean of the loss, over the tests (n,)."""

    start: float
    end: float
    """The lowest and the highest rate at which the loss is low."""

    before: float
    low: float
    """The loss before anything happens, and the lowest running mean."""

    noise: float
    """The standard deviation of a single point."""

    rises: bool
    """Whether the loss rises after the valley, or is not finite."""

    @property
    def stands_out(self) -> bool:
        """Whether the loss falls by more than its noise."""
        return self.before - self.low > SIGMAS * self.noise

    @property
    def rate(self) -> float | None:
        """The geometric mean of the valley's ends, with two digits; None if it does not stand out
        or has no end."""
        if not (self.stands_out and self.rises):
            return None
        return float(f"{np.sqrt(self.start * self.end):.1e}")

    @property
    def about(self) -> str:
        """How the rate was found, or why there is none, in a few words."""
        if not self.stands_out:
            return (
                f"the loss falls by {self.before - self.low:.3g}, within {SIGMAS:g} standard "
                f"deviations of its noise, {self.noise:.2g}"
            )
        fall = f"from {self.before:.3g} to {self.low:.3g} (noise {self.noise:.2g})"
        if not self.rises:
            return f"the loss falls {fall} and has not risen again at {self.rates[-1]:.2g}"
        return f"the loss falls {fall} and is low from {self.start:.2g} to {self.end:.2g}"


def valley(rates: ArrayLike, losses: Sequence[ArrayLike]) -> Valley:
    """Return the valley in the losses of repeated range tests.

    Args:
        rates: Learning rates, rising (n,).
        losses: The losses of each test (n,), by rate. A test that ended early has fewer values, and
            values may be infinite or NaN.

    Everything after a breakdown is cut off: after the first value that is not finite, or after the
    running mean is as far above its initial level as it had been below it. This works for losses of
    any scale and sign. Raises ValueError if nothing is left.
    """
    every = np.asarray(rates, dtype=float)
    first = max(3, round(BEFORE * len(every)))
    values = _before_breakdown([np.asarray(each, dtype=float) for each in losses], first)
    if values.shape[1] <= first:
        raise ValueError(f"only {values.shape[1]} finite values")
    smooth = _running_mean(values.mean(axis=0))
    before, bottom = float(values[:, :first].mean()), int(smooth.argmin())
    low, noise = float(smooth[bottom]), TO_NORMAL * float(np.median(np.abs(values - smooth)))
    high = np.flatnonzero(smooth > low + (1 - OF_THE_FALL) * (before - low) + SIGMAS * noise)
    left, right = high[high < bottom], high[high > bottom]
    count = len(smooth)
    return Valley(
        rates=every[:count],
        smooth=smooth,
        start=float(every[left[-1] + 1 if len(left) else 0]),
        end=float(every[right[0] - 1 if len(right) else count - 1]),
        before=before,
        low=low,
        noise=noise,
        rises=bool(len(right)) or count < len(every),
    )


def _before_breakdown(losses: Sequence[Floats], first: int) -> Floats:
    """The losses of several tests (tests, n), until one of them breaks down."""
    count = min(map(len, losses))
    values = np.stack([each[:count] for each in losses])
    wrong = np.flatnonzero(~np.isfinite(values).all(axis=0))
    values = values[:, : wrong[0]] if len(wrong) else values
    before, noise = values[:, :first].mean(), values[:, :first].std()
    smooth = _running_mean(values.mean(axis=0))
    fallen = before - np.minimum.accumulate(smooth)
    above = np.flatnonzero(smooth > before + np.maximum(fallen, SIGMAS * noise))
    return values[:, : above[0]] if len(above) else values


def _running_mean(values: Floats) -> Floats:
    """The mean of WINDOW values around each; of fewer at the ends."""
    half = WINDOW // 2
    return np.array([values[max(0, i - half) : i + half + 1].mean() for i in range(len(values))])


# Figures of the answers, and their files.

Drawn = tuple[Any, str]
"""A figure and its caption."""

Drawing = Callable[[], Drawn]
Curve = tuple[list[float], list[float]]


def write(name: str, draw: Drawing, jobs: Sequence[JobFolder[Any]]) -> list[str]:
    """Draw a figure into the project's folder of figures; return the paths of its images. If it
    would not print correctly, say why and return none."""
    venue = VENUES[DEFAULT]
    figures.use(venue)
    figure, caption = draw()
    stem = PROJECT / "figures" / name
    try:
        files = figure_files.save(figure, stem, caption, _provenance(jobs, venue.name), venue)
    except figure_files.Misprint as error:
        print(f"{name}: not written: {error}", file=sys.stderr)
        return []
    return [shown(file.path) for file in files]


def range_tests(found: Valley, curves: Sequence[Curve], metric: Measured) -> Drawn:
    """Return the figure of range tests: the loss of each by the learning rate, and their mean."""
    fig, ax = figures.figure("column", 2.4)
    for rates, losses in curves:
        ax.plot(rates, losses, color=style.GREY, linewidth=0.4, alpha=0.6)
    ax.plot(found.rates, found.smooth, color=style.COLOURS[0], label="running mean")
    figures.log_scale(ax.xaxis)
    ax.set_xlabel("learning rate")
    figures.value_axis(ax.yaxis, metric.axis)
    margin = 0.1 * (found.before - found.low) + 4 * found.noise
    ax.set_ylim(found.low - margin, max(found.before, float(found.smooth.max())) + margin)
    _mark(ax, found.rate)
    figures.legend(fig)
    end = "" if found.rate is None else "; the dashed line is the suggested rate"
    return fig, (
        f"{metric.title} in {len(curves)} range {'tests' if len(curves) > 1 else 'test'}, in which "
        "the learning rate rises with each step, and its running mean until a test breaks "
        f"down{end}."
    )


def speeds(found: "Sequence[Speed]", name: str, suggested: int | None) -> Drawn:
    """Return the figure of training speeds by a setting or flag, with their 95 % t intervals."""
    fig, ax = figures.figure("column", 2.2)
    values = [speed.value for speed in found]
    for speed in found:
        middle, low, high = speed.interval
        ax.plot([speed.value] * 2, [low, high], color=style.COLOURS[0], linewidth=0.9)
        ax.plot(speed.value, middle, "o", color=style.COLOURS[0])
    if min(values) > 0:
        ax.set_xscale("log", base=2)
    ax.set_xlabel(style.setting(name))
    figures.value_axis(ax.yaxis, "training examples per second")
    ax.set_ylim(0, 1.1 * max(speed.interval.high for speed in found))
    _mark(ax, suggested)
    figures.ticks_at(ax, values)
    end = "" if suggested is None else "; the dashed line is the suggested value"
    return fig, (
        f"Training examples per second: mean of {len(found[0].rates)} windows of time with its "
        f"95% t interval{end}."
    )


def noise_scales(spans: "Sequence[Span]", suggested: int | None, parts: int) -> Drawn:
    """Return the figure of the noise scale by optimizer step, with its 95 % intervals."""
    fig, ax = figures.figure("column", 2.2)
    known = [span for span in spans if span.low > 0 and np.isfinite(span.high)]
    for span in known:
        ax.fill_between(
            [span.first, span.last], span.low, span.high, color=style.COLOURS[0], alpha=0.2, lw=0
        )
        ax.plot([span.first, span.last], [span.scale] * 2, color=style.COLOURS[0])
    ax.set_xlabel("optimizer step")
    if known:
        figures.log_scale(ax.yaxis)
    ax.set_ylabel("noise scale (examples)")
    if suggested:
        ax.axhline(suggested, color=style.COLOURS[1], linestyle=style.LINES[1], linewidth=0.9)
    end = "; the dashed line is the suggested batch size" if suggested else ""
    missing = len(spans) - len(known)
    return fig, (
        f"Simple noise scale of the gradient, from {parts} parts of each batch, with its 95% "
        f"interval over steps{end}."
        + (f" In {missing} of {len(spans)} spans it cannot be estimated." if missing else "")
    )


def _mark(ax: Any, value: float | None) -> None:
    if value is not None:
        ax.axvline(value, color=style.COLOURS[1], linestyle=style.LINES[1], linewidth=0.9)


def _provenance(jobs: Sequence[JobFolder[Any]], venue: str) -> dict[str, Any]:
    """The provenance of a figure, as in the figures of plot.py."""
    each = [identity(job.settings) for job in jobs]
    varied = [name for name in each[0] if len({str(one.get(name)) for one in each}) > 1]
    commits = {_commit(job) for job in jobs}
    newest = max(job.path.stat().st_mtime for job in jobs)
    return {
        "jobs": sorted(job.id for job in jobs),
        "commits": sorted(commits),
        "shared": {name: value for name, value in each[0].items() if name not in varied},
        "varied": {name: [one.get(name) for one in each] for name in varied},
        "newest": datetime.fromtimestamp(newest, UTC).isoformat(timespec="seconds"),
        "venue": venue,
    }


def _commit(job: JobFolder[Any]) -> str:
    changed = " with changes" if short_jobs.tag(job, "dirty") == "true" else ""
    return f"{short_jobs.tag(job, 'commit')}{changed}"


Row = dict[str, str | int | float | None]
"""A row of the table, by the names of its columns."""


@dataclass
class Answer:
    """The answer for a setting or flag."""

    what: str
    """The name of the setting or flag, as a field."""

    value: float | int | None
    """The suggested value; None if nothing stands out."""

    why: str
    """How it was found, or why there is no suggestion, in one line."""

    rows: Sequence[Row]
    next: str
    """The command to run next."""

    draw: Drawing
    """Returns the figure and its caption."""

    jobs: Iterable[JobFolder[Any]] = ()
    figure: Sequence[str] = ()
    """The paths of its files."""

    @property
    def suggested(self) -> str:
        """The suggestion as a flag."""
        return f"--{self.what.replace('_', '-')} {self.value}"


def show(answer: Answer, as_json: bool) -> int:
    """Print an answer; returns the exit status: 0 if something is suggested, else 1."""
    if as_json:
        print(json.dumps(_plain(answer), indent=2))
    else:
        for line in table(answer.rows):
            print(line)
        found = answer.value is not None
        print(f"suggestion: {answer.suggested} ({answer.why})" if found else _nothing(answer))
        for path in answer.figure:
            print(f"figure: {path}")
        print(f"next: {answer.next}")
    sys.stdout.flush()
    return 1 if answer.value is None else 0


def table(rows: Sequence[Row]) -> list[str]:
    """Return rows as lines of text, with columns as narrow as possible."""
    names = [*rows[0]] if rows else []
    texts = [names, *([_text(row[name]) for name in names] for row in rows)]
    widths = [max(len(row[place]) for row in texts) for place in range(len(names))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in texts
    ]


def _nothing(answer: Answer) -> str:
    return f"nothing stands out: {answer.why}"


def _text(value: str | int | float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def _plain(answer: Answer) -> dict[str, Any]:
    return {
        "suggestion": None if answer.value is None else {answer.what: answer.value},
        "why": answer.why,
        "rows": list(answer.rows),
        "jobs": [job.id for job in answer.jobs],
        "figure": list(answer.figure),
        "next": answer.next,
    }
