"""Writing to the tracking store with MLflow's client, which only the courier's process uses.

An attempt has one run. Its tags identify it: `owner` (the attempt's folder), `journal` (the
journal from which it is written) and `heartbeat`, the time at which its courier was last alive. A
run that is RUNNING, has a recent heartbeat and belongs to another folder is a lease: someone else
is training that job with the same code. Reading is in stored_jobs.py.
"""

import getpass
import hashlib
import json
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labjobs import layout
from labjobs.errors import Elsewhere
from labjobs.files import CODE, PROJECT, portable
from labjobs.job import data_evidence, provenance
from labjobs.job.folder import JobFolder
from labjobs.job.identity import as_command, as_words, identity
from labjobs.job.journal import record_of
from labjobs.privacy import scrub
from labjobs.settings import roles
from labjobs.tracking import mlflow_client
from labjobs.tracking.mlflow_client import client, prepare

if TYPE_CHECKING:
    from mlflow.entities import Run as StoredRun

Line = dict[str, Any]  # a line of the journal (labjobs/job/journal.py)

AT_THE_END = (layout.SETTINGS, "changes.diff", layout.LOG, layout.BEST)
"""The files that a run gets when its job ends, the small ones first; the journal names the
others."""

BATCH = 1000  # metrics in a request, the most that MLflow takes (REST API, log-batch)
BEAT = 20.0  # seconds between two heartbeats
LEASE = 120.0  # seconds after its last heartbeat for which a run belongs to its owner


def fresh(status: str, heartbeat: str) -> bool:
    """Whether a run with this status and this heartbeat still belongs to its owner."""
    with suppress(ValueError):  # others may have written it
        return status == "RUNNING" and time.time() - float(heartbeat) < LEASE
    return False


class Run:
    """The single run of an attempt, new or continued. Other runs of the job with the same code are
    deleted: unfinished ones immediately, and those that finished with the same data when this run
    has finished.

    Any method may raise any error of MLflow's, which means that the store is unavailable. After
    that, `open` comes first again, and whatever was not acknowledged may be logged a second time:
    the store keeps it once. `had_ended` says whether it had ended when it was opened.
    """

    def __init__(self, folder: Path, about: dict[str, Any], journal: str, begun: int) -> None:
        self._about, self._begun = about, begun
        self._job, self._code = str(about["id"]), str(about["code"])
        self._owner, self._journal = str(about["owner"]), journal
        self._runs_root = folder.parent.parent
        self._tags = {"job_folder": str(folder), "host": os.uname().nodename}
        self.id = ""
        self.had_ended = False

    def open(self) -> None:
        """Find the run or make it. Raises Elsewhere if another one is a lease."""
        self._experiment = prepare(self._runs_root)
        self._client = client()
        self._beaten = 0.0
        self._artifacts = ""
        self._settle()
        if not self.id:
            names = {"mlflow.runName": self._about["name"], "job_id": self._job, "code": self._code}
            journal, beat = self._journal, str(time.time())
            whose = {"owner": self._owner, "journal": journal, "heartbeat": beat}
            tags = {**names, **whose, **self._tags}
            self._client.create_run(self._experiment, self._begun or None, tags)
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

    def log(self, lines: Sequence[Line]) -> None:
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

        If that fails, a tag says why, and no further files are tried: nothing else should wait for
        them, and they are in the job's folder.
        """
        for name in names:
            if not (folder / name).exists():
                continue
            try:
                never_changed = name == layout.BEST or folder.name == layout.CODES
                if never_changed and self._link(folder / name):
                    continue
                below = Path(name).parent.as_posix()
                path = None if below == "." else below
                self._client.log_artifact(self.id, str(folder / name), path)
            except Exception as error:  # for any file store
                why = f"{name} is not here: {mlflow_client.reason(error)}"
                self._client.set_tag(self.id, "files", why)
                return

    def has_read(self, attempt: Path) -> None:
        """Store which data the attempt has read, if that is known, in MLflow's field for it."""
        from mlflow.entities import Dataset, DatasetInput

        name, path, sizes = data_evidence.summary(attempt)
        if name:
            source = json.dumps({"uri": str(Path(path))})
            profile = json.dumps({"files": len(sizes), "bytes": sum(sizes)})
            read = Dataset(name, data_evidence.digest(attempt), "local", source, profile=profile)
            self._client.log_inputs(self.id, datasets=[DatasetInput(read)])

    def end(self, status: str, at: int) -> None:
        """Store how the run ended, and when, in milliseconds since 1970; the mark of a finished run
        is written last, since the status alone is not reliable."""
        self._client.set_terminated(self.id, status, at or None)
        if status == "FINISHED":
            self._client.set_tag(self.id, "finished", "true")
            runs = {run.info.run_id: run.data.tags for run in self._all()}
            own = runs.pop(self.id)
            for run_id, tags in runs.items():
                if "finished" in tags and tags.get("data") == own.get("data"):
                    self._client.delete_run(run_id)

    def _link(self, file: Path) -> bool:
        """Give the run a second name for a file (a hard link) instead of a copy, since weights can
        be large, and jobs many; it is never changed, only replaced. Returns whether that is
        possible: not if the run's files are on a server or on another disk."""
        folder = mlflow_client.local_folder(self._artifacts)
        if not folder:
            return False
        target = folder / file.name
        part = target.with_name(f".{target.name}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            part.unlink(missing_ok=True)
            os.link(file, part)
            part.replace(target)
            part.unlink(missing_ok=True)  # if both are the same file already, replace() leaves it
        except OSError:
            return False
        return True

    def _all(self) -> "list[StoredRun]":
        """The runs of this attempt and of others with its code or owner, the oldest first."""
        query = f"tags.job_id = '{self._job}'"
        found = self._client.search_runs([self._experiment], query)
        mine = [
            run
            for run in found
            if run.data.tags.get("code") == self._code or run.data.tags.get("owner") == self._owner
        ]
        return sorted(mine, key=lambda run: (run.info.start_time, run.info.run_id))

    def _settle(self) -> None:
        """Find the run that is written from this journal; clear away the job's dead ones.

        If there are two leases, the older one is valid, and this run gives way.
        """
        runs = self._all()
        same = [run for run in runs if run.data.tags.get("journal") == self._journal]
        self.id = str(same[0].info.run_id) if same else ""
        older = True
        for run in runs:
            tags = run.data.tags
            of_another = tags.get("owner") != self._owner
            if run.info.run_id == self.id:
                older = False
            elif "finished" in tags:
                continue
            elif not (of_another and fresh(run.info.status, tags.get("heartbeat", "0"))):
                self._client.delete_run(run.info.run_id)
            elif older:
                if self.id:
                    self._client.delete_run(self.id)
                where = f"on {tags.get('host')}, in {tags.get('job_folder')}"
                raise Elsewhere(f"is already running ({where})")

    def _complete(self) -> None:
        """Add the missing params of the run: existing ones cannot be changed."""
        from mlflow.entities import Param, RunTag

        run = self._client.get_run(self.id)
        self.had_ended = run.info.status != "RUNNING"
        self._artifacts, settings = str(run.info.artifact_uri), self._about["settings"]
        params = [Param(k, str(v)) for k, v in settings.items() if k not in run.data.params]
        tags = [RunTag(k, v) for k, v in self._tags.items()]
        self._client.log_batch(self.id, params=params, tags=tags)
        if self.had_ended:
            self._client.update_run(self.id, status="RUNNING")
        if "files" in run.data.tags:  # what could not be uploaded is tried again
            self._client.delete_tag(self.id, "files")


# What MLflow's own pages show about a run: who ran what, from which commit, in which sweep.
#
# MLflow fills in these fields itself only if a training process calls `mlflow.start_run()`. Names
# that begin with `mlflow.` are reserved for MLflow (mlflow.org/docs, tracking, system tags).

LONGEST = 1000  # characters of a line of the description; MLflow refuses tags of more than 8000


def tags(folder: JobFolder[Any]) -> dict[str, str]:
    """Return the fields of a run's page as tags; unknown ones are left out."""
    version = provenance.version()
    inputs: dict[str, str] = record_of(folder.path, layout.SETTINGS).get("inputs", {})
    found = {
        "mlflow.user": user(),
        "mlflow.source.type": "LOCAL",
        "mlflow.source.name": f"{folder.script}.py",
        "mlflow.source.git.commit": version["commit"],
        "mlflow.source.git.branch": version.get("branch", ""),
        "mlflow.note.content": _note(folder, list(inputs)),
        # A sweep runs jobs from a copy of the code; its name contains the time when it began.
        "sweep": "" if CODE == PROJECT else CODE.parent.name,
        "seed_group": _seed_group(folder),
        "search": scrub(json.dumps(folder.drawn)) if folder.drawn else "",
        "inputs": ", ".join(f"{job}/{attempt}" for job, attempt in inputs.items()),
    }
    return {name: text for name, text in found.items() if text}


def _seed_group(folder: JobFolder[Any]) -> str:
    """What all repeats of a job, as over seeds and folds, have in common, and no other jobs: its
    name without these, and digits of a hash over its settings and its code. Empty for a job without
    repeats."""
    known, each = roles(type(folder.settings)), identity(folder.settings)
    settings = {name: value for name, value in each.items() if known.get(name) != "repeat"}
    if len(settings) == len(each):
        return ""
    repeated = json.dumps([folder.script, settings, folder.code.digest], sort_keys=True)
    words = as_words(folder.settings).split(" ")
    words = [word for word in words if known.get(word.partition("=")[0]) != "repeat"]
    return " ".join([*words, f"({hashlib.sha256(repeated.encode()).hexdigest()[:6]})"])


def _note(folder: JobFolder[Any], inputs: Sequence[str]) -> str:
    """The description, in Markdown: the job's command, its inputs, its note and its folder."""
    derived = ", ".join(f"`{job}`" for job in inputs)
    lines = [
        f"`{as_command(folder.settings, folder.script)}`",
        f"Derived from the job{'s' * (len(inputs) > 1)} {derived}" if inputs else "",
        str(getattr(folder.settings, "note", "")),
        f"Folder: `{portable(folder.path)}`",
    ]
    return scrub("\n\n".join(line[:LONGEST] for line in lines if line))


def user() -> str:
    """Return the name of this process's user, or else the number."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in some containers
        return str(os.getuid())
