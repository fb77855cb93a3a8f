"""Parquet files, as a second copy of what jobs measure: tables for pandas, DuckDB or polars.

They are written if the environment variable PARQUET_FOLDER names a folder. Each project has its own
folder there, with a file for each attempt in `metrics/` and one in `jobs/`. Only an attempt's own
courier writes its files, and always replaces them as a whole, so many machines can write into one
folder and a reader never sees half a file. A file is rewritten when there is something new, but
less often if writing takes long.
"""

import hashlib
import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from labjobs import files, layout
from labjobs.errors import SettingsError, cause
from labjobs.files import PROJECT
from labjobs.job.data_evidence import Summary
from labjobs.job.identity import project_id
from labjobs.job.journal import now
from labjobs.privacy import scrub
from labjobs.tracking import mlflow_client
from labjobs.tracking.mlflow_client import client, experiment_name, prepare

if TYPE_CHECKING:
    import pyarrow as pa
    from mlflow.entities import Run as StoredRun

# A target: a place that a courier copies jobs' journals to, such as MLflow.
#
# `python jobs.py docs trackers` shows how to write one.

Line = dict[str, Any]
"""A line of the journal (labjobs/job/journal.py)."""


class Target(ABC):
    """The copy of one attempt's journal in one place.

    Any method may raise any exception, which means that the place is unavailable. The courier then
    waits, calls `open` again, and sends again everything that was not acknowledged. So a target
    must store lines only once, even if they are sent twice.
    """

    NAME: ClassVar[str]
    """The name of the place in messages."""

    NOTED_IN: ClassVar[str]
    """The file in an attempt's folder that says how far the copy has come."""

    COUNTERS: ClassVar[bool] = False
    """Whether it takes the counters of the machine too (counters.py). They are not in the
    journal, and have no line number."""

    interval = 1.0
    """Seconds until it wants the next lines."""

    id = ""
    """The id of the copy in that place. A copy with a new id does not have any lines yet."""

    begun = 0
    """When the copy was made, in milliseconds since 1970; only for COUNTERS."""

    @abstractmethod
    def __init__(self, folder: Path, about: dict[str, Any], journal: str) -> None:
        """Remember an attempt's folder, the content of its settings.json and its journal's id.
        Does not contact the place yet."""

    @staticmethod
    @abstractmethod
    def place() -> str:
        """Return what distinguishes places, such as a hash of an address; empty if not in use."""

    @staticmethod
    @abstractmethod
    def check() -> None:
        """Raise SettingsError if the place cannot be used."""

    @staticmethod
    @abstractmethod
    def reason(error: BaseException) -> str:
        """Return why the place is unavailable, in one line without secrets."""

    @abstractmethod
    def open(self) -> None:
        """Find the copy or make it, and set `id`. Raises store.Elsewhere if the attempt is trained
        from another folder."""

    @abstractmethod
    def log(self, lines: Sequence[Line], mended: bool = False) -> None:
        """Store lines: once this returns, the place has them.

        In a journal that was `mended`, steps may have been measured again after lines were lost.
        """

    @abstractmethod
    def end(self, status: str) -> None:
        """Store how the attempt ended: FINISHED, FAILED or KILLED. All lines are there."""

    def beat(self) -> None:
        """Say that the attempt is alive; called once before other calls. Raises as `open` does."""
        return

    def add(self, folder: Path, names: Iterable[str]) -> None:
        """Store files in an attempt's folder. "Finished" does not promise that the files are
        stored, so nothing is raised."""
        return

    def has_read(self, data: Summary) -> None:
        """Store which data the attempt has read; called before `end`."""
        return


# The files of a job that are also in its run, where MLflow's users look for them. Weights can be
# large. If MLflow keeps files on the same disk as the job's folder, the run gets a second name for
# the same file (a hard link) instead of a copy: `best.pt` is never changed, only replaced.

WEIGHTS = layout.BEST

AT_THE_END = (layout.SETTINGS, layout.CODE, "changes.diff", layout.LOG, WEIGHTS)
"""The files that a run gets when its job ends, the small ones first; the journal names the
others."""


def on_disk(uri: str) -> Path | None:
    """Return the folder of a run's files; None if they are on a server or another machine."""
    parts = urlsplit(uri)
    return Path(unquote(parts.path)) if parts.scheme == "file" and not parts.netloc else None


def link(file: Path, folder: Path) -> bool:
    """Give a file the same name in another folder too; return False if that is not possible, for
    example between two disks."""
    target = folder / file.name
    part = target.with_name(f".{target.name}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        os.link(file, part)
        part.replace(target)
        part.unlink(missing_ok=True)  # if both names are the same file already, replace() leaves it
    except OSError:
        return False
    return True


# Writing to the tracking store with MLflow's client, which only the courier's process uses.
#
# Reading is in reading.py.
#
# An attempt has one run. Its tags identify it: `owner` (the attempt's folder), `journal` (the
# journal from which it is written) and `heartbeat`, the time at which its courier was last alive. A
# run that is RUNNING, has a recent heartbeat and belongs to another folder is a lease: someone else
# is training that job with the same code.

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

    NAME, NOTED_IN, COUNTERS = "the tracking store", layout.SENT, True

    place = staticmethod(mlflow_client.fingerprint)
    check = staticmethod(mlflow_client.check)
    reason = staticmethod(mlflow_client.reason)

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
                why = f"{name} is not here: {mlflow_client.reason(error)}"
                self._client.set_tag(self.id, "files", why)
                return

    def _copy(self, folder: Path, name: str) -> None:
        below = Path(name).parent.as_posix()
        place = on_disk(self._artifacts)
        if not (place and name == WEIGHTS and link(folder / name, place)):
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


VARIABLE = "PARQUET_FOLDER"

DIGITS = 12
"""Number of digits of the folder's id that identify an attempt."""

PAUSE = 60.0
"""The least seconds between two writes of an attempt's files."""

FRACTION = 0.01
"""Largest fraction of the time that may be spent writing."""

UNFINISHED = ".unfinished"
"""The folder in which files are written before they are moved to their tables, because libraries
read everything in a table's folder."""


def root() -> Path | None:
    """Return the folder that the environment names; relative paths start at the project."""
    given = os.environ.get(VARIABLE)
    return PROJECT / Path(given).expanduser() if given else None


class ParquetFiles(Target):
    """The two files of an attempt. Nothing is kept for the next process: it writes them anew."""

    NAME, NOTED_IN = "the Parquet folder", layout.SENT_PARQUET

    def __init__(self, folder: Path, about: dict[str, Any], journal: str) -> None:
        self.id, self.interval = uuid4().hex, PAUSE
        self._about, self._folder = about, folder
        self._attempt = str(about["owner"])[:DIGITS]
        self._metrics: list[pa.Table] = []
        self._tags: dict[str, str] = {}
        self._line = 0

    @staticmethod
    def place() -> str:
        """Return a hash of the folder's path; empty if there is none."""
        folder = root()
        return hashlib.sha256(str(folder).encode()).hexdigest()[:DIGITS] if folder else ""

    @staticmethod
    def check() -> None:
        """Make the folder. Raises SettingsError if that fails."""
        folder = root()
        if folder and not folder.parent.is_dir():
            raise SettingsError(f"{VARIABLE} {folder}: there is no folder {folder.parent}")
        if folder and folder.exists() and not folder.is_dir():
            raise SettingsError(f"{VARIABLE} {folder}: is not a folder")
        if folder:
            try:
                folder.mkdir(exist_ok=True)
            except OSError as error:
                raise SettingsError(f"{VARIABLE} {folder}: {error.strerror}") from None

    @staticmethod
    def reason(error: BaseException) -> str:
        """Return why the files cannot be written."""
        said = cause(error)
        return scrub(said if str(root()) in said else f"{root()}: {said}")

    def open(self) -> None:
        """Make the folders. Raises OSError."""
        folder = root()
        assert folder
        with suppress(FileExistsError):
            folder.mkdir()
        self._root = folder / _name(folder)
        for each in (self._root, *(self._root / name for name in ("metrics", "jobs", UNFINISHED))):
            with suppress(FileExistsError):
                each.mkdir()
                each.chmod(folder.stat().st_mode)  # the same users may write here

    def log(self, lines: Sequence[Line], mended: bool = False) -> None:
        """Write both files, with these lines too. Raises OSError."""
        new = [line for line in lines if line["line"] > self._line]
        self._metrics.append(self._points(new))
        for line in new:
            self._tags |= line.get("tags", {})
            self._line = line["line"]
        self._write_all("RUNNING")

    def end(self, status: str) -> None:
        """Write how the attempt ended. Raises OSError."""
        self._write("jobs", self._job(status))

    def _write_all(self, status: str) -> None:
        import pyarrow as pa

        begun = time.monotonic()
        self._metrics = [pa.concat_tables(self._metrics)]
        self._write("metrics", self._metrics[0])
        self._write("jobs", self._job(status))  # describes the other file, so it is written last
        self.interval = max(PAUSE, (time.monotonic() - begun) / FRACTION)

    def _points(self, lines: Sequence[Line]) -> "pa.Table":
        """The metrics in lines of the journal."""
        import pyarrow as pa

        columns = {
            "job_id": pa.string(),
            "attempt": pa.string(),
            "step": pa.int64(),
            "name": pa.string(),
            "value": pa.float64(),
            "time": pa.timestamp("ms", "UTC"),
        }
        whose = self._about["id"], self._attempt
        rows = [
            (*whose, line["step"], name, value, line["time"])
            for line in lines
            for name, value in line.get("metrics", {}).items()
        ]
        cells = zip(*rows, strict=True) if rows else ([] for _ in columns)
        arrays = [pa.array(each, kind) for each, kind in zip(cells, columns.values(), strict=True)]
        return pa.table(arrays, names=list(columns))

    def _job(self, status: str) -> "pa.Table":
        """The one row that says what the attempt is. Settings differ from job to job, so they are
        JSON in one column: all files have the same columns."""
        import pyarrow as pa

        about, tags = self._about, self._tags
        row = {
            "job_id": about["id"],
            "attempt": self._attempt,
            "name": about["name"],
            "script": about["script"],
            "status": status,
            "code": tags.get("code", about["code"]),
            "data": tags.get("data", ""),
            "host": os.uname().nodename,
            "folder": str(self._folder),
            "settings": json.dumps(about["settings"]),
            "tags": json.dumps(tags),
        }
        columns = {name: pa.array([text], pa.string()) for name, text in row.items()}
        return pa.table({**columns, "updated": pa.array([now()], pa.timestamp("ms", "UTC"))})

    def _write(self, table: str, content: "pa.Table") -> None:
        """Write one file whole or not at all."""
        from pyarrow.parquet import write_table

        name = f"{self._about['id']}-{self._attempt}.parquet"
        whole = self._root / UNFINISHED / f"{table}-{name}"
        files.write(whole, lambda file: write_table(content, file))
        whole.replace(self._root / table / name)


def _name(folder: Path) -> str:
    """The name of the project's folder. The id in it distinguishes projects with the same name, and
    finds the folder again after a project was renamed."""
    digits = project_id()[:8]
    found = sorted(path.name for path in folder.glob(f"*-{digits}"))
    return found[0] if found else f"{experiment_name()}-{digits}"
