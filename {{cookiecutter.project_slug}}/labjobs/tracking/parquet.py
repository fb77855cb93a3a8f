"""Parquet files, as a second copy of what jobs measure: tables for pandas, DuckDB or polars.

They are written if the environment variable PARQUET_FOLDER names a folder: a file for each attempt
in `metrics/` and one in `jobs/`, when the attempt ends. So many projects and machines can write
into one folder, and a reader never sees half a file.
"""

import json
import os
from contextlib import suppress
from functools import partial
from pathlib import Path

from labjobs import files, layout
from labjobs.errors import SettingsError
from labjobs.files import PROJECT
from labjobs.job import journal
from labjobs.tracking import costs
from labjobs.tracking.mlflow_client import experiment_name

VARIABLE = "PARQUET_FOLDER"

DIGITS = 12  # number of digits of the folder's id that identify an attempt


def root() -> Path | None:
    """Return the folder that the environment names; relative paths start at the project."""
    given = os.environ.get(VARIABLE)
    return PROJECT / Path(given).expanduser() if given else None


def check() -> None:
    """Make the folder, if one is named. Raises SettingsError if that fails."""
    folder = root()
    try:
        if folder:
            folder.mkdir(exist_ok=True)
    except OSError as error:
        raise SettingsError(f"{VARIABLE} {folder}: {error.strerror}") from None


def write(folder: Path, attempt: Path, status: str) -> None:
    """Write both files of an attempt that ended with a status (MLflow's word) into a folder.

    Raises OSError, and Damaged if its journal is.
    """
    import pyarrow as pa
    from pyarrow.parquet import write_table

    about = journal.record_of(attempt, layout.SETTINGS)
    job_id, owner = str(about["id"]), str(about["owner"])[:DIGITS]
    lines = [*journal.lines_of(attempt), *costs.as_lines(attempt)]
    points = [
        (line["step"], name, value, line["time"])
        for line in lines
        for name, value in line.get("metrics", {}).items()
    ]
    steps, names, values, times = zip(*points, strict=True) if points else ((), (), (), ())
    metrics = {
        "job_id": pa.array([job_id] * len(points), pa.string()),
        "attempt": pa.array([owner] * len(points), pa.string()),
        "step": pa.array(steps, pa.int64()),
        "name": pa.array(names, pa.string()),
        "value": pa.array(values, pa.float64()),
        "time": pa.array(times, pa.timestamp("ms", "UTC")),
    }
    tags: dict[str, str] = {}
    for line in lines:
        tags |= line.get("tags", {})
    # Settings differ from job to job, so they are JSON: all files have the same columns.
    row = {
        "project": experiment_name(),
        "job_id": job_id,
        "attempt": owner,
        "name": about["name"],
        "script": about["script"],
        "status": status,
        "code": tags.get("code", about["code"]),
        "data": tags.get("data", ""),
        "host": os.uname().nodename,
        "folder": str(attempt),
        "settings": json.dumps(about["settings"]),
        "tags": json.dumps(tags),
    }
    job = {name: pa.array([text], pa.string()) for name, text in row.items()}
    job["updated"] = pa.array([journal.now()], pa.timestamp("ms", "UTC"))
    # The row describes the metrics, so it is written last. Each file is made outside its table's
    # folder, where libraries would read half of it.
    for table, columns in (("metrics", metrics), ("jobs", job)):
        place = folder / table
        with suppress(FileExistsError):
            place.mkdir()
            place.chmod(folder.stat().st_mode)  # the same users may write here
        name = f"{job_id}-{owner}.parquet"
        part = folder / f".{table}-{name}"
        files.write(part, partial(write_table, pa.table(columns)))
        part.replace(place / name)
