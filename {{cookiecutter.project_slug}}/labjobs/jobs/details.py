"""`python jobs.py show JOB`: all there is to know of one job."""

import json
from typing import Any

from labjobs.cli import flags
from labjobs.cli.values import as_plain, as_text
from labjobs.job.attempts import name as attempt_name
from labjobs.job.identity import as_command, identity
from labjobs.job.terminal import as_line
from labjobs.jobs.attempt import Attempt, in_store, local, on_disk
from labjobs.jobs.project import Job, Project
from labjobs.paths import shown


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
