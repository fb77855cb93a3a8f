"""The figures and tables, from the results of finished jobs.

    python plot.py                              # figures/*.pdf and .png, tables/*.tex, .md and .csv
    python plot.py --venue neurips --out paper/figures
    python plot.py --provenance figures/learning-curves.pdf

One function per figure or table, which returns it with its caption. To add one, write its function,
and enter it in FIGURES or TABLES under the name of its files. Figures show the metric that the jobs
monitor and distinguish the settings that vary among them; settings are ranked and chosen by
validation results, never by test results.
"""

import sys
from typing import TYPE_CHECKING

import numpy as np

from labjobs.results import comparison, figures, metrics, paper_tables, plots, plotting, tables
from settings import Settings

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    Drawn = tuple[Figure, str]
    Written = tuple[paper_tables.Table, str]

ONLY: dict[str, object] = {}
"""Settings that jobs must have to be drawn: {"epochs": 30}; a list allows several values."""

LABELS = {"lr": "learning rate"}
"""What settings and metrics are called in figures, if not by their names."""

RANKED = 12
"""Largest number of rows in a ranking."""

HUES = (
    *("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple"),
    *("tab:brown", "tab:pink", "tab:gray", "tab:olive", "tab:cyan"),
)
"""Colours of classes."""

ALONG = "step"
"""What learning curves are drawn along: step, epoch, examples, tokens or seconds."""

BASELINE: dict[str, object] = {}
"""Settings that an ablation changes one at a time: {"model": "mlp"}. Empty: those with the best
validation results."""

ROWS: list[str] = []
"""Settings with rows of their own in tables; the others are tuned. Empty: all, if they fit."""

SHOWN: list[str] = []
"""Metrics in tables, such as ["accuracy"]. Empty: all, if they fit."""


def learning_curves(jobs: "pd.DataFrame") -> "Drawn":
    """The monitored metric in the course of training: a line for each value of the setting that
    varies most, and a panel for each value of the other settings."""
    shown = comparison.compare(jobs, 6, 6, metric=metrics.shown(jobs))
    curves = shown.curves(ALONG)
    fig, axes = figures.panels([*curves], tables.ALONG[ALONG], shown.metric)
    for ax, lines in zip(axes, curves.values(), strict=True):
        for name, repeated in lines.items():
            plots.bands(ax, repeated, name, shown.metric, shown.looks[name])
    beyond = figures.limit_to_curves(axes[0], curves, shown.metric)
    figures.legend(fig, shown.labels)
    single = "; single jobs are faint" if "mean" in shown.repeats else ""
    return fig, (
        f"{shown.metric.title} by {tables.ALONG[ALONG]}: {shown.repeats}{single}.{beyond}"
        f"{shown.notes}"
    )


def metric_vs_setting(jobs: "pd.DataFrame") -> "Drawn":
    """Validation results by the numeric setting that varies most: a line for each value of the
    others."""
    x = comparison.numeric(jobs)
    shown = comparison.compare(jobs, 6, along=[x])
    fig, ax = figures.figure("column", 2.4)
    figures.value_axis(ax.yaxis, shown.metric)
    plots.points(ax, shown.lines, x, shown.metric, shown.looks)
    cut = figures.limit_to_intervals(ax.yaxis, shown.samples().values(), shown.metric)
    figures.legend(fig, shown.labels)
    figures.ticks_at(ax, shown.jobs[x])
    lost = ", crosses jobs that diverged" if shown.jobs["diverged"].any() else ""
    beside = " Series are moved sideways, so that none hides another." * (len(shown.lines) > 1)
    return fig, (
        f"{shown.metric.title} of the weights kept: {shown.repeats}; open points are single jobs"
        f"{lost}.{beside}{cut}{shown.notes}"
    )


def metric_map(jobs: "pd.DataFrame") -> "Drawn":
    """Validation results for each value of the setting that varies most, and of the others."""
    shown = comparison.compare(jobs, 20, 20, needed=2)
    (x,), _ = shown.parts
    fig, ax = figures.rows([*shown.rows], 0.4)
    plots.heatmap(ax, shown.rows, x, shown.metric)
    return fig, (
        f"{shown.metric.title} of the weights kept: {shown.means}; brighter is better.{shown.notes}"
    )


def ranking(jobs: "pd.DataFrame") -> "Drawn":
    """Settings by their validation results, the best first, and their test results below these."""
    shown = comparison.compare(jobs, len(jobs), needed=1)
    best, tested = shown.samples(RANKED), shown.samples(RANKED, "test")
    fig, ax = figures.rows([*best], 0.45)
    figures.value_axis(ax.xaxis, shown.metric.of(None))
    plots.ranking(ax, best, tested)
    both = [*best.values(), *tested.values()]
    cut = figures.limit_to_intervals(ax.xaxis, both, shown.metric)
    figures.legend(fig)
    return fig, (
        f"{shown.metric.title} of {shown.first(RANKED)}: {shown.repeats}; open points are single "
        f"jobs. Nothing is chosen by test results.{shown.told_apart(RANKED)}{cut}{shown.notes}"
    )


def differences(jobs: "pd.DataFrame") -> "Drawn":
    """How test results differ from those of the baseline."""
    shown = comparison.compare(jobs, len(jobs), needed=1)
    baseline, found = shown.differences(RANKED, BASELINE)
    metric = shown.metric.of("test")
    fig, ax = figures.rows([*found], 0.3)
    figures.difference_axis(ax.xaxis, metric)
    plots.differences(ax, found, metric)
    cut = figures.limit_to_differences(ax.xaxis, found.values(), metric)
    return fig, (
        f"Test results compared with those of the baseline ({baseline}), with 95% intervals; "
        f"filled dots can be told from no difference (5% level for all together)."
        f"{shown.over(RANKED, found)}{cut}{shown.notes}"
    )


def time_to_target(jobs: "pd.DataFrame") -> "Drawn":
    """The fraction of jobs that has reached a metric's target, by time."""
    metric = metrics.with_target(jobs)
    shown = comparison.compare(tables.times_to(jobs, metric), 6, metric=metric)
    fig, ax = figures.figure("column", 2.4)
    for name, alike in shown.lines.items():
        plots.reached(ax, alike["reached"], alike["lasted"], name, shown.looks[name])
    ax.set_xlabel("training and evaluation (s)")
    figures.value_axis(ax.yaxis, f"fraction of jobs with {metric} {metric.goal}")
    figures.legend(fig)
    reached = shown.jobs["reached"].notna().sum()
    interval = "" if shown.among else ", with its exact 95% binomial interval from the first on"
    return fig, (
        f"Fraction of jobs that have reached a {metric} of {metric.goal}, by the time of training "
        f"and evaluation on {hardware(shown.jobs)}{interval}. "
        f"{reached} of {len(shown.jobs)} jobs have reached it.{shown.chosen}"
    )


def throughput(jobs: "pd.DataFrame") -> "Drawn":
    """Training examples per second with different settings, on each kind of device."""
    finished = jobs[~jobs["diverged"]]
    devices = ["hardware"] if finished["hardware"].nunique() > 1 else []
    shown = comparison.compare(finished, len(jobs), metric=metrics.THROUGHPUT, along=devices)
    fastest = shown.samples(RANKED)
    fig, ax = figures.rows([*fastest], 0.3)
    figures.value_axis(ax.xaxis, shown.metric)
    plots.ranking(ax, fastest)
    cut = figures.limit_to_intervals(ax.xaxis, fastest.values(), shown.metric, seen=0)
    lost = " Jobs that diverged are left out." * bool(jobs["diverged"].any())
    return fig, (
        f"{shown.metric.title} in the last evaluation interval, on {hardware(finished)}, of "
        f"{shown.first(RANKED, 'fastest')}: {shown.repeats}; open points are single jobs."
        f"{lost}{cut}"
    )


def cost_accuracy(jobs: "pd.DataFrame") -> "Drawn":
    """Validation results by what a job costs."""
    shown = comparison.compare(jobs, 6, needed=1)
    cost = "gpu_hours" if "gpu_hours" in jobs else "cpu_hours"
    fig, ax = figures.figure("column", 2.4)
    figures.value_axis(ax.xaxis, f"{paper_tables.COSTS[cost]} of a job")
    figures.value_axis(ax.yaxis, shown.metric)
    plots.costs(ax, shown.lines, cost, shown.metric, shown.looks)
    cut = figures.limit_to_intervals(ax.yaxis, shown.samples().values(), shown.metric)
    figures.legend(fig, shown.labels)
    return fig, (
        f"{shown.metric.title} of the weights kept, by the mean cost of a job on "
        f"{hardware(shown.jobs)}: {shown.repeats}. No other settings are both cheaper and better "
        f"than those on the line.{cut}{shown.notes}"
    )


def by_task(jobs: "pd.DataFrame") -> "Drawn":
    """Test results on each task."""
    found, metric = comparison.on_tasks(jobs, 8), metrics.shown(jobs).of("test")
    tested = {task: each.samples(None, "test") for task, each in found.items()}
    rows = sorted({name for samples in tested.values() for name in samples})
    fig, axes = figures.panels([*tested], metric.axis, metric, rows)
    cut = ""
    for ax, samples in zip(axes, tested.values(), strict=True):
        plots.ranking(ax, samples, rows=rows)
        cut = figures.limit_to_intervals(ax.xaxis, samples.values(), metric) or cut
    said = {task: f"{each.over(8)}{each.notes}" for task, each in found.items()}
    notes = "".join(f" {task[:1].upper()}{task[1:]}:{each}" for task, each in said.items() if each)
    notes = said.popitem()[1] if len({*said.values()}) == 1 else notes
    return fig, f"{metric.title} on each task; open points are single jobs.{notes}{cut}"


def hardware(jobs: "pd.DataFrame") -> str:
    """The kinds of devices that the jobs ran on."""
    return ", ".join(sorted(jobs["hardware"].unique()))


def alignment_uniformity(jobs: "pd.DataFrame") -> "Drawn":
    """The alignment and uniformity of each job, with its result as the colour."""
    if not {"best_val_alignment", "best_val_uniformity"} <= {*jobs}:
        raise metrics.NoResults("no job has measured alignment and uniformity on validation data")
    shown = comparison.compare(jobs[~jobs["diverged"]], 5)
    results = shown.jobs[shown.metric.result]
    fig, ax = figures.figure("column", 2.7 + 0.17 * len(shown.lines))
    for name, alike in shown.lines.items():
        places = alike["best_val_uniformity"], alike["best_val_alignment"]
        marker = shown.looks[name].marker
        limits = {"vmin": results.min(), "vmax": results.max()}
        points = ax.scatter(*places, c=alike[shown.metric.result], marker=marker, s=16, **limits)
        ax.plot([], [], marker, color="0.4", label=name)
    fig.colorbar(points, label=str(shown.metric))
    ax.margins(0.05)
    ax.set(xlabel="uniformity (lower: more even)", ylabel="alignment (lower: closer)")
    figures.legend(fig)
    return fig, (
        "Alignment and uniformity of the views of validation images (Wang & Isola 2020), with the "
        "weights kept: a point for each job. They depend on what makes the views, so they compare "
        f"jobs with the same augmentation. Colour: {shown.metric}.{shown.notes}"
    )


def features(job: "pd.DataFrame") -> "Drawn":
    """The features of one job's test images in the two directions in which they vary most."""
    kept = tables.outputs(job, "label", "features")
    points, labels = np.stack([*kept["features"]]), kept["label"].to_numpy()
    centred = points - points.mean(0)
    _, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    explained = (sizes[:2] ** 2).sum() / (sizes**2).sum()
    places = centred @ directions[:2].T
    classes = tables.classes(job, 1 + labels.max())
    if len(classes) > len(HUES):
        raise metrics.NoResults(f"{len(classes)} classes are too many to tell apart by colours")
    fig, ax = figures.figure("column", 3.4)
    for number, (name, colour) in enumerate(zip(classes, HUES, strict=False)):
        ax.plot(*places[labels == number].T, ".", markersize=3, color=colour, label=name)
    ax.set(xlabel="first principal component", ylabel="second principal component")
    figures.legend(fig)
    return fig, (
        f"Features of {len(points)} test images, by class, in their first two principal "
        f"components, which have {explained:.0%} of the variance: {job.attrs['about']}."
    )


FIGURES = {
    "learning-curves": learning_curves,
    "metric-vs-setting": metric_vs_setting,
    "metric-map": metric_map,
    "ranking": ranking,
    "alignment-uniformity": alignment_uniformity,
    "differences": differences,
    "time-to-target": time_to_target,
    "throughput": throughput,
    "cost-accuracy": cost_accuracy,
}

OF_ONE_JOB = {"features": features}
"""Figures of the job of --job, or the best on validation data."""


OF_TASKS = {"by-task": by_task}
"""Figures of all tasks together, if there are several."""


def results(jobs: "pd.DataFrame") -> "Written":
    """Test results: a row for each of the settings, columns for tasks and metrics."""
    table = paper_tables.results(jobs, ROWS, SHOWN)
    return table, f"{table.what}.{table.about}"


def ablation(jobs: "pd.DataFrame") -> "Written":
    """What changes if one setting of the baseline is changed."""
    table = paper_tables.ablation(jobs, BASELINE, SHOWN)
    return table, f"One change at a time. {table.about}"


def cost(jobs: "pd.DataFrame") -> "Written":
    """What jobs and the whole project have cost."""
    table = paper_tables.cost(jobs, ROWS)
    return table, f"Costs of a job. {table.about}"


TABLES = {"main": results, "ablation": ablation, "cost": cost}


if __name__ == "__main__":
    sys.exit(plotting.main(Settings, FIGURES, OF_ONE_JOB, ONLY, LABELS, TABLES, of_tasks=OF_TASKS))
