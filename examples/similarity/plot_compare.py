"""The figures of compare.py's jobs; plot.py draws those of run.py.

    python plot_compare.py                      # figures/*.pdf and .png, and .tex: their captions
    python plot_compare.py --venue neurips --out paper/figures

One function per figure, which returns it with its caption. A map or a line is a mean over
comparisons of the same layers of the same networks, which differ in their seeds.
"""

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from labjobs.results import figures, groups, metrics, plotting, style, tables, text
from labjobs.settings import Metric
from settings import CompareSettings

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Drawn = tuple[Figure, str]

ONLY: dict[str, object] = {}
"""Settings that jobs must have to be drawn: {"spatial": "average"}; a list allows several."""

PANELS = 6
"""Largest number of maps in a figure."""

SEEN = ("first", "first_model", "second", "model", "pretrained", "layers", "second_layers")
"""Settings that already show in the names of the networks and the layers."""

CKA = metrics.Measured("cka", Metric(better="higher", label="CKA", range=(-1, 1)))


def comparisons(jobs: "pd.DataFrame") -> "dict[str, pd.DataFrame]":
    """The CKA of layers, a row for each pair of them and job, by the networks that are compared and
    what else varies.

    Raises NoResults for too many.
    """
    table = tables.logged(jobs, "cka")
    pairs = table.groupby("job_id")[["first_network", "second_network"]].first()
    layers = table["first_layer"] + " " + table["second_layer"]
    jobs = jobs[~jobs["diverged"]].copy()
    jobs["networks"] = jobs["job_id"].map(pairs.agg(" – ".join, axis=1))
    jobs["axes"] = jobs["job_id"].map(layers.groupby(table["job_id"]).agg(", ".join))
    others = [name for name in groups.varied(jobs) if name not in SEEN]
    found = {}
    for name, alike in groups.groups(jobs, ["networks", *others]).items():
        each = [own["job_id"] for _, own in alike.groupby("axes", sort=False)]
        for number, ids in enumerate(each, 1):
            whole = f"{name} ({number})" if len(each) > 1 else name
            found[whole] = table[table["job_id"].isin(ids)]
    if len(found) > PANELS:
        raise metrics.NoResults(
            f"{len(found)} pairs of networks are too many for a figure; name the values to draw in "
            "ONLY of plot_compare.py"
        )
    return found


def layer_maps(jobs: "pd.DataFrame") -> "Drawn":
    """The CKA of each layer of one network with each of another: a map for each two networks."""
    found = comparisons(jobs)
    across = min(2, len(found))
    down = -(-len(found) // across)
    width = "full" if across > 1 else "column"
    fig, axes = figures.figure(width, 2.7 * down, nrows=down, ncols=across, squeeze=False)
    shown, spare = [*axes.flat[: len(found)]], axes.flat[len(found) :]
    means = [mean_of(table) for table in found.values()]
    for ax, name, mean in zip(shown, found, means, strict=True):
        image = draw_map(ax, mean)
        ax.set_title(text.wrapped(name, 40 * fig.get_figwidth() / across, "medium"))
    for ax in spare:
        ax.remove()
    if len(found) > 1:
        figures.letters(shown)
    fig.colorbar(image, ax=shown, label=str(CKA), aspect=15 * down)
    for ax, mean in zip(shown, means, strict=True):  # now that their sizes are known
        number_cells(ax, mean)
    every = np.concatenate([mean.to_numpy().ravel() for mean in means])
    return fig, (
        f"Debiased linear CKA between the layers of two networks, {repeats(found)}. The layers of "
        f"the first run from the bottom, those of the second from the left.{notes(every)}"
    )


def mean_of(table: "pd.DataFrame") -> "pd.DataFrame":
    """The mean over jobs of the CKA of each layer of the first network (a row) with each layer of
    the second (a column); NaN if it is NaN in any job."""
    cells = table.groupby(["first_layer", "second_layer"], sort=False)["cka"]
    return cells.agg(lambda values: values.mean(skipna=False)).unstack(sort=False)


def draw_map(ax: "Axes", mean: "pd.DataFrame") -> Any:
    """Draw a map of colours from 0 to 1, and name its rows."""
    image = ax.imshow(mean, vmin=0, vmax=1, origin="lower", aspect="auto")
    ax.set(xlabel="layer of the second", ylabel="layer of the first")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    rows = text.named(len(mean))
    ax.set_yticks(rows, [str(mean.index[row]) for row in rows])
    return image


def number_cells(ax: "Axes", mean: "pd.DataFrame") -> None:
    """Name the columns of a map, and write the number in each cell if it is wide enough."""
    cell = figures.name_columns(ax, [str(name) for name in mean.columns])
    if not text.fits("−0.00", cell):
        return
    for (row, column), value in np.ndenumerate(mean.to_numpy()):
        number = "–" if np.isnan(value) else style.signed(f"{round(value, 2) + 0.0:.2f}")
        colour = "white" if value < 0.6 else "black"  # NaN is on white
        ax.text(column, row, number, color=colour, **text.IN_CELL)


def corresponding_layers(jobs: "pd.DataFrame") -> "Drawn":
    """The CKA of each layer with the layer of the same name, for networks with the same layers."""
    same = {name: of_same_layers(table) for name, table in comparisons(jobs).items()}
    found = {name: table for name, table in same.items() if len(table)}
    if not found:
        raise metrics.NoResults("none of the compared networks have layers with the same names")
    panels = list(dict.fromkeys(tuple(table["first_layer"].unique()) for table in found.values()))
    looks = style.looks(found)
    width = "full" if len(panels) > 1 else "column"
    fig, axes = figures.figure(width, 2.9, ncols=len(panels), sharey=True, squeeze=False)
    for ax, layers in zip(axes.flat, panels, strict=True):
        for name, table in found.items():
            if tuple(table["first_layer"].unique()) != layers:
                continue
            look = looks[name]
            values = table.pivot(index="first_layer", columns="job_id", values="cka").loc[[*layers]]
            line = {"color": look.colour, "linestyle": look.line}
            ax.plot(values.to_numpy(), linewidth=0.4, alpha=0.45, color=look.colour)
            label = text.wrapped(name, 50 * fig.get_figwidth(), "small")
            ax.plot(values.mean(axis=1, skipna=False), marker=look.marker, label=label, **line)
        ax.set_xlim(-0.5, len(layers) - 0.5)  # a column for each
        figures.name_columns(ax, [*layers])
        ax.set_xlabel("layer")
    figures.value_axis(axes[0, 0].yaxis, CKA)
    if len(panels) > 1:
        figures.letters(axes.flat)
    figures.legend(fig)
    every = np.concatenate([table["cka"] for table in found.values()])
    unknown = notes(every[np.isnan(every)])
    several = any(table["job_id"].nunique() > 1 for table in found.values())
    thin = " Thin lines are single comparisons." if several else ""
    return fig, (
        f"Debiased linear CKA of layers of the same name in two networks, {repeats(found)}."
        f"{thin}{unknown}"
    )


def of_same_layers(table: "pd.DataFrame") -> "pd.DataFrame":
    """The rows for layers with the same name, if both networks have the same layers; otherwise
    none."""
    if {*table["first_layer"]} != {*table["second_layer"]}:
        return table[:0]
    return table[table["first_layer"] == table["second_layer"]]


def repeats(found: "dict[str, pd.DataFrame]") -> str:
    """What the values are based on: `mean of 3 comparisons, on 359 test examples`."""
    counts = sorted({table["job_id"].nunique() for table in found.values()})
    examples = sorted({number for table in found.values() for number in table["examples"]})
    many = f"mean of {span(counts)} comparisons" if counts[-1] > 1 else "one comparison each"
    return f"{many}, on {span(examples)} test examples"


def span(numbers: list[int]) -> str:
    """Numbers in rising order as a caption says them: `3`, `1–3`."""
    return f"{numbers[0]}–{numbers[-1]}" if len(numbers) > 1 else f"{numbers[0]}"


def notes(values: "np.ndarray[Any, np.dtype[np.float64]]") -> str:
    """Sentences on values that a map cannot show as they are."""
    said = ""
    if (values < 0).any():
        least = style.signed(f"{np.nanmin(values):.2g}")
        said += f" Values below 0, the lowest {least}, have the colour of 0."
    if np.isnan(values).any():
        said += " A layer that does not tell the examples apart has no CKA."
    return said


FIGURES = {"layer-maps": layer_maps, "corresponding-layers": corresponding_layers}


if __name__ == "__main__":
    sys.exit(plotting.main(CompareSettings, FIGURES, {}, ONLY, {}, script="compare"))
