"""The figures, drawn from the results of finished jobs.

    python plot.py                              # figures/*.pdf and .png, and .tex: their captions
    python plot.py --venue neurips --out paper/figures
    python plot.py --provenance figures/learning-curves.pdf

One function per figure, which returns it with its caption. To add one, write it, with the name of
its files, into FIGURES. Figures show the metric that the jobs monitor and tell apart what varies
among them; settings are ranked and chosen by validation results, never by those on test data.
"""

import sys
from typing import TYPE_CHECKING

from engine.results import captions, comparison, figures, metrics, plots, plotting, tables
from engine.results.predictions import predictions
from engine.results.style import looks

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    Drawn = tuple[Figure, str]

ONLY: dict[str, object] = {}
"""Settings that jobs must have to be drawn, such as {"epochs": 30}; a list stands for any of it."""

LABELS = {"lr": "learning rate"}
"""What settings are called in figures, where that is not their name."""

RANKED = 12
"""Rows at most."""


def learning_curves(jobs: "pd.DataFrame") -> "Drawn":
    """The monitored metric by optimizer step: a line for each value of the setting that varies
    most, a panel for each of the others."""
    metric = metrics.monitored(jobs)
    lines, panels = comparison.apart(jobs, 6, 6)
    jobs, chosen = comparison.best_of_rest(jobs, by := [*lines, *panels])
    curves, repeats = tables.curves(jobs, metric.key), captions.repeats(jobs, by, metric)
    of_panels = comparison.of_curves(curves, jobs, panels, lines)
    look = looks(comparison.groups(jobs, lines))
    fig, axes = figures.panels(list(of_panels), "optimizer step", metric)
    for ax, of_panel in zip(axes, of_panels.values(), strict=True):
        for name, repeated in of_panel.items():
            plots.bands(ax, repeated, name, metric, look[name])
    hidden = figures.limit(axes[0], curves["value"], metric)
    figures.legend(fig, repeats)
    beyond = f" Of all values {hidden:.1%} are beyond the axis." if hidden else ""
    return fig, (
        f"{metric.title} by optimizer step: {repeats}; thin lines are single jobs."
        f"{beyond}{chosen}{captions.left_out(jobs, by, metric)}"
    )


def metric_vs_setting(jobs: "pd.DataFrame") -> "Drawn":
    """Validation results against the number that varies most: a point for each job, a line for each
    value of the other settings."""
    metric, x = metrics.chooser(jobs), comparison.numeric(jobs)
    (lines,) = comparison.apart(jobs, 6, but=[x])
    jobs, chosen = comparison.best_of_rest(jobs, by := [x, *lines])
    repeats, lost = captions.repeats(jobs, by, metric), jobs["diverged"].sum()
    fig, ax = figures.figure("column", 2.4 + 0.17 * comparison.combinations(jobs, lines))
    figures.value_axis(ax.yaxis, metric)
    plots.points(ax, jobs, x, metric, lines)
    figures.legend(fig, repeats)
    figures.ticks_at(ax, jobs[x])
    crosses = f" Crosses are jobs that diverged ({lost})." if lost else ""
    return fig, (
        f"{metric.title} of the weights kept: {repeats}; open points are single jobs."
        f"{crosses}{chosen}"
    )


def metric_map(jobs: "pd.DataFrame") -> "Drawn":
    """Validation results for each value of the setting that varies most, and of the others."""
    metric = metrics.chooser(jobs)
    (x,), rows = comparison.apart(jobs, 20, 20, needed=2)
    jobs, chosen = comparison.best_of_rest(jobs, by := [x, *rows])
    repeats = captions.repeats(jobs, by, metric, interval=False)
    fig, ax = figures.rows(comparison.groups(jobs, rows), 0.4)
    plots.heatmap(ax, jobs, x, rows, metric)
    return fig, (
        f"{metric.title} of the weights kept: {repeats}; brighter is better."
        f"{chosen}{captions.left_out(jobs, by, metric)}"
    )


def ranking(jobs: "pd.DataFrame") -> "Drawn":
    """Settings by their validation results, the best first, and their test results below these."""
    metric = metrics.chooser(jobs)
    (by,) = comparison.apart(jobs, len(jobs), needed=1)
    repeats, samples = captions.repeats(jobs, by, metric), comparison.samples(jobs, by, metric)
    tested = comparison.samples(jobs, by, metric.of("test"))
    best = dict(list(samples.items())[:RANKED])
    fig, ax = figures.rows(best, 0.45 if tested else 0.3)
    figures.value_axis(ax.xaxis, metric.of(None) if tested else metric)
    plots.ranking(ax, best, metric, tested)
    figures.legend(fig)
    beside = " Squares: their test results, by which nothing is chosen." if tested else ""
    last = " Settings of which a job diverged come last." if jobs["diverged"].any() else ""
    return fig, (
        f"{metric.title} of {captions.first('best', len(best), len(samples))}: {repeats}."
        f"{beside}{last}"
        f"{captions.compared([*best.values()], metric)}{captions.left_out(jobs, by, metric)}"
    )


def time_to_target(jobs: "pd.DataFrame") -> "Drawn":
    """Kaplan–Meier curves: the fraction of jobs that has reached a metric's target, by time."""
    metric = metrics.with_target(jobs)
    (lines,) = comparison.apart(jobs, 6)
    jobs, chosen = comparison.best_of_rest(jobs, lines)
    times = tables.times_to(jobs, metric)
    of_lines = comparison.groups(times, lines)
    fig, ax = figures.figure("column", 2.2 + 0.17 * len(of_lines))
    for (name, alike), look in zip(of_lines.items(), looks(of_lines).values(), strict=True):
        plots.reached(ax, alike["reached"], alike["ended"], name, look)
    ax.set(xlabel="training and evaluation (s)", ylabel=f"fraction of jobs at {metric.goal}")
    figures.legend(fig)
    never = times["reached"].isna().sum()
    return fig, (
        f"Fraction of jobs that have reached a {metric} of {metric.goal}, by the time of training "
        f"and evaluation on {hardware(jobs)} (Kaplan–Meier estimate, 95% interval). {never} of "
        f"{len(times)} jobs never reached it: upright ticks, where they ended; at the right, if "
        f"they diverged.{chosen}"
    )


def throughput(jobs: "pd.DataFrame") -> "Drawn":
    """Training examples per second with different settings, on each kind of device."""
    (by,) = comparison.apart(jobs, len(jobs))
    by += ["hardware"] if jobs["hardware"].nunique() > 1 else []
    metric = metrics.THROUGHPUT
    repeats, samples = captions.repeats(jobs, by, metric), comparison.samples(jobs, by, metric)
    fastest = dict(list(samples.items())[:RANKED])
    fig, ax = figures.rows(fastest, 0.3)
    figures.value_axis(ax.xaxis, metric)
    plots.ranking(ax, fastest, metric)
    ax.set_xlim(0, 1.05 * ax.get_xlim()[1])
    return fig, (
        f"{metric.title} between the last two evaluations, on {hardware(jobs)}, of "
        f"{captions.first('fastest', len(fastest), len(samples))}: {repeats}."
    )


def hardware(jobs: "pd.DataFrame") -> str:
    """The kinds of devices that the jobs ran on."""
    return ", ".join(sorted(jobs["hardware"].unique()))


def confusion(job: "pd.DataFrame") -> "Drawn":
    """The predicted classes of one job's test examples."""
    kept = predictions(job)
    fig, ax = figures.figure("column", 3.1)
    plots.confusion(ax, *kept)
    ax.set(xlabel="predicted class", ylabel="true class")
    wrong = (kept.labels != kept.predicted).sum()
    return fig, (
        f"Test examples by true and predicted class; {wrong} of {len(kept.labels)} are wrong: "
        f"{job.attrs['about']}."
    )


FIGURES = {
    "learning-curves": learning_curves,
    "metric-vs-setting": metric_vs_setting,
    "metric-map": metric_map,
    "ranking": ranking,
    "time-to-target": time_to_target,
    "throughput": throughput,
}

OF_ONE_JOB = {"confusion": confusion}
"""Figures of the job of --job, or the best on validation data."""


if __name__ == "__main__":
    sys.exit(plotting.main(FIGURES, OF_ONE_JOB, ONLY, LABELS))
