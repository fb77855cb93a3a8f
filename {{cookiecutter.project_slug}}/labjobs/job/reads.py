"""The files that a job reads, noted while it reads them.

Python reports each file that it opens and each folder that it lists to a function, in the job and
in the processes that read its batches (docs.python.org, sys.addaudithook). A file's content is
hashed when it is first opened, just before it is read. What libraries open without Python, such as
HDF5, LMDB and torchvision.io, is not reported.

`data.jsonl` in the attempt's folder has a line for each file, added at once, so that what a killed
job had read is known. Each further process of a job, perhaps on another machine, has a file of its
own, such as `data.1.jsonl`: on a network file system, several machines cannot append to one file.
"""

import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from types import MappingProxyType
from typing import Any

from labjobs.files import opened, sealed
from labjobs.job.contents import Entry, look
from labjobs.job.lines import SEAL
from labjobs.job.places import DATA, Places

FILE = "data.jsonl"

FILES = "data*.jsonl"
"""What the files of all processes of an attempt are called."""

OPENED, LISTED, MOVED = "open", ("os.listdir", "os.scandir"), "os.rename"
EVENTS = {OPENED, *LISTED, MOVED}
MOVED_TO = 1
"""Which argument of MOVED is the new path."""

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Reads:
    """Records the files that a process reads, and those that read its batches. A file with the size
    and the time of a known entry is not hashed again.
    """

    def __init__(
        self, file: Path, places: Places, known: Mapping[str, Entry] = MappingProxyType({})
    ) -> None:
        self.joined_by = file, places
        self._places, self._known = places, known
        self._seen, self._made = set[str](), set[str]()
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o664)

    def add(self, entries: Iterable[Entry]) -> None:
        """Count files that other jobs have read as read by this one."""
        for entry in entries:
            os.write(self._file, encoded(entry))

    def sync(self) -> None:
        """Return once other machines can read what has been recorded."""
        os.fsync(self._file)

    def note(self, event: str, args: tuple[Any, ...]) -> None:
        """Record what Python reports. Raises OSError if it cannot be written."""
        if getattr(_thread, "aside", False):
            return
        with aside(), suppress(TypeError, ValueError):  # not the name of a file
            self._note(event, args)

    def _note(self, event: str, args: tuple[Any, ...]) -> None:
        path = _path(args[MOVED_TO] if event == MOVED else args[0])
        path += "/" if event in LISTED else ""
        if event == MOVED or (event == OPENED and args[2] & WRITES):
            self._made.add(path)
            return
        if path in self._seen:
            return
        self._seen.add(path)
        name = self._places.name(path)
        if path in self._made and not name.startswith(f"{DATA}/"):
            return  # a cache in the project; downloaded files are still data
        entry = look(Path(path), name, self._known.get(name)) if name else None
        if entry:
            os.write(self._file, encoded(entry))


def note_from_now_on(notes: Reads | None) -> None:
    """Record what this process and its forks read, instead of earlier recordings."""
    global _notes
    if _notes is None:
        sys.addaudithook(_noted)  # for good: it cannot be removed
    _notes = notes


def of_job() -> tuple[Path, Places] | None:
    """Return what another process of the job needs to join the recording; None if nothing is
    recorded."""
    return _notes.joined_by if _notes else None


def sync() -> None:
    """Return once other machines can read what this process has recorded."""
    if _notes:
        _notes.sync()


def join(of_job: tuple[Path, Places] | None) -> None:
    """Record what this process reads for a job; a forked process does so already."""
    if of_job and not _notes:
        note_from_now_on(Reads(*of_job))


@contextmanager
def aside() -> Iterator[None]:
    """Do not record what this thread reads in the meantime, because it is not for the job."""
    before, _thread.aside = getattr(_thread, "aside", False), True
    try:
        yield
    finally:
        _thread.aside = before


_thread = threading.local()
_notes: Reads | None = None


def _noted(event: str, args: tuple[Any, ...]) -> None:
    if _notes and event in EVENTS:  # in this order: while Python ends, both become None
        _notes.note(event, args)


def read(file: Path) -> dict[str, Entry]:
    """Return the recorded entries of a file, by name, without damaged lines."""
    with suppress(OSError), file.open("rb") as noted:
        return {entry.name: entry for line in noted if (entry := decoded(line))}
    return {}


def of_process(number: int) -> str:
    """Return the name of the file of one of an attempt's processes."""
    return f"data.{number}.jsonl" if number else FILE


def are_in(file: Path) -> bool:
    """Return whether a file is called as these files are."""
    return fnmatch(file.name, FILES)


def of_attempt(attempt: Path) -> dict[str, Entry]:
    """Return what all processes of an attempt have recorded, by name, without damaged lines."""
    found: dict[str, Entry] = {}
    for file in attempt.glob(FILES):
        found |= read(file)
    return found


def forget(attempt: Path) -> None:
    """Delete what the processes of an attempt have recorded."""
    for file in attempt.glob(FILES):
        file.unlink(missing_ok=True)


def damaged(file: Path) -> bool:
    """Return whether a line was damaged; half a line at the end is not damage."""
    with suppress(OSError), file.open("rb") as noted:
        return any(line.endswith(b"\n") and not decoded(line) for line in noted)
    return False


def encoded(entry: Entry) -> bytes:
    """Return an entry as a line."""
    return sealed(json.dumps(entry._asdict())[:-1].encode(), SEAL)


def decoded(line: bytes) -> Entry | None:
    """Return the entry in a line; None if that is damaged."""
    found = opened(line, SEAL)
    return Entry(*(found[name] for name in Entry._fields)) if found else None


def _path(path: Any) -> str:
    return os.path.abspath(os.fsdecode(path))
