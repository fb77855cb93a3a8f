"""Reading the tracking store: its jobs and their metrics.

A finished job is an active run with the tag `job_id`, the status FINISHED and the mark `finished`,
which its courier writes last: the status alone can lie. A lease is a run that is
being written.

A sqlite store is read by SQL through the standard library: thousands of jobs in milliseconds, where
MLflow's import alone takes 2 s. Any other store is read through MLflow's client, which has no call
for many histories at once. All functions raise ConnectionError when the store cannot be read.
"""

import json
import math
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from engine.settings import CODE
from engine.store import (
    address,
    check_address,
    client,
    fresh,
    reason,
    sqlite_path,
    tracking_uri,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

FINISHED = """
SELECT id.value, runs.run_uuid, runs.end_time, runs.start_time FROM runs
JOIN experiments USING (experiment_id)
JOIN tags AS id ON id.run_uuid = runs.run_uuid AND id.key = 'job_id'
JOIN tags AS mark ON mark.run_uuid = runs.run_uuid AND mark.key = 'finished'
WHERE experiments.name = ? AND runs.lifecycle_stage = 'active'
    AND runs.status = 'FINISHED' AND mark.value = 'true'
ORDER BY id.value, runs.end_time
"""
RUNNING = """
SELECT id.value, owner.value, host.value, beat.value FROM runs
JOIN experiments USING (experiment_id)
JOIN tags AS id ON id.run_uuid = runs.run_uuid AND id.key = 'job_id'
JOIN tags AS owner ON owner.run_uuid = runs.run_uuid AND owner.key = 'owner'
JOIN tags AS host ON host.run_uuid = runs.run_uuid AND host.key = 'host'
JOIN tags AS beat ON beat.run_uuid = runs.run_uuid AND beat.key = 'heartbeat'
WHERE experiments.name = ? AND runs.lifecycle_stage = 'active' AND runs.status = 'RUNNING'
"""
OF_RUNS = "SELECT run_uuid, key, value FROM {} WHERE run_uuid IN (SELECT value FROM json_each(?))"
LATEST = "(SELECT run_uuid, key, CASE WHEN NOT is_nan THEN value END AS value FROM latest_metrics)"
HISTORIES = """
SELECT run_uuid, step, CASE WHEN NOT is_nan THEN value END FROM metrics
WHERE run_uuid IN (SELECT value FROM json_each(?)) AND key = ?
ORDER BY run_uuid, step, timestamp
"""
LEASED = "attributes.status = 'RUNNING'"
MARKED = "attributes.status = 'FINISHED' AND tags.finished = 'true'"

AWAY = "the tracking store cannot be read"

LONGEST_QUERY = 20.0
"""Seconds after which a store that a job asks counts as away."""


class StoredJob(TypedDict):
    """One finished job, as stored."""

    job_id: str
    run_id: str
    ended: int
    """Time of its end, in milliseconds since 1970."""
    params: dict[str, str]
    metrics: dict[str, float]
    """Last values."""
    tags: dict[str, str]


class Lease(NamedTuple):
    """Who trains a job, by the store's account."""

    owner: str
    host: str


class Known(NamedTuple):
    """The finished jobs and how many seconds each took, and leases, by job id."""

    finished: dict[str, float]
    leases: dict[str, list[Lease]]


def experiments() -> list[str]:
    """The names of the store's experiments."""
    if path := sqlite_path(tracking_uri()):
        query = "SELECT name FROM experiments WHERE lifecycle_stage = 'active' ORDER BY name"
        return [name for (name,) in _select(path, query)]
    with _client() as client:
        return sorted(experiment.name for experiment in client.search_experiments())


def known(experiment: str) -> Known:
    """What the store knows of all jobs; nothing where the experiment or the store is not there yet.

    MLflow's client, where it is needed, is kept to a process of its own: a job that asks this goes
    on to train. Raises SettingsError where there can be no store.
    """
    check_address()
    if path := sqlite_path(tracking_uri()):
        finished = _select(path, FINISHED, experiment, timeout=LONGEST_QUERY)
        running = _select(path, RUNNING, experiment, timeout=LONGEST_QUERY)
        took = {job_id: (end - start) / 1000 for job_id, _, end, start in finished}
        return Known(took, _leases(running))
    command = [sys.executable, "-m", "engine.reading", experiment]
    try:
        asked = subprocess.run(
            command, cwd=CODE, capture_output=True, text=True, timeout=LONGEST_QUERY
        )
    except subprocess.TimeoutExpired as error:
        raise ConnectionError(f"{AWAY}: {address()}: no answer in {LONGEST_QUERY:.0f} s") from error
    if asked.returncode:
        raise ConnectionError(asked.stderr.strip().splitlines()[-1])
    took, running = json.loads(asked.stdout)
    return Known(took, _leases(running))


def jobs(experiment: str) -> list[StoredJob]:
    """The finished jobs, by job id; of runs with the same job id the one that ended last."""
    path = sqlite_path(tracking_uri())
    found = _jobs_by_sql(path, experiment) if path else _jobs_by_client(experiment)
    return list({job["job_id"]: job for job in found}.values())


def histories(run_ids: list[str], key: str) -> list[tuple[str, int, float]]:
    """A metric's history in several runs: (run id, step, value), by run id, step and time."""
    if path := sqlite_path(tracking_uri()):
        points = _select(path, HISTORIES, json.dumps(run_ids), key)
        return [(run, step, math.nan if value is None else value) for run, step, value in points]
    with _client() as client:
        return [
            (run, point.step, point.value)
            for run in sorted(run_ids)
            for point in sorted(
                client.get_metric_history(run, key), key=lambda point: (point.step, point.timestamp)
            )
        ]


def _jobs_by_sql(path: Path, experiment: str) -> list[StoredJob]:
    found: dict[str, StoredJob] = {
        run: {
            "job_id": job_id,
            "run_id": run,
            "ended": ended,
            "params": {},
            "metrics": {},
            "tags": {},
        }
        for job_id, run, ended, _ in _select(path, FINISHED, experiment)
    }
    runs = json.dumps(list(found))
    for run, key, value in _select(path, OF_RUNS.format("params"), runs):
        found[run]["params"][key] = value
    for run, key, value in _select(path, OF_RUNS.format(LATEST), runs):
        found[run]["metrics"][key] = math.nan if value is None else value
    for run, key, value in _select(path, OF_RUNS.format("tags"), runs):
        found[run]["tags"][key] = value
    return list(found.values())


def _select(path: Path, query: str, *values: str, timeout: float = 60) -> list[tuple[Any, ...]]:
    """All rows of one query; none where the store has not been made yet.

    The file is opened for writing and then bound to reading: a connection that is read-only from
    the start cannot roll back what a killed writer left, and fails.
    """
    if not path.exists():
        return []
    try:
        address = f"{path.resolve().as_uri()}?mode=rw"
        with closing(sqlite3.connect(address, timeout=timeout, uri=True)) as connection:
            connection.execute("PRAGMA query_only = ON")
            return connection.execute(query, values).fetchall()
    except sqlite3.DatabaseError as error:
        if str(error).startswith("no such table"):
            return []
        raise ConnectionError(f"{AWAY}: {path}: {error}") from error


def _leases(rows: list[Any]) -> dict[str, list[Lease]]:
    """From rows of (job id, owner, host, heartbeat) of runs that are RUNNING."""
    leases: dict[str, list[Lease]] = {}
    for job_id, owner, host, beat in rows:
        if fresh("RUNNING", beat):
            leases.setdefault(job_id, []).append(Lease(owner, host))
    return leases


def _jobs_by_client(experiment: str) -> list[StoredJob]:
    with _client() as client:
        runs = _all_runs(client, experiment, MARKED)
    found: list[StoredJob] = [
        {
            "job_id": run.data.tags["job_id"],
            "run_id": run.info.run_id,
            "ended": run.info.end_time or 0,
            "params": run.data.params,
            "metrics": run.data.metrics,
            "tags": run.data.tags,
        }
        for run in runs
        if "job_id" in run.data.tags
    ]
    return sorted(found, key=lambda job: (job["job_id"], job["ended"]))


def _known_by_client(experiment: str) -> tuple[dict[str, float], list[list[str]]]:
    with _client() as client:
        finished = _all_runs(client, experiment, MARKED)
        running = [run.data.tags for run in _all_runs(client, experiment, LEASED)]
    keys = ("job_id", "owner", "host", "heartbeat")
    took = {
        run.data.tags["job_id"]: ((run.info.end_time or 0) - run.info.start_time) / 1000
        for run in finished
        if "job_id" in run.data.tags
    }
    return took, [[tags[key] for key in keys] for tags in running if {*keys} <= {*tags}]


def _all_runs(client: "MlflowClient", experiment: str, query: str) -> "list[Run]":
    named = client.get_experiment_by_name(experiment)
    runs: list[Run] = []
    page = None
    while named and (page is None or page.token):
        token = page.token if page else None
        page = client.search_runs([named.experiment_id], query, page_token=token)
        runs += page
    return runs


@contextmanager
def _client() -> Iterator["MlflowClient"]:
    """MLflow's client, whose errors become ConnectionErrors of one line."""
    try:
        yield client()
    except Exception as error:
        raise ConnectionError(f"{AWAY}: {reason(error)}") from error


if __name__ == "__main__":
    try:
        print(json.dumps(_known_by_client(sys.argv[1])))
    except ConnectionError as problem:
        sys.exit(str(problem))
