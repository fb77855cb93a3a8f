"""The attempts at jobs: `runs/<job id>/<attempt>/`, one for each version of the code that a job was
run with, named after its fingerprint, so that going back to older code finds its results again.
"""

import dataclasses
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from labjobs import files, layout, locks
from labjobs.cli.parser import parse
from labjobs.errors import JobError, SettingsError
from labjobs.evidence.fingerprint import Fingerprint
from labjobs.job import code_evidence, data_evidence, identity, journal
from labjobs.job.data_evidence import Places
from labjobs.job.journal import record_of
from labjobs.job.runtime import Runtime

S = TypeVar("S")

DIGITS = 8  # digits of a fingerprint in the name of an attempt's folder
GOES_ON = "goes_on"  # in outcome.json: whether a longer job could continue from last.pt
BEGUN = (layout.JOURNAL, layout.LAST)  # an attempt that has begun has one of these files

STAY = (
    *(layout.LOCK, layout.COURIER_LOCK, layout.OUTPUT, layout.LOG, layout.BEFORE),
    layout.DATA_FILES,  # the notes of what has been read
)
"""What stays where it is as an attempt starts over."""


def name(digest: str) -> str:
    """Return the name of the folder of the attempt with this code."""
    return digest[:DIGITS]


def all_of(job: Path) -> list[Path]:
    """Return the folders of a job's attempts that have begun; the last is the one that has last
    logged something."""
    try:
        found = [*filter(begun, job.iterdir())]
    except OSError:  # it does not exist, or we may not read it
        return []
    if len(found) > 1:
        found.sort(key=lambda attempt: (journal.last_time(attempt), attempt.name))
    return found


def begun(attempt: Path) -> bool:
    """Return whether an attempt has left results or something to continue from, as far as we may
    read its folder."""
    return any(os.path.exists(attempt / file) for file in BEGUN)


def status_of(attempt: Path) -> str:
    """Return how an attempt ended; empty if it has not ended, or if the record cannot be read."""
    return str(record_of(attempt, layout.OUTCOME).get("status", ""))


def can_go_on(attempt: Path) -> bool:
    """Return whether an attempt was stopped and has a checkpoint to continue from."""
    stopped = status_of(attempt) not in ("finished", "failed", "diverged")
    return stopped and has_checkpoint(attempt)


def has_checkpoint(attempt: Path) -> bool:
    """Return whether an attempt has a checkpoint, damaged or not."""
    return any((attempt / file).exists() for file in layout.CHECKPOINTS)


def drop_checkpoints(attempt: Path) -> None:
    """Remove the checkpoints of an attempt that has finished, unless a longer job could go on from
    them."""
    outcome = record_of(attempt, layout.OUTCOME)
    if outcome.get("status") == "finished" and not outcome.get(GOES_ON, True):
        for file in layout.CHECKPOINTS:
            (attempt / file).unlink(missing_ok=True)


def left_nothing(attempt: Path) -> bool:
    """Return whether an attempt has begun and ended without results, and cannot be continued."""
    over = begun(attempt) and status_of(attempt) not in ("finished", "diverged")
    return over and not can_go_on(attempt) and not locks.held(attempt / layout.LOCK)


def free(own: Path) -> Path:
    """Return the folder for an attempt with the same code and other data, such as `1f0a3c44-2`."""
    numbered = (own.with_name(f"{own.name}-{number}") for number in count(2))
    return own if not begun(own) else next(each for each in numbered if not begun(each))


def replace(old: Path, new: Path) -> None:
    """Let a new attempt begin in the folder of one that left nothing and does not run."""
    if lock := locks.take(old / layout.LOCK):
        with lock, suppress(OSError):  # another process was first
            old.rename(new)


def put_aside(attempt: Path) -> None:
    """Move the files of an attempt that starts over into a folder of their own; remove them if that
    is there, since it has not finished since it last started over."""
    aside = attempt / layout.BEFORE
    left = [path for path in attempt.iterdir() if not any(map(path.match, STAY))]
    if aside.exists():
        for path in left:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    elif begun(attempt):
        aside.mkdir()
        for path in left:
            path.replace(aside / path.name)


# The jobs that a job is derived from, its inputs: those that its settings of the types JobId and
# Weights name. It depends on their code and data as on its own, so it is stale when they are: their
# code is part of its fingerprint, and the files that they have read count as read by it.

Known = tuple[Any, str]  # the settings and the script of a job

_named: dict[str, Known] = {}
_of_this_job: tuple[set[str], Path] | None = None


def name_input(job_id: str, settings: Any, script: str) -> None:
    """Register a job that may be an input before it has begun, as in a grid."""
    _named[job_id] = settings, script


def begin_with_inputs(settings: Any, runs_root: Path) -> None:
    """From here on, this process runs the job with these settings. Raises as `check_inputs`."""
    global _of_this_job
    check_inputs(settings, runs_root)
    _of_this_job = {*identity.inputs(settings)}, runs_root


def runs_root(otherwise: Path | None = None) -> Path:
    """Return where to look for jobs: in the runs of this process's job, if it has one."""
    return _of_this_job[1] if _of_this_job else otherwise or Runtime().runs_root


def refuse_input(job_id: str, change: str) -> None:
    """Within a job, raise JobError if another job is not one of its inputs, or has changed."""
    if _of_this_job and job_id not in _of_this_job[0]:
        raise JobError(f"job {job_id} is not an input: name it in a setting of type JobId")
    if _of_this_job and change:
        raise JobError(f"input {job_id} is from other code or data ({change})")


def check_inputs(settings: Any, runs_root: Path, coming: Collection[str] = ()) -> None:
    """Raise SettingsError if an input is not a job, JobError if it has not finished with the
    present code and data; jobs that are `coming` are not checked."""
    for job, flag in identity.inputs(settings).items():
        if job in coming:
            continue
        try:
            if not settings_of(job, runs_root):
                here = f"there is no such job in {files.shown(runs_root)}"
                raise SettingsError(f"{here}; `python jobs.py list` shows all, also elsewhere")
        except SettingsError as error:
            raise SettingsError(f"{flag} {job}: {error}") from None
        if problem := _problem(job, runs_root):
            raise JobError(f"cannot start: its input {job} {problem}")


def _problem(job: str, runs_root: Path) -> str:
    """Why a job cannot be an input at the moment, in a few words; empty if it can."""
    if finished_at(job, runs_root):
        return ""
    found = all_of(runs_root / job)
    if not found:
        return "has not begun"
    if change := evidence_of(job, found[-1], runs_root).change:
        return f"is stale ({change})"
    running = locks.held(found[-1] / layout.LOCK)
    return f"has not finished ({'running' if running else status_of(found[-1]) or 'interrupted'})"


def inputs_first(jobs: Mapping[str, Any]) -> list[str]:
    """Return the ids of jobs, from their settings: inputs before the jobs derived from them."""

    def depth(job: str) -> int:
        return max((1 + depth(i) for i in identity.inputs(jobs[job]) if i in jobs), default=0)

    return sorted(jobs, key=depth)


def inputs_of(settings: Any, runs_root: Path) -> list[Path]:
    """Return the folders of the inputs' attempts whose results count."""
    found = (finished_at(job, runs_root) for job in identity.inputs(settings))
    return [path for path in found if path]


def was_measured(attempt: Path) -> bool:
    """Return whether `find` has run an attempt, as the first lines of its journal say."""
    with suppress(OSError), (attempt / layout.JOURNAL).open("rb") as file:
        return f'"{identity.TAG}": "find '.encode() in file.read(65_536)
    return False


def with_ancestors(attempt: Path) -> Iterator[Path]:
    """Yield the folder of an attempt, and those of the attempts that it was derived from."""
    yield attempt
    for job, name in record_of(attempt, layout.SETTINGS).get("inputs", {}).items():
        yield from with_ancestors(attempt.parents[1] / job / name)


def finished_at(job: str, runs_root: Path) -> Path | None:
    """Return the folder of the last finished attempt at a job with the present code and data."""
    finished = (path for path in all_of(runs_root / job)[::-1] if status_of(path) == "finished")
    return next((p for p in finished if not evidence_of(job, p, runs_root).change), None)


class Evidence(NamedTuple):
    """Whether results are those of the present code and data: how these have changed since, in a
    few words; or else why that cannot be told: then the results count, and whatever uses them says
    so. All are empty if they are."""

    code: str = ""
    data: str = ""
    unchecked: str = ""

    @property
    def change(self) -> str:
        """How the code, or else the data, has changed."""
        return self.code or self.data

    @property
    def changed(self) -> str:
        """Which of them has changed: `code` or `data`."""
        return "code" if self.code or not self.data else "data"

    @property
    def remark(self) -> str:
        """What is said of results that are used, or shown, nevertheless."""
        return f"from other code or data ({self.change})" if self.change else self.unchecked


def compare(
    attempt: Path, code: Fingerprint, places: Places, tags: Mapping[str, str] | None = None
) -> Evidence:
    """Compare an attempt with the present code and data. This alone answers whether results count.
    With the tags of its run in the store, its records need not be on this disk."""
    if tags is None:
        change = code_evidence.difference(attempt, code)
    else:
        fits = code_evidence.fits(tags.get("code", ""), code)
        change = "" if fits else "its record is in another folder"
    if change:
        return Evidence(code=change)
    read = None if tags is None else tags.get("data", "")
    data, why = data_evidence.compare(attempt, places, read)
    unchecked = f"not all data was checked: {why}" if why and not data else ""
    return Evidence(data=data, unchecked=unchecked)


def evidence_of(job: str, attempt: Path, runs_root: Path) -> Evidence:
    """Compare an attempt at a job with the present code and data."""
    if not (known := settings_of(job, runs_root)):
        return Evidence(unchecked=f"neither code nor data was checked: no {layout.SETTINGS}")
    places = data_evidence.last_places(attempt)
    return compare(attempt, present_code(*known, runs_root), places)


def settings_of(job: str, runs_root: Path) -> Known | None:
    """Return the settings and the script of a job; None if it has not begun. Raises SettingsError
    if today's settings cannot say the same."""
    if job in _named:
        return _named[job]
    for attempt in reversed(all_of(runs_root / job)):
        if about := record_of(attempt, layout.SETTINGS):
            kind = identity.read(about["script"]).settings
            return identity.restore(kind, about["settings"]), about["script"]
    return None


def read(kind: type[S], script: str, words: Sequence[str]) -> tuple[S, Runtime]:
    """Return the settings and the engine's flags that a script's command line gives; with --like,
    that job's settings with the command's on top. Raises SettingsError if one is wrong."""

    def like(job: str, runs: Path) -> dict[str, Any]:
        """Return the settings in which a job differs from the defaults. Raises SettingsError."""
        try:
            known = settings_of(job, runs)
        except SettingsError as error:
            raise SettingsError(f"--like {job}: {error}") from None
        if not known or known[1] != script:
            line = f"--like {job}: there is no such job of {script}.py in {files.shown(runs)}"
            raise SettingsError(line)
        return {name: getattr(known[0], name) for name in identity.changed(known[0])}

    settings, runtime = parse(kind, Runtime, words, like)
    return settings, dataclasses.replace(runtime, like=None)  # the settings say it all


def present_code(settings: Any, script: str, runs_root: Path) -> Fingerprint:
    """Return the fingerprint of the code as it is, for a job with these settings."""
    digests = {str(job): _digest(job, runs_root) for job in identity.inputs(settings)}
    return code_evidence.present(settings, script, digests)


def _digest(job: str, runs_root: Path) -> str:
    """The digest of an input's present code, or of the oldest code accepted as the same; REMOVED if
    there is no such job any more."""
    try:
        known = settings_of(job, runs_root)
    except SettingsError:
        return "unknown"
    if not known:
        return code_evidence.REMOVED
    found = present_code(*known, runs_root)
    for attempt in all_of(runs_root / job)[-1:]:
        found = code_evidence.present_as_in(attempt, found)
    return code_evidence.oldest(found.digest)
