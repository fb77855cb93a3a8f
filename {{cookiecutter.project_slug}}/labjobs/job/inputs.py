"""The jobs that a job is derived from, its inputs: those that its settings of the types JobId and
Weights name.

A derived job depends on the code and the data of its inputs as on its own, so it is stale when they
are. Their code is part of its fingerprint, and the files that they have read count as read by it.
"""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from labjobs import layout, locks
from labjobs.errors import JobError, SettingsError
from labjobs.evidence.fingerprint import Fingerprint
from labjobs.job import attempts, code_evidence, data_evidence, identity, journal
from labjobs.job.runtime import Runtime

UNKNOWN = "unknown"
"""Takes the place of a digest if a job does not exist."""

Known = tuple[Any, str]
"""The settings and the script of a job."""

_named: dict[str, Known] = {}
_of_this_job: tuple[set[str], Path] | None = None


def input_name(job_id: str, settings: Any, script: str) -> None:
    """Register a job that may be an input before it has begun, as in a grid."""
    _named[job_id] = settings, script


def begin(settings: Any, runs_root: Path) -> None:
    """From here on, this process runs the job with these settings; raises the same errors as
    `check`."""
    global _of_this_job
    check(settings, runs_root)
    _of_this_job = {*identity.inputs(settings)}, runs_root


def runs_root(otherwise: Path | None = None) -> Path:
    """Return where to look for jobs: in the runs of this process's job, if it has one."""
    return _of_this_job[1] if _of_this_job else otherwise or Runtime().runs_root


def refuse(job_id: str, change: str) -> None:
    """Within a job, raise JobError if another job is not one of its inputs, or has changed."""
    if _of_this_job and job_id not in _of_this_job[0]:
        raise JobError(f"job {job_id} is not an input: name it in a setting of type JobId")
    if _of_this_job and change:
        raise JobError(f"input {job_id} is from {change}")


def present(settings: Any, script: str, runs_root: Path) -> Fingerprint:
    """Return the fingerprint of the code as it is, for a job with these settings."""
    digests = {str(job): _digest(job, runs_root) for job in identity.inputs(settings)}
    return code_evidence.present(settings, script, digests)


def check(settings: Any, runs_root: Path, coming: Collection[str] = ()) -> None:
    """Raise SettingsError if an input is not a job, JobError if it has not finished with the
    present code and data; jobs that are `coming` are not checked."""
    for job, flag in identity.inputs(settings).items():
        if job in coming:
            continue
        try:
            known = settings_of(job, runs_root)
        except SettingsError as error:
            raise SettingsError(f"{flag} {job}: {error}") from None
        if not known:
            line = "there is no such job; `python jobs.py list` shows all"
            raise SettingsError(f"{flag} {job}: {line}")
        if problem := _problem(job, runs_root):
            raise JobError(f"cannot start: its input {job} {problem}")


def attempts_at(settings: Any, runs_root: Path) -> list[Path]:
    """Return the folders of the inputs' attempts whose results count."""
    found = (attempt_at(job, runs_root) for job in identity.inputs(settings))
    return [path for path in found if path]


def attempt_at(job: str, runs_root: Path) -> Path | None:
    """Return the folder of the finished attempt at a job with the present code and data; None if
    there is none."""
    *_, found = None, *_finished(_fitting(job, runs_root))
    return found


def _digest(job: str, runs_root: Path) -> str:
    """The digest of an input's present code, or of the oldest code that was accepted as the
    same."""
    try:
        known = settings_of(job, runs_root)
    except SettingsError:
        known = None
    if not known:
        return UNKNOWN
    found = present(*known, runs_root)
    for attempt in attempts.all_of(runs_root / job)[-1:]:
        found = code_evidence.present_as_in(attempt, found)
    return code_evidence.accepted().oldest_code(found.digest)


def settings_of(job: str, runs_root: Path) -> Known | None:
    """Return the settings and the script of a job; None if it has not begun.

    Raises SettingsError if today's settings cannot say the same.
    """
    if job in _named:
        return _named[job]
    for attempt in reversed(attempts.all_of(runs_root / job)):
        if about := journal.record_of(attempt, layout.SETTINGS):
            kind = identity.read(about["script"]).settings
            try:
                return identity.restore(kind, about["settings"]), about["script"]
            except ValueError as error:  # a rule in __post_init__
                raise SettingsError(str(error)) from error
    return None


def _problem(job: str, runs_root: Path) -> str:
    """Why a job cannot be an input at the moment, in a few words; empty if it can."""
    fitting, found = _fitting(job, runs_root), attempts.all_of(runs_root / job)
    if any(_finished(fitting)):
        return ""
    if fitting:
        runs = locks.held(fitting[-1] / layout.LOCK)
        status = "running" if runs else attempts.status_of(fitting[-1]) or "interrupted"
        return f"has not finished ({status})"
    return f"is stale ({_change(job, found[-1], runs_root)})" if found else "has not begun"


def _finished(found: list[Path]) -> Iterator[Path]:
    return (path for path in found if attempts.status_of(path) == "finished")


def _fitting(job: str, runs_root: Path) -> list[Path]:
    """The attempts at a job with the present code and data; the last one last."""
    found = attempts.all_of(runs_root / job)
    return [path for path in found if not _change(job, path, runs_root)]


def _change(job: str, attempt: Path, runs_root: Path) -> str:
    """How the code or the data has changed since an attempt at a job."""
    known = settings_of(job, runs_root)
    changed = code_evidence.difference(attempt, present(*known, runs_root)) if known else ""
    return changed or data_evidence.difference(attempt, data_evidence.last_places(attempt))
