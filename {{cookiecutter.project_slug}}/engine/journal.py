"""A job's journal: every metric and tag, one JSON line each, on disk before anything else sees it.

`metrics.jsonl` holds three kinds of lines:

    {"tags": {"commit": "…"}}
    {"time": 1767225600000, "step": 12, "metrics": {"train_loss": 0.31, "lr": 0.001}}
    {"end": "FINISHED"}

Times are milliseconds since 1970. They make a replay harmless: MLflow stores a point that it
already has, same step, value and time, only once.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

FILE = "metrics.jsonl"


def now() -> int:
    """The time of a metric, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Journal:
    """The writing end, in the training process."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / FILE).open("w")

    def metrics(self, step: int, values: dict[str, float], at: int | None = None) -> None:
        """Add the metrics of a step (an optimizer step, or an epoch counted from 1)."""
        self._write({"time": at or now(), "step": step, "metrics": values})

    def tags(self, values: dict[str, str]) -> None:
        """Add facts about the run."""
        self._write({"tags": values})

    def flush(self) -> None:
        """Hand what was added to the operating system; from then on it outlives this process."""
        self._file.flush()

    def end(self, status: str) -> None:
        """Add MLflow's word for how the run ended, and see all of it onto the disk."""
        self._write({"end": status})
        self._file.flush()
        os.fsync(self._file.fileno())

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")


def read(folder: Path, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
    """The whole lines after a byte offset, and the offset after the last of them."""
    with (folder / FILE).open("rb") as file:
        file.seek(offset)
        whole, newline, _ = file.read().rpartition(b"\n")
    return [json.loads(line) for line in whole.splitlines()], offset + len(whole + newline)
