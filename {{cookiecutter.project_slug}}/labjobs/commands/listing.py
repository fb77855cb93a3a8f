"""`python jobs.py list`: a line for each job of the project."""

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from labjobs import exit_status, layout
from labjobs.cli import flags
from labjobs.cli.flags import as_plain, as_text
from labjobs.commands.inventory import (
    Attempt,
    Job,
    Project,
    in_store,
    iso,
    last_logged,
    local,
    on_disk,
    results,
)
from labjobs.errors import SettingsError, did_you_mean
from labjobs.files import shown
from labjobs.job import journal
from labjobs.job.attempts import name as attempt_name
from labjobs.job.identity import as_command, identity
from labjobs.job.terminal import as_line, counted, leave

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
    outcome = journal.record_of(latest, layout.OUTCOME) if latest else {}
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
            leave(exit_status.FAILED, f"jobs.py: job {row['id']}: {row['problem']}")


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


# `python jobs.py show JOB`: all there is to know of one job.


def print_details(project: Project, job: Job, as_json: bool) -> int:
    """Print a job's settings, its attempts, and the command that runs it; returns 0."""
    state, about, _ = job.state(project.view)
    attempts = attempts_of(job)
    if as_json:
        content = {
            "id": job.id,
            "state": state,
            "about": about,
            "script": job.script,
            "settings": _settings(job),
            "command": command(job),
            "problem": job.problem,
            "attempts": [attempt.as_plain() for attempt in attempts],
        }
        print(json.dumps(content, indent=2))
        return 0
    print(f"job {job.id}: {state}" + (about and f" ({about})"))
    print(f"command: {command(job) or f'none ({job.problem})'}\n")
    if job.settings:
        _print_settings(job)
    for attempt in attempts:
        _print_attempt(attempt)
    return 0


def attempts_of(job: Job) -> list[Attempt]:
    """Return the attempts at a job, the last one last."""
    found = [on_disk(path, job.folder) for path in job.attempts]
    here = {attempt.code for attempt in found}
    found += [
        in_store(stored, job.folder)
        for stored in job.stored
        if stored["tags"].get("code", "") not in here
    ]
    return sorted(found, key=lambda attempt: attempt.ended)


def command(job: Job) -> str:
    """Return the command line that runs the job; empty if today's settings cannot express it."""
    return as_command(job.folder.settings, job.script) if job.folder else ""


def _settings(job: Job) -> dict[str, Any]:
    return identity(job.folder.settings) if job.folder else job.settings


def _print_settings(job: Job) -> None:
    """A line for each setting, with its default if the value differs from it."""
    settings = _settings(job)
    known = flags.of(type(job.folder.settings)) if job.folder else {}
    defaults = {name: as_plain(flag.default) for name, flag in known.items() if not flag.required}
    print("settings")
    width = max(map(len, settings), default=0)
    for name, value in settings.items():
        default = defaults.get(name, value)
        usual = f"  (default: {as_text(default) or 'empty'})" if value != default else ""
        print(f"  {name:{width}}  {as_text(value)}{usual}".rstrip())


def _print_attempt(attempt: Attempt) -> None:
    name = attempt.folder.name if attempt.folder else attempt_name(attempt.code) or "without code"
    other_code = f"with other code or data ({attempt.change})"
    fits = other_code if attempt.change else "with the present code and data"
    print(f"\nattempt {name}: {attempt.state}, {fits}")
    tags = attempt.tags
    commit = tags.get("commit", "")
    if commit not in ("", "none") and tags.get("dirty") == "true":
        commit += ", with changes"
    tested = {k: v for k, v in attempt.metrics.items() if k.startswith("test_")}
    best = {k: v for k, v in attempt.metrics.items() if k.startswith("best_")}
    others = {k: v for k, v in attempt.metrics.items() if k not in tested | best}
    lines = {
        "until" if attempt.state == "running" else "ended": local(attempt.ended),
        "said": "" if attempt.state == "finished" else attempt.said,
        "result": as_line(others),
        "test": as_line(tested),
        "validation": as_line(best),
        "inputs": tags.get("inputs", ""),
        "cost": as_line(attempt.cost),
        "host": tags.get("host", ""),
        "device": tags.get("device", ""),
        "processes": tags.get("processes", ""),
        "commit": commit,
        "data root": attempt.data_root,
        "folder": shown(attempt.folder) if attempt.folder else "",
        "code copy": attempt.code_copy,
        "installed": attempt.installed,
        "split": attempt.split,
        "MLflow run": attempt.run_id,
        "problem": attempt.problem,
    }
    for what, text in lines.items():
        if text:
            print(f"  {what:10}  {text}")
