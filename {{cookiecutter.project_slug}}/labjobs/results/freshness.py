"""Whether stored results come from the present code, and which attempt a job's row in a table
shows. A job whose code is not known, for example because it was stored by other means, counts as
fresh.
"""

from ast import literal_eval
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

from labjobs.cli.values import as_text
from labjobs.errors import SettingsError
from labjobs.evidence import Fingerprint
from labjobs.job import code, data, inputs, scripts
from labjobs.job.identity import restore
from labjobs.tracking.stored_jobs import StoredJob, folder_of

WORDS = {"True": True, "False": False, "None": None}


def chosen(
    attempts: Sequence[StoredJob], kind: type[Any] | None
) -> tuple[list[StoredJob], set[str]]:
    """Return one attempt of each job, and the ids of those runs whose code or data differs from the
    present. With the class of the project's settings, it is the attempt with the present code and
    data, if there is one; otherwise, it is the latest.
    """
    found, stale = [], set()
    for _, of_job in groupby(attempts, key=lambda attempt: attempt["job_id"]):
        *_, last = each = list(of_job)
        if kind:
            present = _present(last, kind)
            fresh = [one for one in each if _is_fresh(one["tags"], present)]
            if not fresh:
                stale.add(last["run_id"])
            each = fresh or each
        found.append(each[-1])
    return found, stale


def name_all(attempts: Iterable[StoredJob]) -> None:
    """Register all jobs, since any of them may be an input of others, even if it is not on this
    disk."""
    for job_id, job in {attempt["job_id"]: attempt for attempt in attempts}.items():
        with suppress(SettingsError, ValueError):  # settings of older code; a rule in __post_init__
            kind = scripts.read(script_of(job)).settings
            inputs.name(job_id, _settings(job, kind), script_of(job))


def script_of(job: StoredJob) -> str:
    """Return the name of a job's script."""
    return job["tags"].get("script", scripts.DEFAULT)


def _present(job: StoredJob, kind: type[Any]) -> Fingerprint | None:
    """The present code of a job; None if today's settings cannot express the job."""
    with suppress(SettingsError):
        runs_root = folder_of(job["tags"].get("job_folder", "")).parent.parent
        return inputs.present(_settings(job, kind), script_of(job), runs_root)
    return None


def _settings(job: StoredJob, kind: type[Any]) -> Any:
    return restore(kind, {name: value(text) for name, text in job["params"].items()})


def _is_fresh(tags: Mapping[str, str], present: Fingerprint | None) -> bool:
    """Whether an attempt has the present code and data, if they are known."""
    known = tags.get("code")
    if known and not (present and code.fits(known, present)):
        return False
    if not tags.get("data"):
        return True
    folder = folder_of(tags.get("job_folder", ""))
    return not data.difference(folder, data.last_places(folder))


def value(text: str) -> Any:
    """Return a setting as it was before it was stored as text; several values as the flag has them,
    `1,2`."""
    if text in WORDS:
        return WORDS[text]
    if text.startswith("[") and text.endswith("]"):
        with suppress(ValueError, SyntaxError):
            return as_text(literal_eval(text))
    for number in (int, float):
        with suppress(ValueError):
            if repr(number(text)) == text != "nan":  # words may look like numbers: 01, 1_000
                return number(text)
    return text
