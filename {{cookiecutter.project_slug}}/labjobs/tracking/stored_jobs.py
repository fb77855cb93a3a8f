"""What the tracking store holds about jobs: which are finished, diverged or being trained, their
values and files.

A finished job is an active run with the tag `job_id`, the status FINISHED and the mark `finished`,
which its courier writes last, because the status alone is not reliable. One that diverged has the
status FAILED and the mark `diverged`. A lease is a run that is being written. A sqlite store is
queried by SQL: thousands of jobs take milliseconds, while importing MLflow takes 2 s. Any other is
asked through MLflow's client. All functions raise ConnectionError when the store cannot be read.
"""

import json
import math
import subprocess
import sys
from ast import literal_eval
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from labjobs import exit_status
from labjobs.cli.flags import as_text
from labjobs.errors import SettingsError
from labjobs.evidence.fingerprint import Fingerprint
from labjobs.files import CODE, PROJECT
from labjobs.job import code_evidence, data_evidence, identity
from labjobs.job.attempts import name_input, present_code
from labjobs.tracking import courier, mlflow_client
from labjobs.tracking.mlflow_client import (
    AWAY,
    LONGEST_QUERY,
    PROJECT_ID,
    belongs_to_another,
    client,
    select,
    sqlite_path,
)
from labjobs.tracking.mlflow_store import fresh

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

ENDED = """
SELECT runs.run_uuid, id.value, runs.status = 'FAILED', runs.start_time, runs.end_time,
    code.value, data.value
FROM runs
JOIN experiments USING (experiment_id)
JOIN tags AS id ON id.run_uuid = runs.run_uuid AND id.key = 'job_id'
JOIN tags AS mark ON mark.run_uuid = runs.run_uuid AND mark.value = 'true'
LEFT JOIN tags AS code ON code.run_uuid = runs.run_uuid AND code.key = 'code'
LEFT JOIN tags AS data ON data.run_uuid = runs.run_uuid AND data.key = 'data'
WHERE experiments.name = :experiment AND runs.lifecycle_stage = 'active'
    AND (runs.status = 'FINISHED' AND mark.key = 'finished'
        OR runs.status = 'FAILED' AND mark.key = 'diverged')
"""
BEGUN = """
SELECT runs.run_uuid, id.value, runs.status, runs.start_time, beat.value
FROM runs
JOIN experiments USING (experiment_id)
JOIN tags AS id ON id.run_uuid = runs.run_uuid AND id.key = 'job_id'
LEFT JOIN tags AS beat ON beat.run_uuid = runs.run_uuid AND beat.key = 'heartbeat'
WHERE experiments.name = :experiment AND runs.lifecycle_stage = 'active'
    AND NOT EXISTS (
        SELECT 1 FROM tags AS mark WHERE mark.run_uuid = runs.run_uuid AND mark.value = 'true'
            AND mark.key = CASE runs.status WHEN 'FINISHED' THEN 'finished' ELSE 'diverged' END
    )
"""
LEASED = """
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
THESE = "run_uuid IN (SELECT value FROM json_each(:runs))"
TAGS = f"SELECT run_uuid, key, value FROM tags WHERE {THESE}"
PARAMS = f"SELECT run_uuid, key, value FROM params WHERE {THESE}"
NUMBER = "CASE WHEN NOT is_nan THEN value END"
METRICS = f"SELECT run_uuid, key, {NUMBER} FROM latest_metrics WHERE {THESE}"
HISTORIES = f"""
SELECT run_uuid, step, {NUMBER} FROM metrics
WHERE {THESE} AND key = :key
ORDER BY run_uuid, step, timestamp
"""

FINISHED = "attributes.status = 'FINISHED' AND tags.finished = 'true'"
DIVERGED = "attributes.status = 'FAILED' AND tags.diverged = 'true'"
RUNNING = "attributes.status = 'RUNNING'"
ALL = "attributes.start_time > 0"
"""Which runs MLflow's client is asked for."""

Rows = Sequence[Sequence[Any]]

AT_ONCE = 8
"""Number of histories that are requested from a server at a time."""


# The runs of jobs: the same, whether a database or a server is asked.


class StoredJob(TypedDict):
    """One attempt at a job, as stored; times are in milliseconds since 1970."""

    job_id: str
    run_id: str
    started: int
    ended: int
    diverged: bool
    state: str
    """Why an unfinished job has no results: `failed`, `running`, `paused or interrupted`."""

    params: dict[str, str]
    metrics: dict[str, float]
    """Last values."""
    tags: dict[str, str]


def jobs(experiment: str) -> list[StoredJob]:
    """Return the attempts at jobs that finished or diverged, by job id; of several runs with the
    same job id and code, a finished one, or the last to end."""
    path = sqlite_path()
    ended = select(path, ENDED, experiment=experiment) if path else []
    found = _by_sql(path, ended) if path else _by_client(experiment, FINISHED, DIVERGED)
    found.sort(key=lambda job: (job["job_id"], not job["diverged"], job["ended"]))
    return list({(job["job_id"], job["tags"].get("code")): job for job in found}.values())


def unfinished(experiment: str) -> list[StoredJob]:
    """Return the newest attempt at each job that has neither finished nor diverged with any
    code."""
    path = sqlite_path()
    if path:
        over = {row[1] for row in select(path, ENDED, experiment=experiment)}
        rows = select(path, BEGUN, experiment=experiment)
        found = _by_sql(path, [(run, id, 0, start, 0) for run, id, _, start, _ in rows])
        states = {run: _state(status, beat) for run, _, status, _, beat in rows}
        found = [{**job, "state": states[job["run_id"]]} for job in found]
    else:
        over = {job["job_id"] for job in _by_client(experiment, FINISHED, DIVERGED)}
        found = _by_client(experiment, ALL)
    found.sort(key=lambda job: (job["job_id"], job["started"]))
    return list({job["job_id"]: job for job in found if job["job_id"] not in over}.values())


def _state(status: str, heartbeat: str | None) -> str:
    """Why a run with this status has no results."""
    if fresh(status, heartbeat or ""):
        return "running"
    return "failed" if status == "FAILED" else "paused or interrupted"


def _by_sql(path: Path, rows: Rows) -> list[StoredJob]:
    found: dict[str, StoredJob] = {
        run: {
            "job_id": job_id,
            "run_id": run,
            "started": started,
            "ended": ended or 0,
            "diverged": bool(diverged),
            "state": "",
            "params": {},
            "metrics": {},
            "tags": {},
        }
        for run, job_id, diverged, started, ended, *_ in rows
    }
    runs = json.dumps(list(found))
    for run, key, value in select(path, PARAMS, runs=runs):
        found[run]["params"][key] = value
    for run, key, value in select(path, METRICS, runs=runs):
        found[run]["metrics"][key] = _number(value)
    for run, key, value in select(path, TAGS, runs=runs):
        found[run]["tags"][key] = value
    return list(found.values())


def _by_client(experiment: str, *queries: str) -> list[StoredJob]:
    """The jobs that match one of these queries, fetched page by page."""
    runs: list[Run] = []
    with asked() as client:
        named = client.get_experiment_by_name(experiment)
        where = [named.experiment_id] if named else []
        for query in queries if named else ():
            page = client.search_runs(where, query)
            runs += page
            while page.token:
                page = client.search_runs(where, query, page_token=page.token)
                runs += page
    return [
        {
            "job_id": run.data.tags["job_id"],
            "run_id": run.info.run_id,
            "started": run.info.start_time,
            "ended": run.info.end_time or 0,
            "diverged": run.info.status == "FAILED",
            "state": ""
            if {"finished", "diverged"} & {*run.data.tags}
            else _state(run.info.status, run.data.tags.get("heartbeat")),
            "params": run.data.params,
            "metrics": {key: _number(value) for key, value in run.data.metrics.items()},
            "tags": run.data.tags,
        }
        for run in runs
        if "job_id" in run.data.tags
    ]


@contextmanager
def asked() -> Iterator["MlflowClient"]:
    """MLflow's client, whose errors are turned into ConnectionErrors of one line."""
    try:
        yield client()
    except Exception as error:
        raise ConnectionError(f"{AWAY}: {mlflow_client.reason(error)}") from error


# What a job or a sweep asks before it begins: which jobs have ended, and which are being trained.


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


def known(experiment: str) -> Known:
    """What the store knows about all jobs; empty if the experiment or the store does not exist yet.
    If MLflow's client is needed, it runs in a separate process, because the calling job goes on to
    train. Raises SettingsError if the store's address is not valid, or if the experiment belongs to
    another project.
    """
    courier.check_places()
    ended: Rows
    leased: Rows
    if path := sqlite_path():
        settle(experiment)
        ended = select(path, ENDED, experiment=experiment)
        leased = select(path, LEASED, experiment=experiment)
    else:
        ended, leased = _by_other_process(experiment)
    found = Known({}, {}, {})
    for _, job_id, diverged, start, end, code, data in ended:
        jobs = found.diverged if diverged else found.finished
        attempt = Ended(code or "", data or "", ((end or 0) - start) / 1000)
        jobs.setdefault(job_id, []).append(attempt)
    for job_id, code, owner, host, beat in leased:
        if fresh("RUNNING", beat):
            found.leases.setdefault(job_id, []).append(Lease(code, owner, host))
    return found


def _by_other_process(experiment: str) -> tuple[Rows, Rows]:
    """The rows of ENDED and LEASED."""
    command = [sys.executable, "-m", "labjobs.tracking.stored_jobs", experiment]
    try:
        answer = subprocess.run(
            command, cwd=CODE, capture_output=True, text=True, timeout=LONGEST_QUERY
        )
    except subprocess.TimeoutExpired as error:
        why = f"no answer in {LONGEST_QUERY:.0f} s"
        raise ConnectionError(f"{AWAY}: {mlflow_client.shown()}: {why}") from error
    if answer.returncode:
        line = mlflow_client.last_line(answer.stderr)
        wrong = answer.returncode == exit_status.WRONG
        raise SettingsError(line) if wrong else ConnectionError(line)
    ended, leased = json.loads(answer.stdout)
    return ended, leased


def main(experiment: str) -> None:
    """Print these rows, as the other process."""
    settle(experiment)
    ended = [
        [
            *(job["run_id"], job["job_id"], job["diverged"], job["started"], job["ended"]),
            *map(job["tags"].get, ("code", "data")),
        ]
        for job in _by_client(experiment, FINISHED, DIVERGED)
    ]
    keys = ("job_id", "code", "owner", "host", "heartbeat")
    running = [job["tags"] for job in _by_client(experiment, RUNNING)]
    leased = [[tags[key] for key in keys] for tags in running if {*keys} <= {*tags}]
    print(json.dumps([ended, leased]))


# Which experiments there are, and whose they are.


def experiments() -> list[str]:
    """The names of the store's experiments."""
    if path := sqlite_path():
        query = "SELECT name FROM experiments WHERE lifecycle_stage = 'active' ORDER BY name"
        return [name for (name,) in select(path, query)]
    with asked() as client:
        return sorted(experiment.name for experiment in client.search_experiments())


def settle(experiment: str) -> None:
    """Make sure that the experiment belongs to the project and has its present name.

    Raises SettingsError if it belongs to another project.
    """
    own = identity.existing_id() or "none"
    if path := sqlite_path():
        owners = dict(select(path, OWNERS, experiment=experiment, project=own))
    else:
        with asked() as client:
            found = client.search_experiments(filter_string=f"tags.{PROJECT_ID} = '{own}'")
            named = client.get_experiment_by_name(experiment)
        owners = {each.name: each.tags.get(PROJECT_ID) for each in [*found, named] if each}
    if owners.get(experiment, own) not in (own, None):
        raise belongs_to_another(experiment)
    if experiment not in owners and own in owners.values():
        subprocess.run([sys.executable, "-m", "labjobs.tracking.mlflow_client"], cwd=CODE)


# Curves and files of jobs.


def histories(run_ids: Sequence[str], key: str) -> list[tuple[str, int, float]]:
    """Return a metric's history in several runs: (run id, step, value), by run id, step and
    time."""
    if path := sqlite_path():
        points = select(path, HISTORIES, runs=json.dumps(run_ids), key=key)
        return [(run, step, _number(value)) for run, step, value in points]
    from concurrent.futures import ThreadPoolExecutor

    runs = sorted(run_ids)
    # MLflow's client has no call for several histories.
    with asked() as client, ThreadPoolExecutor(AT_ONCE) as threads:
        several = threads.map(lambda run: client.get_metric_history(run, key), runs)
        return [
            (run, point.step, _number(point.value))
            for run, history in zip(runs, several, strict=True)
            for point in sorted(history, key=lambda point: (point.step, point.timestamp))
        ]


def _number(value: float | None) -> float:
    """A metric as it was logged: in SQL, NaN is NULL, and MLflow stores the largest number for
    infinity."""
    if value is None:
        return math.nan
    return math.copysign(math.inf, value) if abs(value) >= sys.float_info.max else value


def folder_of(job_folder: str) -> Path:
    """Return an attempt's folder, from its run's tag: in the project, which may have been moved or
    copied, if it is there."""
    written = Path(job_folder)
    moved = PROJECT / "runs" / written.parent.name / written.name
    return moved if moved.is_dir() else written


def file(run_id: str, folder: str, name: str) -> bytes:
    """Return the content of a file that a job has kept, from its folder or, if that is not on this
    machine, from its run. Raises OSError if it cannot be read."""
    place = folder_of(folder)
    if place.is_dir():
        return (place / name).read_bytes()
    with asked() as client, TemporaryDirectory() as copy:
        return Path(client.download_artifacts(run_id, name, copy)).read_bytes()


def files(run_id: str, folder: str, below: str) -> list[str]:
    """Return the names of the files that a job has kept in a folder below its own. Raises OSError
    if they cannot be read."""
    place = folder_of(folder)
    if place.is_dir():
        return sorted(path.relative_to(place).as_posix() for path in (place / below).glob("*"))
    with asked() as client:
        return sorted(found.path for found in client.list_artifacts(run_id, below))


# Whether stored results come from the present code, and which attempt a job's row in a table shows.
# A job whose code is not known, for example because it was stored by other means, counts as fresh.

WORDS = {"True": True, "False": False, "None": None}


def chosen(
    attempts: Sequence[StoredJob], kind: type[Any] | None
) -> tuple[list[StoredJob], set[str]]:
    """Return one attempt of each job, and the ids of those runs whose code or data differs from the
    present. With the class of the project's settings, it is the attempt with the present code and
    data, if there is one; otherwise, it is the latest.
    """
    found, stale = [], set()
    for _, of_job in groupby(attempts, key=lambda attempt: attempt["job_id"]):
        *_, last = each = list(of_job)
        if kind:
            present = _present(last, kind)
            fresh = [one for one in each if _is_fresh(one["tags"], present)]
            if not fresh:
                stale.add(last["run_id"])
            each = fresh or each
        found.append(each[-1])
    return found, stale


def name_all(attempts: Iterable[StoredJob]) -> None:
    """Register all jobs, since any of them may be an input of others, even if it is not on this
    disk."""
    for job_id, job in {attempt["job_id"]: attempt for attempt in attempts}.items():
        with suppress(SettingsError, ValueError):  # settings of older code; a rule in __post_init__
            kind = identity.read(script_of(job)).settings
            name_input(job_id, _settings_of(job, kind), script_of(job))


def script_of(job: StoredJob) -> str:
    """Return the name of a job's script."""
    return job["tags"].get("script", identity.DEFAULT)


def _present(job: StoredJob, kind: type[Any]) -> Fingerprint | None:
    """The present code of a job; None if today's settings cannot express the job."""
    with suppress(SettingsError):
        runs_root = folder_of(job["tags"].get("job_folder", "")).parent.parent
        return present_code(_settings_of(job, kind), script_of(job), runs_root)
    return None


def _settings_of(job: StoredJob, kind: type[Any]) -> Any:
    plain = {name: fresh_value(text) for name, text in job["params"].items()}
    return identity.restore(kind, plain)


def _is_fresh(tags: Mapping[str, str], present: Fingerprint | None) -> bool:
    """Whether an attempt has the present code and data, if they are known."""
    known = tags.get("code")
    if known and not (present and code_evidence.fits(known, present)):
        return False
    if not tags.get("data"):
        return True
    folder = folder_of(tags.get("job_folder", ""))
    return not data_evidence.difference(folder, data_evidence.last_places(folder))


def fresh_value(text: str) -> Any:
    """Return a setting as it was before it was stored as text; several values as the flag has them,
    `1,2`."""
    if text in WORDS:
        return WORDS[text]
    if text.startswith("[") and text.endswith("]"):
        with suppress(ValueError, SyntaxError):
            return as_text(literal_eval(text))
    for number in (int, float):
        with suppress(ValueError):
            if repr(number(text)) == text != "nan":  # words may look like numbers: 01, 1_000
                return number(text)
    return text


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except SettingsError as problem:
        print(problem, file=sys.stderr)
        sys.exit(exit_status.WRONG)
    except ConnectionError as problem:
        sys.exit(str(problem))
