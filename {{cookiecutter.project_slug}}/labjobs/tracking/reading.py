"""Reading the tracking store: which jobs are finished or diverged, and which are being trained.

A finished job is an active run with the tag `job_id`, the status FINISHED and the mark `finished`,
which its courier writes last, because the status alone is not reliable. A diverged job has the
status FAILED and the mark `diverged`. A lease is a run that is being written. All functions raise
ConnectionError when the store cannot be read.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from labjobs.errors import SettingsError
from labjobs.job.project import existing_id
from labjobs.paths import CODE
from labjobs.tracking import address, database, targets
from labjobs.tracking.client import client
from labjobs.tracking.database import AWAY, select
from labjobs.tracking.experiment import PROJECT_ID, belongs_to_another
from labjobs.tracking.store import fresh

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

ENDED = """
SELECT runs.status, id.value, code.value, data.value, runs.end_time, runs.start_time FROM runs
JOIN experiments USING (experiment_id)
JOIN tags AS id ON id.run_uuid = runs.run_uuid AND id.key = 'job_id'
JOIN tags AS mark ON mark.run_uuid = runs.run_uuid AND mark.value = 'true'
LEFT JOIN tags AS code ON code.run_uuid = runs.run_uuid AND code.key = 'code'
LEFT JOIN tags AS data ON data.run_uuid = runs.run_uuid AND data.key = 'data'
WHERE experiments.name = :experiment AND runs.lifecycle_stage = 'active'
    AND (runs.status = 'FINISHED' AND mark.key = 'finished'
        OR runs.status = 'FAILED' AND mark.key = 'diverged')
ORDER BY id.value, runs.end_time
"""
RUNNING = """
SELECT id.value, code.value, owner.value, host.value, beat.value FROM runs
JOIN experiments USING (experiment_id)
JOIN tags AS id ON id.run_uuid = runs.run_uuid AND id.key = 'job_id'
JOIN tags AS code ON code.run_uuid = runs.run_uuid AND code.key = 'code'
JOIN tags AS owner ON owner.run_uuid = runs.run_uuid AND owner.key = 'owner'
JOIN tags AS host ON host.run_uuid = runs.run_uuid AND host.key = 'host'
JOIN tags AS beat ON beat.run_uuid = runs.run_uuid AND beat.key = 'heartbeat'
WHERE experiments.name = :experiment AND runs.lifecycle_stage = 'active' AND runs.status = 'RUNNING'
"""
OWNERS = f"""
SELECT experiments.name, tags.value FROM experiments
LEFT JOIN experiment_tags AS tags
    ON tags.experiment_id = experiments.experiment_id AND tags.key = '{PROJECT_ID}'
WHERE experiments.lifecycle_stage = 'active'
    AND (experiments.name = :experiment OR tags.value = :project)
"""
LEASED = "attributes.status = 'RUNNING'"
MARKED = "attributes.status = 'FINISHED' AND tags.finished = 'true'"
DIVERGED = "attributes.status = 'FAILED' AND tags.diverged = 'true'"

WRONG = 2
"""Exit status of the process that asks MLflow's client, if the experiment belongs to another
project."""

LONGEST_QUERY = 20.0
"""Seconds after which a store that does not answer a job counts as unavailable."""


class Lease(NamedTuple):
    """Who trains a job, and with which code, according to the store."""

    code: str
    owner: str
    host: str


class Ended(NamedTuple):
    """An attempt that finished or diverged: the digests of its code and data, and its duration."""

    code: str
    data: str
    seconds: float


class Known(NamedTuple):
    """What the store knows about jobs, by their ids."""

    finished: dict[str, list[Ended]]
    diverged: dict[str, list[Ended]]
    leases: dict[str, list[Lease]]


NOTHING = Known({}, {}, {})
"""What is known if the store is not available."""


def experiments() -> list[str]:
    """The names of the store's experiments."""
    if database.kind():
        query = "SELECT name FROM experiments WHERE lifecycle_stage = 'active' ORDER BY name"
        return [name for (name,) in select(query)]
    with asked() as client:
        return sorted(experiment.name for experiment in client.search_experiments())


def settle(experiment: str) -> None:
    """Make sure that the experiment belongs to the project and has its present name.

    Raises SettingsError if it belongs to another project.
    """
    owners = _owners(experiment)
    owner = owners.get(experiment)
    if owner and owner != existing_id():
        raise belongs_to_another(experiment)
    if experiment not in owners and existing_id() in owners.values():
        subprocess.run([sys.executable, "-m", "labjobs.tracking.experiment"], cwd=CODE)


def _owners(experiment: str) -> dict[str, str | None]:
    """The project id of each experiment: of the one with this name, and of those that belong to
    this project."""
    own = existing_id() or "none"
    if database.kind():
        return dict(select(OWNERS, LONGEST_QUERY, experiment=experiment, project=own))
    with asked() as client:
        found = client.search_experiments(filter_string=f"tags.{PROJECT_ID} = '{own}'")
        named = client.get_experiment_by_name(experiment)
    return {each.name: each.tags.get(PROJECT_ID) for each in [*found, named] if each}


def known(experiment: str) -> Known:
    """What the store knows about all jobs; empty if the experiment or the store does not exist yet.
    If MLflow's client is needed, it runs in a separate process, because the calling job goes on to
    train. Raises SettingsError if the store's address is not valid, or if the experiment belongs to
    another project.
    """
    targets.check()
    if database.kind() == "sqlite":
        settle(experiment)
        ended = select(ENDED, LONGEST_QUERY, experiment=experiment)
        running = select(RUNNING, LONGEST_QUERY, experiment=experiment)
        return _known(ended, running)
    command = [sys.executable, "-m", "labjobs.tracking.reading", experiment]
    try:
        answer = subprocess.run(
            command, cwd=CODE, capture_output=True, text=True, timeout=LONGEST_QUERY
        )
    except subprocess.TimeoutExpired as error:
        why = f"no answer in {LONGEST_QUERY:.0f} s"
        raise ConnectionError(f"{AWAY}: {address.shown()}: {why}") from error
    if answer.returncode == WRONG:
        raise SettingsError(address.last_line(answer.stderr))
    if answer.returncode:
        raise ConnectionError(address.last_line(answer.stderr))
    return _known(*json.loads(answer.stdout))


def _known(ended: Iterable[Sequence[Any]], running: Iterable[Sequence[Any]]) -> Known:
    """Combine rows of (status, job id, digests of code and data, end, start) of runs that have
    ended, and rows of (job id, code, owner, host, heartbeat) of those that are RUNNING."""
    found = Known({}, {}, {})
    for status, job_id, code, data, end, start in ended:
        jobs = found.finished if status == "FINISHED" else found.diverged
        seconds = ((end or 0) - start) / 1000
        jobs.setdefault(job_id, []).append(Ended(code or "", data or "", seconds))
    for job_id, code, owner, host, beat in running:
        if fresh("RUNNING", beat):
            found.leases.setdefault(job_id, []).append(Lease(code, owner, host))
    return found


def _rows_by_client(experiment: str) -> tuple[list[list[Any]], list[list[str]]]:
    """The rows of runs that finished or diverged, and of those that are RUNNING."""
    settle(experiment)
    with asked() as client:
        marked = [
            run for query in (MARKED, DIVERGED) for run in all_runs(client, experiment, query)
        ]
        running = [run.data.tags for run in all_runs(client, experiment, LEASED)]
    ended = [
        [
            run.info.status,
            *map(run.data.tags.get, ("job_id", "code", "data")),
            run.info.end_time,
            run.info.start_time,
        ]
        for run in marked
        if "job_id" in run.data.tags
    ]
    keys = ("job_id", "code", "owner", "host", "heartbeat")
    return ended, [[tags[key] for key in keys] for tags in running if {*keys} <= {*tags}]


def all_runs(client: "MlflowClient", experiment: str, query: str) -> "list[Run]":
    """All runs of an experiment that match a query, fetched page by page."""
    named = client.get_experiment_by_name(experiment)
    runs: list[Run] = []
    page = None
    while named and (page is None or page.token):
        token = page.token if page else None
        page = client.search_runs([named.experiment_id], query, page_token=token)
        runs += page
    return runs


@contextmanager
def asked() -> Iterator["MlflowClient"]:
    """MLflow's client, whose errors are turned into ConnectionErrors of one line."""
    try:
        yield client()
    except Exception as error:
        raise ConnectionError(f"{AWAY}: {address.reason(error)}") from error


if __name__ == "__main__":
    try:
        print(json.dumps(_rows_by_client(sys.argv[1])))
    except SettingsError as problem:
        print(problem, file=sys.stderr)
        sys.exit(WRONG)
    except ConnectionError as problem:
        sys.exit(str(problem))
