"""Parquet files, as a second copy of what jobs measure: tables for pandas, DuckDB or polars.

They are written if the environment variable PARQUET_FOLDER names a folder. Each project has its
own folder there, with a file for each attempt in `metrics/` and one in `jobs/`, written when the
attempt ends. So many machines can write into one folder, and a reader never sees half a file.
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
from labjobs.job.identity import project_id
from labjobs.tracking import costs
from labjobs.tracking.mlflow_client import experiment_name

VARIABLE = "PARQUET_FOLDER"

DIGITS = 12
"""Number of digits of the folder's id that identify an attempt."""


def root() -> Path | None:
    """Return the folder that the environment names; relative paths start at the project."""
    given = os.environ.get(VARIABLE)
    return PROJECT / Path(given).expanduser() if given else None


def check() -> None:
    """Make the folder, if one is named. Raises SettingsError if that fails."""
    folder = root()
    if not folder:
        return
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise SettingsError(f"{VARIABLE} {folder}: {error.strerror}") from None


def write(attempt: Path, status: str) -> None:
    """Write both files of an attempt that ended with a status (MLflow's word for it).

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
    project = _project_folder()
    # The row describes the metrics, so it is written last. Each file is made outside its table's
    # folder, where libraries would read half of it.
    for table, columns in (("metrics", metrics), ("jobs", job)):
        name = f"{job_id}-{owner}.parquet"
        part = project / f".{table}-{name}"
        files.write(part, partial(write_table, pa.table(columns)))
        part.replace(project / table / name)


def _project_folder() -> Path:
    """The project's folder, made if it is not there. The id in its name distinguishes projects with
    the same name, and finds the folder again after a project was renamed."""
    folder, digits = root(), project_id()[:8]
    assert folder
    with suppress(FileExistsError):
        folder.mkdir()
    found = sorted(folder.glob(f"*-{digits}"))
    project = found[0] if found else folder / f"{experiment_name()}-{digits}"
    for each in (project, *(project / name for name in ("metrics", "jobs"))):
        with suppress(FileExistsError):
            each.mkdir()
            each.chmod(folder.stat().st_mode)  # the same users may write here
    return project
