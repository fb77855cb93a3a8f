"""What is drawn: the right way up, at its place, with no more than the results say."""

import math

import numpy as np
import pandas as pd
import pytest
from labjobs.results import figures, plots, print_check, style, text
from labjobs.results.metrics import Measured, NoResults
from labjobs.settings import Metric

ICML = style.VENUES["icml"]
HIGHER = Measured("score", Metric(better="higher", range=(0, 1)), "val")
LOWER = Measured("error", Metric(better="lower"), "val")
LOG = Measured("error", Metric(better="lower", scale="log", unit="mm"), "val")
METRICS = pytest.mark.parametrize("metric", [HIGHER, LOWER, LOG], ids=["higher", "lower", "log"])


@pytest.fixture(autouse=True)
def icml():
    figures.use(ICML)


def jobs(metric, **columns):
    """A table of jobs; the metric's results are `y`."""
    table = pd.DataFrame(columns).rename(columns={"y": metric.result})
    return table.assign(ended=0, diverged=table.get("diverged", False))


def curves(*each):
    rows = [
        (job, step, value) for job, values in enumerate(each) for step, value in enumerate(values)
    ]
    return pd.DataFrame(rows, columns=["job_id", "step", "value"])


def band(ax):
    """The lower and the upper edge of the band in axes."""
    (_, filled) = ax.collections
    corners = filled.get_paths()[0].vertices
    return corners[:, 1].min(), corners[:, 1].max()


def labelled(ax):
    """The lines with a label."""
    return [line for line in ax.lines if not str(line.get_label()).startswith("_")]


def test_means_end_with_the_first_curve_that_does():
    _, ax = figures.figure()
    plots.bands(ax, curves([0.1] * 8, [0.2] * 12, [0.3] * 10), "", LOWER)
    (mean,), (faint, _) = ax.lines, ax.collections
    assert sorted(np.isfinite(each[:, 1]).sum() for each in faint.get_segments()) == [8, 10, 12]
    assert list(mean.get_xdata()) == list(range(8))


def test_a_mean_of_curves_without_a_step_in_common_is_refused():
    _, ax = figures.figure()
    apart = curves([0.1, 0.2], [0.1, 0.3])
    apart["step"] += 10 * apart["job_id"]
    with pytest.raises(NoResults, match=r"^the jobs of mlp have values at different steps; give"):
        plots.bands(ax, apart, "mlp", LOWER)


def test_bands_stay_within_a_metrics_range():
    _, ax = figures.figure()
    plots.bands(ax, curves([0.9, 0.95], [0.99, 0.99]), "", HIGHER)
    assert band(ax)[1] == 1
    assert band(ax)[0] > 0


def test_a_band_on_a_logarithmic_axis_stays_near_its_curves():
    for metric, lowest in ((LOG, 1e-9), (LOWER, -math.inf)):
        _, (ax,) = figures.panels(["one"], "step", metric)
        plots.bands(ax, curves([1e-2, 1e-4], [2e-2, 3e-4]), "", metric)
        assert lowest < band(ax)[0] < 1e-4
        assert ax.get_yscale() == ("log" if metric.log else "linear")
    with pytest.raises(NoResults, match="not always above 0"):
        plots.bands(ax, curves([1.0, 0.0]), "", LOG)


def test_panels_can_have_a_plain_label() -> None:
    _, (left, right) = figures.panels(["a", "b"], "time (s)", "pressure (kPa)")
    assert (left.get_ylabel(), left.get_xlabel()) == ("pressure (kPa)", "time (s)")
    assert right.get_title() == "b"


@METRICS
def test_axes_hide_only_the_worst_values(metric):
    first = 9 * np.exp(-np.arange(200) / 3)
    values = 1 - 0.1 * first if metric.sign > 0 else 1 + first
    found = {"a": {"": curves(values)}}
    _, (ax,) = figures.panels(["a"], "step", metric)
    plots.bands(ax, found["a"][""], "", metric)
    said = figures.limit_to_curves(ax, found, metric)
    low, high = ax.get_ylim()
    hidden = np.mean((values < low) | (values > high))
    assert low < 1 < high
    assert (hidden > 0) == (said != "") == (not metric.log)
    assert metric.log or said == f" Of all values {hidden:.1%} are beyond the axis."


@METRICS
@pytest.mark.parametrize("seeds", [2, 3])
def test_bands_are_cut_off_where_they_would_crowd_the_curves_out(metric, seeds):
    values = 0.3 + 0.02 * np.arange(seeds)[:, None] + 0.2 * np.exp(-np.arange(20) / 5)
    found = {"a": {"": curves(*values)}}
    _, (ax,) = figures.panels(["a"], "step", metric)
    plots.bands(ax, found["a"][""], "", metric)
    said = figures.limit_to_curves(ax, found, metric)
    low, high = ax.get_ylim()
    assert 0.27 < low < 0.32 and 0.5 < high < 0.6
    assert figures.CUT in said
    assert band(ax)[0] < low


@METRICS
def test_nothing_is_said_of_bands_that_are_there_whole(metric):
    found = {"a": {"": curves([0.9, 0.5, 0.2], [0.9, 0.5, 0.2])}}
    _, (ax,) = figures.panels(["a"], "step", metric)
    plots.bands(ax, found["a"][""], "", metric)
    assert figures.CUT not in figures.limit_to_curves(ax, found, metric)


LEAST, MOST = 0.25, 0.6
"""Fractions of an axis that its results take where intervals are cut off."""


@METRICS
@pytest.mark.parametrize("of", ["ranking", "points"])
@pytest.mark.parametrize(
    ("results", "cut"),
    [
        ([0.4, 0.5], True),
        ([0.4, 0.4, 0.5], False),  # of three, the widest that there is
        ([0.4, 0.45, 0.5], False),
        ([0.4, 0.4], False),
        ([0.4], False),
    ],
)
def test_intervals_of_two_results_are_cut_off_and_others_never(metric, of, results, cut):
    _, ax = figures.figure()
    axis = ax.xaxis if of == "ranking" else ax.yaxis
    figures.value_axis(axis, metric)
    if of == "ranking":
        plots.ranking(ax, {"a": pd.Series(results)}, metric)
    else:
        table = jobs(metric, lr=[0.1] * len(results), y=results)
        plots.points(ax, {"mlp": table}, "lr", metric)
    before, drawn = axis.get_view_interval(), axis.get_data_interval()
    said = figures.limit_to_intervals(axis, [pd.Series(results)], metric)
    low, high = axis.get_view_interval()
    assert (said == figures.CUT) == cut == (drawn[0] < low or drawn[1] > high)
    assert low < min(results) <= max(results) < high
    if cut:
        taken = np.diff(axis.get_transform().transform([min(results), max(results)]))
        whole = np.diff(axis.get_transform().transform([low, high]))
        assert LEAST < taken / whole < MOST
    else:
        assert [low, high] == [*before]


@METRICS
def test_without_results_no_interval_is_cut_off(metric):
    _, ax = figures.figure()
    for results in ([], [pd.Series([], dtype=float)], [pd.Series([math.nan, math.inf])]):
        assert figures.limit_to_intervals(ax.yaxis, results, metric) == ""


@METRICS
def test_diverged_jobs_are_crosses_at_the_worse_edge(metric):
    _, ax = figures.figure()
    table = jobs(metric, lr=[0.1, 0.1, 1.0], y=[0.2, 0.3, math.nan], diverged=[False, False, True])
    plots.points(ax, {"mlp": table}, "lr", metric)
    crosses = [line for line in ax.lines if line.get_marker() == "x" and len(line.get_xdata())]
    assert [list(line.get_ydata()) for line in crosses] == [[0.02 if metric is HIGHER else 0.98]]
    assert crosses[0].get_xdata()[0] > 0.3


@pytest.mark.parametrize(
    ("values", "scale"),
    [([1e-3, 1e-2], "log"), ([32, 64, 128], "linear"), ([0.0, 0.1], "linear"), ([5], "linear")],
)
def test_an_axis_is_logarithmic_where_values_span_a_decade(values, scale):
    _, ax = figures.figure()
    plots.points(ax, {"": jobs(LOWER, x=values, y=[1.0] * len(values))}, "x", LOWER)
    assert ax.get_xscale() == scale


@pytest.mark.parametrize("count", [1, 2, 6])
@pytest.mark.parametrize(
    "values", [[1e-5, 1e-4, 3e-4, 1e-3, 1e-2, 0.0316227766], [16, 32, 48, 64], [0.0, 0.5]]
)
def test_points_of_all_series_stand_at_their_place(count, values):
    rows = [(x, 0.5 + 0.01 * seed) for x in values for seed in range(3)]
    table = jobs(LOWER, **dict(zip("xy", zip(*rows, strict=True), strict=True)))
    fig, ax = figures.figure("column", 2.4)
    plots.points(ax, {f"m{i}": table for i in range(count)}, "x", LOWER)
    figures.ticks_at(ax, values)
    assert print_check.check(fig, ICML) == []
    left, right = ax.get_xlim()
    means = [line.get_xdata() for line in labelled(ax)]
    assert len(means) == count
    for line in ax.lines:
        assert all(left < x < right for x in line.get_xdata())
    log = ax.get_xscale() == "log"
    for places in means:
        far = [[abs(math.log(x / v) if log else x - v) for v in values] for x in places]
        assert [row.index(min(row)) for row in far] == list(range(len(values)))


@METRICS
def test_rankings_are_the_best_first_whichever_way_that_is(metric):
    fig, ax = figures.rows(["good", "bad"], 0.4)
    figures.value_axis(ax.xaxis, metric)
    results = {"good": pd.Series([0.5, 0.6]), "bad": pd.Series([0.7])}
    plots.ranking(ax, results, metric, {"good": pd.Series([0.55])})
    fig.draw_without_rendering()
    heights = {label.get_text(): label.get_window_extent().y0 for label in ax.get_yticklabels()}
    assert heights["good"] > heights["bad"]
    names = {line.get_label() for line in labelled(ax)}
    assert names == {str(metric), str(metric.of("test"))}
    assert print_check.check(fig, ICML) == []


@METRICS
def test_maps_are_brighter_where_it_is_better(metric):
    table = jobs(metric, x=[1, 2, 1, 2], y=[0.00012, 0.0004, 0.0007, math.nan])
    fig, ax = figures.rows(["a", "b"], 0.4)
    plots.heatmap(ax, {"a": table[:2], "b": table[2:]}, "x", metric)
    (image,) = ax.images
    light = {value: sum(image.cmap(image.norm(value))[:3]) for value in (0.00012, 0.0004, 0.0007)}
    assert sorted(light, key=light.get) == sorted(light, reverse=metric.sign < 0)
    texts = [each.get_text() for each in ax.texts]
    assert texts == ["1.20e-4", "4.00e-4", "7.00e-4", "\N{EN DASH}"]
    assert print_check.check(fig, ICML) == []


def test_a_map_of_hardly_any_pairs_is_refused():
    table = jobs(LOWER, x=[1, 2, 3], y=[0.1, 0.2, 0.3])
    _, ax = figures.rows(["a", "b", "c"], 0.4)
    with pytest.raises(NoResults, match="only 3 of 9 pairs have a result"):
        plots.heatmap(ax, {name: table[i : i + 1] for i, name in enumerate("abc")}, "x", LOWER)


def test_times_that_take_longer_than_those_before_are_shown():
    _, ax = figures.figure()
    plots.reached(ax, [1.0, 2.0], [3, 3], "quick")
    plots.reached(ax, [1.0, math.nan], [9, 9], "slow")
    assert ax.get_xlim()[1] >= max(x for line in ax.lines for x in line.get_xdata()) > 9


def test_confusion_of_booleans_is_that_of_numbers():
    true, predicted = np.array([[True, True, False], [True, False, False]])
    drawn = []
    for labels in ((true, predicted), (true.astype(int), predicted.astype(int))):
        _, ax = figures.figure("column", 3.1)
        plots.confusion(ax, *labels, ["no", "yes"])
        drawn.append([(each.get_position(), each.get_text()) for each in ax.texts])
    assert drawn[0] == drawn[1] and len(drawn[0]) == 3


@pytest.mark.parametrize(
    "classes",
    [
        ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Bag", "Boot"],
        [f"class {index}" for index in range(100)],
        ["a very long name indeed, of a class", "$x$ and $y", "c_d%"],
    ],
)
def test_confusion_of_any_classes_prints_right(classes):
    labels = np.arange(5 * len(classes)) % len(classes)
    fig, ax = figures.figure("column", 3.1)
    plots.confusion(ax, labels, labels[::-1], classes)
    assert print_check.check(fig, ICML) == []


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0.9, 40, ["1", "2", "3", "5", "10", "20", "30"]),
        (0.09, 600, ["0.1", "1", "10", "100"]),
        (0.31, 0.47, ["0.35", "0.4", "0.45"]),
        (1e-9, 1e9, ["1e-9", "1e-6", "0.001", "1", "1e3", "1e6", "1e9"]),
    ],
)
def test_few_ticks_on_logarithmic_axes(low, high, labels):
    places = figures.LogTicks().tick_values(low, high)
    assert len(places) <= figures.MOST
    assert {style.number(place) for place in places} <= {*labels}
    assert len(places) >= 3


@pytest.mark.parametrize("values", [[1e-7, 3e-7], [2e6, 3e6], [-3e-5, 0.0], [0.999991, 0.999995]])
def test_no_part_of_a_ticks_number_stands_elsewhere(values):
    fig, (ax,) = figures.panels(["a"], "step", LOWER)
    ax.plot(values)
    fig.draw_without_rendering()
    assert ax.yaxis.get_offset_text().get_text() == ""
    shown = [label.get_text() for label in ax.get_yticklabels()]
    assert len({*shown}) == len(shown)
    assert all("e" in label for label in shown if float(label.replace("\N{MINUS SIGN}", "-"))) == (
        max(map(abs, values)) != 0.999995
    )


def test_text_is_broken_at_commas_else_at_spaces():
    name = "augment flip, learning rate 0.01"
    assert text.wrapped(name, 100, 9) == "augment flip,\nlearning rate 0.01"
    assert text.wrapped(name, 60, 9) == "augment flip,\nlearning rate\n0.01"
    assert text.wrapped(name, 1000, 9) == name
    assert text.wrapped("unbreakable", 5, 9) == "unbreakable"
