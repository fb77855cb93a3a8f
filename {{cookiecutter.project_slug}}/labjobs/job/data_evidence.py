"""The data behind a job's results: the files that it reads, noted while it reads them.

Python reports each file that it opens and each folder that it lists to a function, in the job and
in the processes that read its batches (docs.python.org, sys.addaudithook). A file's content is
hashed when it is first opened, just before it is read. What libraries open without Python, such as
HDF5, LMDB and torchvision.io, is not reported.

`data.jsonl` in the attempt's folder has a line for each file, added at once, so that what a killed
job had read is known. Each further process of a job, perhaps on another machine, has a file of its
own, such as `data.1.jsonl`: on a network file system, several machines cannot append to one file.

When the attempt ends, it stores the digest of the list of these files, which it shares with other
jobs that have read the same files: `.data/<digest>.jsonl` in the folder of runs.
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
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from labjobs import layout
from labjobs.errors import few
from labjobs.files import CODE, PROJECT, opened, sealed, shown, write_shared
from labjobs.job.journal import SEAL, record_of

MIXED = "mixed"
"""Takes the place of a digest if a job was continued with changed data."""

NAMED = 2
"""The largest number of changed files that a message names."""

DIGITS = 32
"""Hexadecimal digits of a hash, of SHA-256's 64."""

DATA, PROJECTS = "data", "project"
"""The beginnings of names: of what is below --data-root, and of what is in the project's folder."""

NOT_DATA = (layout.ACCEPTED, "labjobs/", "mlflow.db", "mlruns/", "runs/", "vendor/")
"""What the engine has in the project's folder."""


@dataclass(frozen=True)
class Places:
    """The folders of a job's data, and what is ignored in them: Python files, which are code
    (labjobs.evidence), hidden files, installed packages and files that jobs write.

    Names such as `data/train/cat/1.png` and `project/words.txt` stay the same wherever the data is
    copied to.
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
                hidden = any(p.startswith(".") or p == "__pycache__" for p in below.split("/"))
                # Importing a module lists the folder of the project that it is in.
                imported = word == PROJECTS and path.endswith("/") and _holds_code(below, path)
                return "" if hidden or imported else f"{word}/{below}"
        return ""

    def path(self, name: str) -> Path:
        """Return the path at which a file or folder with this name is, or would be."""
        word, _, below = name.partition("/")
        if word == DATA:
            return self.data_root / below
        frozen = CODE / below
        return frozen if frozen.exists() else PROJECT / below

    def at_hand(self, name: str) -> bool:
        """Return whether the folder that should contain the file exists."""
        return not name.startswith(f"{DATA}/") or self.data_root.is_dir()


def _spellings(root: Path) -> tuple[str, str]:
    """The beginnings of the paths below a folder, as given and without symbolic links."""
    return f"{root}/", f"{root.resolve()}/"


def _holds_code(below: str, folder: str) -> bool:
    return not below or any(name.endswith(".py") for name in os.listdir(folder))


# An entry for each file, and files of entries, a line for each.


class Entry(NamedTuple):
    """A file that was read, or a folder that was listed: its name then ends with a slash."""

    name: str
    size: int
    """Bytes."""

    time: int
    """When the file system last recorded a change (st_ctime), in nanoseconds since 1970."""

    hash: str
    """Hash of the content; for a folder, of the names in it except hidden ones."""


Entries = Mapping[str, Entry]
"""Entries by their names."""


def look(path: Path, name: str, known: Entry | None = None) -> Entry | None:
    """Return the entry of a file, or of a folder if the name ends with a slash; None if there is no
    such file or folder that can be read.

    If size and time are the same as in the known entry, the file is not read again.
    """
    try:
        about = path.stat()
        size, time = about.st_size, about.st_ctime_ns
        if known and known[1:3] == (size, time):
            return known
        if name.endswith("/"):
            names = sorted(each for each in os.listdir(path) if not each.startswith("."))
            return Entry(name, size, time, of_text("\0".join(names)))
        if not stat.S_ISREG(about.st_mode):
            return None
        with path.open("rb") as file:
            return Entry(name, size, time, hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS])
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return None


def of_text(text: str) -> str:
    """Return the hash of a text, which may contain bytes that are not text, as file names can."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:DIGITS]


def content_digest(entries: Iterable[Entry]) -> str:
    """Return a hash of names and contents, without times; empty if there are no entries."""
    found = sorted((entry.name, entry.hash) for entry in entries)
    return of_text("\n".join(map("\0".join, found))) if found else ""


def encoded(entry: Entry) -> bytes:
    """Return an entry as a line."""
    return sealed(json.dumps(entry._asdict())[:-1].encode(), SEAL)


def read(file: Path) -> dict[str, Entry]:
    """Return the entries in a file, by name, without damaged lines."""
    with suppress(OSError), file.open("rb") as lines:
        found = [opened(line, SEAL) for line in lines]
        return {each["name"]: Entry(*(each[f] for f in Entry._fields)) for each in found if each}
    return {}


def damaged(file: Path) -> bool:
    """Return whether a line was damaged; half a line at the end is not damage."""
    with suppress(OSError), file.open("rb") as lines:
        return any(line.endswith(b"\n") and not opened(line, SEAL) for line in lines)
    return False


# While an attempt runs: what its processes read is noted.

LISTED, MOVED = ("os.listdir", "os.scandir"), "os.rename"
EVENTS = {"open", *LISTED, MOVED}

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

_thread = threading.local()
_notes: "Reads | None" = None


class Reads:
    """Records the files that a process reads, and those that read its batches. A file with the size
    and the time of a known entry is not hashed again.
    """

    def __init__(self, file: Path, places: Places, known: Entries | None = None) -> None:
        self.joined_by = file, places
        self._places, self._known = places, known or {}
        self._seen, self._made = set[str](), set[str]()
        self.file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o664)

    def note(self, event: str, args: tuple[Any, ...]) -> None:
        """Record what Python reports. Raises OSError if it cannot be written."""
        path = os.path.abspath(os.fsdecode(args[1] if event == MOVED else args[0]))
        path += "/" if event in LISTED else ""
        if event == MOVED or (event == "open" and args[2] & WRITES):
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
            os.write(self.file, encoded(entry))


def begin(attempt: Path, places: Places, inputs: Iterable[Path]) -> None:
    """Record from now on which files this process and its forks read, for an attempt; those that
    the attempts of its inputs have read count, too."""
    known: dict[str, Entry] = {}
    for path in (places.runs_root / layout.DATA_LISTS).glob("*.jsonl"):
        known |= read(path)
    notes = Reads(attempt / layout.DATA, places, known)
    for entry in (entry for each in inputs for entry in read_by(each).values()):
        os.write(notes.file, encoded(entry))
    _note_in(notes)


def _note_in(notes: Reads) -> None:
    global _notes
    if _notes is None:
        sys.addaudithook(_noted)  # for good: it cannot be removed
    _notes = notes


def _noted(event: str, args: tuple[Any, ...]) -> None:
    # In this order: while Python ends, both become None.
    if _notes and event in EVENTS and not getattr(_thread, "aside", False):
        with aside(), suppress(TypeError, ValueError):  # not the name of a file
            _notes.note(event, args)


def of_job() -> tuple[Path, Places] | None:
    """Return what another process of the job needs to join the recording; None if nothing is
    recorded."""
    return _notes.joined_by if _notes else None


def join(of_job: tuple[Path, Places] | None) -> None:
    """Record what this process reads for a job; a forked process does so already."""
    if of_job and not _notes:
        _note_in(Reads(*of_job))


def sync() -> None:
    """Return once other machines can read what this process has recorded."""
    if _notes:
        os.fsync(_notes.file)


@contextmanager
def aside() -> Iterator[None]:
    """Do not record what this thread reads in the meantime, because it is not for the job."""
    before, _thread.aside = getattr(_thread, "aside", False), True
    try:
        yield
    finally:
        _thread.aside = before


# The files of an attempt's notes, one for each of its processes.


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
    """Delete what the processes of an attempt have recorded; the records of one that has ended have
    the digest of the list."""
    for file in attempt.glob(layout.DATA_FILES):
        file.unlink(missing_ok=True)


# Once an attempt has ended: the list of what it has read, and whether that is still the same.


def keep(attempt: Path, places: Places, before: str) -> str:
    """Write the list of files that an attempt has read, including those read `before`; returns its
    digest, or an empty text if there are none."""
    found = {**_listed(before, places), **of_attempt(attempt)}
    new = content_digest(found.values())
    if not new or before == MIXED:
        return before
    try:
        _write(_list(new, places), found.values())
    except OSError:
        if not _listed(new, places):  # another user may own it
            raise
    return new


def digest(attempt: Path) -> str:
    """Return the digest of the data that an attempt had read when it last ended; empty if it had
    read nothing."""
    ended = record_of(attempt, layout.OUTCOME) or record_of(attempt, layout.SETTINGS)
    return str(ended.get("data", ""))


def last_places(attempt: Path) -> Places:
    """Return where the data lay when an attempt last ended."""
    root = record_of(attempt, layout.OUTCOME).get("data_root", "data")
    return Places(PROJECT / root, attempt.parent.parent)


def read_by(attempt: Path) -> Entries:
    """Return the files that an attempt had read when it last ended, by name; empty if there are
    none, or if they are not known."""
    return _listed(digest(attempt), last_places(attempt))


class Summary(NamedTuple):
    """Where the files are that an attempt has read, in short: the common folder, or the single
    file."""

    name: str
    path: Path
    digest: str
    files: int
    bytes: int


def summary(attempt: Path) -> Summary | None:
    """Return the files that an attempt had read when it last ended; None if there are none, or if
    they are not known."""
    if not (found := read_by(attempt)):
        return None
    name = os.path.commonpath(found)
    sizes = [entry.size for entry in found.values() if not entry.name.endswith("/")]
    path = last_places(attempt).path(name)
    return Summary(_printable(name), path, digest(attempt), len(sizes), sum(sizes))


def difference(attempt: Path, places: Places) -> str:
    """Return which of the files that an attempt has read are different now, in a few words:
    `data/train/cat changed`. Empty if none is different, or if they cannot be checked."""
    known = digest(attempt)
    if known == MIXED:
        return "it was continued with changed data"
    changed = sorted(_changed(known, places) | _compared(of_attempt(attempt), places)[0])
    return f"{few(map(_printable, changed), NAMED)} changed" if changed else ""


def fits(digest: str, places: Places) -> bool:
    """Return whether the data is the same as the data with a digest; if this cannot be checked, it
    counts as the same."""
    return digest != MIXED and not _changed(digest, places)


def unchecked(attempt: Path, places: Places) -> str:
    """Return why the data of an attempt cannot be checked; empty if it can."""
    known = digest(attempt)
    if known in ("", MIXED):
        return ""
    if not (listed := _listed(known, places)):
        return f"{shown(_list(known, places))} is missing or damaged"
    return "" if all(map(places.at_hand, listed)) else f"there is no folder {places.data_root}"


def conflict(attempts: Iterable[Path]) -> bool:
    """Return whether attempts have read a file with different contents."""
    entries = (entry for attempt in attempts for entry in read_by(attempt).values())
    contents = {(entry.name, entry.hash) for entry in entries}
    return len({name for name, _ in contents}) < len(contents)


def _printable(name: str) -> str:
    """The name of a file or a folder, also if it is no text."""
    return os.fsencode(name.rstrip("/")).decode(errors="backslashreplace")


def _list(digest: str, places: Places) -> Path:
    return places.runs_root / layout.DATA_LISTS / f"{digest}.jsonl"


def _write(path: Path, found: Iterable[Entry]) -> None:
    write_shared(path, lambda file: file.writelines(map(encoded, found)))


@cache  # thousands of jobs have the same list
def _listed(digest: str, places: Places) -> Entries:
    """The entries of a list by name; none if it is missing or damaged."""
    found = read(_list(digest, places))
    return found if content_digest(found.values()) == digest else {}


@cache
def _changed(digest: str, places: Places) -> frozenset[str]:
    """The names in a list whose content has changed. If only times have changed, as in a copy, the
    new times are recorded, so that the files need not be read the next time.
    """
    listed = _listed(digest, places)
    changed, updated = _compared(listed, places)
    if not changed and updated != listed:
        with suppress(OSError):  # we may not write it
            _write(_list(digest, places), updated.values())
    return frozenset(changed)


def _compared(before: Entries, places: Places) -> tuple[set[str], Entries]:
    """The names of files whose content has changed, and the entries of all files as they are now;
    what is not at hand is as before."""
    with aside():
        names = filter(places.at_hand, before)
        now = {name: look(places.path(name), name, before[name]) for name in names}
    changed = {name for name, entry in now.items() if not entry or entry.hash != before[name].hash}
    return changed, {**before, **{name: entry for name, entry in now.items() if entry}}
