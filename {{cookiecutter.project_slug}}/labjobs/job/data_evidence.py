"""The data behind a job's results: the files that it reads, noted while it reads them.

Python reports each file that it opens and each folder that it lists to a function, in the job and
in the processes that read its batches (docs.python.org, sys.addaudithook). A file's content is
hashed when it is first opened, just before it is read. A file that is looked for and not there
counts too. What libraries open without Python, such as HDF5 and LMDB, is not reported; what they
still hold open or mapped after the first evaluation is found there.

`data.jsonl` in the attempt's folder has a line for each file, added at once, so that what a killed
job had read is known. Each further process of a job, perhaps on another machine, has a file of its
own, such as `data.1.jsonl`: on a network file system, several machines cannot append to one file.

When the attempt ends, it stores the digest of the list of these files, which it shares with other
jobs that have read the same files: `.data/<digest>.jsonl` in the folder of runs.
"""

import fcntl
import hashlib
import json
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cache, cached_property, partial, wraps
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from labjobs import layout
from labjobs.errors import JobError, few
from labjobs.files import CODE, PROJECT, opened, sealed, shown, write_shared
from labjobs.job.journal import SEAL, record_of, tag_of
from labjobs.sources import declared

MIXED, CHANGED = "mixed", "changed"
"""Take the place of a digest if a job was continued with changed data, or if others have changed
its data while it ran."""

UNFIT = {MIXED: "it was continued with changed data", CHANGED: "its data changed while it ran"}

ABSENT, MADE, WRITTEN, UNSEEN = "absent", "made", "written", "unseen"
"""Take the place of a file's hash: it was looked for and not there; the job has made it, or has
written a file that was there; or the name says why not all that was read is known."""

UNTOLD = (WRITTEN, UNSEEN)
"""Of these it cannot be told whether they have changed."""

NAMED = 2  # the largest number of changed files that a message names
DIGITS = 32  # hexadecimal digits of a hash, of SHA-256's 64
DATA, PROJECTS = "data", "project"  # how names begin: below --data-root, in the project's folder

SETTLED = 20_000_000
"""Nanoseconds after which a further change certainly gives a file another time: kernels count in
steps of up to 10 ms."""

NOT_DATA = (
    *(layout.ACCEPTED, layout.FROZEN, f"{layout.CACHE}/"),
    *("labjobs/", "mlruns/", "runs/", "vendor/"),
)
"""What the engine has in the project's folder."""

OF_TOOLS = re.compile(
    r"__pycache__|\.(git|hg|svn|jj|venv|tox|nox|direnv|idea|vscode|sweeps|project-id|DS_Store"
    r"|ipynb_checkpoints|hypothesis|(mypy|ruff|pytest)_cache|nfs.*)"
    r"|mlflow(\.db|-[0-9a-f]+)(\.lock|-(journal|shm|wal))?"
)
"""Names of files and folders, anywhere, that version control, editors and other tools have."""


@dataclass(frozen=True)
class Places:
    """The folders of a job's data, and what is ignored in them: the project's Python files, which
    are code (labjobs.evidence), what tools have there, installed packages, what jobs write, and
    what pyproject.toml exempts.

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
        installed = f"{sys.prefix}/"  # unless the project, or its data, is in there
        inside = any(f"{root}/".startswith(installed) for root in (CODE, PROJECT, self.data_root))
        return (*_spellings(self.runs_root), *[installed] * (not inside), *of_project)

    def name(self, path: str) -> str:
        """Return the name of a file, or of a folder if its absolute path ends with a slash; empty
        if it is not data."""
        if path.startswith(self._not_data) or path.endswith(".pyc"):
            return ""
        root, word = next((each for each in self._roots if path.startswith(each[0])), ("", ""))
        if not word:
            return self._name_by_link(path)
        below = path.removeprefix(root)
        name, of_project = f"{word}/{below}", word == PROJECTS
        is_code = path.endswith(".py") and (of_project or f"{CODE}/".startswith(root))
        is_of_tools = any(map(OF_TOOLS.fullmatch, below.split("/")))
        if is_code or is_of_tools or is_exempt(name):
            return ""
        return name if below or not of_project else ""  # the project's folder has all results

    def _name_by_link(self, path: str) -> str:
        """The name of what a path elsewhere leads to, if it is data."""
        if path.startswith(f"{sys.base_prefix}/"):  # Python's own, read by the thousand
            return ""
        real = os.path.realpath(path) + "/" * path.endswith("/")
        is_inside = any(real.startswith(root) for root, _ in self._roots)
        return self.name(real) if is_inside else ""

    def name_of_absent(self, path: str) -> str:
        """Return the name of a file or folder that is not there; empty if it could not be data, or
        is --data-root or above: data that is not at hand is not compared."""
        folder = f"{path.rstrip('/')}/"
        above = any(root.startswith(folder) for root, word in self._roots if word == DATA)
        no_data = above or folder.startswith(self._not_data)
        return "" if no_data else self.name(path.rstrip("/"))

    def path(self, name: str) -> str:
        """Return the path at which a file or folder with this name is, or would be."""
        word, _, below = name.partition("/")
        if word == DATA:  # one of millions: pathlib is slow
            return f"{self.data_root}/{below}"
        frozen = CODE / below
        return str(frozen if frozen.exists() else PROJECT / below)

    @cached_property
    def missing(self) -> str:
        """Why data cannot be compared; empty if it can. A folder with nothing mounted is empty."""
        with suppress(OSError):
            if any(not name.startswith(".") for name in os.listdir(self.data_root)):
                return ""
            return f"there is nothing in {self.data_root}"
        return f"there is no folder {self.data_root}"


def _spellings(root: Path) -> tuple[str, str]:
    """The beginnings of the paths below a folder, as given and without symbolic links."""
    return f"{root}/", f"{root.resolve()}/"


exempt = cache(partial(declared, CODE, "not-data"))
"""The names of files that are no data, by pyproject.toml; asked for each of many files."""


def is_exempt(name: str) -> bool:
    """Return whether pyproject.toml says that a file or folder is no data."""
    return any(fnmatch(name.rstrip("/"), pattern.rstrip("/")) for pattern in exempt())


# An entry for each file, and files of entries, a line for each.


class Entry(NamedTuple):
    """A file that was read, or a folder that was listed: its name then ends with a slash."""

    name: str
    size: int  # bytes

    stamp: str
    """Device, inode, and when content and file last changed; empty if this cannot be trusted."""

    hash: str  # hash of the content; for a folder, of the names in it except hidden ones; or ABSENT


Entries = Mapping[str, Entry]  # entries by their names


def look(path: str, name: str, known: Entry | None = None) -> Entry | None:
    """Return the entry of a file, or of a folder if the name ends with a slash; None if it is
    neither, or cannot be read.

    If size and stamp are the same as in the known entry, the file is not read again.
    """
    try:
        about = os.stat(path)
        if known and known.stamp and known[1:3] == (about.st_size, _stamp(about)):
            return known
        if name.endswith("/"):
            return Entry(name, about.st_size, _stamp(about), of_names(path, name))
        if not stat.S_ISREG(about.st_mode):
            return None
        with open(path, "rb") as file:
            about = os.fstat(file.fileno())
            found = hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]
            return Entry(name, about.st_size, _stamp(about), found)
    except (FileNotFoundError, NotADirectoryError):
        return Entry(name, 0, "", ABSENT)
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return None


def _stamp(about: os.stat_result) -> str:
    """What is different once a file has changed; empty if it may be the same. Read-only images and
    old file systems have whole seconds, and images the times of the files that they were made of.
    """
    changed = about.st_ctime_ns
    if changed % 1_000_000_000 == 0 or time.time_ns() - changed < SETTLED:
        return ""
    return f"{about.st_dev} {about.st_ino} {about.st_mtime_ns} {changed}"


def of_names(folder: str, name: str, without: Collection[str] = ()) -> str:
    """Return the hash of the names in a folder, but for hidden and exempt ones, and some others."""
    names = (n for n in os.listdir(folder) if not n.startswith(".") and n != "__pycache__")
    counted = (n for n in names if f"{name}{n}" not in without and not is_exempt(f"{name}{n}"))
    return of_text("\0".join(sorted(counted)))


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


def _lines(file: Path) -> Iterator[Entry]:
    with suppress(OSError), file.open("rb") as lines:
        for each in filter(None, (opened(line, SEAL) for line in lines)):
            yield Entry(each["name"], each["size"], each.get("stamp", ""), each["hash"])


def damaged(file: Path) -> bool:
    """Return whether a line was damaged; half a line at the end is not damage."""
    with suppress(OSError), file.open("rb") as lines:
        return any(line.endswith(b"\n") and not opened(line, SEAL) for line in lines)
    return False


# While an attempt runs: what its processes read is noted.

LISTED, MOVED = ("os.listdir", "os.scandir"), ("os.rename", "os.link")
CONNECTED = "sqlite3.connect"
STARTED, MISSED = ("subprocess.Popen", "os.system", "os.posix_spawn"), "labjobs.missed"
EVENTS = {"open", *LISTED, *MOVED, CONNECTED, *STARTED, MISSED, "os.mkdir"}

SHELL = re.compile(r"(?:[\s'\"=<>|;&()]|\$\{?\w+\}?/?)+")
"""Between the words of a shell's command: blanks, quotes, operators and variables."""

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

LOOKS = ("stat", "lstat", "access")
"""Functions of `os` by which Python finds out whether a file is there; they report MISSED ones."""

READ, UPDATED = "read", "updated"
"""What a process does with a file, beside WRITTEN and ABSENT; UPDATED: it may read it, too."""

Use = tuple[str, str]
"""An absolute path, with a slash at its end if it is listed, and what a process does with it."""

_thread = threading.local()
_notes: "Reads | None" = None
_early: list[Use] = []
_listening = False


def _uses(event: str, args: tuple[Any, ...]) -> Iterator[Use]:
    if event in MOVED:  # its content may be read under the other name
        yield _absolute(os.fsdecode(args[0])), READ
    if event not in STARTED:
        yield _use(event, args)
        return
    from labjobs.evidence.fingerprint import SOURCES  # which count as code

    command = [*map(os.fsdecode, args[:1] if event == "os.system" else args[1])]
    folder = os.fsdecode(args[2] or "") if event == "subprocess.Popen" else ""
    words = {*command, *SHELL.split(" ".join(command))}  # perhaps files
    named = {os.path.join(folder, word) for word in words}
    folders = {folder, *filter(os.path.isdir, named)}  # as in `cd data; cat words.txt`
    for path in {_absolute(os.path.join(each, w)) for each in folders for w in words}:
        if os.path.isfile(path) and not path.lower().endswith(SOURCES):
            yield path, UPDATED


def _absolute(path: str) -> str:
    """A path from the root; `..` leads out of what a link leads to."""
    if ".." in path.split("/"):
        folder, name = os.path.split(path)
        inside = name not in ("", "..")
        path = os.path.join(os.path.realpath(folder), name) if inside else os.path.realpath(path)
    return os.path.abspath(path)


def _path_of(folder: int) -> str | bytes:
    """The path of an open folder; macOS has no /proc (Apple's fcntl(2), F_GETPATH)."""
    if sys.platform == "darwin":
        return fcntl.fcntl(folder, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0")
    return os.readlink(f"/proc/self/fd/{folder}")


def _use(event: str, args: tuple[Any, ...]) -> Use:
    given = args[1] if event in MOVED else "." if args[0] is None else args[0]
    if event in LISTED and isinstance(given, int):  # as shutil.rmtree does
        given = _path_of(given)
    named = os.fsdecode(given)
    if event == CONNECTED and named.startswith("file:"):  # sqlite.org/uri.html
        named = unquote(named.removeprefix("file:").removeprefix("//").partition("?")[0])
    path = _absolute(named)
    if event == MISSED:
        return path, ABSENT
    if event == CONNECTED:
        return path, UPDATED
    if event in LISTED:
        return f"{path}/", READ
    flags = args[2] if event == "open" else os.O_WRONLY
    if not flags & WRITES:
        return path, READ
    return path, UPDATED if flags & os.O_RDWR and not flags & os.O_TRUNC else WRITTEN


class Reads:
    """Records the files that a process reads, and those that read its batches. A file with the size
    and the stamp of a known entry is not hashed again.
    """

    def __init__(self, file: Path, places: Places, known: Entries | None = None) -> None:
        self.shared = (file, places.data_root, places.runs_root)  # what it takes to join
        self.declared = False
        self._places, self._known = places, known or {}
        self._seen, self._made, self._recorded = set[str](), set[str](), set[str]()
        self.file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o664)

    def note(self, path: str, use: str) -> None:
        """Record what a process does with a file. Raises OSError if it cannot be written."""
        if use == READ:
            self._note_read(path)
        elif use == ABSENT:
            self._note_absent(path)
        else:
            self._note_written(path, use)

    def _note_read(self, path: str) -> None:
        if path in self._seen:
            return
        self._seen.add(path)
        name = self._places.name(path)
        if path in self._made and (not name.startswith(f"{DATA}/") or name in self._recorded):
            return  # a cache in the project, or results; downloaded files are still data
        entry = look(path, name, self._known.get(name)) if name else None
        if entry and entry.hash == ABSENT:
            self._seen.discard(path)  # it may be there later
            self._note_absent(path)
        elif entry:
            self._record(entry)

    def _note_absent(self, path: str) -> None:
        name = self._places.name_of_absent(path)
        if name and name not in self._recorded:
            self._record(Entry(name, 0, "", ABSENT))

    def _note_written(self, path: str, use: str) -> None:
        new = not os.path.lexists(path) and path not in self._seen  # one may be moved back
        if use == UPDATED and not new:
            self._note_read(path)
        self._seen.discard(path)
        if path not in self._made and (name := self._places.name(path)):
            os.write(self.file, encoded(Entry(name, 0, "", MADE if new else WRITTEN)))
        self._made.add(path)

    def _record(self, entry: Entry) -> None:
        os.write(self.file, encoded(entry))
        self._recorded.add(entry.name)

    def note_open(self) -> list[str]:
        """Record the files that this process and those below it have open or mapped without Python
        having reported it; returns their names."""
        before = {*self._recorded}
        for path, use in _held_by(str(os.getpid())):
            if path not in self._made and self._places.name(path) not in before:
                self.note(path, use)
        if found := sorted(self._recorded - before):
            why = f"{found[0]} was read without Python, as other files may have been"
            self._record(Entry(why, 0, "", UNSEEN))
        return [*map(_printable, found)]


def _held_by(pid: str) -> Iterator[Use]:
    """The files that a process and those below it have open or mapped (man7.org, proc(5)); none
    where there is no such file system."""
    process = Path("/proc", pid)
    with suppress(OSError):  # it has ended
        for line in (process / "maps").read_text("utf-8", "surrogateescape").splitlines():
            _, rights, _, _, inode, *path = line.split(maxsplit=5)
            if inode != "0" and path:
                yield path[0], UPDATED if rights[1:4:2] == "ws" else READ
        for each in (process / "fd").iterdir():
            with suppress(OSError):  # it is closed by now, as that of the listing is
                about = (process / "fdinfo" / each.name).read_text("utf-8").split()
                use = {os.O_RDONLY: READ, os.O_RDWR: UPDATED}.get(int(about[3], 8) & os.O_ACCMODE)
                if use and os.path.isfile(file := os.readlink(each)):
                    yield file, use
        for thread in (process / "task").iterdir():  # a reading process is no child of the main one
            for child in (thread / "children").read_text("utf-8").split():
                yield from _held_by(child)


def listen(on: bool = True) -> None:
    """Remember from now on what this process reads, for the job that may begin, or no longer:
    settings.py reads files, too."""
    global _listening
    _listening = on
    _hook()


def begin(attempt: Path, places: Places, inputs: Iterable[Path]) -> None:
    """Record from now on which files this process and its forks read, for an attempt; those that
    the attempts of its inputs have read count, too."""
    known: dict[str, Entry] = {}
    for path in (places.runs_root / layout.DATA_LISTS).glob("*.jsonl"):
        known |= _listed(path.stem, places)
    notes = Reads(attempt / layout.DATA, places, known)
    for entry in (entry for each in inputs for entry in read_by(each).values()):
        os.write(notes.file, encoded(entry))
    _note_in(notes)


READS = "LABJOBS_READS"  # tells the Python processes below a job what it records, as JSON


def _note_in(notes: Reads) -> None:
    global _notes
    _hook()
    _notes = notes
    os.environ[READS] = json.dumps([str(path.absolute()) for path in notes.shared])
    with aside():
        while _early:
            notes.note(*_early.pop(0))


@cache
def _hook() -> None:
    sys.addaudithook(_noted)  # for good: it cannot be removed
    for name in LOOKS:
        _replace_look(name)


def _noted(event: str, args: tuple[Any, ...]) -> None:
    # In this order: while Python ends, these become None.
    if not (_notes or _listening) or event not in EVENTS or getattr(_thread, "aside", False):
        return
    # Importing a module lists the folder that it is in.
    if event in LISTED and sys._getframe(1).f_code.co_filename.startswith("<frozen importlib"):
        return
    # While torch is imported it looks for CUDA's libraries beside every module, the project's too.
    if getattr(getattr(sys.modules.get("torch"), "__spec__", None), "_initializing", False):
        return
    with aside(), suppress(TypeError, ValueError, ImportError):  # no name; Python ends
        for use in _uses(event, args):
            _notes.note(*use) if _notes else _early.append(use)


def _replace_look(name: str) -> None:
    """Let a function of `os` report what it does not find."""
    original, report = getattr(os, name), partial(sys.audit, MISSED)

    @wraps(original)
    def look(path: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the function, and report a path that is not there."""
        try:
            found = original(path, *args, **kwargs)
        except (FileNotFoundError, NotADirectoryError):
            report(path)
            raise
        if found is False and not os.path.lexists(path):  # not one closed to this user
            report(path)
        return found

    setattr(os, name, look)
    for able in (os.supports_fd, os.supports_dir_fd, os.supports_follow_symlinks):
        if original in able:
            able.add(look)


def join(file: Path, places: Places) -> None:
    """Record what this process reads for a job, in a file; a forked process does so already."""
    if not _notes:
        _note_in(Reads(file, places))


def join_by_environment() -> None:
    """Record what this process reads, if a job has started it in any way: as a program, or as a
    worker that reads batches, or of a library. The package's labjobs_reads.pth calls this when
    Python starts, or else the job's script, which a worker that is not a fork imports again."""
    of_engine = any(word.startswith("labjobs.") for word in sys.orig_argv)
    with suppress(OSError, ValueError, KeyError):  # no job has started it, or it has ended
        file, data_root, runs_root = map(Path, json.loads(os.environ[READS]))
        if file.exists() and not of_engine:
            join(file, Places(data_root, runs_root))


def declare(given: Iterable[str | os.PathLike[str]], places: Places, note: bool = True) -> None:
    """Check that files, and folders with all that is in them, can be data, and note that the job
    reads them. Raises JobError for a path that cannot be."""
    paths = [os.path.abspath(os.path.expanduser(each)) for each in given]
    for path in paths:
        if not os.path.exists(path):
            raise JobError(f"job.data: there is no {path}")
        if not places.name(f"{path}/" if os.path.isdir(path) else path):
            line = "below --data-root or in the project, and not exempt, code or of a tool"
            raise JobError(f"job.data: {path} cannot be compared later: it has to be {line}")
    if _notes and note:
        _notes.declared = True
        with aside():
            for each in chain.from_iterable(map(_all_in, paths)):
                _notes.note(each, READ)


def _all_in(path: str, above: tuple[str, ...] = ()) -> Iterator[str]:
    """A file; or a folder and all that is in it, hidden files excepted, links followed."""
    if not os.path.isdir(path):
        yield path
    elif (real := os.path.realpath(path)) not in above:  # no link leads back
        yield f"{path}/"
        for name in (each for each in os.listdir(path) if not each.startswith(".")):
            yield from _all_in(f"{path}/{name}", (*above, real))


def note_unseen(reader: str) -> bool:
    """Record that a library has read files that Python did not open, unless the job's code has
    declared what it reads; return whether that was recorded."""
    if not _notes or _notes.declared:
        return False
    _notes._record(Entry(f"{reader} reads files without Python", 0, "", UNSEEN))
    return True


def note_open() -> list[str]:
    """Record what libraries have open without Python having reported it; returns the names."""
    with aside():
        return _notes.note_open() if _notes else []


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


def _noted_in(attempt: Path) -> tuple[dict[str, Entry], dict[str, str]]:
    """What all processes of an attempt have read and written (MADE, WRITTEN), by name."""
    entries, written = dict[str, Entry](), dict[str, str]()
    for each in (each for file in attempt.glob(layout.DATA_FILES) for each in _lines(file)):
        if each.hash in (MADE, WRITTEN):
            written[each.name] = MADE if written.get(each.name) == MADE else each.hash
        elif each.hash != ABSENT or each.name not in entries:
            # What one process did not find, another may have read later.
            entries[each.name] = each
    return entries, written


def forget(attempt: Path) -> None:
    """Delete what the processes of an attempt have recorded; the records of one that has ended have
    the digest of the list."""
    for file in attempt.glob(layout.DATA_FILES):
        file.unlink(missing_ok=True)


# Once an attempt has ended: the list of what it has read, and whether that is still the same.


def keep(attempt: Path, places: Places, before: str) -> tuple[str, str, str]:
    """Write the list of files that an attempt has read, including those read `before`, without
    those that it has written. Returns its digest, or an empty text if there are none, and in a few
    words which of these files others have changed meanwhile, and which it has changed itself."""
    if before in UNFIT:
        return before, "", ""
    found, changed, own = _since(attempt, places, before)
    if changed:
        return CHANGED, _in_words(changed), ""
    new = content_digest(found.values())
    try:
        if new:
            _write(_list(new, places), found.values())
    except OSError:
        if not _listed(new, places):  # another user may own it
            raise
    return new, "", _in_words(own)


def _since(attempt: Path, places: Places, before: str) -> tuple[Entries, set[str], set[str]]:
    """What an attempt has read, as it is to be kept; the names of those that others have changed
    since, and of those that it has changed itself."""
    entries, written = _noted_in(attempt)
    if before and not (known := _listed(before, places)):
        unknown = "what it had read before it was continued is not known"
        known = {unknown: Entry(unknown, 0, "", UNSEEN)}
    noted = {**known, **entries} if before else entries
    changed, now = _compared(noted, places)
    made = {name for name, how in written.items() if how == MADE}

    def is_own(name: str) -> bool:
        if name.endswith("/") and noted[name].hash != ABSENT:  # the job has added files to it
            with suppress(OSError), aside():
                return of_names(places.path(name), name, made) == noted[name].hash
        return noted[name].hash == ABSENT or name in written

    own = set(filter(is_own, changed))
    gone = {name for name in own if not name.endswith("/")}
    kept = {n: now[n] if n in own else entry for n, entry in noted.items() if n not in gone}
    lost = {name for name in gone if noted[name].hash != ABSENT}
    return kept | {n: Entry(n, 0, "", WRITTEN) for n in lost}, changed - own, lost


def digest(attempt: Path) -> str:
    """Return the digest of the data that an attempt had read when it last ended; empty if it had
    read nothing. If it was killed, or outcome.json is lost, the journal has it."""
    if ended := record_of(attempt, layout.OUTCOME):
        return str(ended.get("data", ""))
    begun = str(record_of(attempt, layout.SETTINGS).get("data", ""))
    return begun if begun in UNFIT else tag_of(attempt, "data") or begun


def last_places(attempt: Path) -> Places:
    """Return where the data lay when an attempt last ended."""
    root = record_of(attempt, layout.OUTCOME).get("data_root", "data")
    return Places(PROJECT / root, attempt.parent.parent)


def read_by(attempt: Path) -> Entries:
    """Return the files that an attempt had read when it last ended, by name; empty if there are
    none, or if they are not known."""
    return _listed(digest(attempt), last_places(attempt))


def summary(attempt: Path) -> tuple[str, str, list[int]]:
    """Return what an attempt had read when it last ended: the name and the path of the common
    folder or the single file, and the files' sizes; all empty if there are none that are known."""
    found = {n: e for n, e in read_by(attempt).items() if e.hash not in (ABSENT, *UNTOLD)}
    if not found:
        return "", "", []
    name = os.path.commonpath(found)
    sizes = [entry.size for entry in found.values() if not entry.name.endswith("/")]
    return _printable(name), last_places(attempt).path(name), sizes


def compare(attempt: Path, places: Places, known: str | None = None) -> tuple[str, str]:
    """Return which of the files that an attempt has read are different now, such as `data/train/cat
    changed`, and why this cannot be told of all of them, in a few words; empty if there are none.
    `known` is the digest of what it has read, if its records are not on this disk.
    """
    ended = known is not None or not any(attempt.glob(layout.DATA_FILES))
    known = digest(attempt) if known is None else known
    if known in UNFIT:
        return UNFIT[known], ""
    if known and not _list(known, places).exists():  # the attempt may be in other runs
        places = replace(places, runs_root=attempt.parent.parent)
    changed, why = _compare(known, places)
    if not ended:
        changed = _since(attempt, places, known)[1]
    return f"{_in_words(changed)} changed" if changed else "", why


def conflict(attempts: Iterable[Path]) -> bool:
    """Return whether attempts have read a file with different contents."""
    entries = (entry for attempt in attempts for entry in read_by(attempt).values())
    known = (entry for entry in entries if entry.hash not in UNTOLD and not is_exempt(entry.name))
    contents = {(entry.name, entry.hash) for entry in known}
    return len({name for name, _ in contents}) < len(contents)


def _in_words(names: Iterable[str]) -> str:
    return few(map(_printable, sorted(names)), NAMED)


def _printable(name: str) -> str:
    """The name of a file or a folder, also if it is no text."""
    return os.fsencode(name.rstrip("/")).decode(errors="backslashreplace")


def _list(digest: str, places: Places) -> Path:
    return places.runs_root / layout.DATA_LISTS / f"{digest}.jsonl"


def _write(path: Path, found: Iterable[Entry]) -> None:
    write_shared(path, lambda file: file.writelines(map(encoded, found)))


@cache  # thousands of jobs have the same list
def _listed(digest: str, places: Places) -> Entries:
    """The entries of a list by name; none if it is missing or damaged. Read at once, since there
    may be millions; the digest says whether it is whole."""
    with suppress(OSError, ValueError, TypeError, AttributeError):
        lines = _list(digest, places).read_bytes().rstrip(b"\n").replace(b"\n", b",")
        entries = (Entry(*map(line.get, Entry._fields)) for line in json.loads(b"[%s]" % lines))
        found = {entry.name: entry for entry in entries}
        return found if content_digest(found.values()) == digest else {}
    return {}


@cache  # thousands of jobs have read the same
def _compare(digest: str, places: Places) -> tuple[Set[str], str]:
    """The names in a list whose content has changed, and why this cannot be told of all. If only
    times have changed, as in a copy, the new times are recorded, so that the files need not be read
    the next time.
    """
    listed = _listed(digest, places)
    if digest and not listed:
        return frozenset(), f"{shown(_list(digest, places))} is missing or damaged"
    changed, updated = _compared(listed, places)
    if not changed and updated != listed:
        with suppress(OSError):  # we may not write it
            _write(_list(digest, places), updated.values())
    there = (n for n, entry in listed.items() if entry.hash not in (ABSENT, of_text("")))
    why = places.missing if any(name.startswith(f"{DATA}/") for name in there) else ""
    own = [n for n, entry in listed.items() if entry.hash == WRITTEN and not is_exempt(n)]
    untold = [f"the job has changed {_in_words(own)} itself"] if own else []
    untold += (reason for reason, entry in listed.items() if entry.hash == UNSEEN)
    return changed, why or few(untold, NAMED)


def _compared(before: Entries, places: Places) -> tuple[set[str], Entries]:
    """The names of files whose content has changed, and the entries of all files as they are now;
    what is not at hand is as before."""
    with aside():
        seen = (name for name, entry in before.items() if entry.hash not in UNTOLD)
        here = (n for n in seen if not (places.missing and n.startswith(f"{DATA}/")))
        counted = (n for n in here if not (exempt() and is_exempt(n)))
        now = {n: look(places.path(n), n, before[n]) for n in counted}
    new = {name: entry for name, entry in now.items() if entry != before[name]}
    changed = {name for name, entry in new.items() if not entry or entry.hash != before[name].hash}
    return changed, {**before, **{name: entry for name, entry in new.items() if entry}}
