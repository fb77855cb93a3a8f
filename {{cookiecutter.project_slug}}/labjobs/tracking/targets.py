"""The targets of couriers: the tracking store, which says what has run, and copies of its data."""

from pathlib import Path

from labjobs.job import attempts
from labjobs.tracking.delivery import delivered
from labjobs.tracking.parquet import ParquetFiles
from labjobs.tracking.store import Run
from labjobs.tracking.target import Target

TARGETS: tuple[type[Target], ...] = (Run, ParquetFiles)
"""The store, which is always in use, comes first."""


def in_use() -> list[type[Target]]:
    """Return the targets that the environment names."""
    return [kind for kind in TARGETS if kind.place()]


def check() -> None:
    """Raise SettingsError if one of them cannot be used."""
    for kind in TARGETS:
        kind.check()


def all_have(folder: Path) -> bool:
    """Whether each target is known to have everything of an attempt."""
    return all(delivered(folder, kind) for kind in in_use())


def copies_lack(folder: Path) -> bool:
    """Whether a target other than the store lacks a part of a finished attempt on this disk."""
    copies = in_use()[1:]
    finished = bool(copies) and attempts.status(folder) == "finished"
    return finished and not all(delivered(folder, kind) for kind in copies)
