"""A job on disk: its settings, its id and its folder.

`runs/<id>/` holds plain files: `settings.json`, `log.txt`, `metrics.jsonl` (the journal),
`best.pt` (written by run.py) and `outcome.json`, which is written last.
"""

import json
import logging
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, TypeVar

from engine.journal import Journal
from engine.progress import Terminal
from engine.settings import JobSettings, SettingsError, as_words, job_id

S = TypeVar("S", bound=JobSettings)

log = logging.getLogger("job")


class JobError(Exception):
    """Why a job cannot go on. Its text is one line: the cause and what to do."""


class Job(Generic[S]):
    """One job. `journal` is there once it is open."""

    journal: Journal

    def __init__(self, settings: S) -> None:
        self.settings = settings
        self.id = job_id(settings)
        self.folder = settings.runs_root.expanduser().resolve() / self.id

    def make_folder(self) -> None:
        """Make sure that the job can write; raises SettingsError if it cannot."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            writable = os.access(self.folder, os.W_OK)
        except OSError as error:
            raise SettingsError(
                f"--runs-root: cannot make {self.folder}: {error.strerror}"
            ) from error
        if not writable:
            raise SettingsError(f"--runs-root: cannot write in {self.folder}")

    def open(self) -> None:
        """Begin afresh: settings, log and journal, in place of those of an earlier attempt."""
        (self.folder / "outcome.json").unlink(missing_ok=True)
        about = {"id": self.id, "name": as_words(self.settings), "settings": asdict(self.settings)}
        write_json(self.folder / "settings.json", about)
        self.journal = Journal(self.folder)
        file = logging.FileHandler(self.folder / "log.txt", mode="w")
        file.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        log.handlers = [file] if self.settings.quiet else [file, Terminal()]
        log.setLevel(logging.INFO)
        log.propagate = False
        log.info("job %s: %s", self.id, about["name"])

    def close(self, status: str, said: str) -> None:
        """Write down how the job ended: finished, failed or interrupted, and its last line."""
        word = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}[status]
        self.journal.end(word)
        root = str(self.settings.data_root)
        outcome = {"status": status, "said": said, "data_root": root}
        write_json(self.folder / "outcome.json", outcome)

    def outcome(self) -> dict[str, str]:
        """How the job's last attempt ended; empty if it has not, or that cannot be read."""
        try:
            return dict(json.loads((self.folder / "outcome.json").read_text()))
        except (OSError, ValueError):
            return {}


def cause(error: Exception) -> str:
    """An error in one line; one from a loader's process comes with its trace before it."""
    lines = str(error).strip().splitlines() or [""]
    line = lines[-1] if lines[0].startswith("Caught ") else lines[0]
    if isinstance(error, SettingsError | JobError):
        return line.split("JobError: ")[-1]
    return f"{type(error).__name__}: {line}"


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a file whole or not at all: beside it, onto the disk, then renamed."""
    beside = path.with_suffix(".part")
    with beside.open("w") as file:
        json.dump(content, file, indent=2, default=str)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def shown(folder: Path) -> str:
    """A path as short as it can be typed from here."""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)


def leave(status: int, line: str) -> int:
    """Print a process's last line, on stderr unless all is well; its exit status."""
    if sys.stdout.isatty():
        print("\r\033[K", end="", flush=True)  # what is left of a progress bar
    print(line, file=sys.stderr if status else sys.stdout, flush=True)
    return status


def as_line(metrics: dict[str, float]) -> str:
    """Metrics in one line: `val_loss 0.04213, val_accuracy 0.9861`."""
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
