"""`accept`: makes stale jobs count again if the present code would give the same results."""

import getpass
import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from labjobs.errors import JobError, SettingsError
from labjobs.evidence import Fingerprint
from labjobs.job import acceptance, code
from labjobs.job.acceptance import Change, Hashes
from labjobs.job.folder import JobFolder
from labjobs.job.identity import inputs
from labjobs.job.terminal import counted, leave
from labjobs.jobs import replay
from labjobs.jobs.project import Job, Project
from labjobs.paths import CODE

Changes = tuple[tuple[Hashes, Hashes], ...]


def accept(project: Project, because: str, verify: bool) -> int:
    """Accept that the changes in the code of stale jobs do not change results; return the exit
    status. With `verify`, one job for each set of changes is replayed first. Changes that give
    different bits are not accepted, and the status is 1. Raises SettingsError without a reason.
    """
    if not because.strip():
        raise SettingsError("--because: say why results do not change")
    stale = [job for job in project.all() if job.state(project.view).word == "stale"]
    stale = [job for job in stale if not _is_by_inputs(job)]
    known = [job.folder for job in stale if job.folder and job.latest and code.parts(job.latest)]
    if not stale:
        print("no job is stale")
    if len(known) < len(stale):
        left_out = counted(len(stale) - len(known), "job")
        leave(1, f"{left_out} left out: the engine does not know what has changed")
    accepted = _verified(known) if verify else known
    if accepted:
        names = Counter(name for job in accepted for name in _names(job))
        for alike in _by_depth(accepted):
            _write(alike, because, verify)
        _say(names, len(accepted), verify)
    return 0 if len(accepted) == len(stale) else 1


def _is_by_inputs(job: Job) -> bool:
    """Whether a job is stale only because its inputs are, so that it counts again when they do."""
    if not (job.folder and job.latest):
        return False
    names = code.changed(job.latest, job.folder.code)
    return bool(names) and all(map(_is_input, names))


def _verified(stale: Sequence[JobFolder[Any]]) -> list[JobFolder[Any]]:
    """The jobs whose changes give the same bits, judging by one job of each kind."""
    alike: dict[str, list[JobFolder[Any]]] = {}
    for job in stale:
        alike.setdefault(repr(_changes(job)), []).append(job)
    verified = []
    for jobs in alike.values():
        replayed = next((job for job in jobs if not inputs(job.settings)), jobs[0])
        if problem := _problem(replayed):
            leave(1, f"not accepted for {counted(len(jobs), 'job')}: job {replayed.id}: {problem}")
        else:
            verified += jobs
    return verified


def _by_depth(jobs: Sequence[JobFolder[Any]]) -> Iterator[list[JobFolder[Any]]]:
    """Yield groups of jobs, inputs before the jobs derived from them: accepting an input changes
    the code that the derived jobs are compared with."""
    left = list(jobs)
    while left:
        ids = {job.id for job in left}
        ready = [job for job in left if not ids & inputs(job.settings).keys()]
        for job in ready:
            vars(job).pop("code", None)  # the state before the last changes were accepted
        yield ready
        left = [job for job in left if job not in ready]


def _write(accepted: Sequence[JobFolder[Any]], because: str, verified: bool) -> None:
    """Write down the changes."""
    changes = {repr(change): change for job in accepted for change in _changes(job)}
    today = datetime.now(UTC).date().isoformat()
    acceptance.accept(
        [Change(*change, because, _user(), today, verified) for change in changes.values()],
        {(code.digest(job.latest), _present(job).digest) for job in accepted if job.latest},
        CODE,
    )


def _say(names: Counter[str], count: int, verified: bool) -> None:
    """Print the accepted definitions, each with its number of jobs."""
    how = "replayed with the same bits" if verified else "not verified"
    for name, n in sorted(names.items()):
        print(f"accepted: {name}, of {counted(n, 'job')} ({how})")
    print(f"no longer stale: {counted(count, 'job')}; commit {acceptance.FILE} with the change")


def _changes(job: JobFolder[Any]) -> Changes:
    """The definitions of a job's code before and after, without those that only its inputs have."""
    assert job.latest
    parts, present = code.parts(job.latest), _present(job)
    before = {part["label"]: part["hash"] for name, part in parts.items() if not _is_input(name)}
    after = {
        present.labels[name]: found for name, found in present.parts.items() if not _is_input(name)
    }
    return tuple(acceptance.between(before, after))


def _is_input(part: str) -> bool:
    return part.startswith(f"{code.INPUT}:")


def _present(job: JobFolder[Any]) -> Fingerprint:
    """The present code of a job, widened like the code of its latest attempt."""
    assert job.latest
    return code.present_as_in(job.latest, job.code)


def _problem(job: JobFolder[Any]) -> str:
    print(f"replaying the first steps of job {job.id}: {job.name}", flush=True)
    try:
        return replay.difference(job)
    except (JobError, OSError) as error:
        return f"cannot be replayed: {error}"


def _names(job: JobFolder[Any]) -> list[str]:
    """The names of the definitions that have changed."""
    return (
        [code.in_python(name) for name in code.changed(job.latest, job.code)] if job.latest else []
    )


def _user() -> str:
    """The person who accepts: git's user, or else the system's."""
    words = ["git", "config", "user.name"]
    try:
        named = subprocess.run(words, cwd=CODE, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        named = ""
    return named or getpass.getuser() or str(os.getuid())
