"""The code that a sweep runs is the code that it was started with: a copy in the sweep's folder.

What is large is linked, not copied, and so are files that may hold secrets; the copy is for its
owner alone.
"""

import fcntl
import json
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from engine import locks, privacy
from engine.errors import SettingsError, cause
from engine.job import code_files, provenance
from engine.paths import PROJECT
from engine.sweeps import slurm

LARGEST = 10_000_000
"""Bytes of a file above which it is linked."""

YOUNG = 60.0
"""Seconds in which a sweep has surely locked its folder."""


def take(target: Path) -> None:
    """Copy the project's code, with its commit and what has changed since.

    Raises SettingsError if that cannot be done.
    """
    try:
        target.mkdir(mode=0o700)
        _copy(target)
    except OSError as error:
        raise SettingsError(f"the code cannot be copied: {cause(error)}") from error
    (target / provenance.FROZEN).write_text(json.dumps(provenance.version()))


def _copy(target: Path) -> None:
    for path in _files():
        source, copy = PROJECT / path, target / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # it was an editor's, for a moment
            if _is_to_be_linked(path):
                copy.symlink_to(source)
            else:
                shutil.copy2(source, copy)


def _is_to_be_linked(path: Path) -> bool:
    """Whether a file is large, or it or what it leads to may hold secrets; folders always are."""
    source = PROJECT / path
    if source.is_dir() or source.stat().st_size > LARGEST:
        return True
    return privacy.is_secret(path) or privacy.is_secret(Path(source.resolve().name))


def lock(folder: Path) -> int:
    """Return the lock of a sweep's folder, which all that the sweep starts inherits: the folder is
    cleared away by another sweep once nobody holds it."""
    file = locks.opened(folder / "lock", mode=0o600)
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


def clear(mine: Path) -> None:
    """Remove the folders of the sweeps of which nothing is alive."""
    for folder in mine.parent.iterdir():
        with suppress(FileNotFoundError):  # another sweep has removed it meanwhile
            if folder != mine and not _alive(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _files() -> set[Path]:
    """Paths in the project, from its root; with the root's secrets, which git ignores as a rule."""
    files = {Path(path.name) for path in PROJECT.iterdir() if path.is_file()}
    return code_files.paths() | {path for path in files if privacy.is_secret(path)}


def _alive(folder: Path) -> bool:
    """Whether anything that a sweep has started goes on: it holds the lock, or Slurm has it."""
    if slurm.was_given(folder):
        if slurm.has(folder):
            return True
    elif time.time() - folder.stat().st_mtime < YOUNG:
        return True
    try:
        with os.fdopen(locks.opened(folder / "lock", os.O_RDONLY)) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False
