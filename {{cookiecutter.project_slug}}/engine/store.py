"""The tracking store, as written to: MLflow's client, used by the courier's process alone.

The store is `MLFLOW_TRACKING_URI`, else `mlflow.db` in the project. `python -m engine.store` makes
it ready; many processes that open a new store at once crash it, so that is done under a lock.
Reading is in reading.py.
"""

import fcntl
import os
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.settings import PROJECT

if TYPE_CHECKING:
    from mlflow import MlflowClient

BATCH = 1000
"""Metrics in one request, the most that MLflow takes (mlflow.org/docs, REST API, log-batch)."""


def tracking_uri() -> str:
    """The store's address, always an absolute one: MLflow's own default depends on the folder."""
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{PROJECT / 'mlflow.db'}"
    path = sqlite_path(uri)
    return f"sqlite:///{path.absolute()}" if path else uri


def sqlite_path(uri: str) -> Path | None:
    """The file of a sqlite store, None for any other kind."""
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def experiment_name() -> str:
    """The project's name, from pyproject.toml: all its jobs lie in the experiment of that name."""
    with (PROJECT / "pyproject.toml").open("rb") as file:
        return str(tomllib.load(file)["project"]["name"])


def prepare() -> str:
    """Make the store and the project's experiment if they are not there; the experiment's id."""
    with _alone():
        found = _client().get_experiment_by_name(experiment_name())
        if found:
            return str(found.experiment_id)
        root = (PROJECT / "mlruns").as_uri() if sqlite_path(tracking_uri()) else None
        return str(_client().create_experiment(experiment_name(), artifact_location=root))


@contextmanager
def _alone() -> Iterator[None]:
    """Keep other processes of this machine from opening the store meanwhile."""
    file = sqlite_path(tracking_uri()) or PROJECT / "mlflow"
    with file.with_name(file.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _client() -> "MlflowClient":
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")  # no word of every table it makes
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri())


class Run:
    """The one run of a job. It takes the place of earlier attempts at once, and of a finished run
    of the same job when it has itself finished."""

    def __init__(self, job_id: str, name: str, params: dict[str, Any], tags: dict[str, str]):
        from mlflow.entities import Param

        self._client = _client()
        experiment = prepare()
        earlier = self._client.search_runs([experiment], f"tags.job_id = '{job_id}'")
        self._finished = [run.info.run_id for run in earlier if "finished" in run.data.tags]
        for run in earlier:
            if run.info.run_id not in self._finished:
                self._client.delete_run(run.info.run_id)
        all_tags = {"mlflow.runName": name, "job_id": job_id, **tags}
        self.id = str(self._client.create_run(experiment, tags=all_tags).info.run_id)
        self._client.log_batch(self.id, params=[Param(k, str(v)) for k, v in params.items()])

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

    def end(self, status: str) -> None:
        """Say how the run ended; one that finished is marked last, since the status can lie."""
        self._client.set_terminated(self.id, status)
        if status == "FINISHED":
            self._client.set_tag(self.id, "finished", "true")
            for run_id in self._finished:
                self._client.delete_run(run_id)


if __name__ == "__main__":
    prepare()
