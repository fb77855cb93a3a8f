"""Locks on files: held by one process at a time, freed by the kernel when that process dies.

They are POSIX record locks: processes that are forked from the holder, such as a loader's, do not
hold them, and NFS carries them to other machines (except on mounts with `nolock`). A process must
not open a file a second time while it holds its lock: closing it would free the lock. Source:
man7.org/linux/man-pages/man2/fcntl_locking.2.html.
"""

import errno
import fcntl
import os
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TextIO

NOT_A_LOCK = "something other than a plain file is in the place of a lock; remove it"

NO_LOCKS = (
    "this file system has no locks (NFS mounted with nolock, Lustre without flock); use a folder "
    "on another disk: --runs-root for runs, MLFLOW_TRACKING_URI for the store"
)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Say in the OSError of a file system that cannot lock this file what to do about it."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise OSError(error.errno, NO_LOCKS, str(path)) from error
        raise


def opened(
    path: Path, flags: int = os.O_RDWR | os.O_CREAT, mode: int = 0o664, folder: int | None = None
) -> int:
    """Return a descriptor of a lock file, which must be a plain file.

    A symbolic link is not followed: other users who can write in the folder may have put it there
    so that a file of this user is made, changed or locked. `folder` is the descriptor of the folder
    that a relative path begins in. Raises OSError.
    """
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK  # opening a pipe would block
    try:
        file = os.open(path, flags, mode, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.EINVAL, NOT_A_LOCK, str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, NOT_A_LOCK, str(path))
    return file


def take(path: Path) -> TextIO | None:
    """The file, open and locked for as long as it stays open; None if another process has it."""
    file = os.fdopen(opened(path), "r+", encoding="utf-8")
    try:
        with explained(path):
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # which of the two depends on the system
        file.close()
        return None
    return file


def held(path: Path) -> bool:
    """Whether another process has a file's lock. It is not taken, so that nobody is disturbed."""
    layout, kind = ("qqihh", 3) if sys.platform == "darwin" else ("hhqqi", 0)  # of struct flock
    wanted: list[int] = [0] * 5
    wanted[kind] = fcntl.F_WRLCK
    try:
        with os.fdopen(opened(path, os.O_RDONLY), "rb") as file:
            found = fcntl.fcntl(file, fcntl.F_GETLK, struct.pack(layout, *wanted))
    except OSError:  # it does not exist, or we may not read it
        return False
    return bool(struct.unpack(layout, found)[kind] != fcntl.F_UNLCK)


@contextmanager
def waiting(path: Path, remove: bool = False) -> Iterator[None]:
    """Hold a file's lock, once all others that have or wait for it are done; then remove it, if
    that is asked for: only where two may hold it (NFS can show a removed file for a moment)."""
    with ExitStack() as held:
        while True:
            file = held.enter_context(os.fdopen(opened(path), "rb+"))
            with explained(path):
                fcntl.lockf(file, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):  # its last holder may have removed it
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    break
        try:
            yield
        finally:
            if remove:
                path.unlink(missing_ok=True)
