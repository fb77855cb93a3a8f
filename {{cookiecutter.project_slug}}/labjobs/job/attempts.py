"""The attempts at a job: `runs/<job id>/<attempt>/`, one for each version of the code that the job
was run with.

An attempt's folder is named after the first digits of its code's fingerprint, so going back to
older code finds its results again.
"""

import os
import shutil
from contextlib import suppress
from itertools import count
from pathlib import Path

from labjobs import layout, locks
from labjobs.job import journal, reads

DIGITS = 8
"""Digits of a fingerprint in the name of an attempt's folder."""

GOES_ON = "goes_on"
"""The field of this record that says whether a longer job could continue from the last
checkpoint."""

BEGUN = (layout.JOURNAL, layout.LAST)
"""An attempt that has begun has one of these files."""

STAY = ("lock", layout.COURIER_LOCK, layout.OUTPUT, layout.LOG, layout.BEFORE)
"""What --force leaves where it is, with the files of reads.py."""


def name(digest: str) -> str:
    """Return the name of the folder of the attempt with this code."""
    return digest[:DIGITS]


def all_of(job: Path) -> list[Path]:
    """Return the folders of a job's attempts that have begun; the last is the one last written."""
    try:
        found = [path for path in job.iterdir() if begun(path)]
    except OSError:  # it does not exist, or we may not read it
        return []
    return sorted(found, key=_last_changed)


def begun(attempt: Path) -> bool:
    """Whether an attempt has left results or something to continue from; false if we may not read
    its folder.
    """
    return any(os.path.exists(attempt / file) for file in BEGUN)


def status_of(attempt: Path) -> str:
    """Return how an attempt ended; empty if it has not ended, or if the record cannot be read."""
    return str(journal.record_of(attempt, layout.OUTCOME).get("status", ""))


def can_go_on(attempt: Path) -> bool:
    """Whether an attempt was stopped and has a checkpoint to continue from."""
    stopped = status_of(attempt) not in ("finished", "failed", "diverged")
    return stopped and has_checkpoint(attempt)


def has_checkpoint(attempt: Path) -> bool:
    """Whether an attempt has a checkpoint, damaged or not."""
    return any((attempt / file).exists() for file in layout.CHECKPOINTS)


def drop_checkpoints(attempt: Path) -> None:
    """Remove the checkpoints of a finished attempt, unless a longer job could continue from them.

    Call this only for attempts whose results are in the store: others need their last checkpoint to
    repair a journal that is damaged later.
    """
    if not journal.record_of(attempt, layout.TRAINED).get(GOES_ON, True):
        for file in layout.CHECKPOINTS:
            (attempt / file).unlink(missing_ok=True)
        for folder in attempt.glob(f"{layout.SHARDS}*"):
            shutil.rmtree(folder)


def free(own: Path) -> Path:
    """Return the folder for an attempt with data that differs from that of earlier attempts with
    the same code: `1f0a3c44`, `1f0a3c44-2`, …"""
    numbered = (own.with_name(f"{own.name}-{number}") for number in count(2))
    return own if not begun(own) else next(each for each in numbered if not begun(each))


def replace(old: Path, new: Path) -> None:
    """Let a new attempt begin in the folder of one that left nothing, unless that one is
    running."""
    lock = locks.take(old / layout.LOCK)
    if lock is None:
        return
    with lock, suppress(OSError):  # another process was first
        old.rename(new)


def put_aside(attempt: Path) -> None:
    """Move the files of an attempt that starts over into a folder of their own; remove them if it
    already started over before and has not finished since."""
    aside = attempt / layout.BEFORE
    left = [p for p in attempt.iterdir() if p.name not in STAY and not reads.are_in(p)]
    if aside.exists():
        for path in left:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return
    if begun(attempt):
        aside.mkdir()
        for path in left:
            path.replace(aside / path.name)


def _last_changed(attempt: Path) -> int:
    files = (attempt / file for file in BEGUN)
    return max(file.stat().st_mtime_ns for file in files if file.exists())
