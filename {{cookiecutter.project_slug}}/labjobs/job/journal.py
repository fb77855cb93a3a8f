"""A job's journal: every metric and tag, one JSON line each, written to disk before it goes
anywhere else.

`metrics.jsonl` is only ever added to, by one attempt at the job after another:

    {"line": 1, "start": {"journal": "5f1c…", "log_every": "auto", "code": "90b5…", "after": ""},
     "crc": "0c85d0bb"}
    {"line": 2, "tags": {"commit": "…"}, "crc": "91f4e2d7"}
    {"line": 3, "time": 1767225600000, "step": 12, "metrics": {"train_loss": 0.31}, "crc": "…"}
    {"line": 4, "files": ["profile.txt"], "crc": "…"}
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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labjobs.job import lines, mending
from labjobs.job.lines import FILE
from labjobs.job.usage import Reading


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
        found = mending.mend(folder, log_every=log_every, code=code, after=after)
        self.start, self.log_every = found.start, found.start["log_every"]
        self.damage, self._lost = found.damage, found.lost
        self.lines = self._before = found.last
        self._last, self._there = found.last_steps, found.points
        self.tags_before = found.tags
        self._seed = lines.seed_of(self.start["journal"])
        self._file = (folder / FILE).open("ab", buffering=0)
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
            self.damage = f"the end of {FILE} is lost"
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
            self._unwritten += lines.encoded(self.lines, text, self._seed)

    def _is_new(self, name: str, step: int) -> bool:
        last = self._last.get(name, -1)
        if step <= last and (not self._lost or (name, step) in self._there):
            return False
        self._last[name] = max(step, last)
        if self._lost:
            self._there.add((name, step))
        return True
