"""The figures, drawn from the results of finished jobs.

    python plot.py                              # figures/*.pdf and .png, and .tex: their captions
    python plot.py --venue neurips --out paper/figures
    python plot.py --whence figures/learning-curves.pdf

One function per figure, which returns it with its caption. To add one, write it, with the name of
its files, into FIGURES.
"""

import sys
from typing import TYPE_CHECKING

import numpy as np

from engine import figures, plots, plotting, results, statistics
from engine.style import looks, written

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    Drawn = tuple[Figure, str]

VARIED = ("model", "lr", "seed")
"""What the jobs in a figure may differ in; those with other settings than most are left out."""

SERIES = ("model", "lr")
"""What tells the series of a figure apart: all of VARIED but what is merely repeated."""

TARGET = 0.95
"""The validation accuracy that jobs race to."""

RANKED = 20
"""Rows of a ranking at most."""


def learning_curves(jobs: "pd.DataFrame") -> "Drawn":
    """Validation accuracy by epoch: a panel for each model, a line for each learning rate."""
    curves = results.curves(jobs, "val_accuracy")
    look = looks(sorted(curves["lr"].unique()))
    models = sorted(curves["model"].unique())
    fig, panels = figures.panels(models, "epoch", "validation accuracy")
    for model, ax in zip(models, panels, strict=True):
        for lr, repeated in curves[curves["model"] == model].groupby("lr"):
            plots.bands(ax, repeated, f"learning rate {written(lr)}", look[lr], within=(0, 1))
    panels[0].set_ylim(figures.span(curves["value"], low=0.02)[0], 1.005)
    repeats = plots.repeats(jobs, SERIES, "val_accuracy")
    figures.legend(fig, repeats)
    return fig, (
        f"Validation accuracy by epoch: {repeats}; thin lines are single seeds. The lowest 2% of "
        "all values are below the axis."
    )


def accuracy_by_lr(jobs: "pd.DataFrame") -> "Drawn":
    """Test accuracy against the learning rate: a point for each job, a line for each model."""
    fig, ax = figures.figure("column", 2.4)
    plots.points(ax, jobs, "lr", "test_accuracy", series="model", within=(0, 1))
    ax.set(xlabel="learning rate", ylabel="test accuracy")
    repeats, lost = plots.repeats(jobs, SERIES, "test_accuracy"), jobs["diverged"].sum()
    figures.legend(fig, repeats)
    figures.log_ticks(ax, jobs["lr"])
    crosses = f" Crosses are jobs that diverged ({lost})." if lost else ""
    return fig, f"Test accuracy: {repeats}; open points are single jobs.{crosses}"


def accuracy_map(jobs: "pd.DataFrame") -> "Drawn":
    """Test accuracy for each pair of a model and a learning rate."""
    fig, ax = figures.figure("column", 0.7 + 0.4 * jobs["model"].nunique())
    plots.heatmap(ax, jobs, "lr", "model", "test_accuracy")
    ax.set(xlabel="learning rate")
    return fig, f"Test accuracy: {plots.repeats(jobs, SERIES, 'test_accuracy', interval='')}."


def ranking(jobs: "pd.DataFrame") -> "Drawn":
    """Models and learning rates, the best first."""
    samples = results.samples(jobs, SERIES, "test_accuracy")
    best = list(samples)[:RANKED]
    fig, ax = figures.figure("column", 0.6 + 0.3 * len(best))
    plots.ranking(ax, {name: samples[name] for name in best}, within=(0, 1))
    ax.set(xlabel="test accuracy")
    repeats = plots.repeats(jobs, SERIES, "test_accuracy")
    caption = f"Test accuracy, the best {len(best)} of {len(samples)} settings: {repeats}."
    return fig, caption + " " + statistics.compared([samples[name] for name in best[:2]])


def time_to_target(jobs: "pd.DataFrame") -> "Drawn":
    """The share of jobs that has come to the target, by time of training: a line for each model."""
    times = results.times_to(jobs, "val_accuracy", TARGET)
    fig, ax = figures.figure("column", 2.2)
    look = looks(sorted(jobs["model"].unique()))
    for model, of_model in times.groupby("model"):
        plots.arrivals(ax, of_model["reached"], of_model["ended"], str(model), look[model])
    ax.set(xlabel="training and evaluation, s", ylabel=f"share at {TARGET:g} accuracy")
    figures.label_lines(ax)
    never = times["reached"].isna().sum()
    return fig, (
        f"Share of jobs with a validation accuracy of at least {TARGET:g}, by the time of training "
        f"and evaluation (Kaplan and Meier's estimate, 95% interval). {never} of {len(times)} jobs "
        "never had it: upright ticks, where they ended; at the right, if they diverged."
    )


def throughput(jobs: "pd.DataFrame") -> "Drawn":
    """Training examples a second of each model."""
    samples = results.samples(jobs, ["model"], "examples_per_second")
    fig, ax = figures.figure("column", 0.6 + 0.3 * len(samples))
    plots.ranking(ax, samples)
    ax.set(xlabel="training examples a second")
    ax.set_xlim(0, 1.05 * ax.get_xlim()[1])
    numbers = "; ".join(
        f"{model}: {np.mean(each):,.0f} (n = {len(each)})" for model, each in samples.items()
    )
    return fig, f"Training examples a second in the last epoch, 95% t interval. {numbers}."


def confusion(job: "pd.DataFrame") -> "Drawn":
    """What one job took the test examples for."""
    kept, about = results.predictions(job), job.iloc[0]
    fig, ax = figures.figure("column", 3.1)
    plots.confusion(ax, *kept)
    ax.set(xlabel="taken for", ylabel="true class")
    wrong = (kept.labels != kept.guesses).sum()
    named = f"{about['model']}, learning rate {about['lr']:g}, seed {about['seed']}"
    return fig, (
        f"Test examples, {wrong} of {len(kept.labels)} taken for another class: job "
        f"{about['job_id']} ({named})."
    )


FIGURES = {
    "learning-curves": learning_curves,
    "accuracy-vs-lr": accuracy_by_lr,
    "accuracy-map": accuracy_map,
    "ranking": ranking,
    "time-to-target": time_to_target,
    "throughput": throughput,
}

OF_ONE_JOB = {"confusion": confusion}
"""Figures of the job of --job, or the best on validation data."""


if __name__ == "__main__":
    sys.exit(plotting.main(FIGURES, OF_ONE_JOB, VARIED, best="val_accuracy"))
