"""What the tracking store holds about jobs: their states, values and files.

A job is an active run with the tag `job_id`. If it has finished, it has the mark `finished`, which
its courier writes last, because MLflow's status alone is not reliable. A sqlite store is queried by
SQL: thousands of jobs take milliseconds, while importing MLflow takes 2 s. Any other is asked
through MLflow's client. Except for `known`, functions raise ConnectionError when the store cannot
be read.
"""

import json
import math
import subprocess
import sys
from ast import literal_eval
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypedDict

from labjobs import exit_status, layout
from labjobs.cli import flags
from labjobs.cli.flags import as_text
from labjobs.errors import JobError, SettingsError
from labjobs.files import CODE, PROJECT, read_record
from labjobs.job import attempts, code_evidence, data_evidence, identity, journal
from labjobs.job.attempts import Evidence
from labjobs.job.folder import STOPPED, JobFolder
from labjobs.job.identity import is_fetched
from labjobs.tracking import copies, costs, mlflow_store
from labjobs.tracking.mlflow_store import (
    AT_THE_END,
    AWAY,
    LONGEST_QUERY,
    PROJECT_ID,
    fresh,
    select,
    sqlite_path,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

RUNS = """
SELECT run_uuid, status, start_time, end_time FROM runs JOIN experiments USING (experiment_id)
WHERE experiments.name = :experiment AND runs.lifecycle_stage = 'active'
"""
EXPERIMENTS = f"""
SELECT name, lifecycle_stage, experiments.experiment_id, tags.value FROM experiments
LEFT JOIN experiment_tags AS tags
    ON tags.experiment_id = experiments.experiment_id AND tags.key = '{PROJECT_ID}'
ORDER BY name
"""
THESE = "run_uuid IN (SELECT value FROM json_each(:runs))"
TAGS = f"SELECT run_uuid, key, value FROM tags WHERE {THESE}"
FEW_TAGS = f"""{TAGS} AND key IN
('job_id', 'code', 'data', 'job_folder', 'owner', 'host', 'heartbeat', 'finished', 'diverged')"""
PARAMS = f"SELECT run_uuid, key, value FROM params WHERE {THESE}"
NUMBER = "CASE WHEN NOT is_nan THEN value END"
METRICS = f"SELECT run_uuid, key, {NUMBER} FROM latest_metrics WHERE {THESE}"
HISTORIES = f"""
SELECT run_uuid, step, {NUMBER} FROM metrics
WHERE {THESE} AND key = :key
ORDER BY run_uuid, step, timestamp
"""

POINTS = f"SELECT key, step, timestamp, {NUMBER} FROM metrics WHERE run_uuid = :run"

CUT = 500  # characters of a param that old versions of MLflow keep; new ones keep 6000

AT_ONCE = 8  # number of histories that are requested from a server at a time


class StoredJob(TypedDict):
    """One attempt at a job, as stored; times are in milliseconds since 1970."""

    job_id: str
    run_id: str
    status: str  # MLflow's word
    state: str
    """finished, diverged, running, failed, stopped at a rung, or else paused or interrupted."""
    diverged: bool
    started: int
    ended: int
    params: dict[str, str]
    metrics: dict[str, float]  # last values
    tags: dict[str, str]


OVER = ("finished", "diverged")


def _job(tags: dict[str, str], run: str, status: str, started: int, ended: int | None) -> StoredJob:
    state = "failed" if status == "FAILED" else "paused or interrupted"
    if status == "FAILED" and tags.get("diverged") == "true":
        state = "diverged"
    elif status == "FINISHED" and tags.get("finished") == "true":
        state = "finished"
    elif fresh(status, tags.get("heartbeat", "")):
        state = "running"
    elif status == "KILLED" and (where := tags.get(STOPPED, "false")) != "false":
        state = f"stopped {where}"
    return {
        "job_id": tags["job_id"],
        "run_id": run,
        "status": status,
        "state": state,
        "diverged": state == "diverged",
        "started": started,
        "ended": ended or 0,
        "params": {},
        "metrics": {},
        "tags": tags,
    }


def jobs(experiment: str) -> list[StoredJob]:
    """Return the attempts at jobs that finished or diverged, by job id; of several runs with the
    same job id, code and data, a finished one, or the last to end."""
    over = [job for job in every(experiment) if job["state"] in OVER]
    over.sort(key=lambda job: (job["job_id"], not job["diverged"], job["ended"]))
    code_and_data = ("code", "data")
    return [*{(job["job_id"], *map(job["tags"].get, code_and_data)): job for job in over}.values()]


def unfinished(runs: Iterable[StoredJob]) -> list[StoredJob]:
    """Return the newest attempt at each job that is not over with any code, by job id."""
    found = sorted(runs, key=lambda job: (job["job_id"], job["started"]))
    over = {job["job_id"] for job in found if job["state"] in OVER}
    return [*{job["job_id"]: job for job in found if job["job_id"] not in over}.values()]


def every(experiment: str) -> list[StoredJob]:
    """Return all attempts at all jobs, whatever became of them."""
    if not (path := sqlite_path()):
        return _by_client(experiment)
    found = {job["run_id"]: job for job in _by_sql(path, experiment, TAGS)}
    runs = json.dumps([*found])
    for run, key, value in select(path, PARAMS, runs=runs):
        found[run]["params"][key] = value
    for run, key, value in select(path, METRICS, runs=runs):
        found[run]["metrics"][key] = _number(value)
    return [*found.values()]


def _by_sql(path: Path, experiment: str, query: str) -> list[StoredJob]:
    """The runs of all jobs with these tags, without params and metrics."""
    runs = select(path, RUNS, experiment=experiment)
    tags: dict[str, dict[str, str]] = {run: {} for run, *_ in runs}
    for run, key, value in select(path, query, runs=json.dumps(list(tags))):
        tags[run][key] = value
    return [_job(tags[run], run, *about) for run, *about in runs if "job_id" in tags[run]]


def _every_page(search: Callable[..., Any]) -> Iterator[Any]:
    """What a search of MLflow's finds, which it gives page by page."""
    page = search()
    yield from page
    while page.token:
        page = search(page_token=page.token)
        yield from page


def _by_client(experiment: str) -> list[StoredJob]:
    """The runs of all jobs."""
    runs: list[Run] = []
    with asked() as client:
        if named := client.get_experiment_by_name(experiment):
            runs = [*_every_page(partial(client.search_runs, [named.experiment_id]))]
    found = []
    for run in runs:
        about, data = run.info, run.data
        if "job_id" in data.tags:
            times = about.start_time, about.end_time
            job = _job(data.tags, about.run_id, about.status, *times)
            job["params"] = data.params
            job["metrics"] = {key: _number(value) for key, value in data.metrics.items()}
            found.append(job)
    return found


@contextmanager
def asked() -> Iterator["MlflowClient"]:
    """MLflow's client, whose errors are turned into ConnectionErrors of one line."""
    try:
        yield mlflow_store.client()
    except Exception as error:
        raise ConnectionError(f"{AWAY}: {mlflow_store.reason(error)}") from error


def delete(runs: Iterable[str]) -> None:
    """Delete some runs, which MLflow can restore. Raises ConnectionError."""
    if ids := [*runs]:
        with asked() as client:
            for run in ids:
                client.delete_run(run)


# What a job or a sweep asks before it begins.


class Known:
    """The runs of jobs in the store, by job id; none, if a `problem` keeps it from being read."""

    def __init__(self, runs: Iterable[StoredJob] = (), problem: str = "") -> None:
        self.problem = problem
        self.runs: dict[str, list[StoredJob]] = {}
        for run in runs:
            self.runs.setdefault(run["job_id"], []).append(run)

    def of(self, job: str, *states: str) -> list[StoredJob]:
        """Return the runs of a job that are in one of some states, with any code and data."""
        return [run for run in self.runs.get(job, []) if run["state"] in states]

    def evidence(self, job: JobFolder[Any], state: str) -> Evidence | None:
        """Return what is known of a run that is in a state and counts; None if none does."""
        found = (evidence(job, run) for run in self.of(job.id, state))
        counts = [each for each in found if not each.change]
        return min(counts, key=lambda each: each.unchecked, default=None)

    def host(self, job: JobFolder[Any], owner: str) -> str:
        """Return where a job is being trained with its present code by another than the owner of an
        attempt; empty if it is not."""
        for run in self.of(job.id, "running"):
            tags = run["tags"]
            if tags.get("owner") != owner and code_evidence.fits(tags.get("code", ""), job.code):
                return tags.get("host", "another machine")
        return ""

    def holds(self, attempt: Path) -> bool:
        """Return whether an attempt on this disk has its run or, if there are several folders of
        runs, another one that stands for it."""
        job, code = attempt.parent.name, code_evidence.digest(attempt)
        over = [run["tags"] for run in self.of(job, *OVER) if run["tags"].get("code", "") == code]
        if attempts.status_of(attempt) in OVER:
            return data_evidence.digest(attempt) in {tags.get("data", "") for tags in over}
        sent = read_record(attempt / layout.SENT).get("run")
        ended = {run["run_id"] for run in self.runs.get(job, []) if run["status"] != "RUNNING"}
        return bool(over) or sent in ended

    def _run_of(self, attempt: Path) -> str:
        """The id of the run of an attempt; empty if there is none, or another one stands for it."""
        sent = str(read_record(attempt / layout.SENT).get("run", ""))
        known = {run["run_id"] for run in self.runs.get(attempt.parent.name, [])}
        return sent if sent in known else ""

    def changed(self, attempt: Path) -> bool:
        """Return whether the run of an attempt has other points, tags or params than its journal
        and its settings: the store was set back, or somebody has changed it. A journal that is
        damaged counts as other: sending it says so. Raises ConnectionError."""
        if not (sent := self._run_of(attempt)):
            return False
        try:
            copy = copies.Copy(attempt)
        except (JobError, OSError):
            return True
        points = [(*p[:3], repr(_number(float(p[3])))) for p in copy.points()]
        points.sort(key=lambda point: point[1:3])
        wanted = {
            **{("last", name): value for name, *_, value in points},
            **{("param", name): str(value) for name, value in copy.about["settings"].items()},
            # What begins with mlflow. is MLflow's, such as the description, which users may edit.
            **{("tag", k): v for k, v in copy.tags.items() if not k.startswith("mlflow.")},
        }
        found, others = _content(sent, {name for name, *_ in points})
        # An attempt logs its costs each time that it ends: the last ones count.
        last = {point[0]: point for point in sorted(found, key=lambda p: (*p[1:3], float(p[3])))}
        counting = {p for p in found if p[0] not in costs.NAMES or p == last[p[0]]}
        same = (
            (there := others.get(key, "")) == text or (len(there) >= CUT and text.startswith(there))
            for key, text in wanted.items()
        )
        return counting != {*points} or not all(same)

    def lacking(self, attempt: Path) -> list[str]:
        """Return which files of an attempt, which has ended, its run lacks, by their names there.
        Raises ConnectionError, and Damaged if its journal is."""
        if not (sent := self._run_of(attempt)):
            return []
        names = [name for line in journal.lines_of(attempt) for name in line.get("files", ())]
        names = [name for name in (*names, *AT_THE_END) if (attempt / name).exists()]
        definitions = code_evidence.definitions(attempt)
        names += [definitions.name] if definitions.exists() else []
        if path := sqlite_path():
            query = "SELECT artifact_uri FROM runs WHERE run_uuid = :run"
            ((address,),) = select(path, query, run=sent)
            if own := mlflow_store.local_folder(address):
                return [name for name in names if not (own / name).exists()]
        with asked() as client:
            folders = {str(Path(name).parent) for name in names}
            listed = (client.list_artifacts(sent, folder) for folder in folders)
            found = {Path(file.path) for own in listed for file in own}
        return [name for name in names if Path(name) not in found]


Point = tuple[str, int, int, str]  # a metric, its step, its time and its value in digits


def _content(run: str, names: Set[str]) -> tuple[set[Point], dict[tuple[str, str], str]]:
    """The points of a run, from a server those of metrics with these names; and its last metrics,
    its params and its tags."""
    if path := sqlite_path():
        points = select(path, POINTS, run=run)
        queries = {"last": METRICS, "param": PARAMS, "tag": TAGS}
        rows = {kind: select(path, each, runs=json.dumps([run])) for kind, each in queries.items()}
    else:
        with asked() as client:
            histories = (client.get_metric_history(run, name) for name in sorted(names))
            points = [(p.key, p.step, p.timestamp, p.value) for own in histories for p in own]
            data = client.get_run(run).data
        found: Any = {"last": data.metrics, "param": data.params, "tag": data.tags}
        rows = {kind: [(run, *each) for each in own.items()] for kind, own in found.items()}
    others = {
        (kind, name): repr(_number(value)) if kind == "last" else value
        for kind, own in rows.items()
        for _, name, value in own
    }
    return {(*place, repr(_number(value))) for *place, value in points}, others


def evidence(job: JobFolder[Any], run: StoredJob) -> Evidence:
    """Compare a run with the present code and data of a job."""
    tags = run["tags"]
    return job.compare(folder_of(tags.get("job_folder", "")), tags)


def known(experiment: str) -> Known:
    """Return what the store knows about all jobs; nothing if the experiment or the store does not
    exist yet. If MLflow's client is needed, it runs in a separate process, because the calling job
    goes on to train. Raises SettingsError if the store's address is not valid, if a wanted copy
    cannot be made, or if the experiment belongs to another project."""
    if is_fetched():  # the machine that has sent the job has asked
        return Known()
    mlflow_store.check()
    copies.check()
    try:
        if path := sqlite_path():
            settle(experiment)
            return Known(_by_sql(path, experiment, FEW_TAGS))
        return Known(_by_other_process(experiment))
    except ConnectionError as error:
        return Known(problem=str(error))


def _by_other_process(experiment: str) -> list[StoredJob]:
    command = [sys.executable, "-m", "labjobs.tracking.stored_jobs", experiment]
    try:
        answer = subprocess.run(
            command, cwd=CODE, capture_output=True, encoding="utf-8", timeout=LONGEST_QUERY
        )
    except subprocess.TimeoutExpired as error:
        why = f"no answer in {LONGEST_QUERY:.0f} s"
        raise ConnectionError(f"{AWAY}: {mlflow_store.shown()}: {why}") from error
    if answer.returncode:
        killed = f"{AWAY}: asking it ended with status {answer.returncode}"
        line = mlflow_store.last_line(answer.stderr.strip() or killed)
        wrong = answer.returncode == exit_status.WRONG
        raise SettingsError(line) if wrong else ConnectionError(line)
    return list(json.loads(answer.stdout))


# Which experiments there are, and whose they are.


def experiments(wanted: str = "") -> dict[str, str | None]:
    """Return the ids of the projects that the store's experiments belong to, by name. Raises
    SettingsError if the one that is wanted has been deleted."""
    if path := sqlite_path():
        found = select(path, EXPERIMENTS)
    else:
        with asked() as client:
            from mlflow.entities import ViewType

            every = [*_every_page(partial(client.search_experiments, ViewType.ALL))]
        found = [
            (each.name, each.lifecycle_stage, each.experiment_id, each.tags.get(PROJECT_ID))
            for each in every
        ]
    for name, stage, number, _ in found:
        if name == wanted and stage == "deleted":
            raise mlflow_store.was_deleted(name, str(number))
    return {name: owner for name, stage, _, owner in found if stage == "active"}


def settle(experiment: str) -> None:
    """Make sure that the experiment belongs to the project and has its present name. Raises
    SettingsError if it was deleted or belongs to another project."""
    own, owners = identity.existing_id() or "none", experiments(experiment)
    if (owner := owners.get(experiment, own)) not in (own, None):
        path = sqlite_path()
        if own == "none" and path and path.parent == PROJECT:  # nobody else's store
            identity.restore_id(str(owner))
        if identity.existing_id() != owner:
            raise mlflow_store.belongs_to_another(experiment, str(owner))
    if experiment not in owners and own in owners.values():
        rename = "from labjobs.tracking.mlflow_store import prepare; prepare()"
        subprocess.run([sys.executable, "-c", rename], cwd=CODE)


# Curves and files of jobs.


def histories(run_ids: Sequence[str], key: str) -> list[tuple[int, int, float]]:
    """Return a metric's history in several runs: (the run's place among these, step, value),
    ordered by run, step and time."""
    places = {run: place for place, run in enumerate(run_ids)}
    if path := sqlite_path():
        points = select(path, HISTORIES, runs=json.dumps(run_ids), key=key)
        return [(places[run], step, _number(value)) for run, step, value in points]
    from concurrent.futures import ThreadPoolExecutor

    runs = sorted(run_ids)
    # MLflow's client has no call for several histories.
    with asked() as client, ThreadPoolExecutor(AT_ONCE) as threads:
        several = threads.map(lambda run: client.get_metric_history(run, key), runs)
        return [
            (places[run], point.step, _number(point.value))
            for run, history in zip(runs, several, strict=True)
            for point in sorted(history, key=lambda point: (point.step, point.timestamp))
        ]


def _number(value: float | None) -> float:
    """A metric as it was logged: in SQL, NaN is NULL, MLflow stores the largest number for
    infinity, and sqlite no sign of zero."""
    if value is None:
        return math.nan
    return math.copysign(math.inf, value) if abs(value) >= sys.float_info.max else value + 0.0


def folder_of(job_folder: str) -> Path:
    """Return an attempt's folder, from its run's tag: in the project, which may have been moved or
    copied, if it is there."""
    written = Path(job_folder)
    moved = PROJECT / "runs" / written.parent.name / written.name
    return moved if moved.is_dir() else written


def file(run_id: str, folder: str, name: str) -> bytes:
    """Return a file that a job has kept, from its folder or else from its run. Raises OSError."""
    place = folder_of(folder)
    if place.is_dir():
        return (place / name).read_bytes()
    with asked() as client, TemporaryDirectory() as copy:
        return Path(client.download_artifacts(run_id, name, copy)).read_bytes()


def files(run_id: str, folder: str, below: str) -> list[str]:
    """Return the names of the files that a job has kept in a folder of its own. Raises OSError."""
    place = folder_of(folder)
    if place.is_dir():
        return sorted(path.relative_to(place).as_posix() for path in (place / below).glob("*"))
    with asked() as client:
        return sorted(found.path for found in client.list_artifacts(run_id, below))


# Whether stored results come from the present code, and which attempt a job's row in a table shows.


def chosen(
    attempts: Iterable[StoredJob], kind: type[Any] | None
) -> list[tuple[StoredJob, Evidence]]:
    """Return one attempt of each job, compared with the present code and data. With the class of
    the project's settings, it is the attempt that fits them best; otherwise, it is the latest."""
    found = []
    for _, of_job in groupby(attempts, key=lambda attempt: attempt["job_id"]):
        each = [(one, _evidence(one, kind) if kind else Evidence()) for one in of_job]
        found.append(min(each[::-1], key=lambda pair: (bool(pair[1].change), pair[1].unchecked)))
    return found


def name_all(stored: Iterable[StoredJob]) -> None:
    """Register all jobs: each may be an input of others, even if it is not on this disk."""
    for job_id, job in {attempt["job_id"]: attempt for attempt in stored}.items():
        with suppress(SettingsError):  # settings of older code
            kind = identity.read(script_of(job)).settings
            settings = identity.restore(kind, plain_settings(job, kind))
            attempts.name_input(job_id, settings, script_of(job))


def script_of(job: StoredJob) -> str:
    """Return the name of a job's script."""
    return job["tags"].get("script", identity.DEFAULT)


def plain_settings(job: StoredJob, kind: type[Any] | None) -> dict[str, Any]:
    """Return the settings of a job from their stored texts; `kind` is their class today, None if
    its script is gone."""
    known, params = flags.of(kind), job["params"]
    now = {before: name for name, before in known.formerly.items()}
    words = {name for name, text in params.items() if known.is_word(now.get(name, name), text)}
    return {n: text if n in words else fresh_value(text) for n, text in params.items()}


def _evidence(job: StoredJob, kind: type[Any]) -> Evidence:
    """Compare an attempt with the present code and data. Today's settings may be unable to express
    the job."""
    if "code" not in (tags := job["tags"]):  # it was stored by other means
        return Evidence()
    folder = folder_of(tags.get("job_folder", ""))
    try:
        settings = identity.restore(kind, plain_settings(job, kind))
        code = attempts.present_code(settings, script_of(job), folder.parent.parent)
    except SettingsError as error:
        return Evidence(str(error))
    return attempts.compare(folder, code, data_evidence.last_places(folder), tags)


def fresh_value(text: str) -> Any:
    """Return a setting from its stored text; several values as the flag has them, `1,2`."""
    if text in ("True", "False", "None"):
        return literal_eval(text)
    if text.startswith("[") and text.endswith("]"):
        with suppress(ValueError, SyntaxError):
            return as_text(literal_eval(text))
    for number in (int, float):
        with suppress(ValueError):
            if repr(number(text)) == text != "nan":  # words may look like numbers: 01, 1_000
                return number(text)
    return text


if __name__ == "__main__":  # the other process
    try:
        settle(sys.argv[1])
        nothing: dict[str, Any] = {"params": {}, "metrics": {}}
        print(json.dumps([job | nothing for job in _by_client(sys.argv[1])]))
    except SettingsError as problem:
        print(problem, file=sys.stderr)
        sys.exit(exit_status.WRONG)
    except ConnectionError as problem:
        sys.exit(str(problem))
