"""A job's journal: every metric and tag, one JSON line each, on disk before anything else sees it.

`metrics.jsonl` is only ever added to, by one attempt at the job after another:

    {"start": {"journal": "5f1c…", "log_every": "auto"}}
    {"tags": {"commit": "…"}}
    {"time": 1767225600000, "step": 12, "metrics": {"train_loss": 0.31, "lr": 0.001}}
    {"files": ["profile.txt"]}
    {"end": "FINISHED"}

Times are milliseconds since 1970. They make a replay harmless: MLflow stores a point that it
already has, same step, value and time, only once. What an attempt does over again, because the one
before it was killed after its last checkpoint, is in the journal already and not written twice.
"""

import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

FILE = "metrics.jsonl"


def now() -> int:
    """The time of a metric, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return metrics as JSON can hold them, be they tensors (), NumPy's numbers or Python's."""
    return {name: float(value) for name, value in metrics.items()}


class Journal:
    """The writing end, in the training process; several threads may write at once.

    `log_every` is that of the first attempt, so that the curve stays one curve. Raises ValueError
    for a journal that is damaged.
    """

    def __init__(self, folder: Path, log_every: int | str) -> None:
        path = folder / FILE
        first, self._last, size = _sum_up(path)
        first = first or {"journal": uuid4().hex, "log_every": log_every}
        self.log_every = first["log_every"]
        self._file = path.open("ab", buffering=0)
        self._file.truncate(size)  # half a line, if the process was killed while writing
        self._unwritten, self._one_thread = b"", threading.Lock()
        self._write({"start": first})
        self.flush()

    def metrics(
        self,
        step: int,
        values: Mapping[str, float],
        at: int | None = None,
        of: int | None = None,
    ) -> None:
        """Add the metrics of an optimizer step, at a time if not now; `of` so many steps in all.

        A metric's steps only ever rise: one that is not above the last is left out.
        """
        new = {name: value for name, value in values.items() if step > self._last.get(name, -1)}
        if new:
            self._last.update(dict.fromkeys(new, step))
            total = {} if of is None else {"of": of}
            self._write({"time": at or now(), "step": step, **total, "metrics": new})

    def tags(self, values: dict[str, str]) -> None:
        """Add facts about the run."""
        self._write({"tags": values})

    def files(self, names: list[str]) -> None:
        """Add files in the job's folder that the run is to have as well."""
        self._write({"files": names})

    def flush(self) -> None:
        """Hand what was added to the operating system; from then on it outlives this process.

        Raises OSError if the disk is full; the next flush goes on where this one came to.
        """
        with self._one_thread:
            while self._unwritten:
                self._unwritten = self._unwritten[self._file.write(self._unwritten) :]

    def sync(self) -> None:
        """See what was flushed onto the disk; from then on it outlives a power cut."""
        os.fsync(self._file.fileno())

    def close(self, status: str) -> None:
        """Add MLflow's word for how the attempt ended, and see all of it onto the disk."""
        self._write({"end": status})
        self.flush()
        self.sync()

    def _write(self, line: dict[str, Any]) -> None:
        added = json.dumps(line).encode() + b"\n"
        with self._one_thread:
            self._unwritten += added


def read(file: BinaryIO) -> list[dict[str, Any]]:
    """The whole lines from the file's position on, which moves behind them.

    Raises ValueError, and stays before it, at a line that is damaged.
    """
    lines, end = [], file.tell()
    while (line := file.readline()).endswith(b"\n"):
        try:
            lines.append(json.loads(line))
        except ValueError as error:
            file.seek(end)
            raise ValueError(f"{FILE} is damaged at byte {end}") from error
        end += len(line)
    file.seek(end)
    return lines


def _sum_up(path: Path) -> tuple[dict[str, Any], dict[str, int], int]:
    """How a journal starts, the last step of each metric, and the size of its whole lines."""
    if not path.exists():
        return {}, {}, 0
    with path.open("rb") as file:
        lines = read(file)
        last = {name: line["step"] for line in lines for name in line.get("metrics", ())}
        return (lines[0].get("start", {}) if lines else {}), last, file.tell()
