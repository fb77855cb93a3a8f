"""Parquet files, as a second copy of what jobs measure: tables for pandas, DuckDB or polars.

They are written if the environment variable PARQUET_FOLDER names a folder. Each project has its own
folder there, with a file for each attempt in `metrics/` and one in `jobs/`. Only an attempt's own
courier writes its files, always as a whole and from the whole journal. So many machines can write
into one folder, a reader never sees half a file, and nothing is kept from one write to the next.
"""

import hashlib
import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labjobs import files, layout
from labjobs.errors import SettingsError, cause
from labjobs.files import PROJECT, write_record
from labjobs.job import journal
from labjobs.job.identity import project_id
from labjobs.privacy import scrub
from labjobs.tracking import costs
from labjobs.tracking.mlflow_client import experiment_name

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


def check() -> None:
    """Make the folder, if one is named. Raises SettingsError if that fails."""
    folder = root()
    if not folder:
        return
    if not folder.parent.is_dir():
        raise SettingsError(f"{VARIABLE} {folder}: there is no folder {folder.parent}")
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"{VARIABLE} {folder}: is not a folder")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise SettingsError(f"{VARIABLE} {folder}: {error.strerror}") from None


class ParquetFiles:
    """The two files of an attempt."""

    NAME, NOTED_IN = "the Parquet folder", layout.SENT_PARQUET

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.interval = PAUSE

    @staticmethod
    def place() -> str:
        """Return a hash of the Parquet folder's path, which distinguishes such folders."""
        return hashlib.sha256(str(root()).encode()).hexdigest()[:DIGITS]

    @staticmethod
    def reason(error: BaseException) -> str:
        """Return why the files cannot be written, in one line."""
        said = cause(error)
        return scrub(said if str(root()) in said else f"{root()}: {said}")

    def send(self, over: bool) -> None:
        """Write both files; if the attempt is `over`, for the last time. Raises OSError, and
        Damaged if the journal is."""
        begun = time.monotonic()
        about = journal.record_of(self._folder, layout.SETTINGS)
        with (self._folder / layout.JOURNAL).open("rb") as file:
            reader = journal.Reader(file)
            lines = reader.read()
            size = file.tell()
        status = ""
        tags: dict[str, str] = {}
        for line in lines:
            status = line.get("end", "" if "start" in line else status)
            tags |= line.get("tags", {})
        status = (status or "KILLED") if over else "RUNNING"
        lines += costs.as_lines(self._folder) if over else []
        keys = {"job_id": str(about["id"]), "attempt": str(about["owner"])[:DIGITS]}
        metrics, row = _points(keys, lines), self._row(keys, about, tags, status)
        project = _project_folder()
        _write(project, "metrics", keys, metrics)
        _write(project, "jobs", keys, row)  # describes the other file, so it is written last
        self.interval = max(PAUSE, (time.monotonic() - begun) / FRACTION)
        if over:
            noted = {"store": self.place(), "journal": reader.start["journal"]}
            noted |= {"bytes": size, "status": status}
            with suppress(OSError):  # a full disk: the next courier writes the files again
                write_record(self._folder / self.NOTED_IN, noted)

    def _row(
        self, keys: dict[str, str], about: dict[str, Any], tags: dict[str, str], status: str
    ) -> "pa.Table":
        """The one row that says what the attempt is. Settings differ from job to job, so they are
        JSON in one column: all files have the same columns."""
        import pyarrow as pa

        row = {
            **keys,
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
        updated = pa.array([journal.now()], pa.timestamp("ms", "UTC"))
        return pa.table({**columns, "updated": updated})


def _points(keys: dict[str, str], lines: Sequence[dict[str, Any]]) -> "pa.Table":
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
    rows = [
        (*keys.values(), line["step"], name, value, line["time"])
        for line in lines
        for name, value in line.get("metrics", {}).items()
    ]
    cells = zip(*rows, strict=True) if rows else ([] for _ in columns)
    arrays = [pa.array(each, kind) for each, kind in zip(cells, columns.values(), strict=True)]
    return pa.table(arrays, names=list(columns))


def _project_folder() -> Path:
    """The project's folder, made if it is not there. The id in its name distinguishes projects with
    the same name, and finds the folder again after a project was renamed."""
    folder, digits = root(), project_id()[:8]
    assert folder
    with suppress(FileExistsError):
        folder.mkdir()
    found = sorted(folder.glob(f"*-{digits}"))
    project = found[0] if found else folder / f"{experiment_name()}-{digits}"
    for each in (project, *(project / name for name in ("metrics", "jobs", UNFINISHED))):
        with suppress(FileExistsError):
            each.mkdir()
            each.chmod(folder.stat().st_mode)  # the same users may write here
    return project


def _write(project: Path, table: str, keys: dict[str, str], content: "pa.Table") -> None:
    """Write one file whole or not at all."""
    from pyarrow.parquet import write_table

    name = f"{keys['job_id']}-{keys['attempt']}.parquet"
    whole = project / UNFINISHED / f"{table}-{name}"
    files.write(whole, lambda file: write_table(content, file))
    whole.replace(project / table / name)
