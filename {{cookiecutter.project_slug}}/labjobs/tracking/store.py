"""Writing to the tracking store with MLflow's client, which only the courier's process uses.

Reading is in reading.py.

An attempt has one run. Its tags identify it: `owner` (the attempt's folder), `journal` (the journal
from which it is written) and `heartbeat`, the time at which its courier was last alive. A run that
is RUNNING, has a recent heartbeat and belongs to another folder is a lease: someone else is
training that job with the same code.
"""

import json
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labjobs.job.data import Summary
from labjobs.tracking import address, artifacts
from labjobs.tracking.client import client
from labjobs.tracking.experiment import prepare
from labjobs.tracking.target import Line, Target

if TYPE_CHECKING:
    from mlflow.entities import Run as StoredRun

BATCH = 1000
"""Metrics in one request, the most that MLflow takes (mlflow.org/docs, REST API, log-batch)."""

BEAT = 20.0
"""Seconds between two heartbeats."""

LEASE = 120.0
"""Seconds after its last heartbeat for which a run belongs to its owner."""


class Elsewhere(Exception):
    """The job is trained from another folder, according to this store. Its text says where."""


def fresh(status: str, heartbeat: str) -> bool:
    """Whether a run with this status and this heartbeat still belongs to its owner."""
    with suppress(ValueError):  # others may have written it
        return status == "RUNNING" and time.time() - float(heartbeat) < LEASE
    return False


class Run(Target):
    """The single run of an attempt, new or continued; `begun` is its start in milliseconds since
    1970. Other runs of the job with the same code are deleted: unfinished ones immediately, and
    those that finished with the same data when this run has finished. Raises Elsewhere if one of
    them is a lease.
    """

    NAME, NOTED_IN, COUNTERS = "the tracking store", "sent.json", True

    place = staticmethod(address.fingerprint)
    check = staticmethod(address.check)
    reason = staticmethod(address.reason)

    def __init__(self, folder: Path, about: dict[str, Any], journal: str) -> None:
        self._about = about
        self._job, self._code = str(about["id"]), str(about["code"])
        self._owner, self._journal = str(about["owner"]), journal
        self._tags = {"job_folder": str(folder), "host": os.uname().nodename}

    def open(self) -> None:
        """Find the run or make it. Raises Elsewhere if another one is a lease."""
        self._experiment = prepare()
        self._client = client()
        self._beaten = 0.0
        self._stored: dict[str, set[int]] = {}
        self._artifacts = ""
        self._settle()
        if not self.id:
            names = {"mlflow.runName": self._about["name"], "job_id": self._job, "code": self._code}
            journal, beat = self._journal, str(time.time())
            whose = {"owner": self._owner, "journal": journal, "heartbeat": beat}
            self._client.create_run(self._experiment, tags={**names, **whose, **self._tags})
            self._settle()  # another may have begun at the same time
        self._complete()
        self.beat()

    def beat(self) -> None:
        """Send a heartbeat, if it is time for one. Raises Elsewhere if the job belongs to another
        folder."""
        if time.monotonic() - self._beaten > BEAT:
            self._settle()
            self._client.set_tag(self.id, "heartbeat", str(time.time()))
            self._beaten = time.monotonic()

    def log(self, lines: Sequence[Line], mended: bool = False) -> None:
        """Send journal lines: metrics with the journal's own times, and tags.

        If the journal was `mended`, steps that the store already has are left out, because lost
        points were measured again, at another time.
        """
        from mlflow.entities import Metric, RunTag

        points = [
            Metric(name, value, line["time"], line["step"])
            for line in lines
            for name, value in line.get("metrics", {}).items()
            if not (mended and line["step"] in self._steps(name))
        ]
        for start in range(0, len(points), BATCH):
            self._client.log_batch(self.id, metrics=points[start : start + BATCH])
        tags = [RunTag(k, v) for line in lines for k, v in line.get("tags", {}).items()]
        if tags:
            self._client.log_batch(self.id, tags=tags)

    def add(self, folder: Path, names: Iterable[str]) -> None:
        """Copy files in a job's folder to the run, into folders of the same names.

        If that fails, a tag says why, and no further files are tried: nothing else should wait for
            them, and they are in the job's folder.
        """
        for name in names:
            if not (folder / name).exists():
                continue
            try:
                self._copy(folder, name)
            except Exception as error:  # for any file store
                why = f"{name} is not here: {address.reason(error)}"
                self._client.set_tag(self.id, "files", why)
                return

    def _copy(self, folder: Path, name: str) -> None:
        below = Path(name).parent.as_posix()
        place = artifacts.on_disk(self._artifacts)
        if not (place and name == artifacts.WEIGHTS and artifacts.link(folder / name, place)):
            self._client.log_artifact(self.id, str(folder / name), None if below == "." else below)

    def has_read(self, data: Summary) -> None:
        """Store which data the attempt has read, in MLflow's field for it."""
        from mlflow.entities import Dataset, DatasetInput

        source = json.dumps({"uri": str(data.path)})
        profile = json.dumps({"files": data.files, "bytes": data.bytes})
        read = Dataset(data.name, data.digest, "local", source, profile=profile)
        self._client.log_inputs(self.id, datasets=[DatasetInput(read)])

    def end(self, status: str) -> None:
        """Store how the run ended; the mark of a finished run is written last, since the status
        alone is not reliable."""
        self._client.set_terminated(self.id, status)
        if status == "FINISHED":
            self._client.set_tag(self.id, "finished", "true")
            runs = {run.info.run_id: run.data.tags for run in self._all()}
            own = runs.pop(self.id)
            for run_id, tags in runs.items():
                if "finished" in tags and tags.get("data") == own.get("data"):
                    self._client.delete_run(run_id)

    def _steps(self, name: str) -> set[int]:
        """The steps of a metric that the store had at the first call."""
        if name not in self._stored:
            history = self._client.get_metric_history(self.id, name)
            self._stored[name] = {point.step for point in history}
        return self._stored[name]

    def _all(self) -> "list[StoredRun]":
        """The runs of this attempt and of others with its code or owner, the oldest first."""
        query = f"tags.job_id = '{self._job}'"
        found = self._client.search_runs([self._experiment], query)
        mine = [run for run in found if self._is_of_this(run.data.tags)]
        return sorted(mine, key=lambda run: (run.info.start_time, run.info.run_id))

    def _is_of_this(self, tags: dict[str, str]) -> bool:
        return tags.get("code") == self._code or tags.get("owner") == self._owner

    def _settle(self) -> None:
        """Find the run that is written from this journal; clear away the job's dead ones.

        If there are two leases, the older one is valid, and this run gives way.
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

    def _complete(self) -> None:
        """Add the missing params of the run: existing ones cannot be changed."""
        from mlflow.entities import Param, RunTag

        run = self._client.get_run(self.id)
        self._artifacts, settings = str(run.info.artifact_uri), self._about["settings"]
        params = [Param(k, str(v)) for k, v in settings.items() if k not in run.data.params]
        tags = [RunTag(k, v) for k, v in self._tags.items()]
        self._client.log_batch(self.id, params=params, tags=tags)
        if run.info.status != "RUNNING":
            self._client.update_run(self.id, status="RUNNING")
