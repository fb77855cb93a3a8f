"""Whether stored results are from the present code, and of which attempt a job's row in a table is.

A job whose code is not known, as of one that was stored by other means, counts as fresh.
"""

from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

from engine.errors import SettingsError
from engine.job import code
from engine.job.identity import restore
from engine.tracking.stored_jobs import StoredJob

WORDS = {"True": True, "False": False, "None": None}


def chosen(
    attempts: Sequence[StoredJob], kind: type[Any] | None
) -> tuple[list[StoredJob], set[str]]:
    """Return one attempt of each job, and the ids of those runs that are from other code than the
    present.

    With the class of the project's settings it is the attempt with the present code, where there is
    one; else, and without that class, the last one.
    """
    found, stale = [], set()
    for _, of_job in groupby(attempts, key=lambda attempt: attempt["job_id"]):
        *_, last = each = list(of_job)
        if kind:
            present = _present(last, kind)
            fresh = [one for one in each if one["tags"].get("code") in present]
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


def value(text: str) -> Any:
    """Return a setting as it was before it was stored as text."""
    if text in WORDS:
        return WORDS[text]
    for number in (int, float):
        with suppress(ValueError):
            if repr(number(text)) == text != "nan":  # words may look like numbers: 01, 1_000
                return number(text)
    return text
