"""The lines of a journal, as text: sealed, numbered, and read while another process may be writing.

    {"line": 3, "time": 1767225600000, "step": 12, "metrics": {"lr": 0.1}, "crc": "0c85d0bb"}

`crc` is the CRC-32 of the journal's id and the line before the field. So changed lines and lines of
other journals are noticed; the numbers reveal lines that are missing, duplicated or out of place.
The field comes last, so that a line is plain JSON for every reader, and costs a microsecond.
"""

import json
import zlib
from pathlib import Path
from typing import Any, BinaryIO

from labjobs.errors import JobError
from labjobs.files import opened, read_record, sealed

FILE = "metrics.jsonl"
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
    records = [read_record(folder / name) for name in ("outcome.json", "sent.json")]
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
            raise Damaged(f"{FILE} is damaged at line {self.line + 1}; {MENDS}")
        self.line = found["line"]
        return found
