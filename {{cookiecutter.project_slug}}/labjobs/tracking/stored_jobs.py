"""The finished jobs in the tracking store, those that diverged, and the curves of both.

A finished job is an active run with the tag `job_id`, the status FINISHED and the mark `finished`;
one that diverged has the status FAILED and the mark `diverged`. Databases are queried by SQL, once
for each table. A server is asked through MLflow's client, which has no call for many histories, so
several requests are made at a time. All functions raise ConnectionError when the store cannot be
read.
"""

import json
import math
import sys
from ast import literal_eval
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypedDict

from labjobs.cli.flags import as_text
from labjobs.errors import SettingsError
from labjobs.evidence.fingerprint import Fingerprint
from labjobs.files import PROJECT
from labjobs.job import code_evidence, data_evidence, identity
from labjobs.job.attempts import name_input, present_code
from labjobs.job.identity import restore
from labjobs.tracking import mlflow_client
from labjobs.tracking.mlflow_client import select
from labjobs.tracking.mlflow_read import DIVERGED, MARKED, all_runs, asked

if TYPE_CHECKING:
    from mlflow.entities import Metric

JOBS = """
SELECT id.value, runs.run_uuid, runs.end_time, runs.status FROM runs
JOIN experiments ON experiments.experiment_id = runs.experiment_id
JOIN tags AS id ON id.run_uuid = runs.run_uuid AND id.key = 'job_id'
JOIN tags AS mark ON mark.run_uuid = runs.run_uuid
WHERE experiments.name = :experiment AND runs.lifecycle_stage = 'active'
    AND (runs.status = 'FINISHED' AND mark.key = 'finished' AND mark.value = 'true'
        OR runs.status = 'FAILED' AND mark.key = 'diverged' AND mark.value = 'true')
"""
OF_RUNS = "SELECT run_uuid, key, value FROM {} WHERE run_uuid IN {}"
LATEST = "(SELECT run_uuid, key, CASE WHEN NOT is_nan THEN value END AS value FROM latest_metrics)"
HISTORIES = """
SELECT run_uuid, step, CASE WHEN NOT is_nan THEN value END FROM metrics
WHERE run_uuid IN {} AND key = :key
ORDER BY run_uuid, step, timestamp
"""

AT_ONCE = 8
"""Number of histories that are requested from a server at a time."""


class StoredJob(TypedDict):
    """One attempt at a job, as stored."""

    job_id: str
    run_id: str
    ended: int
    """Time of its end, in milliseconds since 1970."""
    diverged: bool
    params: dict[str, str]
    metrics: dict[str, float]
    """Last values."""
    tags: dict[str, str]


def jobs(experiment: str) -> list[StoredJob]:
    """Return the attempts at jobs, by job id; of several runs with the same job id and code, a
    finished one, or the last to end."""
    found = _by_sql(experiment) if mlflow_client.database_kind() else _by_client(experiment)
    found.sort(key=lambda job: (job["job_id"], not job["diverged"], job["ended"]))
    return list({(job["job_id"], job["tags"].get("code")): job for job in found}.values())


def histories(run_ids: Sequence[str], key: str) -> list[tuple[str, int, float]]:
    """Return a metric's history in several runs: (run id, step, value), by run id, step and
    time."""
    if mlflow_client.database_kind():
        query = HISTORIES.format(mlflow_client.listed("runs"))
        points = select(query, runs=json.dumps(run_ids), key=key)
        return [(run, step, _number(value)) for run, step, value in points]
    with asked() as client, ThreadPoolExecutor(AT_ONCE) as threads:
        several = threads.map(lambda run: client.get_metric_history(run, key), sorted(run_ids))
        return [
            (run, point.step, _number(point.value))
            for run, history in zip(sorted(run_ids), several, strict=True)
            for point in sorted(history, key=_place)
        ]


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


def _number(value: float | None) -> float:
    """A metric as it was logged: in SQL, NaN is NULL, and MLflow stores the largest number for
    infinity."""
    if value is None:
        return math.nan
    return math.copysign(math.inf, value) if abs(value) >= sys.float_info.max else value


def _place(point: "Metric") -> tuple[int, int]:
    return point.step, point.timestamp


def _by_sql(experiment: str) -> list[StoredJob]:
    found: dict[str, StoredJob] = {
        run: {
            "job_id": job_id,
            "run_id": run,
            "ended": ended,
            "diverged": status == "FAILED",
            "params": {},
            "metrics": {},
            "tags": {},
        }
        for job_id, run, ended, status in select(JOBS, experiment=experiment)
    }
    runs, listed = json.dumps(list(found)), mlflow_client.listed("runs")
    for run, key, value in select(OF_RUNS.format("params", listed), runs=runs):
        found[run]["params"][key] = value
    for run, key, value in select(OF_RUNS.format(f"{LATEST} AS latest", listed), runs=runs):
        found[run]["metrics"][key] = _number(value)
    for run, key, value in select(OF_RUNS.format("tags", listed), runs=runs):
        found[run]["tags"][key] = value
    return list(found.values())


def _by_client(experiment: str) -> list[StoredJob]:
    with asked() as client:
        runs = [run for query in (MARKED, DIVERGED) for run in all_runs(client, experiment, query)]
    return [
        {
            "job_id": run.data.tags["job_id"],
            "run_id": run.info.run_id,
            "ended": run.info.end_time or 0,
            "diverged": run.info.status == "FAILED",
            "params": run.data.params,
            "metrics": {key: _number(value) for key, value in run.data.metrics.items()},
            "tags": run.data.tags,
        }
        for run in runs
        if "job_id" in run.data.tags
    ]


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
    return restore(kind, {name: fresh_value(text) for name, text in job["params"].items()})


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
