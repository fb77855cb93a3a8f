"""`python jobs.py list`: a line for each job of the project."""

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from labjobs.errors import SettingsError, did_you_mean
from labjobs.job import lines
from labjobs.job.identity import identity
from labjobs.job.terminal import as_line, counted, leave
from labjobs.jobs.attempt import iso, last_logged, local, on_disk, results
from labjobs.jobs.project import Job, Project

STATES = (
    "finished",
    "stale",
    "unsent",
    "running",
    "queued",
    "paused",
    "interrupted",
    "failed",
    "diverged",
    "pending",
    "unreadable",
)
"""What a job can be: as in `bash run.sh --list`, and one whose settings cannot be read."""


class Row(NamedTuple):
    """The information listed for a job; `ended` is in seconds since 1970, 0 if it is not known."""

    job: Job
    folder: Path | None
    """The folder of the attempt that counts, if it is on this disk."""
    state: str
    about: str
    ended: float
    result: str


def print_list(project: Project, state: str, as_json: bool) -> int:
    """Print the jobs, or only those in one state; returns 0.

    Raises SettingsError if there is no such state.
    """
    if state and state not in STATES:
        raise SettingsError(f"--state {state}: no such state; {did_you_mean(state, STATES)}")
    found = [_row(project, job) for job in project.all()]
    rows = [row for row in found if state in ("", row.state)]
    rows.sort(key=lambda row: (row.ended, row.job.id))
    if as_json:
        _print_json(project, rows)
    elif rows:
        _print(rows)
    else:
        print(f"no job is {state}" if found else "there are no jobs yet")
    return 0


def _row(project: Project, job: Job) -> Row:
    state, about, _ = job.state(project.view)
    latest = job.latest
    outcome = lines.record_of(latest, "outcome.json") if latest else {}
    finished_here = outcome.get("status") == "finished" and (not job.folder or job.folder.begun)
    if latest and (finished_here or state != "finished"):
        said = str(outcome.get("said", "")) if outcome.get("status") == "finished" else ""
        return Row(job, latest, state, about, last_logged(latest), _shortened(said))
    if stored := project.finished_in_store(job):
        result = _shortened(as_line(results(stored)))
        return Row(job, None, state, about, stored["ended"] / 1000, result)
    return Row(job, None, state, about, 0.0, "")


def _shortened(said: str) -> str:
    """A job's last line, without the results of its best evaluation if it has test results."""
    parts = said.split(", ")
    return ", ".join(part for part in parts if not part.startswith("best_")) or said


def _print(rows: list[Row]) -> None:
    width = max(len(row.result) for row in rows)
    for job, _, state, about, ended, result in rows:
        line = f"{job.id}  {state:11}  {local(ended):16}  {result:{width}}  {job.words}"
        print(line.rstrip() + (about and f"  [{about}]"))
    count = Counter(row.state for row in rows)
    said = ", ".join(f"{n} {state}" for state, n in sorted(count.items()))
    print(f"{counted(len(rows), 'job')}: {said}")


def _print_json(project: Project, rows: list[Row]) -> None:
    """Print the rows as JSON; on stderr, a line for each job whose results cannot be read."""
    plain = [_plain(project, row) for row in rows]
    print(json.dumps(plain, indent=2), flush=True)
    for row in plain:
        if row["problem"]:
            leave(1, f"jobs.py: job {row['id']}: {row['problem']}")


def _plain(project: Project, row: Row) -> dict[str, Any]:
    job, (metrics, problem) = row.job, _metrics(project, row)
    return {
        "id": job.id,
        "state": row.state,
        "about": row.about,
        "ended": iso(row.ended),
        "result": row.result,
        "metrics": metrics,
        "problem": problem,
        "script": job.script,
        "settings": identity(job.folder.settings) if job.folder else job.settings,
        "folder": str(row.folder) if row.folder else None,
    }


def _metrics(project: Project, row: Row) -> tuple[dict[str, float], str]:
    """Test results and those of the best evaluation, as `jobs.py show` has them, and why they could
    not be read; empty if they could."""
    if row.folder:
        attempt = on_disk(row.folder, None)
        return attempt.metrics, attempt.problem
    stored = project.finished_in_store(row.job)
    return results(stored) if stored else {}, ""
