"""Reading finished jobs from a store: by SQL, by MLflow's client, and where that cannot be."""

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import labjobs
import pytest
import stored
from labjobs.errors import SettingsError
from labjobs.tracking import mlflow_store, stored_jobs

CODE = Path(labjobs.__file__).parents[1]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store with four classifiers in it, one deleted, and jobs that never finished."""
    store = stored.fresh(tmp_path_factory.mktemp("store"))
    store.classifiers("sweep", seeds=1)
    for status in ("FAILED", "KILLED", "FINISHED", "RUNNING"):
        store.job("sweep", {"val_loss": [1.0]}, status=status, mark=False, note=status)
    deleted = store.job("sweep", {"val_loss": [1.0]}, note="deleted")
    store.client.delete_run(deleted)
    return store


@pytest.fixture(autouse=True)
def default_store(store, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)


def states(experiment):
    """The states of the runs that are known, by job."""
    runs = stored_jobs.known(experiment).runs
    return {job: sorted(run["state"] for run in found) for job, found in runs.items()}


def test_both_ways_of_reading_agree(store, monkeypatch):
    far = store.job("far", {"val_loss": [math.inf, -math.inf, math.nan]})
    jobs = stored_jobs.jobs("sweep")
    assert len(jobs) == 4  # those that have finished
    runs = [far, *(job["run_id"] for job in jobs)]
    for seed, status in enumerate(("FAILED", "KILLED", "FINISHED")):
        store.job("tries", {}, status=status, mark=status == "FINISHED", seed=seed, lr=0.1)
    tries = [("seed=0 lr=0.1", "failed"), ("seed=1 lr=0.1", "paused or interrupted")]
    unfinished = stored_jobs.unfinished(stored_jobs.every("tries"))
    assert [(job["job_id"], job["state"]) for job in unfinished] == tries
    by_sql = states("sweep"), stored_jobs.histories(runs, "val_loss")
    monkeypatch.setattr(stored_jobs, "sqlite_path", lambda: None)
    monkeypatch.setattr(stored_jobs, "LONGEST_QUERY", 600.0)  # the machine may be busy
    assert stored_jobs.jobs("sweep") == jobs
    unfinished = stored_jobs.unfinished(stored_jobs.every("tries"))
    assert [(job["job_id"], job["state"]) for job in unfinished] == tries
    assert states("sweep") == by_sql[0]
    assert str(stored_jobs.histories(runs, "val_loss")) == str(by_sql[1])
    assert {math.inf, -math.inf} < {value for _, _, value in by_sql[1]}


def test_of_each_code_and_data_one_attempt_at_a_job_is_known(store):
    runs = [
        store.job("twice", {"val_loss": [1.0]}, tags={"code": code, "data": data}, seed=0)
        for code, data in (("a", "x"), ("a", "y"), ("a", "x"), ("b", "x"))
    ]
    assert {job["run_id"] for job in stored_jobs.jobs("twice")} == {*runs[1:]}


def test_a_file_from_the_jobs_folder_else_from_its_run(store, tmp_path):
    run = store.job("files", {}, seed=1)
    (tmp_path / "kept.txt").write_text("in the folder")
    store.client.log_text(run, "with the run", "kept.txt")
    assert stored_jobs.file(run, str(tmp_path), "kept.txt") == b"in the folder"
    assert stored_jobs.file(run, str(tmp_path / "moved"), "kept.txt") == b"with the run"
    for folder in (tmp_path, tmp_path / "moved"):
        with pytest.raises(OSError):
            stored_jobs.file(run, str(folder), "other.txt")


def test_reads_a_store_whose_writer_was_killed(store, tmp_path, monkeypatch):
    path = tmp_path / "mlflow.db"
    path.write_bytes((store.folder / "mlflow.db").read_bytes())
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
    assert [*states("sweep").values()].count(["finished"]) == 4


def test_a_store_that_cannot_be_read(tmp_path, monkeypatch):
    (tmp_path / "mlflow.db").write_text("not a database " * 100)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    with pytest.raises(ConnectionError, match=r"cannot be read: .*file is not a database"):
        stored_jobs.jobs("sweep")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("foo://x", "must begin with one of"),
        ("sqlite:////nowhere/x.db", "no folder /nowhere"),
        ("sqlite://", "must be sqlite:///"),
        ("sqlite:/tmp/x.db", "must be sqlite:///"),
        ("sqlite:////tmp", "must be the path of a file"),
        ("sqlite:////tmp/:memory:", "must be the path of a file"),
        ("sqlite:////tmp/x.db?mode=ro", "may have only ?timeout=SECONDS"),
        ("sqlite:////tmp/x.db ", "a space at its end"),
        ("http://127.0.0.1:9\t", "has a line break"),
    ],
)
def test_an_address_of_no_store_is_refused(monkeypatch, address, said):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    with pytest.raises(SettingsError, match=rf"^MLFLOW_TRACKING_URI .*{re.escape(said)}"):
        mlflow_store.check()


def test_asking_for_what_is_known_imports_nothing_heavy():
    code = (
        "import sys; from labjobs.tracking.stored_jobs import known; "
        "assert known('sweep').runs; "
        "assert not {'mlflow', 'torch', 'pandas', 'numpy'} & set(sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": str(CODE)}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
