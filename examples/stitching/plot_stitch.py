"""The figures of stitch.py's jobs; plot.py draws those of run.py.

    python plot_stitch.py                      # figures/*.pdf and .png, and .tex: their captions
    python plot_stitch.py --venue neurips --out paper/figures

One function per figure, which returns it with its caption. Jobs that stitch networks with the same
settings, which differ in their seeds, are repeats of one another.
"""

import sys
from typing import TYPE_CHECKING

import numpy as np

from labjobs.results import figures, groups, metrics, plots, plotting, style, tables
from settings import STITCH_METRICS, StitchSettings

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Drawn = tuple[Figure, str]

ONLY: dict[str, object] = {}
"""Settings that jobs must have to be drawn: {"layer": "layers.4"}; a list allows several."""

PANELS = 6
"""Largest number of panels in a figure."""

LINES = 5
"""Largest number of optimizers, or of other settings, in a panel."""

SEEN = ("front", "back", "layer", "back_layer", "optimizer", "lr")
"""Settings that already show in the names of networks, layers and optimizers."""

OBJECTIVE = metrics.Measured("objective", STITCH_METRICS["objective"])

CLASSIFIERS = {"": "stitched", "ridge_": "ridge map", "front_": "front", "back_": "back"}
"""The accuracies to draw, by the prefix of their metrics."""


def stitches(jobs: "pd.DataFrame") -> "pd.DataFrame":
    """The jobs that finished, with the names of the `networks` that they stitch, the layers where
    they do it (`cut`) and how the map was `fitted`.

    Raises NoResults where no job has finished.
    """
    jobs = jobs[~jobs["diverged"]].copy()
    names = tables.logged(jobs, "networks").set_index("job_id")
    front, back = (jobs["job_id"].map(names[half]) for half in ("front", "back"))
    jobs["networks"] = front.where(front == back, front + " – " + back)
    into = jobs["back_layer"].where(jobs["back_layer"] != "", jobs["layer"])
    jobs["cut"] = into.where(into == jobs["layer"], jobs["layer"] + " – " + into)
    rate = jobs["lr"].map(lambda lr: "" if lr == "auto" else f", learning rate {lr}")
    jobs["fitted"] = jobs["optimizer"] + rate
    return jobs


def differing(jobs: "pd.DataFrame") -> list[str]:
    """How the map was fitted, and the other settings that vary among jobs."""
    return ["fitted", *(name for name in groups.varied(jobs) if name not in SEEN)]


def few(found: "dict[str, pd.DataFrame]", most: int, what: str) -> "dict[str, pd.DataFrame]":
    """Groups of jobs, if they are not too many for a figure. Raises NoResults if they are."""
    if len(found) > most:
        raise metrics.NoResults(
            f"{len(found)} {what} are too many for a figure; name the values to draw in ONLY of "
            "plot_stitch.py"
        )
    return found


def loss_by_evaluations(jobs: "pd.DataFrame") -> "Drawn":
    """The training loss by evaluations of its gradient: a panel for each pair of networks and
    layers, a line for each job."""
    jobs = stitches(jobs)
    lines = few(groups.groups(jobs, differing(jobs)), LINES, "settings")
    looks = style.looks(lines)
    spent = tables.curves(jobs, "evaluations")[["job_id", "step", "value"]]
    curves = tables.curves(jobs, OBJECTIVE.key).merge(
        spent, on=["job_id", "step"], suffixes=("", "_spent")
    )
    jobs["places"] = jobs["networks"] + ", " + jobs["cut"]
    panels = few(groups.groups(jobs, ["places"]), PANELS, "pairs of layers")
    fig, axes = figures.panels([*panels], "gradient evaluations", OBJECTIVE)
    for ax, of_panel in zip(axes, panels.values(), strict=True):
        for name, of_line in lines.items():
            look = looks[name]
            for job in sorted({*of_panel["job_id"]} & {*of_line["job_id"]}):
                curve = curves[curves["job_id"] == job]
                line = {"color": look.colour, "linestyle": look.line, "linewidth": 0.9}
                ax.plot(curve["value_spent"], curve["value"], label=name, **line)
    figures.legend(fig)
    return fig, (
        "Training loss, with its penalty, by the number of gradient evaluations, each over all "
        "training examples. Each line is a job; lines of one kind differ in networks or seed."
    )


def accuracy_by_layer(jobs: "pd.DataFrame") -> "Drawn":
    """Test accuracies by the layer that networks are stitched at: one panel per pair."""
    jobs = stitches(jobs)
    chooser = metrics.chooser(jobs)
    panels = few(groups.groups(jobs, ["networks"]), PANELS, "pairs of networks")
    accuracy = metrics.Measured("accuracy", STITCH_METRICS["accuracy"], "test")
    fig, axes = figures.panels([*panels], "stitched at", accuracy)
    chosen = []
    for ax, (name, alike) in zip(axes, panels.items(), strict=True):
        (how, best), *_ = groups.ranked(alike, differing(jobs), chooser).items()
        draw_accuracies(ax, best)
        chosen.append(f"{name}: {how}")
    figures.legend(fig)
    return fig, (
        "Test accuracy of the stitched classifiers, with the fitted map and with the ridge "
        "regression alone, and of the networks that they are made of: means, and each job as an "
        f"open point. The way of fitting was chosen by {chooser}: {'; '.join(chosen)}."
    )


def draw_accuracies(ax: "Axes", jobs: "pd.DataFrame") -> None:
    """Draw the accuracies of jobs with the same settings, side by side for each layer."""
    cuts = sorted({*jobs["cut"]})
    looks = style.looks(CLASSIFIERS)
    for number, (prefix, label) in enumerate(CLASSIFIERS.items()):
        look, aside = looks[prefix], 0.16 * (number - 1.5)
        key = f"test_{prefix}accuracy"
        means = [jobs[jobs["cut"] == cut][key].mean() for cut in cuts]
        for place, cut in enumerate(cuts):
            values = jobs[jobs["cut"] == cut][key]
            right = place + aside + np.linspace(0.05, 0.1, len(values))
            ax.plot(right, values, look.marker, color=look.colour, **plots.OPEN)
        places = [place + aside for place in range(len(cuts))]
        ax.plot(places, means, look.marker, color=look.colour, label=label)
    ax.set_xlim(-0.5, len(cuts) - 0.5)
    figures.name_columns(ax, cuts)


FIGURES = {"loss-by-evaluations": loss_by_evaluations, "accuracy-by-layer": accuracy_by_layer}


if __name__ == "__main__":
    sys.exit(plotting.main(StitchSettings, FIGURES, {}, ONLY, {}, script="stitch"))
