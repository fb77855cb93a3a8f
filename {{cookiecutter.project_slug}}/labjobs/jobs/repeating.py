"""`repeat`: does the stored code of jobs still give the same results, bit for bit?"""

import argparse
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from labjobs.errors import JobError, SettingsError, cause
from labjobs.job import attempts
from labjobs.job.interruption import Interrupted, Interruption
from labjobs.job.terminal import counted, leave
from labjobs.jobs.project import Job, Project
from labjobs.repeating import again
from labjobs.repeating.again import Repeated
from labjobs.repeating.recorded import Recorded
from labjobs.repeating.workplace import Workplace
from labjobs.results import provenance

VERSIONS = ("recorded", "present")
"""The versions of Python and of packages to use, the default first."""

ARGUMENTS: dict[str, dict[str, Any]] = {
    "what": {
        "help": "a job's id or the beginning of one, or a figure, for all of its jobs",
        "metavar": "JOB|FIGURE",
        "nargs": "+",
    },
    "--versions": {
        "help": "versions of Python and of all packages: recorded (default; uv installs them in a "
        "temporary environment) or present",
        "metavar": "WHICH",
        "choices": VERSIONS,
        "default": VERSIONS[0],
    },
}
"""The arguments of the command, as in command.py."""


def repeat(project: Project, given: argparse.Namespace) -> int:
    """Repeat jobs and print the outcome of each; return the exit status, 0 if all are the same.

    Raises SettingsError if a job or a figure does not exist.
    """
    jobs = _named(project, given.what)
    quiet = given.json
    found: dict[str, Repeated] = {}
    try:
        Interruption().listen()
        with Workplace(given.versions == VERSIONS[0]) as workplace:
            for job_id, job in jobs.items():
                if not quiet:
                    print(f"repeating job {job_id}: {job.words if job else ''}", flush=True)
                found[job_id] = _repeated(job, workplace)
                if not quiet:
                    _say(job_id, found[job_id])
    except Interrupted as stop:
        return leave(128 + stop.number, f"jobs.py: repeat was interrupted {stop}; nothing is left")
    if quiet:
        print(json.dumps({"versions": given.versions, "jobs": [*_plain(found)]}, indent=2))
    else:
        _sum_up(found.values(), given.versions)
    return 0 if all(each.status == "same" for each in found.values()) else 1


def _named(project: Project, words: Iterable[str]) -> dict[str, Job | None]:
    """The jobs, by id; None for a job of a figure that is not here."""
    found: dict[str, Job | None] = {}
    for word in words:
        path = Path(word)
        if not path.suffix and not path.is_file():
            job = project.one(word)
            found[job.id] = job
            continue
        for job_id in _jobs_of(path):
            try:
                found[job_id] = project.one(job_id)
            except SettingsError:
                found[job_id] = None
    return found


def _jobs_of(figure: Path) -> list[str]:
    """The ids of the jobs of a figure. Raises SettingsError if it does not name any."""
    if not figure.is_file():
        raise SettingsError(f"{figure}: there is no such figure")
    try:
        found = provenance.read(figure).get("jobs", [])
    except (OSError, SettingsError):
        found = []
    if not found:
        raise SettingsError(f"{figure} does not say which jobs it shows; draw it with plot.py")
    return [str(job_id) for job_id in found]


def _repeated(job: Job | None, workplace: Workplace) -> Repeated:
    try:
        return again.repeat(_attempt(job), workplace)
    except (JobError, OSError) as error:
        return Repeated("not repeated", cause(error))


def _attempt(job: Job | None) -> Recorded:
    """The finished attempt that counts: the one with the present code, or else the latest."""
    if not job or not job.attempts:
        raise JobError("it has not run in this folder of runs")
    finished = [path for path in job.attempts if attempts.status(path) == "finished"]
    if not finished:
        raise JobError("it has not finished")
    present = [path for path in finished if job.folder and path == job.folder.path]
    return Recorded([*finished, *present][-1])


def _say(job_id: str, repeated: Repeated) -> None:
    match repeated.status:
        case "same":
            counted = ", ".join(f"{n} {what}" for what, n in repeated.compared.items())
            print(f"job {job_id}: the same bits ({counted})")
        case "different":
            print(f"job {job_id}: different: {repeated.difference}")
        case _:
            print(f"job {job_id}: could not be repeated: {repeated.reason}")
    for name, text in repeated.conditions.items():
        print(f"  {name}: {text}")


def _sum_up(found: Iterable[Repeated], versions: str) -> None:
    counts = Counter(each.status for each in found)
    said = ", ".join(f"{counts[word]} {word}" for word in ("same", "different", "not repeated"))
    print(f"{counted(counts.total(), 'job')} with the {versions} versions: {said}")


def _plain(found: dict[str, Repeated]) -> Iterable[dict[str, Any]]:
    for job_id, repeated in found.items():
        difference = repeated.difference._asdict() if repeated.difference else None
        yield {"job": job_id} | asdict(repeated) | {"difference": difference}
