"""A job of a sweep while it runs: started, asked to stop, tried again.

What it prints is kept in output.txt in its folder; the last line is shown.
"""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from labjobs.sweeps import plan
from labjobs.sweeps.plan import Row, Task
from labjobs.sweeps.starter import Starter
from labjobs.warm.client import LOST

PAUSE = 0.05
"""Seconds between two checks of a job."""

KILLED = 137
"""The exit status of a process that was killed, perhaps because memory ran out."""

TAIL = 65_536
"""Bytes at an output's end that surely hold its last line."""


class Running:
    """A job in its place, such as a GPU, whose locks it holds while it runs.

    Raises OSError if it cannot be started.
    """

    def __init__(
        self,
        task: Task,
        row: Row,
        place: str,
        starter: Starter,
        env: Mapping[str, str] = {},
        locks: Sequence[int] = (),
    ) -> None:
        self.task = task
        self._row, self._place, self._starter = row, place, starter
        self._env, self._locks = env, locks
        self._output = Path(row.folder) / "output.txt"
        self._tries = 0
        self.start()

    def start(self) -> None:
        """Start it, for the first time or again. Raises OSError."""
        self._tries += 1
        self._output.parent.mkdir(parents=True, exist_ok=True)
        with self._output.open("a") as output:
            print(f"started on {self._place}, {time.ctime()}", file=output, flush=True)
            self._begun = os.fstat(output.fileno()).st_mtime_ns
            self._process = self._starter.job(
                self.task.words, output.fileno(), self._env, keep=self._locks
            )

    def stop(self, signal: int) -> None:
        """Send it a signal."""
        self._process.send_signal(signal)

    def status(self) -> int | None:
        """Return its exit status as a shell reports it, 128 + n for signal n; None while it
        runs."""
        status = self._process.poll()
        if status == LOST:  # its folder may know more
            known = plan.ended(self._row.folder, since=self._begun)
            return KILLED if known is None else known
        return 128 - status if status is not None and status < 0 else status

    def may_do_better(self, status: int, retries: int) -> bool:
        """Whether it should be tried again, because it ran out of memory, which is not a mistake in
        the code."""
        memory = status == KILLED or (status == 1 and "out of memory" in self._last_line())
        return memory and self._tries <= retries

    def ending(self, status: int) -> str:
        """Return the last line of its output; a line is added if it was killed or crashed."""
        line = self._last_line()
        if not line.startswith(f"job {self._row.id} "):
            line = f"job {self._row.id} ended with status {status}: {line}"
            with suppress(OSError), self._output.open("a") as output:  # a full disk
                print(line, file=output)
        return line

    def _last_line(self) -> str:
        """The last line of its output; empty if somebody has removed that."""
        with suppress(OSError), self._output.open("rb") as file:
            file.seek(max(0, self._output.stat().st_size - TAIL))
            return file.read().decode(errors="replace").rstrip("\n").rpartition("\n")[2]
        return ""
