"""What is drawn: the right way up, at its place, with no more than the results say."""

import math
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from labjobs.results import figures, plots, print_check, samples, style
from labjobs.results.metrics import Measured, NoResults
from labjobs.results.samples import Sample
from labjobs.settings import Metric
from matplotlib.colors import to_rgb

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


def results(metric, *values):
    """Results by seed."""
    return Sample(pd.Series(values, pd.Index(range(len(values)), name="seed"), float), metric)


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
    return [line for line in ax.lines if not str(line.get_label()).startswith("_")]


def test_a_band_on_a_logarithmic_axis_stays_near_its_curves():
    for metric, lowest in ((LOG, 1e-9), (LOWER, -math.inf)):
        _, (ax,) = figures.panels(["one"], "step", metric)
        plots.bands(ax, curves([1e-2, 1e-4], [1e-2, 2e-4], [2e-2, 3e-4]), "", metric)
        assert lowest < band(ax)[0] < 1e-4
        assert ax.get_yscale() == ("log" if metric.log else "linear")
    with pytest.raises(NoResults, match="not always above 0"):
        plots.bands(ax, curves([1.0, 0.0]), "", LOG)


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
    assert metric.log or said == f" {hidden:.1%} of all values are beyond the axis."


@METRICS
def test_bands_are_cut_off_where_they_would_crowd_the_curves_out(metric):
    values = 0.3 + 0.02 * np.arange(3)[:, None] + 0.2 * np.exp(-np.arange(20) / 5)
    found = {"a": {"": curves(*values)}}
    _, (ax,) = figures.panels(["a"], "step", metric)
    plots.bands(ax, found["a"][""], "", metric)
    said = figures.limit_to_curves(ax, found, metric)
    low, high = ax.get_ylim()
    assert 0.27 < low < 0.32 and 0.5 < high < 0.6
    assert figures.CUT in said
    assert band(ax)[0] < low


@METRICS
@pytest.mark.parametrize("of", ["ranking", "points"])
@pytest.mark.parametrize("values", [[0.4, 0.4, 0.5], [0.4, 0.5], [0.4, 0.4], [0.4]])
def test_intervals_of_results_are_drawn_whole_from_three_on(metric, of, values):
    """Even the widest that three results can have."""
    _, ax = figures.figure()
    axis = ax.xaxis if of == "ranking" else ax.yaxis
    figures.value_axis(axis, metric)
    if of == "ranking":
        plots.ranking(ax, {"a": results(metric, *values)})
    else:
        table = jobs(metric, lr=[0.1] * len(values), y=values)
        plots.points(ax, {"mlp": table}, "lr", metric)
    drawn = axis.get_data_interval()
    assert (drawn[0] < min(values)) == (len(values) > 2)
    assert figures.limit_to_intervals(axis, [results(metric, *values)], metric) == ""
    low, high = axis.get_view_interval()
    assert low < drawn[0] <= drawn[1] < high
    open_points = [line for line in ax.lines if line.get_markerfacecolor() == "white"]
    assert sum(len(line.get_xdata()) for line in open_points) == len(values)


def test_arrows_show_where_intervals_go_on():
    tested = LOWER.of("test")
    examples = np.random.default_rng(0).normal(0.5, 0.5, (30, 3))
    found = {
        "few examples": Sample(results(tested, 0.50, 0.51, 0.52).results, tested, examples),
        "seeds alone": results(tested, 0.50, 0.51, 0.52),
    }
    fig, ax = figures.rows([*found], 0.4)
    plots.ranking(ax, found)
    said = figures.limit_to_intervals(ax.xaxis, found.values(), tested)
    assert said == f" Arrows show where the edges{figures.CUT}"
    arrows = {line.get_marker(): line for line in ax.lines if line.get_marker() in "<>"}
    assert [*arrows] == ["<", ">"]
    ends = [line.get_xdata()[0] for line in arrows.values()]
    assert ends == pytest.approx(ax.get_xlim())
    assert {round(line.get_ydata()[0]) for line in arrows.values()} == {0}
    assert print_check.check(fig, ICML) == []


def test_rows_say_how_many_results_they_have_if_that_differs():
    for others, said in ((3, []), (1, ["n = 3", "n = 1"])):
        found = {"a": results(LOWER, 0.1, 0.2, 0.3), "b": results(LOWER, *[0.2] * others)}
        fig, ax = figures.rows([*found], 0.4)
        plots.ranking(ax, found)
        fig.draw_without_rendering()
        labels = [each.get_text() for right in ax.child_axes for each in right.get_yticklabels()]
        assert labels == said
        assert print_check.check(fig, ICML) == []


def test_a_map_of_hardly_any_pairs_is_refused():
    table = jobs(LOWER, x=[1, 2, 3], y=[0.1, 0.2, 0.3])
    _, ax = figures.rows(["a", "b", "c"], 0.4)
    with pytest.raises(NoResults, match="only 3 of 9 pairs have a result"):
        plots.heatmap(ax, {name: table[i : i + 1] for i, name in enumerate("abc")}, "x", LOWER)


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
    with pytest.raises(NoResults, match=r"^the jobs \(mlp\) have values at different steps; give"):
        plots.bands(ax, apart, "mlp", LOWER)


def test_folds_of_unequal_length_have_a_mean_over_epochs():
    """The second step of one is the first of another."""
    _, ax = figures.figure()
    folds = curves([0.1, 0.2, 0.3], [0.3, 0.4, 0.5])
    folds["at"] = folds["step"] + 1.0
    folds["step"] = (folds["step"] + 1) * (folds["job_id"] + 1)
    plots.bands(ax, folds, "mlp", LOWER)
    (mean,) = ax.lines
    assert mean.get_xydata().tolist() == [[1, 0.2], [2, pytest.approx(0.3)], [3, 0.4]]
    assert "Means end" not in figures.limit_to_curves(ax, {"": {"mlp": folds}}, LOWER)


def test_it_is_said_where_means_end_before_some_of_their_jobs():
    _, ax = figures.figure()
    each = curves([0.1, 0.2, 0.3], [0.3, 0.4, 0.5])
    each.loc[5, "step"] += 1  # as many points, and another end
    said = figures.limit_to_curves(ax, {"": {"mlp": each}}, LOWER)
    assert said.startswith(" Means end where the first of their jobs ends.")


@METRICS
def test_rankings_are_the_best_first_whichever_way_that_is(metric):
    fig, ax = figures.rows(["good", "bad"], 0.4)
    figures.value_axis(ax.xaxis, metric)
    found = {"good": results(metric, 0.5, 0.6), "bad": results(metric, 0.7)}
    plots.ranking(ax, found, {"good": results(metric.of("test"), 0.55)})
    fig.draw_without_rendering()
    heights = {label.get_text(): label.get_window_extent().y0 for label in ax.get_yticklabels()}
    assert heights["good"] > heights["bad"]
    names = {line.get_label() for line in labelled(ax)}
    assert names == {str(metric), str(metric.of("test"))}
    assert print_check.check(fig, ICML) == []


def test_zero_has_a_place_on_an_axis_over_decades():
    _, ax = figures.figure()
    table = jobs(LOWER, wd=[0, 1e-5, 1e-3, 1e-1], y=[0.1, 0.2, 0.3, 0.4])
    plots.points(ax, {"mlp": table}, "wd", LOWER)
    places = ax.transData.transform([(value, 0.2) for value in table["wd"]])[:, 0]
    gaps = np.diff(places)
    assert gaps.min() > 0.2 * gaps.max() > 0
    (line,) = labelled(ax)
    assert line.get_xdata() == pytest.approx(table["wd"])


def test_the_only_evaluation_of_jobs_is_seen():
    _, (ax,) = figures.panels(["one"], "step", HIGHER)
    plots.bands(ax, curves([0.5], [0.7], [0.6]), "mlp", HIGHER)
    assert [line.get_ydata().tolist() for line in ax.lines[:3]] == [[0.5], [0.7], [0.6]]
    assert len(ax.collections) == 3  # with the interval as a line


def test_nothing_is_drawn_beyond_the_range_of_a_metric():
    _, ax = figures.figure()
    found = results(HIGHER, 0.9, 1.0, 1.0)
    plots.ranking(ax, {"a": found})
    figures.limit_to_intervals(ax.xaxis, [found], HIGHER)
    assert 1 < ax.get_xlim()[1] < 1.01


def test_a_result_that_exploded_does_not_flatten_the_others():
    _, ax = figures.figure()
    found = {"a": results(LOWER, 0.2, 0.3, 0.4), "b": results(LOWER, 0.2, 8e25)}
    plots.ranking(ax, found)
    said = figures.limit_to_intervals(ax.xaxis, found.values(), LOWER)
    assert ax.get_xlim()[1] < 1
    assert said.startswith(" 20.0% of all values are beyond the axis.")


@pytest.mark.parametrize("metric", [LOWER, LOG], ids=["lower", "log"])
def test_differences_show_no_difference_and_which_are_certain(metric):
    fig, ax = figures.rows(["same", "worse", "exploded"], 0.3)
    figures.difference_axis(ax.xaxis, metric)
    each = {
        "base": results(metric, 0.2, 0.3, 0.4, 0.5),
        "same": results(metric, 0.3, 0.2, 0.5, 0.4),
        "worse": results(metric, 0.4, 0.6, 0.8, 1.0),
        "exploded": results(metric, 0.4, 0.6, 0.8, 1e9),
    }
    found = samples.differences(each, "base")
    assert [one.is_certain for one in found.values()] == [False, not metric.log, False]
    plots.differences(ax, found, metric)
    figures.limit_to_differences(ax.xaxis, found.values(), metric)
    low, high = ax.get_xlim()
    assert low < (1 if metric.log else 0) < high < 1e9
    faces = [line.get_markerfacecolor() for line in ax.lines if line.get_marker() == "o"]
    assert [face == "white" for face in faces] == [True, metric.log, True]
    assert print_check.check(fig, ICML) == []


def test_percent_is_shown_as_percent():
    percent = Measured("accuracy", Metric(better="higher", range=(0, 1), scale="percent"), "val")
    fig, ax = figures.rows(["a"], 0.4)
    figures.value_axis(ax.xaxis, percent)
    plots.ranking(ax, {"a": results(percent, 0.25, 0.5)})
    fig.draw_without_rendering()
    assert ax.get_xlabel() == "validation accuracy (%)"
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert {"30", "50"} < {*labels}


def test_the_legend_has_the_order_of_the_lines():
    fig, axes = figures.panels(["one", "two"], "step", LOWER)
    for ax, names in zip(axes, (["0.1", "10"], ["0.01", "0.1"]), strict=True):
        for name in names:
            plots.bands(ax, curves([0.1, 0.2]), name, LOWER)
    figures.legend(fig, {"0.01": "0.01", "0.1": "0.1 (n = 2)", "10": "10"})
    (legend,) = fig.legends
    assert [text.get_text() for text in legend.get_texts()] == ["0.01", "0.1 (n = 2)", "10"]


@pytest.mark.parametrize(("ends", "direct"), [([0.1, 0.5, 0.9], True), ([0.1, 0.11, 0.9], False)])
def test_a_few_lines_are_named_at_their_ends_if_there_is_room(ends, direct):
    fig, (ax,) = figures.panels(["one"], "step", LOWER)
    for name, end in zip("abc", ends, strict=True):
        plots.bands(ax, curves([1.0, end]), name, LOWER)
    figures.legend(fig)
    named = {text.get_text(): text.xy[1] for text in ax.texts}
    assert named == (dict(zip("abc", ends, strict=True)) if direct else {})
    assert [len(legend.get_texts()) for legend in fig.legends] == ([] if direct else [3])
    assert print_check.check(fig, ICML) == []


def test_six_lines_are_told_apart_without_colour():
    assert len({str(look.line) for look in style.looks(range(6)).values()}) == 6


def test_ordered_values_are_lighter_and_lighter():
    looks = [*style.looks(range(6), ordered=True).values()]
    red, green, blue = np.array([to_rgb(look.colour) for look in looks]).T
    light = np.diff(0.2126 * red + 0.7152 * green + 0.0722 * blue)
    assert (light > 0.04).all()
    assert all(str(one.line) != str(other.line) for one, other in pairwise(looks))
    assert len({look.marker for look in looks}) == 6


def test_a_curve_that_exploded_does_not_flatten_the_others():
    found = {"": {"a": curves([1.0, 0.5, 0.4]), "b": curves([1.0, 0.6, 8e25])}}
    _, (ax,) = figures.panels([""], "step", LOWER)
    for name, own in found[""].items():
        plots.bands(ax, own, name, LOWER)
    assert "beyond the axis" in figures.limit_to_curves(ax, found, LOWER)
    assert ax.get_ylim()[1] < 2


def test_a_map_has_no_more_digits_than_its_intervals_justify():
    values = [0.90123, 0.95234, 0.85345]
    table = jobs(HIGHER, x=[1] * 3 + [2] * 3, y=[*values, *(value - 0.1 for value in values)])
    table = table.assign(seed=[*range(3)] * 2)
    _, ax = figures.rows(["a", "b"], 0.4)
    plots.heatmap(ax, {"a": table, "b": table}, "x", HIGHER)
    assert [text.get_text() for text in ax.texts] == ["0.90", "0.80"] * 2


def test_what_is_neither_cheaper_nor_better_is_not_on_the_line():
    _, ax = figures.figure()
    each = {"as cheap": (1, 0.3), "small": (1, 0.5), "worse": (2, 0.4), "large": (9, 0.8)}
    series = {name: jobs(HIGHER, cost=[price], y=[y]) for name, (price, y) in each.items()}
    plots.costs(ax, series, "cost", HIGHER, style.looks(series))
    (front,) = [line for line in ax.lines if line.get_drawstyle() == "steps-post"]
    assert [*zip(*front.get_data(), strict=True)] == [(1, 0.5), (9, 0.8), (ax.get_xlim()[1], 0.8)]
    assert ax.get_xlim() == pytest.approx((0, 9.45))  # costs that are about the same look so
    free = {**series, "free": series["small"].assign(cost=math.nan)}
    with pytest.raises(NoResults, match=r"the jobs \(free\) have no record of what they cost"):
        plots.costs(ax, free, "cost", HIGHER, style.looks(free))
    with pytest.raises(NoResults, match="no record of what they cost"):
        plots.costs(ax, series, "gpu_hours", HIGHER, style.looks(series))


@pytest.mark.parametrize("most", [1.46e-5, 1.5e-4, 1.3e-3, 0.0234, 0.9, 12.5, 1234.0])
@pytest.mark.parametrize("spread", [1.2, 40])
def test_costs_of_any_size_have_numbers_that_do_not_overlap(most, spread):
    fig, ax = figures.figure("column", 2.4)
    figures.value_axis(ax.xaxis, "CPU (h) of a job")
    series = {n: jobs(HIGHER, cost=[c], y=[0.9]) for n, c in (("a", most), ("b", most / spread))}
    plots.costs(ax, series, "cost", HIGHER, style.looks(series))
    figures.legend(fig)
    assert print_check.check(fig, ICML) == []


@pytest.mark.parametrize("level", [0.0, 123_450.0, -1_234_567.0, 3.1e7, 1e9])
def test_ticks_say_where_they_are(level):
    fig, ax = figures.figure()
    figures.value_axis(ax.yaxis, "log-likelihood")
    ax.set_ylim(level, level + 12)
    fig.draw_without_rendering()
    labels = [
        float(label.get_text().replace("\N{MINUS SIGN}", "-")) for label in ax.get_yticklabels()
    ]
    assert labels == pytest.approx([*ax.get_yticks()], rel=1e-12, abs=1e-12)


def test_ratios_have_no_unit():
    for metric, label in (
        (LOG, "ratio of validation error"),
        (LOWER, "difference in validation e"),
    ):
        _, ax = figures.figure()
        figures.difference_axis(ax.xaxis, metric)
        assert ax.get_xlabel().replace("\n", " ").startswith(label)
        assert "mm" not in ax.get_xlabel()


def test_what_is_beyond_an_axis_was_drawn():
    values = {"a": results(HIGHER, 0.2, 0.8, 0.8), "b": results(HIGHER, 0.7, 0.75, 0.8)}
    for points, said in ((False, ""), (True, figures.CUT)):
        _, ax = figures.figure()
        ax.plot([0, 1], [0.6, 0.75], "o")
        if points:
            ax.plot([0, 1], [0.0, 1.0])
        assert figures.limit_to_intervals(ax.yaxis, values.values(), HIGHER) in ("", said)


def test_intervals_of_differences_are_seen_whole():
    each = {"base": [0.5, 0.6, 0.7], "other": [0.6, 0.5, 0.65]}
    found = samples.differences({n: results(LOWER, *v) for n, v in each.items()}, "base")
    _, ax = figures.rows([*found], 0.3)
    plots.differences(ax, found, LOWER)
    low, high = found["other"].estimate.interval[1:]
    assert low < -4 * abs(found["other"].estimate.mean)
    assert figures.limit_to_differences(ax.xaxis, found.values(), LOWER) == ""
    assert ax.get_xlim()[0] < low < high < ax.get_xlim()[1]


def test_long_names_below_a_map_make_the_figure_higher():
    names = ["0a72aa178ea7", "1b72aa178ea8:last", "none, as from the start"]
    table = jobs(LOWER, x=names * 2, y=[0.1, 0.2, 0.3] * 2)
    fig, ax = figures.rows(["a", "b"], 0.4)
    plots.heatmap(ax, {"a": table[:3], "b": table[3:]}, "x", LOWER)
    assert print_check.check(fig, ICML) == []
    assert ax.get_position().height * fig.get_figheight() > 0.7
    _, ax = figures.rows(["a", "b"], 0.4)
    with pytest.raises(NoResults, match="is too long a name for a figure"):
        table["x"] = [f"{name} {'x' * 60}" for name in table["x"]]
        plots.heatmap(ax, {"a": table[:3], "b": table[3:]}, "x", LOWER)


def test_a_map_is_no_higher_than_the_page():
    figures.use(style.VENUES["nature"])
    rows = {
        f"row {n}": jobs(LOWER, x=[f"width {100_000 * n}" for n in range(20)], y=n)
        for n in range(16)
    }
    fig, ax = figures.rows([*rows], 0.4)
    plots.heatmap(ax, rows, "x", LOWER)
    assert print_check.check(fig, style.VENUES["nature"]) == []


def test_words_have_their_names_on_an_axis():
    _, axes = figures.panels(["a", "b"], "optimizer", LOWER)
    _, ax = figures.figure()
    figures.value_axis(ax.xaxis, "optimizer")
    for each in (ax, *axes):
        each.bar(["adam", "sgd"], [1, 2])
        assert [tick.get_text() for tick in each.get_xticklabels()] == ["adam", "sgd"]
