"""Whether stored results are from the present code, and of which attempt a job's row in a table is.

A job whose code is not known, as of one that was stored by other means, counts as fresh.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

from engine.errors import SettingsError
from engine.job import code, data
from engine.job.identity import restore
from engine.paths import PROJECT
from engine.tracking.stored_jobs import StoredJob

WORDS = {"True": True, "False": False, "None": None}


def chosen(
    attempts: Sequence[StoredJob], kind: type[Any] | None
) -> tuple[list[StoredJob], set[str]]:
    """Return one attempt of each job, and the ids of those runs that are from other code or data
    than the present.

    With the class of the project's settings it is the attempt with the present code and data, where
    there is one; else, and without that class, the last one.
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


def _present(job: StoredJob, kind: type[Any]) -> set[str | None]:
    """The digests that count as the present code's for a job, and None; None alone if today's
    settings cannot say the job's."""
    stored = {name: value(text) for name, text in job["params"].items()}
    with suppress(SettingsError):
        present = code.present(restore(kind, stored), job["tags"].get("script", "run"))
        return {None, *code.same(present)}
    return {None}


def _is_fresh(tags: Mapping[str, str], codes: set[str | None]) -> bool:
    """Whether an attempt has one of these codes, and the present data as far as that is known."""
    if tags.get("code") not in codes or not tags.get("data"):
        return tags.get("code") in codes
    written = Path(tags.get("job_folder", ""))
    moved = PROJECT / "runs" / written.parent.name / written.name
    folder = moved if moved.exists() else written
    return not data.difference(folder, data.last_places(folder))


def value(text: str) -> Any:
    """Return a setting as it was before it was stored as text."""
    if text in WORDS:
        return WORDS[text]
    for number in (int, float):
        with suppress(ValueError):
            if repr(number(text)) == text != "nan":  # words may look like numbers: 01, 1_000
                return number(text)
    return text
