"""Tables of finished jobs: their settings, metrics and groups, from stores that MLflow has made."""

import json
import math
from dataclasses import dataclass, make_dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
import stored
from labjobs.job import identity
from labjobs.results import groups, metrics, paper_tables, style, tables
from labjobs.results.comparison import compare, on_tasks
from labjobs.results.metrics import NoResults
from labjobs.results.samples import sample
from labjobs.settings import Metric, Weights, added, setting
from scipy import stats
from settings import METRICS

SAME = {"model": "mlp", "monitor": "val_accuracy"}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return stored.fresh(tmp_path_factory.mktemp("store"))


@pytest.fixture(autouse=True)
def default_store(store, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    style.label_settings({})


def one(store, experiment, results=(0.5,), **how):
    """Store a job with these validation accuracies."""
    return store.job(experiment, {"val_accuracy": results}, **{**SAME, **how})


def test_settings_get_their_types_back(store):
    run = one(store, "types", lr=1e-05, epochs=1, pretrained=False, note="a b", clip=None)
    store.client.log_metric(run, "val_loss", math.nan, step=1)
    (row,) = tables.jobs("types").to_dict("records")
    assert (row["lr"], row["epochs"], row["pretrained"], row["note"]) == (1e-5, 1, False, "a b")
    assert row["clip"] is None and math.isnan(row["val_loss"])


def test_several_values_are_written_as_the_flag_has_them(store):
    for seed, sizes in enumerate(([64, 128], [32], [])):
        one(store, "several", sizes=sizes, names=["a", "b"], seed=seed)
    jobs = tables.jobs("several").sort_values("seed")
    assert jobs["sizes"].tolist() == ["64,128", "32", ""]
    assert {*jobs["names"]} == {"a,b"}
    assert len(tables.only(jobs, {"sizes": "64,128"})) == 1


def test_words_that_look_like_numbers_stay_words(store):
    notes = ["01", "1_000", "nan", "1e5", "2024_11", "10", "inf", "None", "True", "baseline"]
    for seed, note in enumerate(notes):
        one(store, "words", note=note, seed=seed)
    assert tables.jobs("words").sort_values("seed")["note"].tolist() == notes


def test_on_and_1_are_two_values_of_a_setting(store):
    for depth in (1, 2, True, False):
        one(store, "switch", depth=depth)
    assert [*groups.groups(tables.jobs("switch"), ["depth"])] == [
        *("depth 1", "depth 2", "depth off", "depth on")
    ]


def test_a_job_older_than_a_setting_has_its_neutral_value(store):
    one(store, "later", seed=0)
    run = one(store, "later", seed=1, dropout=0.0)
    assert groups.varied(tables.jobs("later")) == ["dropout"]
    store.client.set_tag(run, "neutral", '{"dropout": 0}')
    assert groups.varied(tables.jobs("later")) == []


def test_a_setting_that_does_not_count_has_no_neutral_value(store):
    dropout = added(0.1, neutral=0.0, when={"model": "deep"})
    fields = [("model", str, "mlp"), ("dropout", float, dropout), ("seed", int, 0)]
    kind = make_dataclass("Settings", fields, frozen=True, kw_only=True)
    neutral = {"neutral": '{"dropout": 0}'}
    for seed, own in enumerate(
        ({"model": "mlp"}, {"model": "deep", "dropout": 0.1}, {"model": "deep"})
    ):
        one(store, "nested", seed=seed, tags=neutral, **own)
    table = tables.jobs("nested", kind).sort_values("seed")
    assert table["dropout"].tolist() == [None, 0.1, 0]


def test_jobs_without_a_metric_do_not_count_as_those_that_never_reached_its_target(store):
    metric = metrics.Measured("accuracy", Metric(better="higher", target=0.4), "val")
    one(store, "target", seed=0)
    one(store, "target", status="FAILED", results=(), seed=1)
    assert len(tables.times_to(tables.jobs("target"), metric)) == 2
    store.job("target", {"val_loss": [1.0]}, model="mlp", monitor="none", seed=2)
    with pytest.raises(NoResults, match="1 of 3 jobs have no validation accuracy"):
        tables.times_to(tables.jobs("target"), metric)


def test_renamed_settings_have_todays_names(store):
    """By what later jobs have said of it, or, if there are none yet, by today's class."""

    def called(name: str, former: str) -> Any:
        declared = [(name, float, setting(0.1, formerly=former)), ("seed", int, 0)]
        return make_dataclass("Settings", declared, frozen=True, kw_only=True)

    one(store, "renamed", rate=0.1)
    newer = identity.since(called("step_size", "rate"))["former"]
    one(store, "renamed", step_size=0.1, seed=1, tags={"former": json.dumps(newer)})
    for kind, name in ((None, "step_size"), (called("lr", "step_size"), "lr")):
        jobs = tables.jobs("renamed", kind)
        assert jobs[name].tolist() == [0.1] * 2
        assert not {"rate", "step_size", "lr"} - {name} & {*jobs.attrs["settings"]}


def test_settings_that_are_words_stay_as_they_are(store):
    kind = make_dataclass("Settings", [("name", str, ""), ("seed", int, 0)], frozen=True)
    each = ["1", "1,2", "[1, 2]", "None", "none"]
    for name in each:
        one(store, "texts", name=name)
    jobs = tables.jobs("texts", kind)
    assert sorted(jobs["name"]) == sorted(each)
    assert len({*groups.label(jobs, ["name"])}) == len(each)


def test_a_job_that_finished_counts_though_it_diverged_later(store):
    for status in ("FINISHED", "FAILED"):
        one(store, "twice", status=status)
    assert tables.jobs("twice")["diverged"].tolist() == [False]


def test_declarations_that_cannot_be_read_are_said_in_one_line(store):
    one(store, "damaged", tags={"metrics": "{"})
    with pytest.raises(NoResults, match="the metrics that the jobs declare cannot be read"):
        metrics.declared(tables.jobs("damaged"))


def test_labels_rename_metrics_but_not_those_called_as_a_setting(store):
    for accuracy, lr in (("a", 1), ("b", 2)):
        one(store, "labels", accuracy=accuracy, lr=lr)
    jobs = tables.jobs("labels")
    alone = jobs.drop(columns="accuracy")
    alone.attrs["settings"] = [name for name in jobs.attrs["settings"] if name != "accuracy"]
    style.label_settings({"accuracy": "top-1"})
    try:
        assert str(metrics.monitored(alone)) == "validation top-1"
        assert str(metrics.monitored(jobs)) == "validation accuracy"
    finally:
        style.label_settings({})


def test_parts_of_a_figure_take_what_they_can_tell_apart(store):
    store.classifiers("three", batch_size=(32, 64, 128), seeds=1)
    jobs = tables.jobs("three")
    assert compare(jobs, 6, 6).parts == [["batch_size"], ["lr", "model"]]
    assert compare(jobs, 2, 6).parts == [["lr"], ["batch_size", "model"]]
    assert compare(jobs, 6, along=["lr"]).parts == [["batch_size", "model"]]
    with pytest.raises(NoResults, match="only learning rate varies among the jobs"):
        style.label_settings({"lr": "learning rate"})
        compare(tables.only(jobs, {"batch_size": 32, "model": "mlp"}), 6, 6, needed=2)


def test_of_what_is_left_over_the_best_by_validation_is_chosen(store):
    for lr, val, test in ((0.1, 0.9, 0.1), (0.2, 0.6, 0.99)):
        for size in range(7):
            how = {"lr": lr, "batch_size": size, "tests": {"test_accuracy": test}}
            one(store, "chosen", [val - 0.01 * size], **how)
    style.label_settings({})
    shown = compare(tables.jobs("chosen"), 3)
    assert shown.by == ["lr"]
    assert shown.jobs["batch_size"].tolist() == [0, 0]
    assert shown.chosen == (
        " Shown is the best of 7 values of batch size by validation accuracy: batch size 0."
    )
    assert shown.means == "best of 7, single jobs"
    assert not any(look.interval for look in shown.looks.values())


def test_many_choices_are_summed_up_and_no_choice_is_none(store):
    for size, lr in product(range(8), (0.1, 0.2)):
        best = 0.9 if lr == (0.2 if size else 0.1) else 0.5
        one(store, "many", [best], batch_size=size, lr=lr, seed=0)
    style.label_settings({})
    shown = compare(tables.jobs("many"), 8)
    assert shown.chosen == (
        " Shown is the best of 2 values of lr by validation accuracy: lr 0.2 (7 of 8); lr 0.1 "
        "(1 of 8)."
    )
    for lr in range(8):
        one(store, "drawn", lr=lr, weight_decay=lr / 7)
    shown = compare(tables.jobs("drawn"), along=["lr"])
    assert (shown.chosen, shown.among) == (" The jobs differ in weight decay as well.", "")


def test_what_is_chosen_is_ranked_in_the_same_way_and_called_the_same_everywhere(store):
    results = {
        "mlp": [0.70, 0.71, 0.99],
        "convnet": [0.75, 0.75, 0.76],
    }  # of the best mean, or median
    for lr, (model, values) in product((1, 2), results.items()):
        for seed, value in enumerate(values):
            one(store, "alike", [value], model=model, lr=lr, seed=seed)
    one(store, "alike", [0.1], status="FAILED", model="a&b", lr=3, seed=0)
    one(store, "alike", [0.1], model="2 nets", lr=3, seed=1)
    shown = compare(tables.jobs("alike"), along=["lr"])
    best = "model convnet (for lr 1); model convnet (for lr 2); model 2 nets (for lr 3)"
    assert shown.chosen.endswith(
        f", ranked by the median with diverged jobs as the worst, then by the mean: {best}."
    )


def test_jobs_without_finite_results_are_in_no_mean_of_curves(store):
    for seed, value in enumerate((0.5, 0.6, math.nan)):
        one(store, "not finite", [value, value], seed=seed)
    shown = compare(tables.jobs("not finite"), 6, 6)
    (lines,) = shown.curves().values()
    assert {*lines[""]["value"]} == {0.5, 0.6}
    assert shown.notes == " No finite validation accuracy, left out of its means: 1 of 3 jobs."


def test_a_setting_without_a_value_reads_none(store):
    for seed, first in enumerate((None, "3f2a90c1b7de", "9b8e1d2c3a4f")):
        one(store, "from", init_from=first, seed=seed)
    names = [*groups.groups(tables.jobs("from"), ["init_from"])]
    assert names == ["init from none", "init from 3f2a90c1b7de", "init from 9b8e1d2c3a4f"]


def test_one_seed_of_five_that_diverged_does_not_make_a_setting_the_worst(store):
    for lr, seed in product((1, 2), range(5)):
        lost = {"status": "FAILED"} if (lr, seed) == (1, 4) else {}
        one(store, "one lost", [0.9 if lr == 1 else 0.3], lr=lr, seed=seed, **lost)
    style.label_settings({})
    jobs = tables.jobs("one lost")
    assert [*groups.ranked(jobs, ["lr"], metrics.chooser(jobs))] == ["lr 1", "lr 2"]
    said = ", ranked by the median with diverged jobs as the worst, then by the mean"
    assert compare(jobs, 3).first(12) == f"both settings{said}"
    shown = compare(jobs, 1)
    assert {*shown.jobs["lr"]} == {1}
    assert (
        shown.chosen == f" Shown is the best of 2 values of lr by validation accuracy{said}: lr 1."
    )


def test_without_validation_nothing_is_chosen(store):
    for lr in (1, 2, 3):
        store.job("blind", {"train_loss": [1 / lr]}, lr=lr)
    jobs = tables.jobs("blind")
    assert compare(jobs, 3, metric=metrics.monitored(jobs)).by == ["lr"]
    with pytest.raises(
        NoResults, match=r"too much varies \(lr as well\), and there are no validation"
    ):
        style.label_settings({})
        compare(jobs, 2, metric=metrics.monitored(jobs))


@pytest.mark.parametrize("better", ["lower", "higher"])
def test_the_best_come_first_and_what_diverged_last(store, better):
    for lr, value in ((1, 0.2), (2, 0.4), (3, 0.3)):
        one(store, better, [value], lr=lr, metrics={"accuracy": Metric(better=better)})
    diverged = {"lr": 1, "seed": 1, "metrics": {"accuracy": Metric(better=better)}}
    one(store, better, [0.2], status="FAILED", **diverged)
    jobs = tables.jobs(better)
    rates = [3, 2, 1] if better == "lower" else [2, 3, 1]
    ranked = groups.ranked(jobs, ["lr"], metrics.chooser(jobs))
    assert [*ranked] == [f"lr {rate}" for rate in rates]
    best = jobs.set_index("job_id").loc[groups.best(jobs)]
    assert best["lr"] == (1 if better == "lower" else 2)


def test_logarithmic_metrics_are_ranked_by_their_geometric_mean(store):
    log = {"loss": Metric(better="lower", scale="log")}
    how = {"metrics": log, "monitor": "val_loss"}
    for seed, (even, wide) in enumerate(((0.5, 0.001), (0.5, 1.2), (0.5, 1.2))):
        store.job("log", {"val_loss": [even]}, spread="even", seed=seed, **how)
        store.job("log", {"val_loss": [wide]}, spread="wide", seed=seed, **how)
    jobs = tables.jobs("log")
    shown = compare(jobs, 2)
    assert [*shown.samples()] == ["wide", "even"]
    assert shown.repeats == "geometric mean of 3 seeds, 95% t interval of the logarithm"
    store.job("log", {"val_loss": [0.0]}, spread="none", seed=0, **how)
    with pytest.raises(NoResults, match="not always above 0, so it has no logarithm; declare"):
        compare(tables.jobs("log"), 3).samples()


def test_folds_of_a_cross_validation_are_repeats(store):
    for lr, fold, seed in product((0.1, 0.2), (1, 2, 3), (0, 1)):
        one(store, "folds", [0.5 + lr + 0.01 * fold], lr=lr, fold=fold, seed=seed)
    jobs = tables.jobs("folds")
    assert groups.varied(jobs) == ["lr"]
    both = compare(jobs, 3)
    corrected = "95% t interval over folds, corrected for the examples that they share"
    assert both.repeats == f"mean of 3 folds with 2 seeds each, {corrected}"
    assert [len(each) for each in both.samples().values()] == [6, 6]
    of_one_seed = compare(tables.only(jobs, {"seed": 1}), 3)
    assert of_one_seed.repeats == f"mean of 3 folds, {corrected}"
    assert both.notes == ""
    one(
        store, "folds", [0.9], lr=0.3, fold=1, seed=0
    )  # which is easier than folds 2 and 3, perhaps
    unlike = " Not all have the same splits, which may be unequally hard."
    more = tables.jobs("folds")
    assert compare(more, 3).notes == unlike and paper_tables.results(more).about.endswith(unlike)
    of_one_fold = compare(tables.only(jobs, {"fold": 2}), 3)
    assert of_one_fold.repeats == "mean of 2 seeds"
    style.label_settings({})
    assert groups.label(jobs, ["lr", "seed", "fold"])[0] == "lr 0.1, seed 0, fold 1"
    one(store, "folds", lr=0.1, fold=0, seed=0)
    with pytest.raises(NoResults, match="13 of 14 jobs are folds, the others are not; draw one"):
        compare(tables.jobs("folds"), 3)
    one(store, "folds", dataset="other", fold=0)
    with pytest.raises(NoResults, match=r"14 jobs \(dataset none\) are folds, .* see whether mod"):
        groups.tasks(tables.jobs("folds"))


def test_random_splits_are_repeats(store):
    for lr, split, seed in product((0.1, 0.2), range(3), range(2)):
        how = {"lr": lr, "split_seed": split, "seed": seed, "val_fraction": 0.2}
        one(store, "splits", [0.5 + lr + 0.01 * split], **how)
    shown = compare(tables.jobs("splits"), 3, needed=1)
    assert shown.by == ["lr"]
    assert shown.repeats.startswith("mean of 3 split seeds with 2 seeds each, 95% t interval over")
    found = shown.samples()["lr 0.1"]
    mean, low, high = found.interval
    assert mean == pytest.approx(0.61)
    half = 4.302653 * 0.01 * math.sqrt(1 / 3 + 0.2 / 0.8)
    assert (high - low) / 2 == pytest.approx(half)
    assert found.overlap == 0.25
    for seed in range(3):
        how = {"lr": 0.3, "split_seed": 0, "seed": seed, "val_fraction": 0.2}
        one(store, "splits", [0.8 + 0.01 * seed], **how)
    said = "that they share, or over seeds where there is one split"
    assert compare(tables.jobs("splits"), 3, needed=1).repeats.endswith(said)


@pytest.mark.parametrize("fixed", [True, False])
def test_splits_that_also_share_test_examples_are_corrected_for_these(store, tmp_path, fixed):
    """60 training and 30 test examples, which are others in each split or the same in all."""
    for split in range(3):
        folder = tmp_path / str(split)
        folder.mkdir()
        sizes = json.dumps({"examples": {"train": 60, "val": 10, "test": 30}})
        (folder / "settings.json").write_text(sizes)
        index, right = np.arange(30) + split * (not fixed), np.arange(30) < 20 + split
        np.savez(folder / "predictions.npz", index=index, accuracy=right)
        how = {"split_seed": split, "tags": {"job_folder": str(folder)}, **SAME}
        tests = {"test_accuracy": right.mean(), "test_loss": 0.1 * split}
        store.job(f"fixed {fixed}", {"val_accuracy": [0.5]}, tests=tests, **how)
    jobs = tables.jobs(f"fixed {fixed}")
    found = sample(jobs, metrics.shown(jobs).of("test"))
    assert found.shared == (0 if fixed else 0.5)
    assert ("30 test examples" in found.over) == fixed
    whole = sample(jobs, metrics.Measured("loss", metrics.declared(jobs)["loss"], "test"))
    assert whole.over.endswith("; not over test examples)" if fixed else "that they share)")


def test_what_halving_has_stopped_was_tried_too(store):
    how = {"monitor": "val_accuracy", "seed": 0}
    for model, lr in (("mlp", 0.1), ("mlp", 0.2), ("vit", 0.1)):
        store.job("halved", {"val_accuracy": [0.5 + lr]}, model=model, lr=lr, **how)
    stopped = {"status": "KILLED", "mark": False, "tags": {"stopped": "at 1e"}}
    store.job("halved", {"val_accuracy": [0.1]}, model="vit", lr=0.2, **stopped, **how)
    jobs = tables.jobs("halved")
    assert compare(jobs, 2).among == "1\N{EN DASH}2"
    jobs.attrs[tables.UNFINISHED] = tables.unfinished("halved", None, "run").to_dict("records")
    assert compare(jobs, 2).among == "2"


def test_what_failed_was_tried_too_and_is_named(store):
    def tried(jobs):
        jobs.attrs[tables.UNFINISHED] = tables.unfinished("failed", None, "run").to_dict("records")
        return jobs

    for model, lr, seed in product(("mlp", "vit"), (0.1, 0.2), range(2)):
        if model == "mlp" or lr == 0.1:
            one(store, "failed", [lr], model=model, lr=lr, seed=seed)
    ended = {"status": "FAILED", "mark": False}
    for model, lr, seed in (("knn", 0.1, 0), ("knn", 0.1, 1), ("mlp", 0.1, 3), ("vit", 0.2, 0)):
        one(store, "failed", model=model, lr=lr, seed=seed, **ended)
    shown = compare(tried(tables.jobs("failed")), 9, along=["lr"])
    assert shown.first(12) == "the best 3 of 5 settings"
    named = "2 jobs (model knn, lr 0.1); 1 job (mlp, lr 0.1); 1 job (model vit, lr 0.2)"
    assert shown.notes == f" Failed, so in no mean: {named}."
    # Of jobs that have not begun, the hardware is not known; those that confirm choose nothing.
    one(store, "failed", model="vit", lr=0.4, seed=4_000_000_000, **ended)
    assert compare(tried(tables.jobs("failed")), 9, along=["lr"]).notes == shown.notes
    on_devices = compare(tried(tables.jobs("failed")), 9, along=["hardware"])
    assert on_devices.first(12) == "all 3 settings" and on_devices.notes == ""
    best = compare(tried(tables.jobs("failed")), 2)
    assert best.among == "2\N{EN DASH}3" and best.by == ["lr"]


def test_no_value_is_a_value_of_a_setting_that_counts(store):
    for lr, clip, good in ((1, None, 0.9), (1, 1.0, 0.1), (2, None, 0.1), (2, 1.0, 0.9)):
        one(store, "clip", [good], lr=lr, clip=clip)
    best = compare(tables.jobs("clip"), along=["lr"]).chosen
    assert best.endswith(" clip none (for lr 1); clip 1 (for lr 2).")
    for lr, clip in ((1, None), (2, 1.0)):
        one(store, "differ in clip", lr=lr, clip=clip)
    apart = compare(tables.jobs("differ in clip"), along=["lr"])
    assert apart.chosen == " The jobs differ in clip as well."


def test_ids_beside_none_are_none_in_all_jobs(store):
    @dataclass(frozen=True)
    class Settings:
        """Their settings."""

        init_from: Weights | None = None
        seed: int = 0

    one(store, "ids", init_from=None, seed=0)
    one(store, "ids", init_from="0123456789ab:last", seed=1)
    one(store, "ids", init_from=None, seed=2, status="KILLED", mark=False)
    jobs = tables.jobs("ids", Settings)
    jobs.attrs[tables.UNFINISHED] = tables.unfinished("ids", Settings, "run").to_dict("records")
    found = tables.tried(jobs).sort_values("seed")["init_from"].tolist()
    assert found == [None, "0123456789ab:last", None]


def test_a_baseline_asks_for_nothing_that_its_jobs_agree_in(store):
    for model, lr, batch in (("mlp", 0.1, 1), ("mlp", 0.1, 2), ("vit", 0.2, 1)):
        one(store, "agree", model=model, lr=lr, batch=batch)
    jobs = tables.jobs("agree")
    with pytest.raises(NoResults, match=r"fits 2 of the settings; name batch as well$"):
        groups.fitting(jobs, groups.varied(jobs), {"model": "mlp"})


def test_a_row_is_the_same_setting_on_all_tasks_and_only_that(store):
    tests = {"test_accuracy": 0.5}
    for dataset, lr, other in (("a", 0.1234, "none"), ("b", 0.1233, "vit")):
        for model in ("mlp", other):
            one(store, "rows", dataset=dataset, model=model, lr=lr, tests=tests)
    found = {task: {*each.samples()} for task, each in on_tasks(tables.jobs("rows"), 8).items()}
    assert found == {
        "a": {"model mlp, lr 0.1234", "model none, lr 0.1234"},
        "b": {"model mlp, lr 0.1233", "model vit, lr 0.1233"},
    }
    for (dataset, lr), model in product((("a", 0.1), ("b", 0.2)), ("mlp", "vit", "gpt")):
        one(store, "not in rows", dataset=dataset, model=model, lr=lr, tests=tests)
    for shown in on_tasks(tables.jobs("not in rows"), 3).values():
        assert {*shown.samples()} == {"mlp", "vit", "gpt"}
        assert shown.notes == " The jobs differ in lr as well."


def test_what_a_fold_takes_the_place_of_tells_no_rows_of_tasks_apart(store):
    for model, number in product(("mlp", "vit"), (1, 2, 3)):
        shared = {"model": model, "tests": {"test_accuracy": 0.1 * number}}
        one(store, "held out", dataset="a", fold=0, val_fraction=0.2, seed=number, **shared)
        one(store, "held out", dataset="b", fold=number, val_fraction=None, **shared)
    jobs = tables.jobs("held out")
    assert groups.varied(jobs) == ["model"]
    rows = paper_tables.results(jobs).rows
    assert [*rows] == ["mlp", "vit"]
    assert all(cell.text.startswith("0.20 ") for row in rows.values() for cell in row)


def test_results_derived_from_folds_have_the_interval_of_folds(store):
    metric, values = {"distance": Metric(better="lower")}, [0.1, 0.2, 0.6]
    for fold, value in enumerate(values, 1):
        one(store, "inputs of folds", fold=fold)
        of = {"job": stored.name({**SAME, "fold": fold}), "monitor": "none"}
        store.job("of folds", {}, metric, tests={"distance": value}, **of)
    jobs = tables.joined(tables.jobs("of folds"), tables.jobs("inputs of folds"))
    shown = compare(jobs, 1, metric=metrics.shown(jobs))
    corrected = "corrected for the examples that they share"
    assert shown.repeats == f"mean of 3 job folds, 95% t interval over folds, {corrected}"
    (found,) = shown.samples().values()
    half = stats.t.ppf(0.975, 2) * np.std(values, ddof=1) * math.sqrt(1 / 3 + 1 / 2)
    assert found.estimate.interval.high == pytest.approx(0.3 + half)
    said = paper_tables.results(jobs)
    assert f"95% intervals over 3 job folds ({corrected})." in said.about
    assert said.records[0]["interval"] == f"95% over 3 job folds ({corrected})"
    one(store, "inputs of folds", fold=0, val_fraction=0.2)
    of["job"] = stored.name({**SAME, "fold": 0, "val_fraction": 0.2})
    store.job("of folds", {}, metric, tests={"distance": 0.1}, **of)
    jobs = tables.joined(tables.jobs("of folds"), tables.jobs("inputs of folds"))
    with pytest.raises(NoResults, match="3 of 4 jobs are folds"):
        compare(jobs, 1, metric=metrics.shown(jobs))


def test_jobs_without_an_input_are_compared_with_those_that_have_one(store):
    metric = {"distance": Metric(better="lower")}
    for seed in range(3):
        one(store, "inputs of some", seed=seed, width=8, dataset="a")
        name = stored.name({**SAME, "seed": seed, "width": 8, "dataset": "a"})
        for job in (name, None):
            results = {"distance": 0.1 * seed + (job is None)}
            store.job("of some", {}, metric, tests=results, job=job, seed=seed, monitor="none")
    jobs = tables.joined(tables.jobs("of some"), tables.jobs("inputs of some"))
    assert len(groups.tasks(jobs)) == 1
    rows = paper_tables.results(jobs).rows
    assert len(rows) == 2 and "job width 8" in [*rows][1]


def test_splits_of_one_fold_are_corrected_beside_jobs_that_hold_a_fraction_out(store):
    for seed in range(3):
        one(store, "one fold", [0.1 * seed], fold=3, split_seed=seed, val_fraction=None)
    one(store, "one fold", dataset="other", fold=0, split_seed=0, val_fraction=0.2)
    jobs = tables.only(tables.jobs("one fold"), {"fold": 3})
    assert groups.overlap(jobs) == 0.5


def test_only_repeats_split_examples(store):
    for folds, lr in product((5, 10), (1, 2)):
        one(store, "method", [0.1 * lr], num_fold=folds, lr=lr, seed=0)
    jobs = tables.jobs("method")
    assert groups.split_by(jobs) == [] and compare(jobs, 2).unlike_splits == ""


def test_tasks_are_never_compared(store):
    @dataclass(frozen=True)
    class Settings:
        """Their settings."""

        corpus: str = setting("a", role="task")
        dataset: str = setting("digits", role="method")
        seed: int = 0

    for corpus, dataset in product("ab", ("digits", "noisy")):
        one(store, "corpora", corpus=corpus, dataset=dataset, seed=0)
    jobs = tables.jobs("corpora", Settings)
    assert groups.varied(jobs) == ["dataset"]
    assert [*groups.tasks(jobs)] == ["a", "b"]
    with pytest.raises(NoResults, match="a and b are different tasks, which are not compared"):
        compare(jobs, 3)
    jobs = tables.jobs("corpora")
    assert groups.varied(jobs) == ["corpus"]
    assert [*groups.tasks(jobs)] == ["digits", "noisy"]


def test_curves_along_each_axis(store):
    curves = {"val_accuracy": [0.5, 0.6], "epoch": [1.0, 2.0]}
    for seed in range(2):
        speeds = {"examples_per_second": [500.0] * 2, "tokens_per_second": [500.0 * 512] * 2}
        how = {"batch_size": 8, "seed": seed, "monitor": "val_accuracy"}
        store.job("along", curves | speeds, seconds=2.0, **how)
    jobs = tables.jobs("along")
    found = {name: tables.curves(jobs, "val_accuracy", name) for name in tables.ALONG}
    own = {name: each[each["job_id"] == jobs["job_id"].iloc[1]] for name, each in found.items()}
    steps = own["step"]["step"]
    wanted = {"step": steps, "epoch": [1, 2], "seconds": [2, 4]}
    wanted |= {"examples": steps * 8, "tokens": steps * 8 * 512}
    for name, each in own.items():
        assert [*each["at"]] == [*wanted[name]], name
    store.job("no tokens", curves, batch_size=8, monitor="val_accuracy")
    with pytest.raises(NoResults, match=r"curves along tokens need job\.steps\(batches, tokens"):
        tables.curves(tables.jobs("no tokens"), "val_accuracy", "tokens")


def test_metrics_are_shown_as_they_are_declared_today_if_their_direction_is_the_same(store):
    was = {"accuracy": Metric("higher", label="top-1"), "loss": Metric("higher", label="loss")}
    store.job("shown", {"val_accuracy": [0.5], "val_loss": [1.0]}, was, **SAME)
    kind = make_dataclass("Settings", [("seed", int, 0)], frozen=True)
    assert metrics.declared(tables.jobs("shown")) == was
    today = metrics.declared(tables.jobs("shown", kind))
    assert today == {"accuracy": METRICS["accuracy"], "loss": was["loss"]}
