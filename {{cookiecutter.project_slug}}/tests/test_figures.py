"""What `python plot.py` prints, drawn from stores that MLflow itself has made."""

import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric, Param

import plot
from engine.results import captions, figure_files, figures, plots, plotting, print_check, venues
from engine.results import tables as results
from engine.tracking import database, reading, stored_jobs
from engine.tracking.store import experiment_name

PROJECT = Path(plot.__file__).parent
DPI = 300


@pytest.fixture(scope="module")
def store(tmp_path_factory, empty_store):
    """The address of a store with the default sweep in the project's experiment."""
    uri = f"sqlite:///{shutil.copy(empty_store, tmp_path_factory.mktemp('store'))}"
    sweep(uri, experiment_name())
    return uri


@pytest.fixture(scope="module")
def printed(store, tmp_path_factory):
    """The default sweep's figures as plot.py prints them: path, width and height in inches."""
    done = run_plot(store, "--out", tmp_path_factory.mktemp("printed"))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return read_sizes(done.stdout)


def run_plot(store, *flags):
    return subprocess.run(
        [sys.executable, PROJECT / "plot.py", *flags],
        cwd=PROJECT,
        env={**os.environ, "MLFLOW_TRACKING_URI": store},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def draw(store, monkeypatch, capsys):
    """`plot.py` with flags, in this process: its exit status, output and complaints."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)

    def draw(*flags, of_all=plot.FIGURES, of_one=plot.OF_ONE_JOB):
        monkeypatch.setattr("sys.argv", ["plot.py", *map(str, flags)])
        status = plotting.main(of_all, of_one, plot.VARIED, "val_accuracy")
        return status, *capsys.readouterr()

    return draw


def read_sizes(output):
    lines = re.findall(r"^(.+)  ([\d.]+) x ([\d.]+) in$", output, re.MULTILINE)
    assert len(lines) == len(output.splitlines())
    return [(Path(path), float(width), float(height)) for path, width, height in lines]


def sweep(uri, experiment, models=("mlp", "convnet"), lrs=(1e-3, 1e-2), seeds=3, epochs=30):
    for model in models:
        for lr in lrs:
            for seed in range(seeds):
                job(uri, experiment, model=model, lr=lr, seed=seed, epochs=epochs)


def folder_of(uri):
    """The folder of all jobs of a store in a file, with the predictions of each."""
    folder = Path(uri.removeprefix("sqlite:///")).parent
    if folder.is_dir() and not (folder / "predictions.npz").exists():
        labels = np.arange(360) % 10
        guesses = np.where(labels == 3, 8, labels)
        classes = np.array([str(digit) for digit in range(10)])
        np.savez(folder / "predictions.npz", labels=labels, guesses=guesses, classes=classes)
    return folder


def job(uri, experiment, *, status="FINISHED", mark=True, stop=None, **settings):
    """Store one job as the courier does, with curves that depend on its settings alone."""
    client = MlflowClient(uri)
    found = client.get_experiment_by_name(experiment)
    place = found.experiment_id if found else client.create_experiment(experiment)
    name = " ".join(f"{key}={value}" for key, value in settings.items())
    tags = {"job_id": name, "commit": "abc", "job_folder": str(folder_of(uri))}
    run = client.create_run(place, tags=tags).info.run_id
    values = curve(random.Random(name), stop or settings["epochs"])
    params = {"dataset": "digits", "note": "", "device": "auto", **settings}
    client.log_batch(
        run,
        params=[Param(key, str(value)) for key, value in params.items()],
        metrics=[
            *(Metric("val_accuracy", value, epoch, epoch) for epoch, value in values.items()),
            *(Metric("epoch_seconds", settings["seed"] + 2, epoch, epoch) for epoch in values),
            Metric("examples_per_second", 1000 + settings["seed"], len(values), len(values)),
            Metric("test_accuracy", max(values.values()), len(values), len(values)),
        ],
    )
    client.set_terminated(run, status)
    if mark:
        client.set_tag(run, "diverged" if status == "FAILED" else "finished", "true")
    return run


def curve(chance, epochs):
    final = chance.uniform(0.97, 0.995)
    return {epoch: final - 0.6 * math.exp(-epoch / 3) for epoch in range(1, epochs + 1)}


def assert_prints_right(path, width, height):
    """Page or pixels as printed; in a PDF TrueType fonts only and no text under 8 pt."""
    data = path.read_bytes()
    if path.suffix == ".png":
        pixels = [int.from_bytes(data[i : i + 4]) for i in (16, 20)]
        assert pixels == [round(width * DPI), round(height * DPI)]
        return
    (page,) = re.findall(rb"/MediaBox \[([^]]+)\]", data)
    assert [float(side) for side in page.split()] == pytest.approx([0, 0, 72 * width, 72 * height])
    assert b"/Type3" not in data
    assert b"/FontFile2" in data
    assert min(text_sizes(data)) >= 8


def text_sizes(pdf):
    streams = [zlib.decompress(s) for s in re.findall(rb"stream\r?\n(x.+?)endstream", pdf, re.S)]
    return [float(size) for s in streams for size in re.findall(rb"/F\S+ ([\d.]+) Tf", s)]


def test_prints_at_the_size_it_was_drawn(printed):
    names = [path.name for path, _, _ in printed]
    known = [*plot.FIGURES, *plot.OF_ONE_JOB]
    assert names == [f"{name}.{kind}" for name in known for kind in ("pdf", "png")]
    for figure in printed:
        assert_prints_right(*figure)


def test_same_jobs_same_bytes_whatever_else_is_in_the_store(store, printed, draw, tmp_path):
    own = experiment_name()
    job(store, own, model="mlp", lr=1e-3, seed=3, epochs=30, status="FAILED", mark=False)
    job(store, own, model="mlp", lr=1e-3, seed=4, epochs=30, status="KILLED", mark=False)
    job(store, own, model="mlp", lr=1e-3, seed=5, epochs=30, mark=False)
    deleted = job(store, own, model="mlp", lr=1e-3, seed=6, epochs=30)
    MlflowClient(store).delete_run(deleted)
    job(store, own, model="mlp", lr=1e-3, seed=0, epochs=2)
    _, _, said = draw("--out", tmp_path)
    assert said == "left out 1 of 13 jobs: unlike the rest in epochs\n"
    for path, _, _ in printed:
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("experiment", "said"),
    [("begun", "no finished job in the experiment 'begun' yet"), ("nosuch", "it has Default, ")],
)
def test_without_a_finished_job_one_line(store, tmp_path, experiment, said):
    job(store, "begun", model="mlp", lr=1e-3, seed=0, epochs=2, status="FAILED", mark=False)
    done = run_plot(store, "--experiment", experiment, "--out", tmp_path / "figures")
    assert done.returncode == 1
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "figures").exists()


SHAPES = {
    "one job of one epoch": {"models": ["mlp"], "lrs": [1e-3], "seeds": 1, "epochs": 1},
    "many": {
        "models": ["mlp", "convnet", "resnet18", "efficientnet_v2_s", "vit_b_16"],
        "lrs": [1e-5, 1e-4, 3e-4, 1e-3, 1e-2, 1e-1],
        "seeds": 1,
    },
}


@pytest.mark.parametrize("shape", SHAPES)
def test_any_grid(store, shape, draw, tmp_path):
    sweep(store, shape, **SHAPES[shape])
    status, out, _ = draw("--experiment", shape, "--out", tmp_path)
    assert status == 0
    for figure in read_sizes(out):
        assert_prints_right(*figure)


def test_means_end_with_the_first_seed_that_stops(store, monkeypatch):
    for seed, stop in enumerate([8, 12, 10]):
        job(store, "stopped", model="mlp", lr=1e-3, seed=seed, epochs=30, stop=stop)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    fig, _ = plot.learning_curves(results.jobs("stopped"))
    (mean,), (seeds, _band) = fig.axes[0].lines, fig.axes[0].collections
    lengths = [np.isfinite(curve[:, 1]).sum() for curve in seeds.get_segments()]
    assert sorted(lengths) == [8, 10, 12]
    assert list(mean.get_xdata()) == list(range(1, 9))


def test_a_job_that_diverged_is_a_cross_and_no_result(store, monkeypatch):
    sweep(store, "lost", models=["mlp"])
    job(store, "lost", model="mlp", lr=1.0, seed=0, epochs=30, stop=2, status="FAILED")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    jobs = results.jobs("lost")
    assert jobs["diverged"].sum() == 1
    fig, caption = plot.accuracy_by_lr(jobs)
    crosses = [line for line in fig.axes[0].lines if line.get_marker() == "x"]
    assert [len(line.get_xdata()) for line in crosses] == [0, 0, 1]  # at 0.001, 0.01 and 1
    assert "Crosses are jobs that diverged (1)." in caption
    assert captions.lost(jobs, ["lr"]) == " Left out, as they diverged: 1 of 1 jobs of 1."
    assert 1.0 not in set(results.curves(jobs, "val_accuracy")["lr"])
    assert len(results.samples(jobs, ["lr"], "test_accuracy")) == 2


def test_times_to_a_target(store, monkeypatch):
    for seed, stop in enumerate([30, 30, 3]):
        job(store, "race", model="mlp", lr=1e-3, seed=seed, epochs=30, stop=stop)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    times = results.times_to(results.jobs("race"), "val_accuracy", 0.9).set_index("seed")
    accuracies = results.curves(results.jobs("race"), "val_accuracy")
    first = accuracies[accuracies["value"] >= 0.9].groupby("seed")["step"].min()
    assert times.loc[0, "reached"] == 2 * first[0]  # its epochs take 2 s
    assert times.loc[1, "reached"] == 3 * first[1]
    assert math.isnan(times.loc[2, "reached"]) and times.loc[2, "ended"] == 3 * 4
    job(store, "race", model="mlp", lr=1e-3, seed=3, epochs=30, stop=2, status="FAILED")
    times = results.times_to(results.jobs("race"), "val_accuracy", 0.9).set_index("seed")
    assert math.isnan(times.loc[3, "reached"]) and times.loc[3, "ended"] == 3 * 30


def test_arrivals_that_take_longer_than_those_before_are_shown():
    _, ax = figures.figure()
    plots.arrivals(ax, [1.0, 2.0], [3, 3], "quick")
    plots.arrivals(ax, [1.0, math.nan], [9, 9], "slow")
    assert ax.get_xlim()[1] >= max(x for line in ax.lines for x in line.get_xdata()) > 9


def test_a_figure_says_where_it_comes_from(store, printed, tmp_path):
    for path, _, _ in printed[:2]:
        said = run_plot(store, "--whence", path).stdout
        assert "commits: abc\nshared: dataset digits, epochs 30, note \n" in said
        assert said.count("model=") == 12
        assert "varied: lr 0.001 0.01, model convnet mlp, seed 0 1 2\n" in said
        assert re.search(r"newest: 20..-..-..T..:..:..\+00:00\nvenue: icml\n$", said)
    (tmp_path / "x.pdf").write_text("%PDF")
    foreign = run_plot(store, "--whence", tmp_path / "x.pdf")
    assert (foreign.returncode, foreign.stderr.count("\n")) == (2, 1)
    assert "does not say where it comes from" in foreign.stderr


def test_captions_have_the_numbers(store, printed, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    jobs = results.jobs(experiment_name()).query("epochs == 30")
    by = jobs.groupby(["model", "lr"])["test_accuracy"].mean().sort_values()
    (path,) = (path for path, _, _ in printed if path.name == "ranking.pdf")
    caption = path.with_suffix(".tex").read_text()
    gain = re.search(
        r"minus second: (-?[\d.]+) \$\\pm\$ [\d.]+ \(95\\% t interval, 3 pairs", caption
    )
    assert float(gain[1]) == pytest.approx(by.iloc[-1] - by.iloc[-2], abs=5e-5)
    assert r"95\% t interval" in caption and r"\label{fig:ranking}" in caption


def test_captions_are_latex(tmp_path):
    figures.use(venues.VENUES["icml"])
    fig, _ = figures.figure()
    said = "50 % of a_b & c: α ≤ 0.1\n\n→ λ"
    figure_files.save(fig, tmp_path / "x", said, {}, venues.VENUES["icml"], checked=True)
    told = r"50 \% of a\_b \& c: $\alpha$ $\leq$ 0.1 $\to$ $\lambda$"
    assert f"\\caption{{{told}}}" in (tmp_path / "x.tex").read_text()


def test_another_venue(draw, tmp_path):
    wide_and_narrow = {name: plot.FIGURES[name] for name in ("learning-curves", "ranking")}
    status, out, _ = draw("--venue", "nature", "--out", tmp_path, of_all=wide_and_narrow)
    assert status == 0
    widths = {width for _, width, _ in read_sizes(out)}
    at = venues.VENUES["nature"]
    assert widths == {float(f"{at.column:g}"), float(f"{at.full:g}")}


def test_venues_are_listed_and_a_wrong_one_is_named(store):
    listed = run_plot(store, "--venue", "list")
    assert listed.returncode == 0 and len(listed.stdout.splitlines()) == 1 + len(venues.VENUES)
    wrong = run_plot(store, "--venue", "neurip")
    assert wrong.returncode == 2
    assert wrong.stderr == "plot.py: --venue neurip: not known; did you mean neurips?\n"


def crowded(jobs):
    """A figure with six faults."""
    fig, ax = figures.figure("column", 2.0)
    ax.set_title("tiny", fontsize=6)
    ax.text(0.5, 0.5, "one over", transform=ax.transAxes)
    ax.text(0.5, 0.5, "another", transform=ax.transAxes)
    fig.text(0.95, 0.01, "beyond the edge")
    fig.text(0.1, 0.5, "学")
    beyond = fig.add_axes((0.9, 0.6, 0.2, 0.2), xticks=[], yticks=[])
    beyond.set_title("outside", color="none")
    beyond.text(1, 0.8, "clipped", transform=fig.transFigure, ha="center", clip_on=True)
    return fig, ""


def test_what_would_not_print_right_is_named_and_not_written(store, draw, tmp_path):
    job(store, "crowd", model="mlp", lr=1e-3, seed=0, epochs=2)
    flags, only = ("--experiment", "crowd", "--out", tmp_path), {"of_all": {"crowded": crowded}}
    status, _, said = draw(*flags, of_one={}, **only)
    *faults, last = said.splitlines()
    assert status == 1
    assert faults[0].startswith("crowded: Glyph 23398 ")
    assert faults[1] == 'crowded: "tiny" (title of "tiny") is 6 pt, under 8'
    assert re.match(r'crowded: "clipped" .+ is cut by \d+.\d pt at the page.s edge', faults[2])
    assert re.match(r'crowded: "beyond the edge" \(in the figure\) is cut by \d+', faults[3])
    assert re.match(r'crowded: "one over" .+ and "another" .+ overlap by \d', faults[-2])
    assert faults[-1] == 'crowded: the axes "outside" reach beyond the page\'s edge'
    assert last == "crowded: not written; --unchecked writes it as it is"
    assert not list(tmp_path.iterdir())
    assert draw(*flags, "--unchecked", of_one={}, **only)[0] == 0
    assert (tmp_path / "crowded.pdf").exists()


def test_the_chosen_jobs_predictions(draw, tmp_path):
    status, _, said = draw("--job", "nosuch", "--out", tmp_path / "wrong")
    assert (status, (tmp_path / "wrong").exists()) == (2, False)
    assert said.splitlines()[-1] == "plot.py: --job nosuch: no finished job has this id"
    name = "model=mlp lr=0.001 seed=2 epochs=30"
    draw("--job", name, "--out", tmp_path, of_all={})
    caption = (tmp_path / "confusion.tex").read_text()
    assert "36 of 360 taken for another class" in caption
    assert "(mlp, learning rate 0.001, seed 2)" in caption
    assert json.loads((tmp_path / "confusion.json").read_text())["jobs"] == [name]
    one = results.jobs(experiment_name()).query("job_id == @name")
    fig, _ = plot.confusion(one)
    assert {text.get_text() for text in fig.axes[0].texts} == {"36"}
    damaged = tmp_path / "predictions.npz"
    for content in (None, b"", b"PK", b"no archive"):
        if content is not None:
            damaged.write_bytes(content)
        with pytest.raises(results.NoResults, match="cannot read the predictions of the job"):
            plot.confusion(one.assign(job_folder=str(tmp_path)))


@pytest.mark.parametrize(
    "classes",
    [
        ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Bag", "Boot"],
        [f"class {index}" for index in range(100)],
        ["a very long name indeed, of a class", "$x$ and $y", "c_d%"],
    ],
)
def test_confusion_of_any_classes_prints_right(classes, tmp_path):
    figures.use(venues.VENUES["icml"])
    labels = np.arange(5 * len(classes)) % len(classes)
    fig, ax = figures.figure("column", 3.1)
    plots.confusion(ax, labels, labels[::-1], classes)
    assert print_check.check(fig, venues.VENUES["icml"]) == []


@pytest.mark.parametrize("count", [1, 2, 5, 12])
def test_points_of_all_series_stand_at_their_place(count):
    lrs = [1e-5, 1e-4, 3e-4, 1e-3, 1e-2, 0.0316227766]
    rows = [
        {"model": f"m{i:02}", "lr": lr, "y": 0.5 + 0.01 * seed, "diverged": False}
        for i in range(count)
        for lr in lrs
        for seed in range(3)
    ]
    fig, ax = figures.figure("column", 2.4)
    plots.points(ax, pd.DataFrame(rows), "lr", "y", "model")
    figures.log_ticks(ax, lrs)
    assert print_check.check(fig, venues.VENUES["icml"]) == []
    left, right = ax.get_xlim()
    means = [line.get_xdata() for line in ax.lines if not str(line.get_label()).startswith("_")]
    assert len(means) == count
    for line in ax.lines:
        assert all(left < x < right for x in line.get_xdata())
    for places in means:
        nearest = [min(lrs, key=lambda lr: abs(math.log(x / lr))) for x in places]
        assert nearest == lrs


def test_settings_get_their_types_back(store, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    run = job(store, "types", model="mlp", lr=1e-05, seed=0, epochs=1, pretrained=False, note="a b")
    MlflowClient(store).log_metric(run, "val_loss", math.nan, step=1)
    (row,) = results.jobs("types").to_dict("records")
    assert (row["lr"], row["epochs"], row["pretrained"], row["note"]) == (1e-5, 1, False, "a b")
    assert math.isnan(row["val_loss"])


def test_a_job_older_than_a_setting_has_its_neutral_value(store, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    same = {"model": "mlp", "lr": 1e-3, "epochs": 2}
    job(store, "later", **same, seed=0)
    run = job(store, "later", **same, seed=1, dropout=0.0)
    assert results.differing(results.jobs("later"), ["seed"]) == ["dropout"]
    MlflowClient(store).set_tag(run, "neutral", '{"dropout": 0}')
    assert results.differing(results.jobs("later"), ["seed"]) == []


def test_words_that_look_like_numbers_stay_words(store, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    notes = ["01", "1_000", "nan", "1e5", "2024_11", "10", "inf", "None", "True", "baseline"]
    for seed, note in enumerate(notes):
        job(store, "words", model="mlp", lr=1e-3, seed=seed, epochs=1, note=note)
    jobs = results.jobs("words").sort_values("seed")
    assert jobs["note"].tolist() == notes


def test_settings_of_none_are_values_too(store, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    for seed, clip in enumerate([None, 0.5, None]):
        job(store, "none", model="mlp", lr=1e-3, seed=seed, epochs=1, clip=clip)
    jobs = results.jobs("none")
    assert sorted(map(str, jobs["clip"])) == ["0.5", "None", "None"]
    assert results.provenance(jobs)["varied"]["clip"] == [0.5, None]
    sizes = {name: len(alike) for name, alike in results.groups(jobs, ["clip"]).items()}
    assert sizes == {"0.5": 1, "None": 2}
    _, ax = figures.figure()
    plots.points(ax, jobs, "lr", "test_accuracy", "clip")
    labels = [str(line.get_label()) for line in ax.lines]
    assert [label for label in labels if label[0] != "_"] == ["None", "0.5"]


def test_jobs_that_differ_in_more_than_the_seed_are_no_repeats(store, draw, tmp_path, monkeypatch):
    for size in (64, 128):
        job(store, "sizes", model="mlp", lr=1e-3, seed=0, epochs=2, batch_size=size)
    monkeypatch.setattr(plot, "VARIED", (*plot.VARIED, "batch_size"))
    status, out, said = draw("--experiment", "sizes", "--out", tmp_path)
    assert status == 0 and "ranking" not in out and "throughput.pdf" in out
    assert said.splitlines()[0] == (
        "left out learning-curves: jobs alike in model, lr and seed differ in batch_size: "
        "it has to be told apart"
    )


def test_values_have_the_digits_that_tell_them_apart(store, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    for lr in (0.001234, 0.0012341, 0.01):
        job(store, "close", model="mlp", lr=lr, seed=0, epochs=2)
    known = results.samples(results.jobs("close"), ["model", "lr"], "test_accuracy")
    assert set(known) == {"mlp, 0.001234", "mlp, 0.0012341", "mlp, 0.01"}


def test_infinity_comes_back(store, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    run = job(store, "far", model="mlp", lr=1e-3, seed=0, epochs=1)
    for step, value in enumerate([math.inf, -math.inf, math.nan]):
        MlflowClient(store).log_metric(run, "val_loss", value, step=step)
    by_sql = results.curves(results.jobs("far"), "val_loss")["value"].tolist()
    monkeypatch.setattr(database, "kind", lambda: "")
    by_client = [value for _, _, value in stored_jobs.histories([run], "val_loss")]
    assert str(by_sql) == str(by_client) == "[inf, -inf, nan]"
    with pytest.raises(results.NoResults, match="no finished job has the metric val_loss"):
        captions.repeats(results.jobs("far"), plot.SERIES, "val_loss")


def test_the_best_of_several_is_the_first_by_its_id(store, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    runs = [job(store, "ties", model="mlp", lr=1e-3, seed=seed, epochs=1) for seed in range(4)]
    for run, loss in zip(runs, (2.0, 1.0, 1.0, 3.0), strict=True):
        MlflowClient(store).log_metric(run, "val_loss", loss)
        MlflowClient(store).log_metric(run, "val_score", -loss)
    jobs = results.jobs("ties")
    assert "seed=1" in results.best(jobs, "val_loss")
    assert "seed=1" in results.best(jobs.iloc[::-1], "val_score")


def test_what_has_no_place_on_a_logarithmic_axis_is_left_out(store, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    job(store, "zero", model="mlp", lr=0.0, seed=0, epochs=1)
    with pytest.raises(results.NoResults, match="lr is not above 0 in all jobs"):
        plot.accuracy_by_lr(results.jobs("zero"))


def test_the_jobs_drawn_are_those_of_which_most_finished(store, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    for seed in range(3):
        lost = {"status": "FAILED", "epochs": 9}
        job(store, "most", model="mlp", lr=1e-3, seed=seed, **lost)
    job(store, "most", model="mlp", lr=1e-3, seed=0, epochs=2)
    assert results.comparable(results.jobs("most"), plot.VARIED)["epochs"].tolist() == [2]


def test_a_job_that_finished_counts_though_it_diverged_later(store, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    for status in ("FINISHED", "FAILED"):
        job(store, "twice", model="mlp", lr=1e-3, seed=0, epochs=2, status=status)
    assert results.jobs("twice")["diverged"].tolist() == [False]


def test_both_ways_of_reading_agree(store, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    jobs = stored_jobs.jobs(experiment_name())
    runs = [job["run_id"] for job in jobs]
    by_sql = reading.known(experiment_name()), stored_jobs.histories(runs, "val_accuracy")
    monkeypatch.setattr(database, "kind", lambda: "")
    monkeypatch.setattr(reading, "LONGEST_QUERY", 600.0)  # the machine may be busy
    assert stored_jobs.jobs(experiment_name()) == jobs
    assert reading.known(experiment_name()) == by_sql[0]
    assert stored_jobs.histories(runs, "val_accuracy") == by_sql[1]


def test_reads_a_store_whose_writer_was_killed(store, tmp_path, monkeypatch):
    path = tmp_path / "mlflow.db"
    path.write_bytes(Path(store.removeprefix("sqlite:///")).read_bytes())
    killed = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("PRAGMA cache_size = 1")
connection.execute("UPDATE metrics SET value = 0")
os._exit(9)
"""
    subprocess.run([sys.executable, "-c", killed, path])
    assert path.with_name("mlflow.db-journal").stat().st_size
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}")
    assert len(reading.known(experiment_name()).finished) >= 12


def test_store_that_cannot_be_read(tmp_path):
    (tmp_path / "mlflow.db").write_text("not a database " * 100)
    done = run_plot(f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "cannot be read: " in done.stderr and "file is not a database" in done.stderr


def test_asking_for_what_is_known_imports_nothing_heavy(store):
    code = (
        "import sys; from engine.reading import known; "
        "assert known(sys.argv[1]).finished; "
        "assert not {'mlflow', 'torch', 'pandas', 'numpy'} & set(sys.modules)"
    )
    env = {**os.environ, "MLFLOW_TRACKING_URI": store}
    subprocess.run(
        [sys.executable, "-c", code, experiment_name()], cwd=PROJECT, env=env, check=True
    )
