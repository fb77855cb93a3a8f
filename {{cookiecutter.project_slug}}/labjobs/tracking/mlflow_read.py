"""What MLflow's own pages show about a run: who ran what, from which commit, in which sweep.

MLflow fills in these fields itself only if a training process calls `mlflow.start_run()`. Names
that begin with `mlflow.` are reserved for MLflow (mlflow.org/docs, tracking, system tags).
"""

import getpass
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from labjobs import layout
from labjobs.errors import SettingsError
from labjobs.files import CODE, PROJECT
from labjobs.job import provenance
from labjobs.job.folder import JobFolder
from labjobs.job.identity import as_command, as_words, existing_id, identity
from labjobs.job.journal import record_of
from labjobs.privacy import scrub
from labjobs.tracking import courier, mlflow_client
from labjobs.tracking.mlflow_client import AWAY, PROJECT_ID, belongs_to_another, client, select
from labjobs.tracking.mlflow_store import fresh

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

# Reading the tracking store: which jobs are finished or diverged, and which are being trained.
#
# A finished job is an active run with the tag `job_id`, the status FINISHED and the mark
# `finished`, which its courier writes last, because the status alone is not reliable. A diverged
# job has the status FAILED and the mark `diverged`. A lease is a run that is being written. All
# functions raise ConnectionError when the store cannot be read.

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
    if mlflow_client.database_kind():
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
        subprocess.run([sys.executable, "-m", "labjobs.tracking.mlflow_client"], cwd=CODE)


def _owners(experiment: str) -> dict[str, str | None]:
    """The project id of each experiment: of the one with this name, and of those that belong to
    this project."""
    own = existing_id() or "none"
    if mlflow_client.database_kind():
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
    courier.check_targets()
    if mlflow_client.database_kind() == "sqlite":
        settle(experiment)
        ended = select(ENDED, LONGEST_QUERY, experiment=experiment)
        running = select(RUNNING, LONGEST_QUERY, experiment=experiment)
        return _known(ended, running)
    command = [sys.executable, "-m", "labjobs.tracking.mlflow_read", experiment]
    try:
        answer = subprocess.run(
            command, cwd=CODE, capture_output=True, text=True, timeout=LONGEST_QUERY
        )
    except subprocess.TimeoutExpired as error:
        why = f"no answer in {LONGEST_QUERY:.0f} s"
        raise ConnectionError(f"{AWAY}: {mlflow_client.shown()}: {why}") from error
    if answer.returncode == WRONG:
        raise SettingsError(mlflow_client.last_line(answer.stderr))
    if answer.returncode:
        raise ConnectionError(mlflow_client.last_line(answer.stderr))
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
        raise ConnectionError(f"{AWAY}: {mlflow_client.reason(error)}") from error


LONGEST = 1000
"""Characters of a line of the description; MLflow refuses tags of more than 8000."""


def tags(folder: JobFolder[Any]) -> dict[str, str]:
    """Return the fields of a run's page as tags; unknown ones are left out."""
    version = provenance.version()
    found = {
        "mlflow.user": _user(),
        "mlflow.source.type": "LOCAL",
        "mlflow.source.name": f"{folder.script}.py",
        "mlflow.source.git.commit": version["commit"],
        "mlflow.source.git.branch": version.get("branch", ""),
        "mlflow.note.content": _note(folder),
        "sweep": sweep(),
        "seed_group": seed_group(folder),
        "inputs": ", ".join(f"{job}/{attempt}" for job, attempt in _inputs(folder).items()),
    }
    return {name: text for name, text in found.items() if text}


def sweep() -> str:
    """Return the name of the sweep that runs this job, which contains the time when it began; empty
    if the job was started by hand."""
    return "" if CODE == PROJECT else CODE.parent.name


def seed_group(folder: JobFolder[Any]) -> str:
    """Return what all repeats of a job over seeds have in common, and no other jobs: its name
    without the seed, and digits of a hash over its settings and its code.

    Empty for a job without a seed.
    """
    settings = identity(folder.settings)
    if "seed" not in settings:
        return ""
    seed = settings.pop("seed")
    repeated = json.dumps([folder.script, settings, folder.code.digest], sort_keys=True)
    words = (word for word in as_words(folder.settings).split(" ") if word != f"seed={seed}")
    return " ".join([*words, f"({hashlib.sha256(repeated.encode()).hexdigest()[:6]})"])


def _note(folder: JobFolder[Any]) -> str:
    """The description, in Markdown: the command that repeats the job, what it is derived from, its
    note and its folder."""
    command = as_command(folder.settings, folder.script)
    note = str(getattr(folder.settings, "note", ""))
    derived = ", ".join(f"`{job}`" for job in _inputs(folder))
    of = f"Derived from the job{'s' * (',' in derived)} {derived}" if derived else ""
    lines = [f"`{command}`", of, note, f"Folder: `{_page_place(folder.path)}`"]
    return scrub("\n\n".join(line[:LONGEST] for line in lines if line))


def _inputs(folder: JobFolder[Any]) -> dict[str, str]:
    """The attempts that an open attempt is derived from, by job."""
    return dict(record_of(folder.path, layout.SETTINGS).get("inputs", {}))


def _page_place(path: Path) -> str:
    return str(path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in some containers
        return str(os.getuid())


if __name__ == "__main__":
    try:
        print(json.dumps(_rows_by_client(sys.argv[1])))
    except SettingsError as problem:
        print(problem, file=sys.stderr)
        sys.exit(WRONG)
    except ConnectionError as problem:
        sys.exit(str(problem))
