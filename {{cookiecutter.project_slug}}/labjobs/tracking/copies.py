"""Copies of what jobs measure, beside the store: Parquet files, TensorBoard, Trackio, W&B.

Each is made from the whole journal, and adds nothing if it is made again: files are replaced or
only grow, and rows have keys. So whatever is killed, nothing is lost or copied twice. A tracker is
a module with its name and a function `write(copy)`, which alone imports its package. In the
environment, TRACKERS names the wanted ones, and PARQUET_FOLDER the folder of the Parquet files.
"""

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from labjobs import files, layout
from labjobs.errors import JobError, SettingsError, cause, did_you_mean
from labjobs.files import PROJECT
from labjobs.job import journal
from labjobs.job.journal import Damaged
from labjobs.privacy import scrub
from labjobs.tracking import costs
from labjobs.tracking.mlflow_client import experiment_name

VARIABLE = "TRACKERS"
TRACKERS = ("tensorboard", "trackio", "wandb")
"""Their modules here, their packages and the project's groups of packages have these names."""

RUNNING, LIVE = "RUNNING", ("tensorboard", "trackio")  # which copies a job has while it is running

TABLES = "PARQUET_FOLDER"

IMAGE = re.compile(rf"{layout.LOGGED}/(?P<name>.+)-(?P<step>\d+)\.png")  # training/outputs.py

DIGITS = 12  # number of digits of the folder's id that identify an attempt


def settings_of(attempt: Path) -> dict[str, Any]:
    """Return what settings.json says. Raises Damaged if it is not there or not whole."""
    if about := journal.record_of(attempt, layout.SETTINGS):
        return about
    raise Damaged("settings.json is damaged or missing; the job's own command writes it again")


class Copy:
    """What is copied of an attempt, which is RUNNING or has ended with a status, in MLflow's words.
    Raises OSError, and Damaged if one of its files is."""

    def __init__(self, attempt: Path, status: str = RUNNING) -> None:
        self.attempt, self.status, self.project = attempt, status, experiment_name()
        self.about, self.lines = settings_of(attempt), journal.lines_of(attempt)
        self.costs = costs.as_lines(attempt)
        self.journal = str(self.lines[0]["start"]["journal"])
        self.key = {"job_id": str(self.about["id"]), "attempt": str(self.about["owner"])[:DIGITS]}
        self.tags = {k: v for line in self.lines for k, v in line.get("tags", {}).items()}
        # The run's name, which may also name a folder, and the end of it, which never changes.
        self.end = f"{self.key['job_id']} {self.key['attempt'][:6]}"
        self.title = f"{re.sub('[^A-Za-z0-9_ .=+,-]', '_', self.about['name'])[:100]} {self.end}"

    @property
    def config(self) -> dict[str, Any]:
        """The settings and, under one name, what else is known about the attempt."""
        names = dict.fromkeys(name for line in self.lines for name in line.get("files", ()))
        facts = {**self.key, "status": self.status, "files": ", ".join(names), **self.tags}
        return {**self.about["settings"], "labjobs": facts}

    def points(self) -> Iterator[tuple[str, int, int, float]]:
        """Yield the name, step, time in milliseconds and value of what was measured."""
        for line in [*self.lines, *self.costs]:
            for name, value in line.get("metrics", {}).items():
                yield name, line["step"], line["time"], value

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the journal's lines, each with a step, a time in seconds, metrics, images and texts
        by name. After them comes what a finished job has cost; until then, that changes."""
        lines = [*self.lines, *(self.costs if self.status == "FINISHED" else [])]
        step, at = 0, next((line["time"] for line in lines if "time" in line), journal.now())
        seen = set[str]()
        for number, line in enumerate(lines, 1):
            step, at = line.get("step", step), line.get("time", at)
            # A job that was killed after its last checkpoint has logged some files again since.
            names = [name for name in line.get("files", ()) if name not in seen]
            seen |= {*names}
            texts = line.get("tags", {}) | {f"file {name}": name for name in names}
            texts |= {"status": line["end"]} if "end" in line else {}
            found = [m for m in map(IMAGE.fullmatch, names) if m]
            step = int(found[0]["step"]) if found else step
            images = {image["name"]: self.attempt / image[0] for image in found}
            row = {"line": number, "step": step, "time": at / 1000}
            yield row | {"metrics": line.get("metrics", {}), "images": images, "texts": texts}


# Which copies are wanted, and making them.


def wanted() -> dict[str, str]:
    """Return the wanted copies by name, with the folder of Parquet files, which is relative to the
    project; trackers have places of their own."""
    words = os.environ.get(VARIABLE, "").lower().replace(",", " ").split()
    given = os.environ.get(TABLES)
    tables = {"parquet": str(PROJECT / Path(given).expanduser())} if given else {}
    return tables | dict.fromkeys(words, "")


def check() -> None:
    """Raise SettingsError if a wanted copy cannot be made; the folder of Parquet files is made if
    it is not there."""
    for name, folder in wanted().items():
        if folder:
            try:
                Path(folder).mkdir(exist_ok=True)
            except OSError as error:
                raise SettingsError(f"{TABLES} {folder}: {error.strerror}") from None
        elif name not in TRACKERS:
            line = f"there is no such tracker; {did_you_mean(name, TRACKERS)}"
            raise SettingsError(f"{VARIABLE} {name}: {line}")
        elif not any(metadata.distributions(name=name)):
            line = f"its package is not installed; uv sync --group {name}"
            raise SettingsError(f"{VARIABLE} {name}: {line}")


def write(attempt: Path, status: str) -> None:
    """Make the wanted copies. Raises JobError for those that fail, after all others; OSError."""
    copy, problems = Copy(attempt, status), []
    for name, folder in wanted().items():
        if status == RUNNING and name not in LIVE:
            continue
        try:
            if folder:
                write_tables(copy, Path(folder))
            else:
                import_module(f"{__package__}.{name}").write(copy)
        except Exception as error:  # whatever its package raises
            problems.append(f"{name}: {scrub(cause(error))}")
    if problems:
        raise JobError("; ".join(problems))


# Parquet files: tables for pandas, DuckDB or polars.
#
# There is a file for each attempt in `metrics/` and one in `jobs/`, written when the attempt ends.
# So many projects and machines can write into one folder, and a reader never sees half a file.


def write_tables(copy: Copy, folder: Path) -> None:
    """Write both files of an attempt that has ended. Raises OSError."""
    import pyarrow as pa
    from pyarrow.parquet import write_table

    text, when = pa.string(), pa.timestamp("ms", "UTC")
    about, key = copy.about, copy.key
    points = [
        {**key, "step": step, "name": name, "value": value, "time": at}
        for name, step, at, value in copy.points()
    ]
    of_points = dict.fromkeys(key, text) | {"step": pa.int64(), "name": text}
    of_points |= {"value": pa.float64(), "time": when}
    # Settings differ from job to job, so they are JSON: all files have the same columns.
    row = {
        "project": copy.project,
        **key,
        "name": about["name"],
        "script": about["script"],
        "status": copy.status,
        "code": copy.tags.get("code", about["code"]),
        "data": copy.tags.get("data", ""),
        "host": os.uname().nodename,
        "folder": str(copy.attempt),
        "settings": json.dumps(about["settings"]),
        "tags": json.dumps(copy.tags),
        "updated": journal.now(),
    }
    of_row = dict.fromkeys(row, text) | {"updated": when}
    # The row describes the metrics, so it is written last. Each file is made outside its table's
    # folder, where libraries would read half of it.
    for table, rows, types in (("metrics", points, of_points), ("jobs", [row], of_row)):
        place = folder / table
        with suppress(FileExistsError):
            place.mkdir()
            place.chmod(folder.stat().st_mode)  # the same users may write here
        name = f"{'-'.join(key.values())}.parquet"
        part = folder / f".{table}-{name}"
        files.write(part, partial(write_table, pa.Table.from_pylist(rows, pa.schema(types))))
        part.replace(place / name)
