"""A job's journal on its way to a target, such as MLflow.

A file in the job's folder (`sent.json` for MLflow) says how far the delivery has come: to which
run, and up to which line of which journal. The file only saves work, because lines that are sent
twice are stored once. A damaged journal is not sent: the job's next attempt repairs it.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labjobs.files import read_record, write_record
from labjobs.job import costs, data, lines
from labjobs.tracking.artifacts import AT_THE_END
from labjobs.tracking.target import Line, Target

if TYPE_CHECKING:
    from labjobs.tracking.counters import Counters


class Delivery:
    """A journal on its way to a target. `status` is the journal's word for how the job ended, if it
    has ended. Raises Damaged if the journal or settings.json is damaged.
    """

    def __init__(self, folder: Path, kind: type[Target]) -> None:
        self.kind, self._folder = kind, folder
        self._about = lines.record_of(folder, "settings.json")
        if not self._about:
            raise lines.Damaged(f"settings.json is damaged or missing; {lines.MENDS}")
        self._file = (folder / lines.FILE).open("rb")
        self._reader = lines.Reader(self._file)
        self._id = ""
        self._unsent: list[Line] = []
        self._gpu = ""
        self._counters: Counters | None = None
        self._mended = False
        self.status = ""
        self.read()
        if not self._unsent:
            raise lines.Damaged(f"{lines.FILE} is empty; {lines.MENDS}")
        self._journal = str(self._reader.start["journal"])
        if self._reader.line < lines.expected(folder, self._journal):
            raise lines.Damaged(f"the end of {lines.FILE} is lost; {lines.MENDS}")
        self._target, self._is_open = kind(folder, self._about, self._journal), False

    @property
    def interval(self) -> float:
        """Seconds until the target wants the next lines."""
        return self._target.interval

    def read(self) -> None:
        """Read what the job has written since. Raises Damaged for damaged lines."""
        new = self._reader.read()
        self._unsent += new
        for line in new:
            if "start" in line:
                self._gpu, self._counters = "", None  # the last attempt's
            self._gpu = line.get("tags", {}).get("gpu", self._gpu)
            self._mended |= "lost" in line
            self.status = line.get("end", "" if "start" in line else self.status)

    def send(self, running: bool = False) -> None:
        """Send what has been read; while the job is running, also the machine's counters. Raises
        whatever the target raises, without losing anything.
        """
        try:
            if not self._is_open:
                self._open()
            self._target.beat()
            if self._unsent:
                os.fsync(self._file.fileno())  # what is sent must not be written a second time
                self._target.log(self._unsent, self._mended)
                names = [name for line in self._unsent for name in line.get("files", ())]
                self._target.add(self._folder, names)
                self._unsent = []
                self._note("")
            if running and self.kind.COUNTERS and (sampled := self._sampled(self._target.begun)):
                self._target.log(sampled)
        except Exception:
            self._is_open = False
            raise

    def end(self, status: str) -> None:
        """Store how the run ended, after everything else is sent; then add the files that users
        look for. From then on, results count as stored, whatever happens to the files."""
        if read := data.summary(self._folder):
            self._target.has_read(read)
        beyond = {"line": self._reader.line + 1}  # not in the journal: what the courier has seen
        self._target.log([line | beyond for line in costs.as_lines(self._folder)])
        self._target.end(status)
        self._target.add(self._folder, AT_THE_END)
        self._note(status)

    def _open(self) -> None:
        self._target.open()
        if self._target.id != self._id:
            self._id = self._target.id
            self._reader, self._unsent = lines.Reader(self._file), []
            self.read()
            noted = self._noted
            if (noted.get("run"), noted.get("journal")) == (self._id, self._journal):
                self._unsent = [line for line in self._unsent if line["line"] > noted["lines"]]
        self._is_open = True

    def _sampled(self, since: int) -> list[Line]:
        """The counters, if it is time for them; empty if they cannot be read."""
        with suppress(Exception):  # metrics must not wait for a driver
            from labjobs.tracking.counters import Counters

            if self._counters is None or self._counters.uuid != self._gpu:
                self._counters = Counters(self._gpu)  # a job says after its start which GPU it has
            return self._counters.sample(since)
        return []

    def _note(self, status: str) -> None:
        noted = {
            "store": self.kind.place(),
            "run": self._id,
            "journal": self._journal,
            "lines": self._reader.line,
            "bytes": self._file.tell(),
            "status": status,
        }
        with suppress(OSError):  # a full disk: the next courier sends it again, which adds nothing
            write_record(self._folder / self.kind.NOTED_IN, noted)

    @property
    def _noted(self) -> dict[str, Any]:
        return read_record(self._folder / self.kind.NOTED_IN)


def delivered(folder: Path, kind: type[Target]) -> bool:
    """Whether a target had everything in a job's journal when it was last reached."""
    noted = read_record(folder / kind.NOTED_IN)
    start = lines.record_of(folder, "settings.json").get("journal", {})
    all_of_it = noted.get("store"), noted.get("journal"), bool(noted.get("status"))
    if all_of_it != (kind.place(), start.get("journal"), True):
        return False
    return bool(
        (folder / lines.FILE).stat().st_size <= noted["bytes"]
    )  # less, because it was damaged
