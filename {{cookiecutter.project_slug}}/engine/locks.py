"""Locks on files: held by one process at a time, freed by the kernel when that process dies.

They are POSIX record locks: processes that are forked from the holder, such as a loader's, do not
hold them, and NFS carries them to other machines (but for mounts with `nolock`). A process must not
open a file a second time while it holds its lock: closing it would free the lock.
Source: man7.org/linux/man-pages/man2/fcntl_locking.2.html.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


def take(path: Path) -> TextIO | None:
    """The file, open and locked for as long as it stays open; None if another process has it."""
    path.touch()
    file = path.open("r+")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # which of the two depends on the system
        file.close()
        return None
    return file


@contextmanager
def waiting(path: Path) -> Iterator[TextIO]:
    """The file, locked, once all others that have it or wait for it are done."""
    path.touch()
    with path.open("r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield file
