"""The project's jobs, found on this disk and in the tracking store.

A job is on this disk if an attempt at it has begun there. Jobs in the store count if they finished
or diverged.
"""

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from labjobs import layout, locks
from labjobs.cli.flags import as_text
from labjobs.errors import JobError, SettingsError, cause
from labjobs.files import PROJECT, read_record, shown
from labjobs.job import attempts, code_evidence, identity, journal
from labjobs.job.folder import JobFolder
from labjobs.job.identity import restore
from labjobs.job.runtime import Runtime
from labjobs.settings import Span
from labjobs.sweeps.states import State, View
from labjobs.tracking import costs, stored_jobs
from labjobs.tracking.mlflow_client import experiment_name, fingerprint
from labjobs.tracking.stored_jobs import StoredJob, fresh_value

# What is known of one attempt at a job: its code, when and where it ran, and its results.

TAIL = 16_384
"""Bytes at a journal's end that surely hold a line with a time."""

TIME = re.compile(rb'"time": (\d+)')

RESULTS = ("test_", "best_")
"""How the metrics begin that a job logs at its end."""


@dataclass(frozen=True)
class Attempt:
    """An attempt at a job; unknown values are empty."""

    state: str
    change: str
    """How the code or the data has changed since, in a few words."""

    ended: float
    """Time when it last logged something, in seconds since 1970."""

    code: str
    """The digest of its code."""

    said: str = ""
    """Its last line."""

    tags: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    """Test results, validation results of the best evaluation, and measurements of a script that
    does not train."""

    cost: dict[str, float] = field(default_factory=dict)
    """Time, memory, disk and energy (labjobs.tracking.costs)."""

    code_copy: str = ""
    installed: str = ""
    """The paths of the copies of its code and versions (labjobs.job.provenance)."""

    split: str = ""
    """The file that lists the examples that it trained, validated and tested on."""

    data_root: str = ""
    """The folder of its datasets, once it has ended."""

    folder: Path | None = None
    run_id: str = ""
    """The id of its run in MLflow."""

    problem: str = ""
    """The parts that could not be read."""

    def as_plain(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        folder = str(self.folder) if self.folder else None
        return asdict(self) | {"ended": iso(self.ended), "folder": folder}


def on_disk(path: Path, job: JobFolder[Any] | None) -> Attempt:
    """Return the attempt in a folder; `job` is the job with today's settings, if there can be
    one."""
    outcome = journal.record_of(path, layout.OUTCOME)
    running = locks.held(path / layout.LOCK)
    sent = read_record(path / layout.SENT)
    tags: dict[str, str] = {}
    metrics: dict[str, float] = {}
    declared = journal.record_of(path, layout.SETTINGS).get("metrics", {})
    problem = ""
    try:
        with (path / layout.JOURNAL).open("rb") as file:
            for line in journal.Reader(file).read():
                tags |= line.get("tags", {})
                found = line.get("metrics", {})
                metrics |= _results(found, declared)
    except (OSError, JobError) as error:
        problem = cause(error)
    return Attempt(
        state="running" if running else outcome.get("status", "interrupted"),
        change=job.change_since(path) if job else "",
        ended=last_logged(path),
        code=code_evidence.digest(path),
        said=str(outcome.get("said", "")),
        tags=tags,
        metrics=metrics,
        cost=costs.totals(path),
        code_copy=_kept(path, layout.SETTINGS, "code_copy"),
        installed=_kept(path, layout.SETTINGS, "installed"),
        split=_kept(path, layout.SPLIT, "split"),
        data_root=shown(PROJECT / outcome["data_root"]) if "data_root" in outcome else "",
        folder=path,
        run_id=str(sent.get("run", "")) if sent.get("store") == fingerprint() else "",
        problem=problem,
    )


def _kept(attempt: Path, record: str, name: str) -> str:
    """The path of a file that attempts share; empty if it is not known."""
    kept = journal.record_of(attempt, record).get(name)
    return shown(attempt.parent.parent / kept) if kept else ""


def in_store(stored: StoredJob, job: JobFolder[Any] | None) -> Attempt:
    """Return an attempt that is only in the store; `job` is the job with today's settings, if there
    can be one."""
    digest, data = (stored["tags"].get(name, "") for name in ("code", "data"))
    return Attempt(
        state="diverged" if stored["diverged"] else "finished",
        change="" if job and job.fits(digest, data) else "in another folder",
        ended=stored["ended"] / 1000,
        code=digest,
        tags=stored["tags"],
        metrics=results(stored),
        cost={name: stored["metrics"][name] for name in costs.NAMES if name in stored["metrics"]},
        run_id=stored["run_id"],
    )


def results(stored: StoredJob) -> dict[str, float]:
    """Return what a stored job logged at its end."""
    return _results(stored["metrics"], json.loads(stored["tags"].get("metrics", "{}")))


def _results(metrics: dict[str, float], declared: Collection[str]) -> dict[str, float]:
    return {k: v for k, v in metrics.items() if k.startswith(RESULTS) or k in declared}


def last_logged(attempt: Path) -> float:
    """Return when an attempt last logged something, in seconds since 1970; 0 if that is not
    known."""
    try:
        with (attempt / layout.JOURNAL).open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL))
            times = TIME.findall(file.read())
        return int(times[-1]) / 1000 if times else (attempt / layout.JOURNAL).stat().st_mtime
    except (OSError, ValueError):
        return 0.0


def iso(seconds: float) -> str | None:
    """Return a time as in ISO 8601, in UTC; None for 0."""
    if not seconds:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def local(seconds: float) -> str:
    """Return a time in local form: `2026-11-22 20:14`; a dash for 0."""
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}" if seconds else "-"


JOB_ID = re.compile("[0-9a-f]{12}")


@dataclass
class Job:
    """What is known about a job."""

    id: str
    script: str = identity.DEFAULT
    settings: dict[str, Any] = field(default_factory=dict)
    """The recorded settings; empty if they cannot be read."""

    attempts: list[Path] = field(default_factory=list)
    """The folders of its attempts on this disk, the latest last."""

    stored: list[StoredJob] = field(default_factory=list)
    """Its attempts in the store that finished or diverged, the last one last; of a job on this disk
    only for `Project.one`."""

    folder: JobFolder[Any] | None = None
    """Its folder according to today's settings; None if they cannot express the job."""

    problem: str = ""
    """Why there is no such folder."""

    @property
    def words(self) -> str:
        """The settings that differ from their defaults, in one line."""
        if self.folder:
            return self.folder.name
        script = [] if self.script == identity.DEFAULT else [self.script]
        return " ".join([*script, *(f"{k}={as_text(v)}" for k, v in self.settings.items())])

    @property
    def latest(self) -> Path | None:
        """The folder of the attempt that counts: with the present code, or else the latest."""
        if self.folder:
            return self.folder.latest
        return self.attempts[-1] if self.attempts else None

    def state(self, view: View) -> State:
        """Return its state; `unreadable` if its settings are not known."""
        try:
            if self.folder:
                return view.state(self.folder)
        except OSError as error:
            return State("unreadable", cause(error))
        if any(locks.held(attempt / layout.LOCK) for attempt in self.attempts):
            return State("running")
        return State("stale" if self.settings else "unreadable", self.problem)


class Project:
    """All jobs of the project; `kinds` are classes of settings, by job script, for scripts that are
    gone.

    Raises SettingsError if there is no such folder of runs, or there can be no such store.
    """

    def __init__(self, kinds: Mapping[str, type], runs_root: Path | None) -> None:
        if runs_root and not runs_root.expanduser().is_dir():
            raise SettingsError(f"--runs-root: there is no folder {runs_root}")
        self._kinds, self.runs_root = kinds, (runs_root or Runtime().runs_root).expanduser()

    @cached_property
    def view(self) -> View:
        """What the store and Slurm know of them."""
        return View()

    @property
    def problems(self) -> list[str]:
        """Problems in asking the store or Slurm."""
        return self.view.problems if "view" in vars(self) else []

    def all(self) -> list[Job]:
        """Return all jobs."""
        found = {job.id: job for job in self._on_disk()}
        if absent := self.view.over - found.keys():
            for stored in self._stored:
                if stored["job_id"] in absent:
                    self._add(stored, found)
        return [self._restored(job) for job in found.values()]

    def one(self, prefix: str) -> Job:
        """Return the job whose id begins with these digits. Raises SettingsError if there is none,
        or several."""
        found = {job.id: job for job in self._on_disk(prefix)}
        for stored in self._stored:
            if stored["job_id"].startswith(prefix):
                self._add(stored, found)
        if len(found) > 1:
            raise SettingsError(
                f"{prefix} is the beginning of {len(found)} job ids; give more digits"
            )
        if not found:
            raise SettingsError(f"there is no job {prefix}; `python jobs.py list` shows all")
        (job,) = found.values()
        return self._restored(job)

    def finished_in_store(self, job: Job) -> StoredJob | None:
        """Return a job's finished attempt in the store whose results count: the last one with the
        present code and data, or else the last one; None if it has none."""
        stored = job.stored or [each for each in self._stored if each["job_id"] == job.id]
        found = [each for each in stored if not each["diverged"]]
        fits = [each for each in found if job.folder and _fits(job.folder, each["tags"])]
        return next(reversed(fits or found), None)

    def _on_disk(self, prefix: str = "") -> Iterator[Job]:
        try:
            names = os.listdir(self.runs_root)
        except FileNotFoundError:
            return
        except OSError as error:
            raise SettingsError(f"--runs-root: {cause(error)}") from error
        for name in names:
            if name.startswith(prefix) and JOB_ID.fullmatch(name):
                folder = self.runs_root / name
                found = attempts.all_of(folder)
                if found or not os.access(folder, os.R_OK | os.X_OK):
                    yield Job(name, attempts=found)

    @cached_property
    def _stored(self) -> list[StoredJob]:
        try:
            found = stored_jobs.jobs(experiment_name())
        except ConnectionError:  # `view` reports it
            return []
        return sorted(found, key=lambda job: job["ended"])

    def _add(self, stored: StoredJob, found: dict[str, Job]) -> None:
        found.setdefault(stored["job_id"], Job(stored["job_id"])).stored.append(stored)

    def _restored(self, job: Job) -> Job:
        """Return the job with its settings and its folder, if they are known."""
        try:
            self._read_settings(job)
            kind = self._kinds.get(job.script) or identity.read(job.script).settings
            settings: Any = restore(kind, job.settings)
            folder = JobFolder(settings, self._runtime(job), {}, job.script)
            if folder.id != job.id:
                raise SettingsError(f"with today's settings.py, it is another job, {folder.id}")
            job.folder = folder
        except (SettingsError, ValueError) as error:  # ValueError: a rule in __post_init__
            job.problem = str(error)
        return job

    def _read_settings(self, job: Job) -> None:
        for attempt in reversed(job.attempts):
            if about := journal.record_of(attempt, layout.SETTINGS):
                job.script, job.settings = about["script"], about["settings"]
                return
        for stored in job.stored or (each for each in self._stored if each["job_id"] == job.id):
            job.script = stored["tags"].get("script", identity.DEFAULT)
            job.settings = {name: fresh_value(text) for name, text in stored["params"].items()}
        if not job.settings:
            why = "its settings.json is damaged or missing" if job.attempts else "no permission"
            raise SettingsError(f"cannot be read: {why}")

    def _runtime(self, job: Job) -> Runtime:
        """Those flags of the job's last run on which its state depends."""
        outcome = journal.record_of(job.attempts[-1], layout.OUTCOME) if job.attempts else {}
        pause = outcome.get("pause_after") if outcome.get("status") == "paused" else None
        return Runtime(
            data_root=PROJECT / outcome.get("data_root", Runtime.data_root),
            runs_root=self.runs_root,
            pause_after=Span(pause) if pause else None,
        )


def _fits(job: JobFolder[Any], tags: Mapping[str, str]) -> bool:
    return job.fits(tags.get("code", ""), tags.get("data", ""))
