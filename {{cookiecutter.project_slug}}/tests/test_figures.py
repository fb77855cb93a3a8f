"""What `python plot.py` prints, drawn from stores that MLflow itself has made."""

import math
import os
import random
import re
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric, Param

import plot
from engine import figures, reading, results
from engine.store import experiment_name

PROJECT = Path(plot.__file__).parent
DPI = 300


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """The address of a store with the default sweep in the project's experiment."""
    uri = f"sqlite:///{tmp_path_factory.mktemp('store') / 'mlflow.db'}"
    sweep(uri, experiment_name())
    return uri


@pytest.fixture(scope="module")
def printed(store, tmp_path_factory):
    """The default sweep's figures as plot.py prints them: path, width and height in inches."""
    done = run_plot(store, "--out", tmp_path_factory.mktemp("printed"))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return read_sizes(done.stdout)


def run_plot(store, *flags, cwd=PROJECT):
    return subprocess.run(
        [sys.executable, PROJECT / "plot.py", *flags],
        cwd=cwd,
        env={**os.environ, "MLFLOW_TRACKING_URI": store},
        capture_output=True,
        text=True,
    )


def read_sizes(output):
    lines = re.findall(r"^(.+)  ([\d.]+) x ([\d.]+) in$", output, re.MULTILINE)
    assert len(lines) == len(output.splitlines())
    return [(Path(path), float(width), float(height)) for path, width, height in lines]


def sweep(uri, experiment, models=("mlp", "convnet"), lrs=(1e-3, 1e-2), seeds=3, epochs=30):
    for model in models:
        for lr in lrs:
            for seed in range(seeds):
                job(uri, experiment, model=model, lr=lr, seed=seed, epochs=epochs)


def job(uri, experiment, *, status="FINISHED", mark=True, stop=None, **settings):
    """Store one job as the courier does, with curves that depend on its settings alone."""
    client = MlflowClient(uri)
    found = client.get_experiment_by_name(experiment)
    place = found.experiment_id if found else client.create_experiment(experiment)
    name = " ".join(f"{key}={value}" for key, value in settings.items())
    run = client.create_run(place, tags={"job_id": name, "commit": "abc"}).info.run_id
    values = curve(random.Random(name), stop or settings["epochs"])
    params = {"dataset": "digits", "note": "", "device": "auto", **settings}
    client.log_batch(
        run,
        params=[Param(key, str(value)) for key, value in params.items()],
        metrics=[
            *(Metric("val_accuracy", value, epoch, epoch) for epoch, value in values.items()),
            Metric("test_accuracy", max(values.values()), len(values), len(values)),
        ],
    )
    client.set_terminated(run, status)
    if mark:
        client.set_tag(run, "finished", "true")
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
    assert names == [f"{name}.{kind}" for name in plot.FIGURES for kind in ("pdf", "png")]
    for figure in printed:
        assert_prints_right(*figure)


def test_same_jobs_same_bytes_whatever_else_is_in_the_store(store, printed, tmp_path):
    own = experiment_name()
    job(store, own, model="mlp", lr=1e-3, seed=3, epochs=30, status="FAILED")
    job(store, own, model="mlp", lr=1e-3, seed=4, epochs=30, status="KILLED", mark=False)
    job(store, own, model="mlp", lr=1e-3, seed=5, epochs=30, mark=False)
    deleted = job(store, own, model="mlp", lr=1e-3, seed=6, epochs=30)
    MlflowClient(store).delete_run(deleted)
    job(store, own, model="mlp", lr=1e-3, seed=0, epochs=2)
    done = run_plot(store, "--out", "here", cwd=tmp_path)
    assert done.stderr == "left out 1 of 13 jobs: unlike the rest in epochs\n"
    for path, _, _ in printed:
        assert (tmp_path / "here" / path.name).read_bytes() == path.read_bytes()


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
    "one job": {"models": ["mlp"], "lrs": [1e-3], "seeds": 1},
    "one epoch": {"epochs": 1},
    "one seed": {"seeds": 1},
    "many": {
        "models": ["mlp", "convnet", "resnet18", "efficientnet_v2_s", "vit_b_16"],
        "lrs": [1e-5, 1e-4, 3e-4, 1e-3, 1e-2, 1e-1],
        "seeds": 1,
    },
}


@pytest.mark.parametrize("shape", SHAPES)
def test_any_grid(store, shape, tmp_path, monkeypatch, capsys):
    sweep(store, shape, **SHAPES[shape])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    monkeypatch.setattr("sys.argv", ["plot.py", "--experiment", shape, "--out", str(tmp_path)])
    plot.main()
    for figure in read_sizes(capsys.readouterr().out):
        assert_prints_right(*figure)


def test_means_end_with_the_first_seed_that_stops(store, monkeypatch):
    for seed, stop in enumerate([8, 12, 10]):
        job(store, "stopped", model="mlp", lr=1e-3, seed=seed, epochs=30, stop=stop)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    fig = plot.learning_curves(results.finished_jobs("stopped"))
    *seeds, mean = fig.axes[0].lines
    assert [np.isfinite(line.get_ydata()).sum() for line in seeds] == [8, 12, 10]
    assert list(mean.get_xdata()) == list(range(1, 9))


def test_mean_interval():
    mean, half = figures.mean_interval([[1, 2, 3], [4, 4, 4]])
    assert mean == pytest.approx([2, 4])
    assert half == pytest.approx([4.302653 / math.sqrt(3), 0])  # Student's t, .975, 2 d.f.
    assert math.isnan(figures.mean_interval([5])[1])


def test_settings_get_their_types_back(store, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    run = job(store, "types", model="mlp", lr=1e-05, seed=0, epochs=1, pretrained=False, note="a b")
    MlflowClient(store).log_metric(run, "val_loss", math.nan, step=1)
    (row,) = results.finished_jobs("types").to_dict("records")
    assert (row["lr"], row["epochs"], row["pretrained"], row["note"]) == (1e-5, 1, False, "a b")
    assert math.isnan(row["val_loss"])


def test_both_ways_of_reading_agree(store, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    jobs = reading.jobs(experiment_name())
    runs = [job["run_id"] for job in jobs]
    by_sql = reading.known(experiment_name()), reading.histories(runs, "val_accuracy")
    monkeypatch.setattr(reading, "sqlite_path", lambda uri: None)
    monkeypatch.setattr(reading, "LONGEST_QUERY", 600.0)  # the machine may be busy
    assert reading.jobs(experiment_name()) == jobs
    assert reading.known(experiment_name()) == by_sql[0]
    assert reading.histories(runs, "val_accuracy") == by_sql[1]


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
