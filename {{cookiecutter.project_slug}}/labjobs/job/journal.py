"""A job's journal: every metric and tag, one JSON line each, on disk before it goes anywhere else.

`metrics.jsonl` is only ever added to, by one attempt at the job after another:

    {"line": 1, "time": 1767225590000, "start": {"journal": "5f1c…", …}, "crc": "0c85d0bb"}
    {"line": 2, "tags": {"commit": "…"}, "crc": "91f4e2d7"}
    {"line": 3, "time": 1767225600000, "step": 12, "metrics": {"train_loss": 0.31}, "crc": "…"}
    {"line": 4, "files": ["profile.txt"], "crc": "…"}
    {"line": 5, "cost": {"process": "tensors", "device_bytes": 8e9}, "crc": "…"}
    {"line": 6, "time": 1767225660000, "end": "FINISHED", "crc": "…"}

`crc` is the CRC-32 of the journal's id and the line before the field. It reveals
changed lines and lines of other journals; the numbers reveal lines that are missing, there twice or
out of place. Half a line at the end is not damage: a process was killed while it was writing, and
the next one cuts it off. All other damage is refused.

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
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4
from weakref import finalize

from labjobs import layout
from labjobs.errors import JobError
from labjobs.files import opened, read_record, sealed, tail, write_record
from labjobs.machine import Reading

SEAL = b', "crc": "%08x"}\n'  # the end of a line
CRC = slice(-len(b'%08x"}\n' % 0), -len(b'"}\n'))  # where a line has its checksum

# What a job of `jobs.py find` measures (training/probes.py): in a window of time, with memory in
# bytes; and in each step, logged like training metrics.
RATE, EXAMPLES = "find_examples_per_second", "find_examples_per_step"
MEMORY = "find_peak_memory"
SIGNAL, NOISE = "gradient_squared", "gradient_variance"

WAY_OUT = "--force starts the job over"
LOST_END = f"the end of {layout.JOURNAL} is lost; {WAY_OUT}"


class Damaged(JobError):
    """A file of a job was damaged after it was written."""


def now() -> int:
    """Return the time of a metric, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


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


def id_of(attempt: Path) -> str:
    """Return the id of an attempt's journal, from its settings.json; empty if it is not there."""
    start = record_of(attempt, layout.SETTINGS).get("journal", {})
    return str(start.get("journal", ""))


def last_of(attempt: Path, metric: str) -> dict[str, Any]:
    """Return the last line with a metric, if it is near the end of an attempt's journal; empty if
    it is not, or if the line is damaged or of another journal."""
    key = f'"{metric}": '.encode()
    every = tail(attempt / layout.JOURNAL).splitlines(keepends=True)
    lines = [line for line in every if key in line]
    return decoded(lines[-1], seed_of(id_of(attempt))) if lines else {}


def last_time(attempt: Path) -> int:
    """Return when an attempt last logged something, in milliseconds since 1970; 0 if its journal
    does not say."""
    for line in reversed(tail(attempt / layout.JOURNAL).splitlines()):
        with suppress(ValueError, TypeError, AttributeError, RecursionError):  # half, or damaged
            if at := json.loads(line).get("time"):
                return int(at)
    return 0


def lines_of(attempt: Path) -> list[dict[str, Any]]:
    """Return the lines of an attempt's journal so far. Raises Damaged unless it is whole and the
    attempt's own, and OSError."""
    with (attempt / layout.JOURNAL).open("rb") as file:
        reader = Reader(file)
        lines = reader.read()
    check(attempt, reader)
    return lines


def tag_of(attempt: Path, name: str) -> str:
    """Return a tag as an attempt's journal last has it; empty if it does not say."""
    found = ""
    with suppress(OSError), (attempt / layout.JOURNAL).open("rb") as file:
        start = start_in(file.readline())
        if start == record_of(attempt, layout.SETTINGS).get("journal", start):
            seed = seed_of(start.get("journal", ""))
            for line in file:
                if b'"tags"' in line:
                    found = decoded(line, seed).get("tags", {}).get(name, found)
    return found


def note_sent(attempt: Path, journal: str, **about: Any) -> None:
    """Add to what couriers have written down of an attempt, unless that is of another journal."""
    noted = record_of(attempt, layout.SENT)
    if noted.get("journal") != journal:
        noted = {"schema": 1, "id": attempt.parent.name, "journal": journal, "lines": 0}
    with suppress(OSError):  # a full disk: what is not known to be sent is sent again
        write_record(attempt / layout.SENT, noted | about)


class Reader:
    """The reading end, while the job may be writing. `start` and `line` are the journal's first
    line and the number of the last one that was read, `end` the bytes up to there."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._seed = file, 0
        self.start: dict[str, Any] = {}
        self.line = self.end = 0

    def read(self) -> list[dict[str, Any]]:
        """Return the whole lines that have come since. Raises Damaged at one that is not valid."""
        lines = []
        self._file.seek(self.end)
        while (line := self._file.readline()).endswith(b"\n"):
            if not self.line:
                self.start = start_in(line)
                self._seed = seed_of(self.start.get("journal", ""))
            lines.append(decoded(line, self._seed))
            if not self.start or lines[-1].get("line") != self.line + 1:
                raise Damaged(f"{layout.JOURNAL} is damaged at line {self.line + 1}; {WAY_OUT}")
            self.line += 1
            self.end += len(line)
        return lines


class Journal:
    """The writing end, in the training process; several threads may write at once.

    An existing journal is continued, and keeps the `log_every` of the first attempt, so that the
    curve stays one curve. `lines` is the last number, `tags_before` the tags of the processes
    before this one. Raises Damaged for a journal that is not whole, and OSError.
    """

    def __init__(self, folder: Path, log_every: int | str) -> None:
        path = folder / layout.JOURNAL
        self._last: dict[str, tuple[int, float]] = {}  # step and value
        self.tags_before: dict[str, str] = {}
        self._seals = [0]  # of the journal's first lines: none, one, two, …
        path.touch()
        with path.open("rb") as file:
            reader = Reader(file)
            for line in reader.read():
                metrics = line.get("metrics", {})
                self._last |= {name: (line["step"], value) for name, value in metrics.items()}
                self.tags_before |= line.get("tags", {})
                self._seals.append(zlib.crc32(line["crc"].encode(), self._seals[-1]))
        check(folder, reader)
        os.truncate(path, reader.end)  # half a line, which a killed process left

        self.lines, self._seal = reader.line, self._seals[-1]
        self.start = reader.start or {"journal": uuid4().hex, "log_every": log_every}
        self.log_every = self.start["log_every"]
        self._seed = seed_of(self.start["journal"])
        self._file = path.open("ab", buffering=0)
        finalize(self, self._file.close)
        self._unwritten, self._one_thread = b"", threading.Lock()
        self._write({"time": now(), "start": self.start})
        self.flush()

    @property
    def has_points(self) -> bool:
        """Whether the journal has metrics of any step."""
        return bool(self._last)

    def metrics(
        self, step: int, values: Mapping[str, float], at: int | None = None, of: int | None = None
    ) -> None:
        """Add the metrics of an optimizer step, at a time if not now; `of` so many steps in all.

        The steps of a metric only increase: what is there already is left out.
        """
        new = {name: v for name, v in values.items() if step > self._last.get(name, (-1,))[0]}
        if new:
            self._last |= {name: (step, value) for name, value in new.items()}
            total = {} if of is None else {"of": of}
            self._write({"time": at or now(), "step": step, **total, "metrics": new})

    def results(self, step: int, values: Mapping[str, float], end: int) -> None:
        """Add the results of a job at the step of its best weights; after its `end`, so that they
        are the last, those under whose names training has logged something else. Curves of
        training and validation end with it: of these, results are `best_…`."""
        first, others = dict[str, float](), dict[str, float]()
        for name, value in values.items():
            at, known = self._last.get(name, (-1, value))
            is_other = at > step or (at == step and str(known) != str(value))
            is_curve = name.startswith(("train_", "val_"))
            (others if is_other and not is_curve else first)[name] = value
        self.metrics(step, first)
        self.metrics(end + 1, others)

    def tags(self, values: dict[str, str]) -> None:
        """Add facts about the run."""
        self._write({"tags": values})

    def files(self, names: list[str]) -> None:
        """Add files in the job's folder that should also be copied to the run."""
        self._write({"files": names})

    def cost(self, reading: Reading) -> None:
        """Add what a process has used by now (costs.py)."""
        self._write({"cost": reading})

    @property
    def mark(self) -> tuple[int, int]:
        """The number of lines, and a checksum of them all, for a checkpoint to keep."""
        with self._one_thread:
            return self.lines, self._seal

    def check_reaches(self, mark: Sequence[int]) -> None:
        """Raise Damaged unless the lines of earlier attempts begin with those that there were when
        a checkpoint was made. A process that follows another one has a journal without any."""
        lines, seal = mark
        if len(self._seals) > 1 and [seal] != self._seals[lines : lines + 1]:
            raise Damaged(LOST_END)

    def flush(self) -> None:
        """Pass what was added to the operating system, so that it outlives this process. Raises
        OSError if the disk is full; the next flush continues where this one stopped."""
        with self._one_thread:
            while self._unwritten:
                self._unwritten = self._unwritten[self._file.write(self._unwritten) :]

    def sync(self) -> None:
        """Make sure that what was flushed is on the disk; from then on it outlives a power cut."""
        os.fsync(self._file.fileno())

    def close(self, status: str) -> None:
        """Add MLflow's word for how the attempt ended, and see all of it onto the disk."""
        self._write({"time": now(), "end": status})
        self.flush()
        self.sync()

    def _write(self, line: dict[str, Any]) -> None:
        text = json.dumps(line)
        with self._one_thread:
            self.lines += 1
            written = encoded(self.lines, text, self._seed)
            self._seal = zlib.crc32(written[CRC], self._seal)
            self._unwritten += written


def check(folder: Path, reader: Reader) -> None:
    """Raise Damaged if a journal is not the one that other files of its attempt know of."""
    noted = record_of(folder, layout.SETTINGS).get("journal", reader.start)
    continues = any((folder / name).exists() for name in layout.CHECKPOINTS)
    if noted != reader.start or (continues and not reader.line):
        raise Damaged(f"the beginning of {layout.JOURNAL} is lost; {WAY_OUT}")
    records = [read_record(folder / name) for name in (layout.OUTCOME, layout.SENT)]
    of_this = [each for each in records if each.get("journal") == reader.start.get("journal", "")]
    if reader.line < max((int(each["lines"]) for each in of_this), default=0):
        raise Damaged(LOST_END)
