"""Parquet files, as a second copy of what jobs measure: tables for pandas, DuckDB or polars.

They are written if the environment variable PARQUET_FOLDER names a folder. Each project has its own
folder there, with a file for each attempt in `metrics/` and one in `jobs/`. Only an attempt's own
courier writes its files, and always replaces them as a whole, so many machines can write into one
folder and a reader never sees half a file. A file is rewritten when there is something new, but
less often if writing takes long.
"""

import hashlib
import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from labjobs import files
from labjobs.errors import SettingsError, cause
from labjobs.job.journal import now
from labjobs.job.project import project_id
from labjobs.paths import PROJECT
from labjobs.privacy import scrub
from labjobs.tracking.experiment import experiment_name
from labjobs.tracking.target import Line, Target

if TYPE_CHECKING:
    import pyarrow as pa

VARIABLE = "PARQUET_FOLDER"

DIGITS = 12
"""Number of digits of the folder's id that identify an attempt."""

PAUSE = 60.0
"""The least seconds between two writes of an attempt's files."""

FRACTION = 0.01
"""Largest fraction of the time that may be spent writing."""

UNFINISHED = ".unfinished"
"""The folder in which files are written before they are moved to their tables, because libraries
read everything in a table's folder."""


def root() -> Path | None:
    """Return the folder that the environment names; relative paths start at the project."""
    given = os.environ.get(VARIABLE)
    return PROJECT / Path(given).expanduser() if given else None


class ParquetFiles(Target):
    """The two files of an attempt. Nothing is kept for the next process: it writes them anew."""

    NAME, NOTED_IN = "the Parquet folder", "sent-parquet.json"

    def __init__(self, folder: Path, about: dict[str, Any], journal: str) -> None:
        self.id, self.interval = uuid4().hex, PAUSE
        self._about, self._folder = about, folder
        self._attempt = str(about["owner"])[:DIGITS]
        self._metrics: list[pa.Table] = []
        self._tags: dict[str, str] = {}
        self._line = 0

    @staticmethod
    def place() -> str:
        """Return a hash of the folder's path; empty if there is none."""
        folder = root()
        return hashlib.sha256(str(folder).encode()).hexdigest()[:DIGITS] if folder else ""

    @staticmethod
    def check() -> None:
        """Make the folder. Raises SettingsError if that fails."""
        folder = root()
        if folder and not folder.parent.is_dir():
            raise SettingsError(f"{VARIABLE} {folder}: there is no folder {folder.parent}")
        if folder and folder.exists() and not folder.is_dir():
            raise SettingsError(f"{VARIABLE} {folder}: is not a folder")
        if folder:
            try:
                folder.mkdir(exist_ok=True)
            except OSError as error:
                raise SettingsError(f"{VARIABLE} {folder}: {error.strerror}") from None

    @staticmethod
    def reason(error: BaseException) -> str:
        """Return why the files cannot be written."""
        said = cause(error)
        return scrub(said if str(root()) in said else f"{root()}: {said}")

    def open(self) -> None:
        """Make the folders. Raises OSError."""
        folder = root()
        assert folder
        with suppress(FileExistsError):
            folder.mkdir()
        self._root = folder / _name(folder)
        for each in (self._root, *(self._root / name for name in ("metrics", "jobs", UNFINISHED))):
            with suppress(FileExistsError):
                each.mkdir()
                each.chmod(folder.stat().st_mode)  # the same users may write here

    def log(self, lines: Sequence[Line], mended: bool = False) -> None:
        """Write both files, with these lines too. Raises OSError."""
        new = [line for line in lines if line["line"] > self._line]
        self._metrics.append(self._points(new))
        for line in new:
            self._tags |= line.get("tags", {})
            self._line = line["line"]
        self._write_all("RUNNING")

    def end(self, status: str) -> None:
        """Write how the attempt ended. Raises OSError."""
        self._write("jobs", self._job(status))

    def _write_all(self, status: str) -> None:
        import pyarrow as pa

        begun = time.monotonic()
        self._metrics = [pa.concat_tables(self._metrics)]
        self._write("metrics", self._metrics[0])
        self._write("jobs", self._job(status))  # describes the other file, so it is written last
        self.interval = max(PAUSE, (time.monotonic() - begun) / FRACTION)

    def _points(self, lines: Sequence[Line]) -> "pa.Table":
        """The metrics in lines of the journal."""
        import pyarrow as pa

        columns = {
            "job_id": pa.string(),
            "attempt": pa.string(),
            "step": pa.int64(),
            "name": pa.string(),
            "value": pa.float64(),
            "time": pa.timestamp("ms", "UTC"),
        }
        whose = self._about["id"], self._attempt
        rows = [
            (*whose, line["step"], name, value, line["time"])
            for line in lines
            for name, value in line.get("metrics", {}).items()
        ]
        cells = zip(*rows, strict=True) if rows else ([] for _ in columns)
        arrays = [pa.array(each, kind) for each, kind in zip(cells, columns.values(), strict=True)]
        return pa.table(arrays, names=list(columns))

    def _job(self, status: str) -> "pa.Table":
        """The one row that says what the attempt is. Settings differ from job to job, so they are
        JSON in one column: all files have the same columns."""
        import pyarrow as pa

        about, tags = self._about, self._tags
        row = {
            "job_id": about["id"],
            "attempt": self._attempt,
            "name": about["name"],
            "script": about["script"],
            "status": status,
            "code": tags.get("code", about["code"]),
            "data": tags.get("data", ""),
            "host": os.uname().nodename,
            "folder": str(self._folder),
            "settings": json.dumps(about["settings"]),
            "tags": json.dumps(tags),
        }
        columns = {name: pa.array([text], pa.string()) for name, text in row.items()}
        return pa.table({**columns, "updated": pa.array([now()], pa.timestamp("ms", "UTC"))})

    def _write(self, table: str, content: "pa.Table") -> None:
        """Write one file whole or not at all."""
        from pyarrow.parquet import write_table

        name = f"{self._about['id']}-{self._attempt}.parquet"
        whole = self._root / UNFINISHED / f"{table}-{name}"
        files.write(whole, lambda file: write_table(content, file))
        whole.replace(self._root / table / name)


def _name(folder: Path) -> str:
    """The name of the project's folder. The id in it distinguishes projects with the same name, and
    finds the folder again after a project was renamed."""
    digits = project_id()[:8]
    found = sorted(path.name for path in folder.glob(f"*-{digits}"))
    return found[0] if found else f"{experiment_name()}-{digits}"
