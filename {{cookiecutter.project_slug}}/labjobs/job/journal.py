"""A job's journal: every metric and tag, one JSON line each, written to disk before it goes
anywhere else.

`metrics.jsonl` is only ever added to, by one attempt at the job after another:

    {"line": 1, "start": {"journal": "5f1c…", "log_every": "auto", "code": "90b5…", "after": ""},
     "crc": "0c85d0bb"}
    {"line": 2, "tags": {"commit": "…"}, "crc": "91f4e2d7"}
    {"line": 3, "time": 1767225600000, "step": 12, "metrics": {"train_loss": 0.31}, "crc": "…"}
    {"line": 4, "files": [layout.PROFILE], "crc": "…"}
    {"line": 5, "cost": {"process": "…", "cpu_seconds": 8.1, …}, "crc": "…"}
    {"line": 6, "end": "FINISHED", "crc": "…"}

`code` is the fingerprint of the code that the attempt began with, `after` the journal of the
previous attempt. Each line has a number and a checksum (lines.py), by which damaged lines are
recognised; mending.py repairs them.

Times are milliseconds since 1970. Thanks to them, sending a point again is harmless: MLflow stores
a point with the same step, value and time only once. Steps that are repeated, because the job was
killed after its last checkpoint, are in the journal already and are not written twice.
"""

import json
import os
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from uuid import uuid4

from labjobs import files, layout
from labjobs.errors import JobError
from labjobs.files import opened, read_record, sealed
from labjobs.machine import Reading

# The lines of a journal, as text: sealed, numbered, and read while another process may be writing.
#
#     {"line": 3, "time": 1767225600000, "step": 12, "metrics": {"lr": 0.1}, "crc": "0c85d0bb"}
#
# `crc` is the CRC-32 of the journal's id and the line before the field. So changed lines and lines
# of other journals are noticed; the numbers reveal lines that are missing, duplicated or out of
# place. The field comes last, so that a line is plain JSON for every reader, and costs a
# microsecond.

MENDS = "the job's own command mends it"

SEAL = b', "crc": "%08x"}\n'
"""The end of a line."""


class Damaged(JobError):
    """A file of a job was damaged after it was written."""


def seed_of(journal: str) -> int:
    """Return the start value for the checksums of a journal's lines."""
    return zlib.crc32(journal.encode())


def encoded(number: int, line: str, seed: int) -> bytes:
    """Return a line of the journal, from the JSON of what it says."""
    return sealed(f'{{"line": {number}, {line[1:-1]}'.encode(), SEAL, seed)


def decoded(line: bytes, seed: int) -> dict[str, Any]:
    """Return the content of a line; empty if it is damaged or belongs to another journal."""
    return opened(line, SEAL, seed)


def start_in(line: bytes) -> dict[str, Any]:
    """Return the start of a journal, if the line is an undamaged first line."""
    try:
        start = json.loads(line)["start"]
        return dict(start) if decoded(line, seed_of(start["journal"])) else {}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


def record_of(folder: Path, name: str) -> dict[str, Any]:
    """Return a record of an attempt; empty if it is missing, damaged or of another job."""
    found = read_record(folder / name)
    return found if found.get("id") == folder.parent.name else {}


def expected(folder: Path, journal: str) -> int:
    """Return how many lines a journal had when its last attempt ended, or was sent."""
    records = [read_record(folder / name) for name in (layout.OUTCOME, layout.SENT)]
    of_this = [each for each in records if each.get("journal") == journal]
    return max((int(each["lines"]) for each in of_this), default=0)


def count(path: Path) -> int:
    """Return the number of lines in a journal that is whole. Raises Damaged for any other journal,
    and OSError."""
    with path.open("rb") as file:
        reader = Reader(file)
        reader.read()
        return reader.line


class Reader:
    """The reading end, while the job may be writing. `start` and `line` are the journal's first
    line and the number of the last one that was read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._end, self._seed = file, 0, 0
        self.start: dict[str, Any] = {}
        self.line = 0

    def read(self) -> list[dict[str, Any]]:
        """Return the whole lines that have come since. Raises Damaged at a line that is not
        valid."""
        lines = []
        self._file.seek(self._end)
        while (line := self._file.readline()).endswith(b"\n"):
            lines.append(self._checked(line))
            self._end += len(line)
        return lines

    def _checked(self, line: bytes) -> dict[str, Any]:
        if not self.line:
            self.start = start_in(line)
            self._seed = seed_of(self.start.get("journal", ""))
        found = decoded(line, self._seed)
        if not found or not self.start or found["line"] - found.get("lost", 1) != self.line:
            raise Damaged(f"{layout.JOURNAL} is damaged at line {self.line + 1}; {MENDS}")
        self.line = found["line"]
        return found


# A damaged journal is repaired before a job continues with it, and the damage is reported. Whole
# lines are put in order, and each is kept once. Everything else goes to `metrics.damaged`. Missing
# lines are replaced by one line with the number of the last of them, so that the numbers of the
# other lines do not change:
#
#     {"line": 7, "lost": 3, "crc": "…"}
#
# The start of a journal is in settings.json too, and the number of lines is in the files that were
# written later. Half a line at the end is not damage: a process was killed while it was writing.

ASIDE = "metrics.damaged"


class Mended(NamedTuple):
    """A journal that is whole: its start, and the number of its last line. `lost` has the first and
    last numbers of missing lines; `damage` says what has just been repaired. The last step of each
    metric, and if lines are gone, (name, step) of each point; the tags.
    """

    start: dict[str, Any]
    last: int
    lost: list[tuple[int, int]]
    damage: str
    last_steps: dict[str, int]
    points: set[tuple[str, int]]
    tags: dict[str, str]


class _Sorted(NamedTuple):
    """The lines in a journal's file."""

    whole: dict[int, bytes]
    said: dict[int, dict[str, Any]]
    foreign: list[bytes]
    known_lost: int
    last: int


def mend(folder: Path, **begins: Any) -> Mended:
    """Make a job's journal whole; `begins` is what the first line of a new journal says, besides
    its id.

    Raises OSError if it cannot be read or written.
    """
    path = folder / layout.JOURNAL
    *ended, half = (path.read_bytes() if path.exists() else b"").split(b"\n")
    start = _start(folder, ended) or {"journal": uuid4().hex, **begins}
    found = _sort(ended, seed_of(start["journal"]), expected(folder, start["journal"]))
    text, lost = _in_order(found, start)
    damage = ""
    if text != b"".join(line + b"\n" for line in ended):
        damage = _about(found, lost)
        with (folder / ASIDE).open("ab") as aside:
            aside.writelines(found.foreign)
        files.write(path, lambda file: file.write(text))
    elif half:
        os.truncate(path, len(text))
    points = _points(found.said, bool(lost))
    return Mended(start, found.last, lost, damage, *points, _tags(found.said))


def _tags(said: Mapping[int, Mapping[str, Any]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for number in sorted(said):
        found |= said[number].get("tags", {})
    return found


def _start(folder: Path, ended: Sequence[bytes]) -> dict[str, Any]:
    """The start of the journal, from settings.json or else from one of its lines."""
    noted = record_of(folder, layout.SETTINGS).get("journal")
    return noted or next(filter(None, (start_in(line + b"\n") for line in ended)), {})


def _sort(ended: Sequence[bytes], seed: int, expected: int) -> _Sorted:
    whole: dict[int, bytes] = {}
    said: dict[int, dict[str, Any]] = {}
    foreign: list[bytes] = []
    known_lost = last = unreadable = 0
    for line in (each + b"\n" for each in ended):
        if not (content := decoded(line, seed)):
            foreign.append(line)
            unreadable += 1  # lines that were the last, if known
            continue
        unreadable, number = 0, content["line"]
        last = max(last, number)
        if "lost" in content:
            known_lost += content["lost"]
        else:
            whole[number], said[number] = line, content
    return _Sorted(whole, said, foreign, known_lost, max(last + unreadable, expected))


def _in_order(found: _Sorted, start: Mapping[str, Any]) -> tuple[bytes, list[tuple[int, int]]]:
    """The text of a whole journal, and the first and last of lines that are gone."""
    seed, whole = seed_of(start["journal"]), dict(found.whole)
    if found.last and 1 not in whole:
        whole[1] = encoded(1, json.dumps({"start": start}), seed)
    parts, lost = [], []
    for before, number in pairwise([0, *sorted(whole), found.last + 1]):
        if number - before > 1:
            lost.append((before + 1, number - 1))
            gone = json.dumps({"lost": number - before - 1})
            parts.append(encoded(number - 1, gone, seed))
        parts.append(whole.get(number, b""))
    return b"".join(parts), lost


def _about(found: _Sorted, lost: Sequence[tuple[int, int]]) -> str:
    """What is wrong with a journal, in one line."""
    gone = sum(last - first + 1 for first, last in lost) - found.known_lost
    what = f"{gone} of its {found.last} lines" if gone > 0 else "nothing"
    aside = f"; what was not in order is kept in {ASIDE}" if found.foreign else ""
    return f"{layout.JOURNAL} was damaged and has lost {what}{aside}"


def _points(
    said: Mapping[int, Mapping[str, Any]], lost: bool
) -> tuple[dict[str, int], set[tuple[str, int]]]:
    points = [(line["step"], name) for line in said.values() for name in line.get("metrics", ())]
    last_steps = {name: step for step, name in sorted(points)}
    return last_steps, {(name, step) for step, name in points} if lost else set()


def now() -> int:
    """The time of a metric, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Journal:
    """The writing end, in the training process; several threads may write at once.

    An existing journal is repaired; `damage` says in one line what was wrong with it. `log_every`
    is that of the first attempt, so that the curve stays one curve. `lines` is the last number,
    `tags_before` the tags of the processes before this one.
    """

    def __init__(self, folder: Path, log_every: int | str, code: str = "", after: str = "") -> None:
        found = mend(folder, log_every=log_every, code=code, after=after)
        self.start, self.log_every = found.start, found.start["log_every"]
        self.damage, self._lost = found.damage, found.lost
        self.lines = self._before = found.last
        self._last, self._there = found.last_steps, found.points
        self.tags_before = found.tags
        self._seed = seed_of(self.start["journal"])
        self._file = (folder / layout.JOURNAL).open("ab", buffering=0)
        self._unwritten, self._one_thread = b"", threading.Lock()
        self._write({"start": self.start})
        if self.damage:
            self.tags({"damaged": self.damage})
            self.files([f"logged/{file.name}" for file in sorted(folder.glob("logged/*"))])
        self.flush()

    @property
    def has_points(self) -> bool:
        """Whether the journal has metrics of any step."""
        return bool(self._last)

    def metrics(
        self,
        step: int,
        values: Mapping[str, float],
        at: int | None = None,
        of: int | None = None,
    ) -> None:
        """Add the metrics of an optimizer step, at a time if not now; `of` so many steps in all.

        The steps of a metric only increase, except where lines were lost; a point that exists
        already is left out.
        """
        new = {name: value for name, value in values.items() if self._is_new(name, step)}
        if new:
            total = {} if of is None else {"of": of}
            self._write({"time": at or now(), "step": step, **total, "metrics": new})

    def tags(self, values: dict[str, str]) -> None:
        """Add facts about the run."""
        self._write({"tags": values})

    def files(self, names: list[str]) -> None:
        """Add files in the job's folder that should also be copied to the run."""
        self._write({"files": names})

    def cost(self, process: str, reading: Reading) -> None:
        """Add what a process has used by now (costs.py)."""
        self._write({"cost": {"process": process, **reading}})

    def go_on_from(self, count: int) -> str:
        """Report, in the run too, what happens about lost lines; empty if none were lost.

        Training goes on from a checkpoint that was made when there were `count` lines.
        """
        if count > self._before:
            self.damage = f"the end of {layout.JOURNAL} is lost"
        elif not (self.damage and self._lost):
            return ""
        passed = count > self._before or any(first <= count for first, _ in self._lost)
        what = "missing in the curves" if passed else "measured again"
        about = f"what was lost is {what}"
        self.tags({"damaged": f"{self.damage}; {about}"})
        return about

    def flush(self) -> None:
        """Pass what was added to the operating system; from then on it outlives this process.

        Raises OSError if the disk is full; the next flush continues where this one stopped.
        """
        with self._one_thread:
            while self._unwritten:
                self._unwritten = self._unwritten[self._file.write(self._unwritten) :]

    def sync(self) -> None:
        """Make sure that what was flushed is on the disk; from then on it outlives a power cut."""
        os.fsync(self._file.fileno())

    def close(self, status: str) -> None:
        """Add MLflow's word for how the attempt ended, and see all of it onto the disk."""
        self._write({"end": status})
        self.flush()
        self.sync()

    def _write(self, line: dict[str, Any]) -> None:
        text = json.dumps(line)
        with self._one_thread:
            self.lines += 1
            self._unwritten += encoded(self.lines, text, self._seed)

    def _is_new(self, name: str, step: int) -> bool:
        last = self._last.get(name, -1)
        if step <= last and (not self._lost or (name, step) in self._there):
            return False
        self._last[name] = max(step, last)
        if self._lost:
            self._there.add((name, step))
        return True
