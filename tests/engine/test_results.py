"""Tables of finished jobs: their settings, metrics and groups, from stores that MLflow has made."""

import json
import math
from dataclasses import replace
from itertools import product

import pytest
import stored
from labjobs.errors import SettingsError
from labjobs.results import comparison, groups, metrics, style, tables
from labjobs.results.comparison import Comparison, compare
from labjobs.results.metrics import NoResults
from labjobs.settings import Metric, as_plain
from stored import CLASSIFIER, REGRESSION

ACCURACY = metrics.Measured("accuracy", CLASSIFIER["accuracy"], "val")
MINUS, DASH = "\N{MINUS SIGN}", "\N{EN DASH}"
SAME = {"model": "mlp", "monitor": "val_accuracy"}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return stored.fresh(tmp_path_factory.mktemp("store"))


@pytest.fixture(autouse=True)
def default_store(store, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)


@pytest.fixture(scope="module")
def sweep(store):
    """Twelve classifiers, as a table."""
    store.classifiers("sweep")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", store.uri)
        return tables.jobs("sweep")


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


def test_a_job_older_than_a_setting_has_its_neutral_value(store):
    one(store, "later", seed=0)
    run = one(store, "later", seed=1, dropout=0.0)
    assert groups.varied(tables.jobs("later")) == ["dropout"]
    store.client.set_tag(run, "neutral", '{"dropout": 0}')
    assert groups.varied(tables.jobs("later")) == []


def test_renamed_settings_have_todays_names(store):
    one(store, "renamed", rate=0.1)
    one(store, "renamed", step_size=0.1, seed=1, tags={"former": '{"rate": "step_size"}'})
    newest = {"former": '{"step_size": "lr"}'}
    one(store, "renamed", lr=0.1, seed=2, tags=newest)
    jobs = tables.jobs("renamed")
    assert jobs["lr"].tolist() == [0.1] * 3
    assert not {"rate", "step_size"} & {*jobs.attrs["settings"]}


def test_infinity_comes_back(store):
    one(store, "far", (math.inf, -math.inf, math.nan))
    assert str(tables.curves(tables.jobs("far"), "val_accuracy")["value"].tolist()) == (
        "[inf, -inf, nan]"
    )


def test_a_job_that_finished_counts_though_it_diverged_later(store):
    for status in ("FINISHED", "FAILED"):
        one(store, "twice", status=status)
    assert tables.jobs("twice")["diverged"].tolist() == [False]


def test_without_a_finished_job_it_says_why(store):
    one(store, "begun", status="FAILED", mark=False)
    one(store, "lost", status="FAILED")
    for experiment, why in (
        ("begun", "no finished job in the experiment 'begun' yet"),
        ("lost", "all 1 jobs in the experiment 'lost' diverged"),
        ("nosuch", "no experiment 'nosuch' in the tracking store; it has Default, "),
    ):
        with pytest.raises(NoResults, match=why):
            tables.jobs(experiment)


def test_only_jobs_with_the_settings_asked_for(sweep):
    assert len(tables.only(sweep, {"model": "mlp", "lr": [0.001, 0.1]})) == 3
    with pytest.raises(SettingsError, match=r"no setting models; did you mean model\?"):
        tables.only(sweep, {"models": "mlp"})
    with pytest.raises(NoResults, match="no finished job has the settings of ONLY"):
        tables.only(sweep, {"lr": 7})


def test_the_metric_is_that_which_most_jobs_monitor(store, sweep):
    assert str(metrics.monitored(sweep)) == "validation accuracy"
    store.classifiers("loss", models=["mlp"], seeds=1, monitor="val_loss")
    found = metrics.monitored(tables.jobs("loss"))
    assert (found.key, found.axis, found.sign) == (
        "val_loss",
        "validation cross-entropy (nats)",
        -1,
    )


@pytest.mark.parametrize(("validated", "key"), [(True, "val_distance"), (False, "train_distance")])
def test_where_none_is_monitored_it_is_the_first_that_there_is(store, validated, key):
    store.gans(key, validated=validated)
    jobs = tables.jobs(key)
    assert metrics.monitored(jobs).key == key
    if not validated:
        with pytest.raises(NoResults, match="no validation results to choose by"):
            metrics.chooser(jobs)


def test_one_name_with_two_directions_is_refused(store):
    one(store, "both", seed=0)
    one(store, "both", seed=1, metrics={"accuracy": Metric(better="lower", range=(0, 1))})
    with pytest.raises(NoResults) as error:
        metrics.declared(tables.jobs("both"))
    assert str(error.value).startswith("lower accuracy is better in 1 of the jobs, higher in 1;")
    assert "\n" not in str(error.value)


def test_of_several_declarations_the_newest_counts(store):
    one(store, "newest", seed=1)
    newer = replace(CLASSIFIER["accuracy"], label="share right", target=0.5)
    one(store, "newest", seed=0, metrics={"accuracy": newer})
    assert metrics.declared(tables.jobs("newest"))["accuracy"] == newer


def test_declarations_that_cannot_be_read_are_said_in_one_line(store):
    one(store, "damaged", tags={"metrics": "{"})
    with pytest.raises(NoResults, match="the metrics that the jobs declare cannot be read"):
        metrics.declared(tables.jobs("damaged"))


def test_the_target_is_the_monitored_metrics_else_the_first(store, sweep):
    assert metrics.with_target(sweep).key == "val_accuracy"
    store.classifiers("to loss", models=["mlp"], seeds=1, monitor="val_loss")
    assert metrics.with_target(tables.jobs("to loss")).key == "val_accuracy"
    store.gans("no target")
    with pytest.raises(NoResults, match="no validation metric has a target"):
        metrics.with_target(tables.jobs("no target"))


def test_what_varies_most_comes_first_and_numbers_before_words(sweep):
    assert groups.varied(sweep) == ["lr", "model"]
    stray = sweep.copy()
    stray.loc[0, "epochs"] = 2
    assert groups.varied(stray) == ["lr", "model", "epochs"]
    assert comparison.numeric(stray) == "lr"


def test_parts_of_a_figure_take_what_they_can_tell_apart(store):
    store.classifiers("three", batch_size=(32, 64, 128), seeds=1)
    jobs = tables.jobs("three")
    assert groups.apart(jobs, 6, 6) == [["batch_size"], ["lr", "model"]]
    assert groups.apart(jobs, 2, 6) == [["lr"], ["batch_size", "model"]]
    assert groups.apart(jobs, 6, but=["lr"]) == [["batch_size", "model"]]
    with pytest.raises(NoResults, match="only learning rate varies among the jobs"):
        style.label_settings({"lr": "learning rate"})
        groups.apart(tables.only(jobs, {"batch_size": 32, "model": "mlp"}), 6, 6, needed=2)


def test_of_what_is_left_over_the_best_by_validation_is_chosen(store):
    for lr, val, test in ((0.1, 0.9, 0.1), (0.2, 0.6, 0.99)):
        for size in range(7):
            how = {"lr": lr, "batch_size": size, "tests": {"test_accuracy": test}}
            one(store, "chosen", [val - 0.01 * size], **how)
    shown = compare(tables.jobs("chosen"), 3)
    assert shown.by == ["lr"]
    assert shown.jobs["batch_size"].tolist() == [0, 0]
    assert shown.chosen == (
        " Shown are the values of batch size with the best validation accuracy for each of the "
        "others."
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
    ranked = groups.samples(jobs, ["lr"], metrics.chooser(jobs))
    assert [*ranked] == [f"lr {rate}" for rate in rates]
    best = jobs.set_index("job_id").loc[groups.best(jobs)]
    assert best["lr"] == (1 if better == "lower" else 2)


def test_the_best_of_several_is_the_first_by_its_id(store):
    for seed, value in enumerate((0.2, 0.9, 0.9, 0.1)):
        one(store, "ties", [value], seed=seed)
    jobs = tables.jobs("ties")
    assert groups.best(jobs) == groups.best(jobs.iloc[::-1]) == stored.name({**SAME, "seed": 1})


def test_logarithmic_metrics_are_ranked_by_their_geometric_mean(store):
    log = {"loss": Metric(better="lower", scale="log")}
    how = {"metrics": log, "monitor": "val_loss"}
    for seed, (even, wide) in enumerate(((0.5, 0.001), (0.5, 1.2))):
        store.job("log", {"val_loss": [even]}, spread="even", seed=seed, **how)
        store.job("log", {"val_loss": [wide]}, spread="wide", seed=seed, **how)
    jobs = tables.jobs("log")
    shown = compare(jobs, 2)
    assert [*shown.results()] == ["wide", "even"]
    assert shown.repeats == "geometric mean of 2 seeds, 95% t interval of the logarithm"
    assert shown.difference.startswith(" First over second: ")
    store.job("log", {"val_loss": [0.0]}, spread="none", seed=0, **how)
    with pytest.raises(NoResults, match="not always above 0, so it has no logarithm; declare"):
        compare(tables.jobs("log"), 3).results()


def test_jobs_that_differ_in_more_than_the_seed_are_no_repeats(sweep):
    assert Comparison(sweep, ACCURACY, [["lr", "model"]], [], "").means == "mean of 3 seeds"
    with pytest.raises(NoResults, match="a mean would be over different values of model"):
        _ = Comparison(sweep, ACCURACY, [["lr"]], [], "").means


def test_jobs_without_a_seed_repeat_nothing(store):
    for lr in (0.1, 0.2):
        one(store, "unseeded", lr=lr)
    jobs = tables.jobs("unseeded")
    assert compare(jobs, 3).repeats == "single jobs"
    assert compare(jobs, 3).difference == ""


def test_folds_of_a_cross_validation_are_repeats(store):
    for lr, fold, seed in product((0.1, 0.2), (1, 2, 3), (0, 1)):
        one(store, "folds", [0.5 + lr + 0.01 * fold], lr=lr, fold=fold, seed=seed)
    jobs = tables.jobs("folds")
    assert groups.varied(jobs) == ["lr"]
    both = compare(jobs, 3)
    independent = "95% t interval, as if folds were independent"
    assert both.repeats == f"mean of 6 jobs over seeds and folds, {independent}"
    assert both.difference.endswith(", 95% t interval of 6 pairs by seed and fold.")
    assert [len(results) for results in both.results().values()] == [6, 6]
    of_one_seed = compare(tables.only(jobs, {"seed": 1}), 3)
    assert of_one_seed.repeats == f"mean of 3 folds, {independent}"
    of_one_fold = compare(tables.only(jobs, {"fold": 2}), 3)
    assert of_one_fold.repeats == "mean of 2 seeds, 95% t interval"
    style.label_settings({})
    assert groups.described(jobs[:1], jobs) == "lr 0.1, seed 0, fold 1"


def test_folds_are_told_apart_where_a_job_is_of_none(store):
    for fold in range(4):
        one(store, "some folds", [0.5 + 0.01 * fold], fold=fold, seed=0)
    jobs = tables.jobs("some folds")
    assert groups.varied(jobs) == ["fold"]
    assert compare(jobs, 4).repeats == "one seed"


def test_what_is_in_no_mean_is_said(store):
    for seed, status in enumerate(("FINISHED", "FAILED", "FINISHED")):
        one(store, "missing", [math.nan if seed == 2 else 0.5], status=status, seed=seed)
    assert Comparison(tables.jobs("missing"), ACCURACY, [], [], "").notes == (
        " Left out: 1 of 3 jobs, which diverged; 1 of 3 jobs, without a finite result."
    )


def test_times_to_a_target(store):
    for experiment, sign in (("race", 1), ("race down", -1)):
        declared = CLASSIFIER["accuracy"] if sign > 0 else REGRESSION["mae"]
        name, goal = ("accuracy", 0.9) if sign > 0 else ("mae", 5.0)
        how = {"metrics": {name: declared}, "monitor": f"val_{name}", "seconds": 2.0}
        values = [goal - sign * 0.2, goal, goal + sign * 0.2]
        for seed, stop in enumerate((3, 3, 1)):
            store.job(experiment, {f"val_{name}": values[:stop]}, seed=seed, **how)
        lost = {**how, "status": "FAILED", "seed": 3}
        store.job(experiment, {f"val_{name}": values[:1]}, **lost)
        jobs = tables.jobs(experiment)
        times = tables.times_to(jobs, metrics.with_target(jobs)).sort_values("seed")
        assert times["reached"].fillna(-1).tolist() == [4, 4, -1, -1]
        assert times["lasted"].tolist() == [6, 6, 2, 6]
    one(store, "slow", [0.5])
    with pytest.raises(NoResults, match=r"no job has reached a validation accuracy of ≥ 0\.9; "):
        jobs = tables.jobs("slow")
        tables.times_to(jobs, metrics.with_target(jobs))


def test_labels_of_settings(store):
    style.label_settings({"lr": "learning rate"})
    settings = [(0.001234, "a, b", None), (0.0012341, "c", 0.5), (0.01, "none", 0.5)]
    for lr, note, clip in settings:
        one(store, "labels", lr=lr, note=note, clip=clip)
    jobs = tables.jobs("labels")
    rates = ["learning rate 0.001234", "learning rate 0.0012341", "learning rate 0.01"]
    assert [*groups.groups(jobs, ["lr"])] == rates
    assert [*groups.groups(jobs, ["note"])] == ["note a, b", "note c", "note none"]
    assert [*groups.groups(jobs, ["clip"])] == ["clip none", "clip 0.5"]
    assert [*groups.groups(jobs[:2], ["lr", "note"])] == [f"a, b, {rates[0]}", f"c, {rates[1]}"]
    one(store, "commas", x="a", y="a, y b")
    one(store, "commas", x="a, y a", y="b")
    assert len(groups.groups(tables.jobs("commas"), ["x", "y"])) == 2


def test_results_have_the_digits_that_tell_them_apart():
    assert style.numbers([0.9512, 0.94871, 0.9]) == ["0.951", "0.949", "0.900"]
    assert style.numbers([0.95121, 0.95122]) == ["0.95121", "0.95122"]
    assert style.numbers([4.51e-5, 1.27e-4]) == ["4.51e-5", "1.27e-4"]
    assert style.numbers([-0.5, math.nan, math.inf]) == [f"{MINUS}0.500", DASH, "inf"]
    assert style.numbers([0.0, 0.0]) == ["0.00", "0.00"]
    assert style.with_interval(0.91234, 0.90111, 0.92333) == "0.912 (0.901 to 0.923)"
    assert style.with_interval(-1e-7, -2e-7, 0) == (f"{MINUS}1.00e-7 ({MINUS}2.00e-7 to 0.00e0)")
    assert style.with_interval(0.5, math.nan, math.nan) == "0.500"


def test_declarations_survive_the_store(sweep):
    assert metrics.declared(sweep) == CLASSIFIER
    assert json.dumps(as_plain(CLASSIFIER)) in set(sweep[metrics.DECLARED])


def test_repeats_from_different_code_are_found(store):
    for seed, code in enumerate(("a", "a", "b")):
        store.job("codes", {"val_accuracy": [0.5]}, tags={"code": code}, seed=seed, model="mlp")
    store.job("codes", {"val_accuracy": [0.5]}, tags={"code": "c"}, seed=0, model="convnet")
    jobs = tables.jobs("codes")
    assert groups.of_mixed_evidence(jobs) == sorted(jobs.loc[jobs["model"] == "mlp", "job_id"])
    assert groups.of_mixed_evidence(tables.only(jobs, {"seed": [0, 1]})) == []
    assert groups.of_mixed_evidence(tables.jobs("codes").drop(columns="code")) == []
