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

from engine.results import captions, figures, plots, plotting
from engine.results import tables as results
from engine.results.style import looks, names, written

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    Drawn = tuple[Figure, str]

VARIED = ("model", "lr", "seed")
"""What the jobs in a figure may differ in; those with other settings than most are left out."""

SERIES = ("model", "lr")
"""What figures tell apart: all of VARIED but the seed. Of other settings nothing is a repeat."""

TARGET = 0.95
"""The validation accuracy that jobs race to."""

RANKED = 20
"""Rows at most."""


def learning_curves(jobs: "pd.DataFrame") -> "Drawn":
    """Validation accuracy by epoch: a panel for each model, a line for each learning rate."""
    repeats = captions.repeats(jobs, SERIES, "val_accuracy")
    curves = results.curves(jobs, "val_accuracy")
    look, label = looks(curves["lr"]), names(curves["lr"])
    models = sorted(curves["model"].unique())
    fig, panels = figures.panels(models, "epoch", "validation accuracy")
    for model, ax in zip(models, panels, strict=True):
        for lr, repeated in curves[curves["model"] == model].groupby("lr"):
            plots.bands(ax, repeated, f"learning rate {label[lr]}", look[lr], within=(0, 1))
    lowest = figures.span(curves["value"], low=0.02)[0]
    panels[0].set_ylim(lowest, 1.005)
    figures.legend(fig, repeats)
    below = (curves["value"] < lowest).mean()
    hidden = f" Of all values {below:.1%} are below the axis." if below else ""
    return fig, (
        f"Validation accuracy by epoch: {repeats}; thin lines are single seeds."
        f"{hidden}{captions.lost(jobs, SERIES)}"
    )


def accuracy_by_lr(jobs: "pd.DataFrame") -> "Drawn":
    """Test accuracy against the learning rate: a point for each job, a line for each model."""
    repeats, lost = captions.repeats(jobs, SERIES, "test_accuracy"), jobs["diverged"].sum()
    fig, ax = figures.figure("column", 2.4)
    plots.points(ax, jobs, "lr", "test_accuracy", series="model", within=(0, 1))
    ax.set(xlabel="learning rate", ylabel="test accuracy")
    figures.legend(fig, repeats)
    figures.log_ticks(ax, jobs["lr"])
    crosses = f" Crosses are jobs that diverged ({lost})." if lost else ""
    return fig, f"Test accuracy: {repeats}; open points are single jobs.{crosses}"


def accuracy_map(jobs: "pd.DataFrame") -> "Drawn":
    """Test accuracy for each pair of a model and a learning rate."""
    repeats = captions.repeats(jobs, SERIES, "test_accuracy", interval="")
    fig, ax = figures.figure("column", 0.7 + 0.4 * jobs["model"].nunique())
    plots.heatmap(ax, jobs, "lr", "model", "test_accuracy")
    ax.set(xlabel="learning rate")
    return fig, f"Test accuracy: {repeats}.{captions.lost(jobs, SERIES)}"


def ranking(jobs: "pd.DataFrame") -> "Drawn":
    """Models and learning rates, the best first."""
    repeats = captions.repeats(jobs, SERIES, "test_accuracy")
    samples = results.samples(jobs, SERIES, "test_accuracy")
    best = list(samples)[:RANKED]
    fig, ax = figures.figure("column", 0.6 + 0.3 * len(best))
    plots.ranking(ax, {name: samples[name] for name in best}, within=(0, 1))
    ax.set(xlabel="test accuracy")
    return fig, (
        f"Test accuracy, the best {len(best)} of {len(samples)} settings: {repeats}. "
        f"{captions.compared([samples[name] for name in best])}{captions.lost(jobs, SERIES)}"
    )


def time_to_target(jobs: "pd.DataFrame") -> "Drawn":
    """The share of jobs that has come to the target, by time of training: a line for each model."""
    times = results.times_to(jobs, "val_accuracy", TARGET)
    fig, ax = figures.figure("column", 2.2)
    look = looks(jobs["model"])
    for model, of_model in times.groupby("model"):
        plots.arrivals(ax, of_model["reached"], of_model["ended"], written(model), look[model])
    ax.set(xlabel="training and evaluation, s", ylabel=f"share at {TARGET:g} accuracy")
    figures.label_lines(ax)
    never = times["reached"].isna().sum()
    return fig, (
        f"Share of jobs with a validation accuracy of at least {TARGET:g}, by the time of training "
        f"and evaluation on {hardware(jobs)} (Kaplan and Meier's estimate, 95% interval). {never} "
        f"of {len(times)} jobs never had it: upright ticks, where they ended; at the right, if "
        "they diverged."
    )


def throughput(jobs: "pd.DataFrame") -> "Drawn":
    """Training examples a second of each model, on each kind of device."""
    by = ["model", "hardware"] if jobs["hardware"].nunique() > 1 else ["model"]
    samples = results.samples(jobs, by, "examples_per_second")
    fastest = dict(list(samples.items())[:RANKED])
    fig, ax = figures.figure("column", 0.6 + 0.3 * len(fastest))
    plots.ranking(ax, fastest)
    ax.set(xlabel="training examples a second")
    ax.set_xlim(0, 1.05 * ax.get_xlim()[1])
    numbers = "; ".join(
        f"{name}: {np.mean(each):,.0f} (n = {len(each)})" for name, each in fastest.items()
    )
    return fig, (
        f"Training examples a second in the last epoch, on {hardware(jobs)}: mean of all jobs, "
        f"95% t interval. {numbers}."
    )


def hardware(jobs: "pd.DataFrame") -> str:
    """The kinds of devices that the jobs ran on."""
    return ", ".join(sorted(jobs["hardware"].unique()))


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
