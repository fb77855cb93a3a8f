"""Every figure of plot.py, drawn from made jobs of this project, prints right or is left out with a
reason."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from itertools import product
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric, Param

import plot
from labjobs.job.identity import identity
from labjobs.settings import as_plain
from settings import METRICS, Settings

PROJECT = Path(plot.__file__).parent
NAMES = [*plot.FIGURES, *getattr(plot, "OF_ONE_JOB", {})]
EVALUATIONS = 10


def grid(values, seeds):
    """The settings of jobs that differ in the first number of Settings, and in their seed."""
    default = {**asdict(Settings()), **identity(Settings()), **drawn()}
    number = next((name for name, value in default.items() if type(value) is float and value), "")
    for factor, seed in product(range(1, values + 1), range(seeds)):
        yield default | ({number: default[number] * 10**factor} if number else {}) | {"seed": seed}


def drawn():
    """The settings that jobs must have to be drawn."""
    only = getattr(plot, "ONLY", {})
    return {name: value[0] if isinstance(value, list) else value for name, value in only.items()}


def store_job(client, experiment, settings, folder):
    """Store one job as its courier does; every metric of METRICS comes nearer to 0.5."""
    value = 0.5 + 0.01 * settings["seed"]
    steps = range(100, 100 * EVALUATIONS + 1, 100)
    logged = [f"{part}_{name}" for part in ("train", "val") for name in METRICS]
    points = [Metric(name, value + 10 / step, step, step) for name in logged for step in steps]
    last = {f"{part}_{name}": value for part in ("best_val", "test") for name in METRICS}
    last |= {"elapsed_seconds": 60.0, "examples_per_second": 1000.0}
    points += [Metric(name, number, steps[-1], steps[-1]) for name, number in last.items()]
    tags = {
        "job_id": json.dumps(settings, default=str),
        "job_folder": str(folder),
        "metrics": json.dumps(as_plain(METRICS)),
    }
    run = client.create_run(experiment, tags=tags).info.run_id
    params = [Param(name, str(setting)) for name, setting in settings.items()]
    client.log_batch(run, points, params)
    client.set_terminated(run)
    client.set_tag(run, "finished", "true")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """The address of a store with one job in an experiment, and a grid of jobs in another."""
    folder = tmp_path_factory.mktemp("store")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    client = MlflowClient(uri)
    for name, values, seeds in (("one job", 1, 1), ("a grid", 3, 2)):
        experiment = client.create_experiment(name)
        for settings in grid(values, seeds):
            store_job(client, experiment, settings, folder)
    return uri


@pytest.mark.parametrize("experiment", ["one job", "a grid"])
def test_figures_print_right_or_are_left_out_with_a_reason(experiment, store, tmp_path):
    out = tmp_path / "figures"
    command = [sys.executable, PROJECT / "plot.py", "--experiment", experiment, "--out", out]
    env = {**os.environ, "MLFLOW_TRACKING_URI": store}
    done = subprocess.run(command, cwd=PROJECT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    left_out = [line.partition(": ") for line in done.stderr.splitlines()]
    assert all(start.startswith("left out ") and why for start, _, why in left_out), done.stderr
    missing = {name for start, *_ in left_out for name in start[len("left out ") :].split(", ")}
    assert {path.stem for path in out.glob("*.pdf")} == {*NAMES} - missing
