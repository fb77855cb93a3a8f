"""The figures, drawn from the results of finished jobs.

    python plot.py                          # figures/*.pdf and .png
    python plot.py --out ../paper/figures
    python plot.py --experiment another-project

One function per figure. To add one, write it, with the name of its files, into FIGURES.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from engine import figures, results
from engine.store import experiment_name

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

VARIED = ("model", "lr", "seed")
"""What the jobs in a figure may differ in; those with other settings than most are left out."""


def learning_curves(jobs: "pd.DataFrame") -> "Figure":
    """Validation accuracy by epoch: a panel for each model, a line for each learning rate."""
    curves = results.curves(jobs, "val_accuracy")
    looks = figures.looks(sorted(jobs["lr"].unique()))
    models = sorted(jobs["model"].unique())
    fig, panels = figures.panels(models, "epoch", "validation accuracy")
    for model, ax in zip(models, panels, strict=True):
        for lr, repeated in curves[curves["model"] == model].groupby("lr"):
            seeds = repeated.pivot(index="step", columns="job_id", values="value")
            label = f"learning rate {figures.number(lr)}"
            figures.band(ax, seeds.index, seeds, label, looks[lr], within=(0, 1))
    panels[0].set_ylim(figures.span(curves["value"], low=0.02)[0], 1.005)  # the start is cut off
    figures.legend(fig, figures.repeats(jobs.groupby(["model", "lr"]).size()))
    return fig


def accuracy_by_lr(jobs: "pd.DataFrame") -> "Figure":
    """Test accuracy against the learning rate: a point for each job, a line for each model."""
    models = sorted(jobs["model"].unique())
    fig, ax = figures.figure("column", 2.4)
    for i, (model, look) in enumerate(figures.looks(models).items()):
        at = jobs[jobs["model"] == model].groupby("lr")["test_accuracy"].apply(list)
        aside = 14 * (i - len(models) / 2)
        figures.points(ax, at.index, at, model, look, within=(0, 1), aside=aside)
    figures.log_ticks(ax, jobs["lr"])
    ax.set(xlabel="learning rate", ylabel="test accuracy")
    figures.legend(fig, figures.repeats(jobs.groupby(["model", "lr"]).size()))
    return fig


FIGURES = {"learning-curves": learning_curves, "accuracy-vs-lr": accuracy_by_lr}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Draw the figures from finished jobs.")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "figures")
    parser.add_argument("--experiment", default=experiment_name(), help="default: %(default)s")
    args = parser.parse_args()
    try:
        draw(chosen(results.finished_jobs(args.experiment)), args.out)
    except (results.NoResults, OSError) as error:
        sys.exit(f"plot.py: {error}")


def chosen(jobs: "pd.DataFrame") -> "pd.DataFrame":
    """The jobs to draw; says which are left out."""
    alike = results.comparable(jobs, VARIED)
    if len(alike) < len(jobs):
        odd, others = len(jobs) - len(alike), ", ".join(results.differing(jobs, VARIED))
        print(f"left out {odd} of {len(jobs)} jobs: unlike the rest in {others}", file=sys.stderr)
    return alike


def draw(jobs: "pd.DataFrame", out: Path) -> None:
    """Write all figures and print the path and the printed size of each."""
    for name, figure in FIGURES.items():
        for path, width, height in figures.save(figure(jobs), out, name):
            print(f"{path}  {width:g} x {height:g} in")


if __name__ == "__main__":
    main()
