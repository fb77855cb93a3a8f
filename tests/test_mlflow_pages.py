"""What a new user of MLflow looks for in a run: who, from what, with which files."""

import getpass
import os
import subprocess
from pathlib import Path

import pytest
from faults import Project, succeeded
from mlflow import MlflowClient
from mlflow.entities import Run
from repository import commit

QUICK = ("--epochs=1", "--lr=0.01", "--seed=3", "--note=first try")


@pytest.fixture(scope="module")
def run(project):
    """The run of a job in a repository, as MLflow's client has it."""
    commit(project.root)
    subprocess.run(["git", "checkout", "-qb", "study"], cwd=project.root, check=True)
    assert project.run(*QUICK, "--quiet").returncode == 0
    return stored(project)[0]


def stored(project: Project) -> list[Run]:
    client = MlflowClient(f"sqlite:///{project.root / 'mlflow.db'}")
    found = [experiment.experiment_id for experiment in client.search_experiments()]
    return list(client.search_runs(found))


def test_who_ran_what_from_which_commit(project, run):
    head = ["git", "rev-parse", "HEAD"]
    said = subprocess.run(head, cwd=project.root, capture_output=True, text=True).stdout
    tags = run.data.tags
    assert tags["mlflow.user"] == getpass.getuser()
    assert (tags["mlflow.source.type"], tags["mlflow.source.name"]) == ("LOCAL", "run.py")
    assert tags["mlflow.source.git.commit"] == said.strip()
    assert tags["mlflow.source.git.branch"] == "study"
    assert "sweep" not in tags  # it was started by hand


@pytest.mark.full
def test_repeats_are_one_group_and_no_other_job_is_in_it(project, run):
    epochs, lr, seed, note = QUICK
    for flags in (
        (lr, "--seed=4"),
        ("--lr=0.02", seed),
        (lr, seed, "--fold=1"),
        (lr, "--seed=5", "--fold=2"),
    ):
        succeeded(project.run(epochs, note, *flags, "--quiet"))
    folds = [each.data for each in stored(project) if each.data.params["fold"] != "0"]
    assert len(folds) == 2
    (of_folds,) = {each.tags["seed_group"] for each in folds}
    groups = {each.info.run_name: each.data.tags["seed_group"] for each in stored(project)}
    first, repeat, other = (
        groups[f"mlp seed={seed} epochs=1 lr={lr} note=first try"]
        for seed, lr in ((3, 0.01), (4, 0.01), (3, 0.02))
    )
    assert first == repeat != other != of_folds != first
    assert first.startswith("mlp epochs=1 lr=0.01 note=first try (")


def test_its_files_are_there_and_its_weights_not_twice_on_the_disk(project, run):
    client = MlflowClient(f"sqlite:///{project.root / 'mlflow.db'}")
    names = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert {"best.pt", "settings.json", "log.txt"} <= names
    folder = Path(run.data.tags["job_folder"])
    copies = project.root / "mlruns" / run.info.run_id / "artifacts"
    assert os.path.samefile(folder / "best.pt", copies / "best.pt")
    (definitions,) = project.root.glob("runs/.code/*.json")
    assert os.path.samefile(definitions, copies / definitions.name)
    assert run.data.tags["job_id"] in (copies / "log.txt").read_text()


def test_files_that_cannot_be_stored_cost_no_metric_and_no_job(project):
    place = project.root / "mlruns"
    place.rename(project.root / "aside")
    place.write_text("not a folder")
    done = project.run(*QUICK[:2], "--seed=5", "--quiet")
    place.unlink()
    (project.root / "aside").rename(place)
    assert done.returncode == 0, done.stderr
    (run,) = [each for each in stored(project) if each.data.params["seed"] == "5"]
    assert run.data.tags["finished"] == "true" and "is not here" in run.data.tags["files"]
    assert "test_loss" in run.data.metrics
