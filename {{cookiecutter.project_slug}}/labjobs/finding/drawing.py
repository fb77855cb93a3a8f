"""Figures of the answers, and their files."""

import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from labjobs.finding import trials
from labjobs.finding.valley import Valley
from labjobs.job.folder import JobFolder
from labjobs.job.identity import identity
from labjobs.paths import PROJECT, shown
from labjobs.results import figure_files, figures, style
from labjobs.results.metrics import Measured
from labjobs.results.venues import DEFAULT, VENUES

if TYPE_CHECKING:
    from labjobs.finding.noise_scales import Span
    from labjobs.finding.speeds import Speed

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
    changed = " with changes" if trials.tag(job, "dirty") == "true" else ""
    return f"{trials.tag(job, 'commit')}{changed}"
