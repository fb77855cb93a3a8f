"""Jobs of this project, their grid and their figures: what the commands print and leave."""

import json
import sys
from dataclasses import asdict
from itertools import product

import pytest
import torch
from conftest import HERE, KNOWN, needs_data, short
from mlflow import MlflowClient
from mlflow.entities import Metric, Param

import models
import plot
from labjobs.job.identity import identity
from labjobs.settings import as_plain
from settings import METRICS, Settings

STEPS = 12
JOB = (*short(STEPS), "--device", "cpu", "--log-every", "5")
TIMES = ("elapsed_seconds", "per_second", "data_wait_fraction", "mfu")


def job_of(done):
    """Return the job id in the last line that a command printed."""
    return (done.stdout or done.stderr).splitlines()[-1].split()[1]


def learnt(job):
    """Return the best weights of the only attempt at a job, and its curves."""
    (folder,) = job.iterdir()
    best = torch.load(folder / "best.pt", weights_only=True)
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    points = [
        (line["step"], {k: v for k, v in line["metrics"].items() if not k.endswith(TIMES)})
        for line in lines
        if "step" in line
    ]
    return best["models"], (best["step"], best["metrics"], points)


@pytest.fixture(scope="module")
def finished(project):
    """A job run to its end."""
    return project.run(*JOB)


@needs_data
def test_a_job_finishes_and_the_last_line_is_the_result(project, finished):
    assert finished.returncode == 0, finished.stderr
    last = finished.stdout.splitlines()[-1]
    assert last.startswith("job ") and " finished: " in last
    (folder,) = (project.root / "runs" / job_of(finished)).iterdir()
    assert json.loads((folder / "outcome.json").read_text())["status"] == "finished"


@needs_data
def test_again_it_says_so_without_torch(project, finished):
    done = project.do(sys.executable, "-X", "importtime", "run.py", *JOB)
    last = finished.stdout.splitlines()[-1]
    assert done.stdout.startswith(last.replace("finished", "already finished"))
    assert " json" in done.stderr
    slow = ("torch", "mlflow", "pandas", "numpy")
    assert not any(f" {name}\n" in done.stderr for name in slow)


@needs_data
def test_paused_between_two_evaluations_and_continued_it_is_the_same_to_the_bit(
    project, finished, tmp_path
):
    """All that training changes is in the checkpoint: what is missing in job.resume is found."""
    elsewhere = ("--runs-root", str(tmp_path))
    store = {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    middle = str(2 * STEPS // 3) if "steps" in KNOWN else "0.7e"
    paused = project.run(*JOB, *elsewhere, "--pause-after", middle, **store)
    if " finished: " in paused.stdout:
        pytest.skip("a job of a single step has no middle")
    assert paused.returncode == 0 and " paused: after " in paused.stdout, paused
    again = project.run(*JOB, *elsewhere, **store)
    assert again.returncode == 0 and "continuing from last.pt" in again.stdout, again
    job = job_of(finished)
    weights, curves = learnt(tmp_path / job)
    expected, expected_curves = learnt(project.root / "runs" / job)
    torch.testing.assert_close(weights, expected, rtol=0, atol=0, equal_nan=True)
    assert curves == expected_curves


@needs_data
def test_its_model_can_be_loaded(project, finished):
    code = f"import jobs; print(jobs.load({job_of(finished)!r}).model.training)"
    done = project.do(sys.executable, "-c", code)
    assert done.stdout == "False\n", done.stderr


def test_a_wrong_flag_is_one_line(project):
    wrong = project.run("--devise", "cpu")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == "run.py: --devise: no such flag; did you mean --device?\n"


@needs_data
def test_a_try_leaves_nothing(project):
    before = set(project.root.glob("runs/*"))
    tried = project.run(*short(2), "--scratch", "--quiet")
    assert tried.returncode == 0 and "scratch finished: " in tried.stdout, tried
    assert set(project.root.glob("runs/*")) == before


MODEL = getattr(Settings(), "model", "")
NAMES = dict.fromkeys([MODEL, *getattr(models, "MODELS", ())]) if MODEL else ()
NETWORKS = [f"--model {name}" for name in NAMES] or [""]
"""The flag for each network, that of the default first; none in a project without a choice."""

CHECKS = """
import os, runpy, sys
import torch._dynamo
root, *networks = sys.argv[1:]
for words in networks:
    if not os.fork():
        sys.argv = ["run.py", *words.split(), "--check", "--data-root", root]
        runpy.run_path("run.py", run_name="__main__")
    print("status:", os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


@needs_data
def test_check_passes_for_every_network_or_one_line_says_why_not(project):
    """A network may take other data, or diverge at the default learning rate, if it is not the
    default. In processes forked from one that has imported torch: --check takes seconds so."""
    done = project.do(sys.executable, "-c", CHECKS, str(HERE / "data"), *NETWORKS)
    said = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("status: ")]
    assert said[0] == "0" and {*said} <= {"0", "1", "2"}, done
    lines = done.stderr.splitlines()
    diverged = [line for line in lines if line.startswith("check failed: ") and "finite" in line]
    assert len(diverged) == said.count("1"), done
    refused = [flag for flag, status in zip(NETWORKS, said, strict=True) if status == "2"]
    lines = [line for line in lines if line.startswith("run.py: ")]
    assert [line.split(": ")[1] for line in lines] == refused, done.stderr


def test_the_grid_of_run_sh_names_jobs_that_can_be_read(project):
    """All flags and values are known."""
    done = project.do("bash", "run.sh", "--list", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)


def store_grid(uri, folder):
    """Store made jobs as their couriers do, in different numbers of one setting and seeds."""
    client, only = MlflowClient(uri), getattr(plot, "ONLY", {})
    default = {**asdict(Settings()), **identity(Settings())}
    default |= {k: v[0] if isinstance(v, list) else v for k, v in only.items()}
    numbers = [k for k, v in default.items() if type(v) is float and v and k not in only][:1]
    experiment = client.create_experiment("made")
    for factor, seed in product((1, 10, 100), range(2)):
        settings = default | {name: default[name] * factor for name in numbers} | {"seed": seed}
        value, steps = 0.5 + 0.01 * seed, range(100, 1001, 100)
        curves = [f"{part}_{name}" for part in ("train", "val") for name in METRICS]
        points = [Metric(name, value + 10 / step, step, step) for name in curves for step in steps]
        last = {f"{part}_{name}": value for part in ("best_val", "test") for name in METRICS}
        last |= {"elapsed_seconds": 60.0, "examples_per_second": 1000.0}
        points += [Metric(name, number, 1000, 1000) for name, number in last.items()]
        tags = {"job_id": json.dumps(settings, default=str), "job_folder": str(folder)}
        tags["metrics"] = json.dumps(as_plain(METRICS))
        run = client.create_run(experiment, tags=tags).info.run_id
        client.log_batch(run, points, [Param(k, str(v)) for k, v in settings.items()])
        client.set_terminated(run)
        client.set_tag(run, "finished", "true")


def test_the_figures_are_drawn_or_left_out_with_a_reason(project, tmp_path):
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    store_grid(store, tmp_path)
    flags = ("--experiment", "made", "--out", str(tmp_path / "figures"))
    done = project.do(sys.executable, "plot.py", *flags, MLFLOW_TRACKING_URI=store)
    assert done.returncode == 0, done.stderr
    left_out = [line.partition(": ") for line in done.stderr.splitlines()]
    assert all(start.startswith("left out ") and why for start, _, why in left_out), done.stderr
    missing = {name for start, *_ in left_out for name in start[len("left out ") :].split(", ")}
    names = {*plot.FIGURES, *getattr(plot, "OF_ONE_JOB", {})}
    assert {path.stem for path in tmp_path.glob("figures/*.pdf")} == names - missing
