"""The same two figures, drawn by plot.py and by four libraries, side by side: beside.md.

    python benchmarks/beside.py    # with seaborn, SciencePlots, tueplots and ultraplot installed

The data are made: two networks, two learning rates, three seeds, 20 evaluations. Each library draws
learning curves, a line for each learning rate and a panel for each network, as wide as ICML's page,
and the results of the four settings, as wide as its column, with what its documentation recommends.
Intervals are what it draws by itself, or t intervals where it draws none.
"""

import inspect
import os
import re
import runpy
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "{{cookiecutter.project_slug}}"))
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "tests"))

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pages
import stored
from labjobs.results import figures, groups, metrics, style, tables
from matplotlib.text import Text
from scipy.stats import t

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent / "{{cookiecutter.project_slug}}"
SIZE = 6.75, 2.65  # inches: ICML's page, and the height that plot.py takes
COLUMN = 3.25, 2.42  # the same of a column
DPI = 120
OUT = HERE / "beside"
HEAD = ("", "lines", "inches", "axes' height", "axes' area", "least text, pt", "intervals")


def template(jobs: Any) -> Any:
    """The function in plot.py."""
    figures.use(style.VENUES["icml"])
    figure, _ = runpy.run_path(str(PROJECT / "plot.py"))["learning_curves"](jobs)
    return figure


def seaborn(curves: Any) -> Any:
    """relplot: lines with bootstrap intervals."""
    import seaborn as sns

    sns.set_theme(context="paper", style="ticks")
    kinds: Any = {"hue": "lr", "style": "lr", "palette": "colorblind", "col": "model"}
    height, aspect = SIZE[1], SIZE[0] / 2 / SIZE[1]
    grid = sns.relplot(
        curves, x="step", y="value", kind="line", height=height, aspect=aspect, **kinds
    )
    grid.set_axis_labels("optimizer step", "validation accuracy")
    grid.set_titles("{col_name}")
    grid.legend.set_title("learning rate")
    return grid.figure


def scienceplots(curves: Any) -> Any:
    """matplotlib with the style `science`."""
    import scienceplots  # noqa: F401

    plt.style.use(["science", "no-latex"])
    return _by_hand(curves, SIZE)


def tueplots(curves: Any) -> Any:
    """matplotlib with the sizes for ICML."""
    from tueplots import bundles

    plt.rcParams.update(bundles.icml2024(usetex=False, column="full", nrows=1, ncols=2))
    return _by_hand(curves, (SIZE[0], SIZE[1]))


def ultraplot(curves: Any) -> Any:
    """Its own axes: means with standard deviations."""
    import ultraplot as uplt

    fig, axes = uplt.subplots(ncols=2, figsize=SIZE, share=True, span=True)
    for ax, (model, own) in zip(axes, curves.groupby("model"), strict=True):
        for lr, alike in own.groupby("lr"):
            table = alike.pivot(index="seed", columns="step", values="value")
            label = f"learning rate {lr:g}"
            ax.plot(table.columns, table.to_numpy(), means=True, shadestd=1, label=label)
        ax.format(title=model)
    axes.format(xlabel="optimizer step", ylabel="validation accuracy", abc="a")
    fig.legend([*axes[0].get_lines()], loc="t", ncols=2, frame=False)
    return fig


def _by_hand(curves: Any, size: tuple[float, float]) -> Any:
    fig, axes = plt.subplots(1, 2, figsize=size, sharey=True)
    for ax, (model, own) in zip(axes, curves.groupby("model"), strict=True):
        for lr, alike in own.groupby("lr"):
            table = alike.pivot(index="step", columns="seed", values="value")
            mean, n = table.mean(axis=1), table.shape[1]
            half = t.ppf(0.975, n - 1) * table.std(axis=1) / np.sqrt(n)
            ax.plot(mean.index, mean, label=f"learning rate {lr:g}")
            ax.fill_between(mean.index, mean - half, mean + half, alpha=0.2)
        ax.set(title=model, xlabel="optimizer step")
    axes[0].set_ylabel("validation accuracy")
    axes[1].legend()
    return fig


def template_ranking(jobs: Any) -> Any:
    """The function in plot.py, which draws test results as well."""
    figures.use(style.VENUES["icml"])
    figure, _ = runpy.run_path(str(PROJECT / "plot.py"))["ranking"](jobs)
    return figure


def seaborn_ranking(jobs: Any) -> Any:
    """catplot: means with bootstrap intervals, and stripplot: single results."""
    import seaborn as sns

    sns.set_theme(context="paper", style="ticks")
    order = jobs.groupby("setting")["best_val_accuracy"].mean().sort_values(ascending=False).index
    kinds: Any = {"kind": "point", "linestyle": "none", "order": order, "errorbar": ("ci", 95)}
    size: Any = {"height": COLUMN[1], "aspect": COLUMN[0] / COLUMN[1]}
    grid = sns.catplot(jobs, x="best_val_accuracy", y="setting", **kinds, **size)
    grid.map_dataframe(sns.stripplot, x="best_val_accuracy", y="setting", order=order, size=3)
    grid.set_axis_labels("validation accuracy", "")
    return grid.figure


def scienceplots_ranking(jobs: Any) -> Any:
    """matplotlib with the style `science`."""
    import scienceplots  # noqa: F401

    plt.style.use(["science", "no-latex"])
    return _ranking_by_hand(jobs)


def tueplots_ranking(jobs: Any) -> Any:
    """matplotlib with the sizes for ICML."""
    from tueplots import bundles

    plt.rcParams.update(bundles.icml2024(usetex=False, column="half"))
    return _ranking_by_hand(jobs)


def ultraplot_ranking(jobs: Any) -> Any:
    """Its own axes, with matplotlib's error bars."""
    import ultraplot as uplt

    fig, ax = uplt.subplots(figsize=COLUMN)
    _dots(ax, jobs)
    ax.format(xlabel="validation accuracy")
    return fig


def _ranking_by_hand(jobs: Any) -> Any:
    fig, ax = plt.subplots(figsize=COLUMN)
    _dots(ax, jobs)
    ax.set_xlabel("validation accuracy")
    return fig


def _dots(ax: Any, jobs: Any) -> None:
    table = jobs.pivot(index="setting", columns="seed", values="best_val_accuracy")
    table = table.loc[table.mean(axis=1).sort_values().index]
    n, rows = table.shape[1], range(len(table))
    half = t.ppf(0.975, n - 1) * table.std(axis=1) / np.sqrt(n)
    ax.errorbar(table.mean(axis=1), rows, xerr=half, fmt="o")
    for seed in table:
        ax.plot(table[seed], rows, "o", markersize=3, markerfacecolor="none")
    ax.set_yticks(rows, table.index)


Way = tuple[Callable[[Any], Any], str]
CHECKED = "t, of all seeds as well; checked before it is written"
CURVES: dict[str, Way] = {
    "template": (template, CHECKED),
    "seaborn": (seaborn, "bootstrap"),
    "SciencePlots": (scienceplots, "t, by hand"),
    "tueplots": (tueplots, "t, by hand"),
    "ultraplot": (ultraplot, "one standard deviation"),
}
RANKINGS: dict[str, Way] = {
    "template": (template_ranking, CHECKED),
    "seaborn": (seaborn_ranking, "bootstrap"),
    "SciencePlots": (scienceplots_ranking, "t, by hand"),
    "tueplots": (tueplots_ranking, "t, by hand"),
    "ultraplot": (ultraplot_ranking, "t, by hand"),
}


NOTES = """
A larger area is not always a better figure: tueplots and SciencePlots leave the legend inside the
axes, where it can hide what is drawn, and tueplots' text is smaller than 8 pt. seaborn adds its
legend to the width, and SciencePlots cuts the page to what is drawn, so that neither file has the
width that was asked for; a document that scales them changes their text. The intervals by hand go
beyond an accuracy of 1. seaborn's intervals, from a bootstrap of three seeds, and ultraplot's
standard deviations are narrower than the t interval that covers the mean in 95 % of cases.
"""


OF_RANKINGS = """
The template's figure has the test results as well, and its intervals end at an accuracy of 1. In a
column, seaborn's numbers overlap, and ultraplot cuts the axis' label off. SciencePlots makes the
page a third wider than was asked for.
"""


def lines(draw: Callable[..., Any]) -> int:
    """Return the lines of code of a way, without docstrings and blank lines."""
    if draw in (template, template_ranking):
        name = "ranking" if draw is template_ranking else "learning_curves"
        draw = runpy.run_path(str(PROJECT / "plot.py"))[name]
    text = inspect.getsource(draw).split('"""')[-1]
    own = len([line for line in text.splitlines() if line.strip()])
    names = {*re.findall(r"\w+(?=\()", text)}
    return own + sum(lines(part) for part in PARTS if part.__name__ in names and part != draw)


PARTS: tuple[Callable[..., Any], ...] = (_by_hand, _ranking_by_hand, _dots)


def measured(
    way: str, draw: Callable[[Any], Any], interval: str, data: Any, name: str
) -> list[str]:
    """Draw in one way, keep the picture, and return its row of the page."""
    matplotlib.rcdefaults()
    figure = draw(data)
    path = OUT / name
    figure.savefig(path, dpi=DPI)
    width, height = plt.imread(path).shape[1::-1]
    page = width / DPI, height / DPI
    whole = [figure.get_figwidth(), figure.get_figheight()]
    boxes = [ax.get_position() for ax in figure.axes if ax.get_subplotspec()]
    area = sum(box.width * box.height for box in boxes) * whole[0] * whole[1]
    tall = boxes[0].height * whole[1] / page[1]
    texts = [each for each in figure.findobj(Text) if each.get_text() and each.get_visible()]
    least = min(each.get_size() for each in texts)
    printed = f"{page[0]:.2f} by {page[1]:.2f}"
    fractions = f"{tall:.0%}", f"{area / page[0] / page[1]:.0%}"
    return [way, str(lines(draw)), printed, *fractions, f"{least:.1f}", interval]


def main() -> None:
    """Write the page."""
    matplotlib.use("agg")
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        store = stored.fresh(Path(folder))
        store.classifiers("sweep")
        os.environ["MLFLOW_TRACKING_URI"] = store.uri
        jobs = tables.jobs("sweep")
        curves = tables.curves(jobs, metrics.shown(jobs).key)
        style.label_settings({"lr": "learning rate"})
        rows = [
            measured(way, *how, jobs if way == "template" else curves, f"{way.lower()}.png")
            for way, how in CURVES.items()
        ]
        jobs["setting"] = groups.label(jobs, ["model", "lr"]).astype(str)
        results = [
            measured(way, *how, jobs, f"{way.lower()}-ranking.png") for way, how in RANKINGS.items()
        ]
    packages = "matplotlib", "seaborn", "SciencePlots", "tueplots", "ultraplot"
    about = (
        f"{pages.machine(*packages)}. First, learning curves of two networks, two learning rates "
        "and three seeds (synthetic), as wide as ICML's page. Lines are those of the function that "
        "draws; the template's comes with a project, and takes labels, metric and panels from the "
        "jobs. The size is that of the file, and the axes are fractions of it. `python "
        "benchmarks/beside.py` prints this page, in an environment with these packages."
    )
    pages.page("The same figures, drawn with other libraries", about, HEAD, rows)
    print(NOTES)
    print("The results of the four settings, as wide as ICML's column:\n")
    pages.table(HEAD, results)
    print(OF_RANKINGS)
    pictures = [(way, way.lower(), f"{way.lower()}-ranking") for way in CURVES]
    print(
        *(
            f"\n{way}\n\n![{way}](beside/{a}.png)\n\n![{way}](beside/{b}.png)"
            for way, a, b in pictures
        ),
        sep="\n",
    )


if __name__ == "__main__":
    main()
