"""A job on disk: its settings, its id, its folder and who owns it.

`runs/<id>/` holds plain files: `settings.json`, `changes.diff` (of the code, against its commit),
`log.txt`, `metrics.jsonl` (the journal), `best.pt`, `last.pt` and `previous.pt` (checkpoints),
`predictions.npz` (what the best weights took the test examples for), `profile.txt`, `profile.json`
and `memory.pickle` (of --profile), `lock`, `sent.json` (how far the courier has come) and
`outcome.json`, which is written last.

The lock is held by the process that trains, so a job has one owner on this disk and a dead owner is
known at once. The folder's `owner` word, kept in the lock file, says in the tracking store which
folder a run belongs to.
"""

import json
import logging
import os
import platform
from dataclasses import asdict, replace
from typing import Generic, TextIO, TypeVar
from uuid import uuid4

from engine import locks
from engine.cli.settings import JobSettings, as_words, job_id
from engine.errors import JobError, SettingsError
from engine.files import read_json, write_json
from engine.job import journal
from engine.job.interruption import Interruption
from engine.job.terminal import Terminal, log
from engine.paths import shown

S = TypeVar("S", bound=JobSettings)

WIDTH = 512
"""Bytes of a lock file."""


class Job(Generic[S]):
    """One job. `journal` is there once it is open."""

    journal: journal.Journal

    def __init__(self, settings: S) -> None:
        self.settings = settings
        self.id = job_id(settings)
        self.folder = settings.runs_root.expanduser().resolve() / self.id
        self.interruption = Interruption()

    def make_folder(self) -> None:
        """Make sure that the job can write; raises SettingsError if it cannot."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "lock").open("a").close()
        except OSError as error:
            raise SettingsError(
                f"--runs-root: cannot write in {self.folder}: {error.strerror}"
            ) from error

    def take(self) -> None:
        """Become the job's owner on this disk; raises JobError if another process is."""
        lock = locks.take(self.folder / "lock")
        if lock is None:
            held = read_json(self.folder / "lock")
            raise JobError(f"is running already (process {held.get('pid')} on {held.get('host')})")
        self._lock = lock
        self.owner = _owner(lock)

    def discard(self) -> None:
        """Remove the folder again if there is nothing in it."""
        if [file.name for file in self.folder.iterdir()] == ["lock"]:
            (self.folder / "lock").unlink()
            self.folder.rmdir()

    def open(self) -> None:
        """Begin, or go on from what an earlier attempt left; a finished job begins anew.

        Raises JobError if what it left is damaged.
        """
        if self.outcome().get("status") == "finished":
            for name in (journal.FILE, "last.pt", "previous.pt"):
                (self.folder / name).unlink(missing_ok=True)
        (self.folder / "outcome.json").unlink(missing_ok=True)
        self._open_log()
        try:
            self.journal = journal.Journal(self.folder, self.settings.log_every)
        except ValueError as error:
            raise JobError(f"{error}; delete {shown(self.folder)} to begin anew") from error
        if self.settings.log_every not in ("auto", self.journal.log_every):
            log.warning("--log-every stays %s, as this job began", self.journal.log_every)
        self.settings = replace(self.settings, log_every=self.journal.log_every)
        about = {"id": self.id, "name": as_words(self.settings), "settings": asdict(self.settings)}
        write_json(self.folder / "settings.json", {**about, "owner": self.owner})
        log.info("job %s: %s", self.id, about["name"])

    def keep_changes(self, diff: str) -> None:
        """Write down how the code differs from its commit."""
        path = self.folder / "changes.diff"
        path.write_text(diff) if diff else path.unlink(missing_ok=True)

    def close(self, status: str, said: str) -> None:
        """Write down how the job ended: finished, failed or interrupted, and its last line."""
        word = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}[status]
        self.journal.close(word)
        root = str(self.settings.data_root)
        outcome = {"status": status, "said": said, "data_root": root}
        write_json(self.folder / "outcome.json", outcome)

    def outcome(self) -> dict[str, str]:
        """How the job's last attempt ended; empty if it has not, or that cannot be read."""
        return read_json(self.folder / "outcome.json")

    def _open_log(self) -> None:
        file = logging.FileHandler(self.folder / "log.txt")
        file.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        log.handlers = [file] if self.settings.quiet else [file, Terminal()]
        log.setLevel(logging.INFO)
        logging.raiseExceptions = False  # a full disk has its one line; no trace for each log line


def _owner(lock: TextIO) -> str:
    """The folder's word for itself, made once; notes in the lock file who holds it now."""
    lock.seek(0)
    try:
        owner = str(json.loads(lock.read())["owner"])
    except (ValueError, KeyError):
        owner = uuid4().hex
    held = {"owner": owner, "pid": os.getpid(), "host": platform.node()}
    lock.seek(0)
    lock.write(json.dumps(held).ljust(WIDTH))  # in one write, over the old: never half of either
    lock.flush()
    os.fsync(lock.fileno())
    return owner
