"""A sweep runs the code with which it was started, a copy in the sweep's folder. Large files and
files that may hold secrets are linked, not copied; only the owner can read the copy.
"""

import fcntl
import json
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from labjobs import locks, privacy
from labjobs.errors import SettingsError, cause
from labjobs.job import code_files, provenance
from labjobs.paths import PROJECT
from labjobs.sweeps import slurm

LARGEST = 10_000_000
"""Bytes of a file above which it is linked."""

YOUNG = 60.0
"""Seconds within which a sweep has certainly locked its folder."""


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
        with suppress(FileNotFoundError):  # an editor's temporary file
            if _is_to_be_linked(path):
                copy.symlink_to(source)
            else:
                shutil.copy2(source, copy)


def _is_to_be_linked(path: Path) -> bool:
    """Whether a path must be linked: folders, large files, and files that may hold secrets,
    directly or through a link."""
    source = PROJECT / path
    if source.is_dir() or source.stat().st_size > LARGEST:
        return True
    return privacy.is_secret(path) or privacy.is_secret(Path(source.resolve().name))


def lock(folder: Path) -> int:
    """Return the lock of a sweep's folder, which all processes of the sweep inherit: once nobody
    holds the lock, another sweep removes the folder."""
    file = locks.opened(folder / "lock", mode=0o600)
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


def clear(mine: Path) -> None:
    """Remove the folders of sweeps that have no running process and no job in Slurm."""
    for folder in mine.parent.iterdir():
        with suppress(FileNotFoundError):  # another sweep has removed it in the meantime
            if folder != mine and not _alive(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _files() -> set[Path]:
    """Paths of the code's files, relative to the project; including files with secrets in the root,
    which git usually ignores."""
    files = {Path(path.name) for path in PROJECT.iterdir() if path.is_file()}
    return code_files.paths() | {path for path in files if privacy.is_secret(path)}


def _alive(folder: Path) -> bool:
    """Whether anything that a sweep has started is still running: it holds the lock, or is in
    Slurm's queue."""
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
