"""The files that a job reads, noted while it reads them.

Python reports each file that it opens and each folder that it lists to a function, in the job and
in the processes that read its batches (docs.python.org, sys.addaudithook). A file's content is
hashed when it is first opened, just before it is read. What libraries open without Python, such as
HDF5, LMDB and torchvision.io, is not reported.

`data.jsonl` in the attempt's folder has a line for each file, added at once, so that what a killed
job had read is known. Each further process of a job, perhaps on another machine, has a file of its
own, such as `data.1.jsonl`: on a network file system, several machines cannot append to one file.
"""

import hashlib
import json
import os
import stat
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from labjobs import layout
from labjobs.files import CODE, PROJECT, opened, sealed
from labjobs.job.journal import SEAL
from labjobs.job.terminal import log

# Where the files are that count as a job's data: below --data-root, and in the project's folder.
#
# The name of an entry says which of the two, and the path within it, such as `data/train/cat/1.png`
# or `project/words.txt`; it stays the same wherever the data is copied to.

DATA, PROJECTS = "data", "project"
"""The beginnings of names."""

NOT_DATA = (
    layout.ACCEPTED,
    "labjobs/",
    "figures/",
    "mlflow.db",
    "mlruns/",
    "paper/",
    "runs/",
    "tests/",
    "vendor/",
)
"""Folders in the project that are not data."""


@dataclass(frozen=True)
class Places:
    """The folders of a job's data, and what is ignored in them.

    Python files, which are code (labjobs.evidence), hidden files, installed packages and files that
    jobs write are not data.
    """

    data_root: Path
    runs_root: Path

    @cached_property
    def _roots(self) -> tuple[tuple[str, str], ...]:
        data = ((root, DATA) for root in _spellings(self.data_root))
        return (*data, (f"{CODE}/", PROJECTS), (f"{PROJECT}/", PROJECTS))

    @cached_property
    def _not_data(self) -> tuple[str, ...]:
        of_project = (f"{root}/{name}" for root in (CODE, PROJECT) for name in NOT_DATA)
        return (*_spellings(self.runs_root), f"{sys.prefix}/", *of_project)

    def name(self, path: str) -> str:
        """Return the name of a file, or of a folder if its absolute path ends with a slash; empty
        if it is not data."""
        if path.startswith(self._not_data) or path.endswith((".py", ".pyc")):
            return ""
        for root, word in self._roots:
            if path.startswith(root):
                below = path.removeprefix(root)
                counts = word == DATA or not path.endswith("/") or not _is_code(below, path)
                return f"{word}/{below}" if counts and not _is_hidden(below) else ""
        return ""

    def path(self, name: str) -> Path:
        """Return the path at which a file or folder with this name is, or would be."""
        word, _, below = name.partition("/")
        if word == DATA:
            return self.data_root / below
        frozen = CODE / below
        return frozen if frozen.exists() else PROJECT / below

    def at_hand(self, name: str) -> bool:
        """Whether the folder that should contain the file exists."""
        return not name.startswith(f"{DATA}/") or self.data_root.is_dir()


def _spellings(root: Path) -> tuple[str, str]:
    """The beginnings of the paths below a folder, as given and without symbolic links."""
    return f"{root}/", f"{root.resolve()}/"


def _is_hidden(below: str) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in below.split("/"))


def _is_code(below: str, folder: str) -> bool:
    """Whether a folder of the project holds Python's files, which importing them lists."""
    return not below or any(name.endswith(".py") for name in os.listdir(folder))


# Hashes of the contents of files and folders.

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


def content_digest(entries: Iterable[Entry]) -> str:
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
    return f"data.{number}.jsonl" if number else layout.DATA


def are_in(file: Path) -> bool:
    """Return whether a file is called as these files are."""
    return fnmatch(file.name, layout.DATA_FILES)


def of_attempt(attempt: Path) -> dict[str, Entry]:
    """Return what all processes of an attempt have recorded, by name, without damaged lines."""
    found: dict[str, Entry] = {}
    for file in attempt.glob(layout.DATA_FILES):
        found |= read(file)
    return found


def forget(attempt: Path) -> None:
    """Delete what the processes of an attempt have recorded."""
    for file in attempt.glob(layout.DATA_FILES):
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
