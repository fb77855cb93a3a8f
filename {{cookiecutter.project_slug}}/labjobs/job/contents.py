"""Hashes of the contents of files and folders."""

import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from labjobs.job.terminal import log

DIGITS = 32
"""Hexadecimal digits of a hash, of SHA-256's 64."""

LARGE = 10**10
"""Bytes of a file above which reading it takes so long that the log says why."""


class Entry(NamedTuple):
    """A file that was read, or a folder that was listed: its name then ends with a slash."""

    name: str
    size: int
    """Bytes; of a folder, names."""

    time: int
    """When the file system last recorded a change (st_ctime), in nanoseconds since 1970."""

    hash: str
    """Hash of the content; for a folder, of the names in it except hidden ones."""


def look(path: Path, name: str, known: Entry | None = None) -> Entry | None:
    """Return the entry of a file, or of a folder if the name ends with a slash; None if there is no
    such file or folder that can be read.

    If size and time are the same as in the known entry, the file is not read again.
    """
    try:
        about = path.stat()
        if name.endswith("/"):
            return _folder(path, name, about, known)
        if not stat.S_ISREG(about.st_mode):
            return None
        size, time = about.st_size, about.st_ctime_ns
        if known and known[1:3] == (size, time):
            return known
        if size > LARGE:
            log.info("reading %s, %.0f GB, to know it again", path, size / 1e9)
        with path.open("rb") as file:
            return Entry(name, size, time, hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS])
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return None


def digest(entries: Iterable[Entry]) -> str:
    """Return a hash of names and contents, without times; empty if there are no entries."""
    found = sorted((entry.name, entry.hash) for entry in entries)
    return of_text("\n".join(map("\0".join, found))) if found else ""


def _folder(path: Path, name: str, about: os.stat_result, known: Entry | None) -> Entry:
    time = about.st_ctime_ns
    if known and known.time == time:
        return known
    names = sorted(each for each in os.listdir(path) if not each.startswith("."))
    return Entry(name, len(names), time, of_text("\0".join(names)))


def of_text(text: str) -> str:
    """Return the hash of a text, which may contain bytes that are not text, as file names can."""
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:DIGITS]
