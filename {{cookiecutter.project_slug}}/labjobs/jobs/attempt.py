"""What is known of one attempt at a job: its code, when and where it ran, and its results."""

import json
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from labjobs import locks
from labjobs.errors import JobError, cause
from labjobs.files import read_record
from labjobs.job import code, costs, lines
from labjobs.job.folder import JobFolder
from labjobs.paths import PROJECT, shown
from labjobs.tracking.address import fingerprint
from labjobs.tracking.stored_jobs import StoredJob

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
    """Time, memory, disk and energy (labjobs.job.costs)."""

    code_copy: str = ""
    installed: str = ""
    """The paths of the copies of its code and versions (labjobs.job.copies)."""

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
    outcome = lines.record_of(path, "outcome.json")
    running = locks.held(path / "lock")
    sent = read_record(path / "sent.json")
    tags: dict[str, str] = {}
    metrics: dict[str, float] = {}
    declared = lines.record_of(path, "settings.json").get("metrics", {})
    problem = ""
    try:
        with (path / lines.FILE).open("rb") as file:
            for line in lines.Reader(file).read():
                tags |= line.get("tags", {})
                found = line.get("metrics", {})
                metrics |= _results(found, declared)
    except (OSError, JobError) as error:
        problem = cause(error)
    return Attempt(
        state="running" if running else outcome.get("status", "interrupted"),
        change=job.change_since(path) if job else "",
        ended=last_logged(path),
        code=code.digest(path),
        said=str(outcome.get("said", "")),
        tags=tags,
        metrics=metrics,
        cost=costs.totals(path),
        code_copy=_kept(path, "settings.json", "code_copy"),
        installed=_kept(path, "settings.json", "installed"),
        split=_kept(path, "split.json", "split"),
        data_root=shown(PROJECT / outcome["data_root"]) if "data_root" in outcome else "",
        folder=path,
        run_id=str(sent.get("run", "")) if sent.get("store") == fingerprint() else "",
        problem=problem,
    )


def _kept(attempt: Path, record: str, name: str) -> str:
    """The path of a file that attempts share; empty if it is not known."""
    kept = lines.record_of(attempt, record).get(name)
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
        with (attempt / lines.FILE).open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL))
            times = TIME.findall(file.read())
        return int(times[-1]) / 1000 if times else (attempt / lines.FILE).stat().st_mtime
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
