"""A job's journal on its way to the tracking store.

`sent.json` in the job's folder says how far it has come: into which run, up to which line of which
journal. It saves work and no more: what is sent twice is stored once. A damaged journal is not
sent: the job's next attempt mends it.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.files import read_record, write_record
from engine.job import costs, data, lines
from engine.tracking.address import fingerprint
from engine.tracking.artifacts import AT_THE_END
from engine.tracking.store import Run

if TYPE_CHECKING:
    from engine.tracking.counters import Counters


class Delivery:
    """A journal on its way to the store. `status` is its word for how the job ended, if it has.

    Raises Damaged if the journal or the settings beside it are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._about = lines.record_of(folder, "settings.json")
        if not self._about:
            raise lines.Damaged(f"settings.json is damaged or missing; {lines.MENDS}")
        self._file = (folder / lines.FILE).open("rb")
        self._reader = lines.Reader(self._file)
        self._run: Run | None = None
        self._id = ""
        self._unsent: list[dict[str, Any]] = []
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

    def read(self) -> None:
        """Take in what the job has written since. Raises Damaged for what is not as it was."""
        new = self._reader.read()
        self._unsent += new
        for line in new:
            if "start" in line:
                self._gpu, self._counters = "", None  # the last attempt's
            self._gpu = line.get("tags", {}).get("gpu", self._gpu)
            self._mended |= "lost" in line
            self.status = line.get("end", "" if "start" in line else self.status)

    def send(self, running: bool = False) -> None:
        """Send what has been read; while the job is running, the machine's counters too.

        Raises whatever the store raises; nothing is lost by that.
        """
        try:
            if self._run is None:
                self._open()
            assert self._run
            self._run.beat()
            if self._unsent:
                os.fsync(self._file.fileno())  # what is sent must not be written a second time
                self._run.log(self._unsent, self._mended)
                names = [name for line in self._unsent for name in line.get("files", ())]
                self._run.add(self._folder, names)
                self._unsent = []
                self._note("")
            if running and (sampled := self._sampled(self._run.begun)):
                self._run.log(sampled)
        except Exception:
            self._run = None
            raise

    def end(self, status: str) -> None:
        """Say how the run ended, once all of it is sent; then add the files that its users look
        for. Results count as stored from then on, whatever becomes of the files."""
        assert self._run
        if read := data.summary(self._folder):
            self._run.has_read(read)
        self._run.log(costs.as_lines(self._folder))
        self._run.end(status)
        self._run.add(self._folder, AT_THE_END)
        self._note(status)

    def _open(self) -> None:
        tags = {"job_folder": str(self._folder), "host": os.uname().nodename}
        self._run = Run(self._about, self._journal, tags)
        if self._run.id != self._id:
            self._id = self._run.id
            self._reader, self._unsent = lines.Reader(self._file), []
            self.read()
            noted = _noted(self._folder)
            if (noted.get("run"), noted.get("journal")) == (self._id, self._journal):
                self._unsent = [line for line in self._unsent if line["line"] > noted["lines"]]

    def _sampled(self, since: int) -> list[dict[str, Any]]:
        """The counters, if it is time for them; none if they cannot be read."""
        with suppress(Exception):  # whatever a driver does, metrics are not to wait for it
            from engine.tracking.counters import Counters

            if self._counters is None or self._counters.uuid != self._gpu:
                self._counters = Counters(self._gpu)  # a job says after its start which GPU it has
            return self._counters.sample(since)
        return []

    def _note(self, status: str) -> None:
        noted = {
            "store": fingerprint(),
            "run": self._id,
            "journal": self._journal,
            "lines": self._reader.line,
            "bytes": self._file.tell(),
            "status": status,
        }
        with suppress(OSError):  # a full disk: the next courier sends it again, which adds nothing
            write_record(self._folder / "sent.json", noted)


def delivered(folder: Path) -> bool:
    """Whether the store, when last heard of, had all that there is in a job's journal."""
    noted, start = _noted(folder), lines.record_of(folder, "settings.json").get("journal", {})
    all_of_it = noted.get("store"), noted.get("journal"), bool(noted.get("status"))
    if all_of_it != (fingerprint(), start.get("journal"), True):
        return False
    return bool((folder / lines.FILE).stat().st_size <= noted["bytes"])  # less: it was damaged


def _noted(folder: Path) -> dict[str, Any]:
    return read_record(folder / "sent.json")
