"""Locks on files: held by one process at a time, freed by the kernel when that process dies.

They are POSIX record locks: processes that are forked from the holder, such as a loader's, do not
hold them, and NFS carries them to other machines (but for mounts with `nolock`). A process must not
open a file a second time while it holds its lock: closing it would free the lock.
Source: man7.org/linux/man-pages/man2/fcntl_locking.2.html.
"""

import fcntl
import struct
import sys
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


def held(path: Path) -> bool:
    """Whether another process has a file's lock; asks for none itself, so it is in nobody's way."""
    layout, kind = ("qqihh", 3) if sys.platform == "darwin" else ("hhqqi", 0)  # of struct flock
    wanted: list[int] = [0] * 5
    wanted[kind] = fcntl.F_WRLCK
    try:
        with path.open() as file:
            found = fcntl.fcntl(file, fcntl.F_GETLK, struct.pack(layout, *wanted))
    except OSError:  # there is none, or it is not ours to read
        return False
    return bool(struct.unpack(layout, found)[kind] != fcntl.F_UNLCK)


@contextmanager
def waiting(path: Path) -> Iterator[TextIO]:
    """The file, locked, once all others that have it or wait for it are done."""
    path.touch()
    with path.open("r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield file
