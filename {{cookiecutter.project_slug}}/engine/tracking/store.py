"""The tracking store, as written to: MLflow's client, used by the courier's process alone.

Many processes that open a new store at once crash it, so `python -m engine.tracking.store` makes it
ready under a lock. Reading is in reading.py.

A job has one run. Its tags say whose it is: `owner` (the job's folder), `journal` (what it is
written from) and `heartbeat`, the time at which its courier was last alive. A run that is RUNNING
with a young heartbeat and belongs to another folder is a lease: someone else trains that job.
"""

import os
import sys
import time
import tomllib
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TextIO

from engine import locks
from engine.paths import CODE, PROJECT
from engine.tracking import address

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as StoredRun

BATCH = 1000
"""Metrics in one request, the most that MLflow takes (mlflow.org/docs, REST API, log-batch)."""

BEAT = 20.0
"""Seconds between two heartbeats."""

LEASE = 120.0
"""Seconds after its last heartbeat for which a run is its owner's."""

ATTEMPTS = 3
"""Times that MLflow tries to reach a database in one call, for 0.4 s in all; its own 10 take 100 s,
in which nothing else is tried."""


class Elsewhere(Exception):
    """The job is trained from another folder, by this store's account. Its text says where."""


@cache
def experiment_name() -> str:
    """The project's name, from pyproject.toml: all its jobs lie in the experiment of that name."""
    with (CODE / "pyproject.toml").open("rb") as file:
        return str(tomllib.load(file)["project"]["name"])


def prepare() -> str:
    """Make the store and the project's experiment if they are not there; the experiment's id."""
    with _alone():
        _make_whole(address.sqlite_path())
        found = client().get_experiment_by_name(experiment_name())
        if found:
            return str(found.experiment_id)
        root = None if address.uri().startswith("http") else (PROJECT / "mlruns").as_uri()
        return str(client().create_experiment(experiment_name(), artifact_location=root))


def _make_whole(path: Path | None) -> None:
    """Make a sqlite store beside its place: killed meanwhile, MLflow leaves a broken one."""
    if path and not path.exists():
        with TemporaryDirectory(prefix=f"{path.name}.", dir=path.parent) as folder:
            part = Path(folder) / path.name
            client(f"sqlite:///{part}").search_experiments(max_results=1)
            part.replace(path)


def client(uri: str = "") -> "MlflowClient":
    """MLflow's client, with a patience of seconds: whoever calls it tries again by itself."""
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "CRITICAL")  # it raises what it would print
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # --sync has its lines
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # its own 7 take four minutes
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    from mlflow import MlflowClient
    from mlflow.store.db import utils

    utils.MAX_RETRY_COUNT = ATTEMPTS
    return MlflowClient(uri or address.uri())


def fresh(status: str, heartbeat: str) -> bool:
    """Whether a run with this status and this heartbeat is still its owner's."""
    with suppress(ValueError):  # others may have written it
        return status == "RUNNING" and time.time() - float(heartbeat) < LEASE
    return False


def _alone() -> AbstractContextManager[TextIO]:
    """Keep other processes of this machine from opening the store meanwhile."""
    file = address.sqlite_path() or PROJECT / f"mlflow-{address.fingerprint()}"
    return locks.waiting(file.with_name(file.name + ".lock"))


class Run:
    """The one run of a job, made or gone on with; `begun` is when, in milliseconds since 1970.

    `about` is the content of settings.json.

    Of the job's other runs, those that ended unfinished are deleted at once, and those that
    finished when this one has. Raises Elsewhere if one of them is a lease.
    """

    def __init__(self, about: dict[str, Any], journal: str, tags: dict[str, str]) -> None:
        self._experiment = prepare()
        self._client = client()
        self._job, self._owner, self._journal = about["id"], about["owner"], journal
        self._beaten = 0.0
        self._settle()
        if not self.id:
            names = {"mlflow.runName": about["name"], "job_id": self._job}
            whose = {"owner": self._owner, "journal": journal, "heartbeat": str(time.time())}
            self._client.create_run(self._experiment, tags={**names, **whose, **tags})
            self._settle()  # another may have begun at the same time
        self._complete(about["settings"], tags)
        self.beat()

    def beat(self) -> None:
        """Say that the job is alive, if it is time to. Raises Elsewhere if it is not this one's."""
        if time.monotonic() - self._beaten > BEAT:
            self._settle()
            self._client.set_tag(self.id, "heartbeat", str(time.time()))
            self._beaten = time.monotonic()

    def log(self, lines: Sequence[dict[str, Any]]) -> None:
        """Send journal lines: metrics with the journal's own times, and tags."""
        from mlflow.entities import Metric, RunTag

        points = [
            Metric(name, value, line["time"], line["step"])
            for line in lines
            for name, value in line.get("metrics", {}).items()
        ]
        for start in range(0, len(points), BATCH):
            self._client.log_batch(self.id, metrics=points[start : start + BATCH])
        tags = [RunTag(k, v) for line in lines for k, v in line.get("tags", {}).items()]
        if tags:
            self._client.log_batch(self.id, tags=tags)

    def add(self, folder: Path, names: Iterable[str]) -> None:
        """Copy files in a job's folder to the run, into folders of the same names.

        Where that fails a tag says why: nothing else is to wait for it, and the job has the files.
        """
        for name in names:
            if not (folder / name).exists():
                continue
            try:
                below = Path(name).parent.as_posix()
                where = None if below == "." else below
                self._client.log_artifact(self.id, str(folder / name), where)
            except Exception as error:  # of any store of files
                why = f"{name} is not here: {address.reason(error)}"
                self._client.set_tag(self.id, "files", why)

    def end(self, status: str) -> None:
        """Say how the run ended; one that finished is marked last, since the status can lie."""
        self._client.set_terminated(self.id, status)
        if status == "FINISHED":
            self._client.set_tag(self.id, "finished", "true")
            for run in self._all():
                if run.info.run_id != self.id and "finished" in run.data.tags:
                    self._client.delete_run(run.info.run_id)

    def _all(self) -> "list[StoredRun]":
        """The job's runs, the oldest first."""
        query = f"tags.job_id = '{self._job}'"
        found = self._client.search_runs([self._experiment], query)
        return sorted(found, key=lambda run: (run.info.start_time, run.info.run_id))

    def _settle(self) -> None:
        """Find the run that is written from this journal; clear away the job's dead ones.

        Of two leases the older one stands: this one's run gives way to it.
        """
        runs = self._all()
        same = [run for run in runs if run.data.tags.get("journal") == self._journal]
        self.id = str(same[0].info.run_id) if same else ""
        self.begun = int(same[0].info.start_time) if same else 0
        older = True
        for run in runs:
            if run.info.run_id == self.id:
                older = False
            elif "finished" in run.data.tags:
                continue
            elif not self._is_lease(run):
                self._client.delete_run(run.info.run_id)
            elif older:
                self._give_way(run.data.tags)

    def _is_lease(self, run: "StoredRun") -> bool:
        tags = run.data.tags
        others = tags.get("owner") != self._owner
        return others and fresh(run.info.status, tags.get("heartbeat", "0"))

    def _give_way(self, tags: dict[str, str]) -> None:
        if self.id:
            self._client.delete_run(self.id)
        raise Elsewhere(f"is running already (on {tags.get('host')}, in {tags.get('job_folder')})")

    def _complete(self, settings: dict[str, Any], tags: dict[str, str]) -> None:
        """Add the params that the run has not got: those it has cannot be changed."""
        from mlflow.entities import Param, RunTag

        run = self._client.get_run(self.id)
        params = [Param(k, str(v)) for k, v in settings.items() if k not in run.data.params]
        self._client.log_batch(self.id, params=params, tags=[RunTag(k, v) for k, v in tags.items()])
        if run.info.status != "RUNNING":
            self._client.update_run(self.id, status="RUNNING")


if __name__ == "__main__":
    made = address.sqlite_path()
    try:
        if not (made and made.exists()):
            prepare()
    except Exception as problem:
        sys.exit(address.reason(problem))
