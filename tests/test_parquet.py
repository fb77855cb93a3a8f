"""Parquet files beside MLflow: equal to the journal, even after kills and missing folders."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from faults import Curves, Project, curves, ended, job_of, one_line, succeeded, wait_until

LONG = ("--epochs", "150", "--log-every", "1", "--quiet")
SHORT = ("--epochs", "1", "--quiet")


@pytest.fixture(scope="module")
def project(make):
    """A project whose jobs write Parquet files into a folder beside it."""
    found = Project(make())
    found.env["PARQUET_FOLDER"] = str(found.root.parent / "tables")
    return found


def read(project: Project, table: str) -> pd.DataFrame:
    """Return a table of the project's, read as any library would: a folder with files."""
    return pd.read_parquet(Path(project.env["PARQUET_FOLDER"]) / table)


def stored(project: Project, job_id: str) -> Curves:
    """Return a job's curves as the Parquet files have them."""
    rows = read(project, "metrics").query("job_id == @job_id")
    return curves(rows[["name", "step", "value"]].itertuples(index=False, name=None))


def status(project: Project, job_id: str) -> list[str]:
    """Return the statuses of a job's attempts; none before the first one is written."""
    if not any(Path(project.env["PARQUET_FOLDER"]).glob("jobs/*.parquet")):
        return []
    rows: list[str] = read(project, "jobs").query("job_id == @job_id").status.tolist()
    return rows


def started(project: Project, *flags: str) -> tuple[str, subprocess.Popen[str]]:
    """Return a job and its process, once the journal has measurements."""
    known = set((project.root / "runs").glob("*"))
    process = project.start(*flags)

    def journals() -> list[Path]:
        found = (project.root / "runs").glob("*/*/metrics.jsonl")
        return [path for path in found if path.parents[1] not in known]

    wait_until(lambda: any("train_loss" in path.read_text() for path in journals()))
    (path,) = journals()
    return path.parents[1].name, process


@pytest.mark.full
def test_a_killed_and_continued_job_s_table_is_its_journal(project):
    job, killed = started(project, *LONG)
    os.killpg(killed.pid, signal.SIGKILL)
    ended(killed)
    wait_until(lambda: status(project, job) == ["KILLED"])  # its courier saw that
    assert stored(project, job) == project.journalled(job)
    succeeded(project.run(*LONG))
    assert stored(project, job) == project.journalled(job)
    assert status(project, job) == ["FINISHED"]


@pytest.mark.full
def test_while_the_folder_is_away_a_job_trains_and_sync_writes_it_later(project):
    tables = Path(project.env["PARQUET_FOLDER"])
    job, process = started(project, *LONG, "--note", "away")
    tables.mkdir(exist_ok=True)
    tables.rename(tables.with_name("elsewhere"))
    tables.write_text("in its place\n")
    done = ended(process)
    said = one_line(done, 3)
    assert job_of(done) == job
    assert f"not everything has been uploaded (parquet: {tables}" in said
    assert [each for _, each in project.runs(job)] == ["FINISHED"]
    assert project.stored(job) == project.journalled(job)  # MLflow did not wait for the other
    tables.unlink()
    tables.with_name("elsewhere").rename(tables)
    sync = succeeded(project.do("python", "jobs.py", "sync"))
    assert re.fullmatch(rf"job {job}/\w+ sent\n1 of 1 attempts sent\n", sync.stdout)
    assert stored(project, job) == project.journalled(job)
    assert status(project, job) == ["FINISHED"]
    assert [each for _, each in project.runs(job)] == ["FINISHED"]
    assert {path.name for path in tables.iterdir()} == {"metrics", "jobs"}


def test_what_a_job_is_stands_beside_what_it_measured(project):
    job = job_of(project.run(*SHORT, "--lr", "0.01"))
    ((_, row),) = read(project, "jobs").query("job_id == @job").iterrows()
    folder = project.folder(job)
    about = json.loads((folder / "settings.json").read_text())
    assert json.loads(row.settings) == about["settings"]
    assert json.loads(row.tags)["mlflow.source.name"] == "run.py"
    assert (row.folder, row.code, row.script) == (str(folder), about["code"], "run")
    times = read(project, "metrics").query("job_id == @job and name == 'train_loss'").time
    lines = project.lines(job)
    wanted = [line["time"] for line in lines if "train_loss" in line.get("metrics", {})]
    assert [time.timestamp() * 1000 for time in times] == pytest.approx(wanted)


@pytest.mark.full
def test_a_job_that_ran_before_the_folder_was_named_is_not_over(project):
    flags = (*SHORT, "--note", "later")
    job = job_of(project.run(*flags, PARQUET_FOLDER=""))
    assert status(project, job) == []
    assert f"{job}  unsent " in succeeded(project.do("python", "jobs.py", "list")).stdout
    assert "already finished" in succeeded(project.run(*flags)).stdout
    assert status(project, job) == ["FINISHED"]
    assert stored(project, job) == project.journalled(job)


def test_a_folder_that_cannot_be_is_refused_in_one_line(project, tmp_path):
    (tmp_path / "file").touch()
    wrong = {
        str(tmp_path / "no" / "tables"): "No such file or directory",
        str(tmp_path / "file"): "File exists",
    }
    for value, said in wrong.items():
        commands = ("run.py", *SHORT, "--note", "wrong"), ("jobs.py", "sync")
        for script, *words in commands:
            done = project.do("python", script, *words, PARQUET_FOLDER=value)
            assert one_line(done, 2) == f"{script}: PARQUET_FOLDER {value}: {said}"


def test_trackers_that_cannot_be_are_refused_in_one_line(project, tmp_path):
    """Before anything starts; here, no package is installed."""
    nothing = "from importlib import metadata\nmetadata.distributions = lambda **_: iter(())\n"
    (tmp_path / "sitecustomize.py").write_text(nothing)
    wrong = {
        "wandbb": "there is no such tracker; did you mean wandb?",
        "parquet": "there is no such tracker; known: tensorboard, trackio, wandb",
        "trackio": "its package is not installed; uv sync --group trackio",
    }
    for name, said in wrong.items():
        env = {"TRACKERS": f" {name.title()},", "PYTHONPATH": str(tmp_path)}
        for script, *words in (("run.py", *SHORT, "--note", "wrong"), ("jobs.py", "sync")):
            done = project.do("python", script, *words, **env)
            assert one_line(done, 2) == f"{script}: TRACKERS {name}: {said}"
