"""Copies of what jobs measure, beside the store: Parquet files, TensorBoard, Trackio, W&B.

Each is made from the whole journal, and adds nothing if it is made again: files are replaced or
only grow, and rows have keys. So whatever is killed, nothing is lost or copied twice. In the
environment, TRACKERS names the wanted trackers, and PARQUET_FOLDER the folder of the Parquet files.
"""

import json
import os
import re
import shutil
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from io import BytesIO
from pathlib import Path
from typing import Any

from labjobs import files, layout
from labjobs.errors import JobError, SettingsError, cause, require_known
from labjobs.files import PROJECT
from labjobs.job import journal
from labjobs.job.journal import Damaged
from labjobs.privacy import scrub
from labjobs.tracking import costs
from labjobs.tracking.mlflow_store import experiment_name

VARIABLE = "TRACKERS"
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
            continue
        require_known([name], TRACKERS, f"{VARIABLE} {{}}: there is no such tracker")
        if not any(metadata.distributions(name=name)):
            line = f"its package is not installed; uv sync --group {name}"
            raise SettingsError(f"{VARIABLE} {name}: {line}")


def lacking(folder: Path) -> bool:
    """Whether wanted copies of an attempt that was stored from here have not been made."""
    if not (each := wanted()):
        return False  # without a look at the disk
    noted = files.read_record(folder / layout.SENT)
    return bool(noted) and not each.items() <= noted.get("copies", {}).items()


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
                TRACKERS[name](copy)
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


# TensorBoard: a folder for each attempt in `tensorboard/` of the project, with a file of events.
#
# The file has the journal line by line, and like it only grows: its length says how much it has.


def write_events(copy: Copy) -> None:
    """Bring the file of an attempt up to its journal. Raises OSError."""
    root, whole = PROJECT / layout.TENSORBOARD, _events(copy)
    folder = next(root.glob(f"* {copy.end}"), root / copy.title)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"events.out.tfevents.{copy.journal}"
    for other in {*folder.iterdir()} - {file}:  # of a try that --force has replaced
        other.unlink()
    there = file.read_bytes() if file.exists() else b""
    if whole.startswith(there):
        with file.open("ab") as end:
            end.write(whole[len(there) :])
    else:  # an image has changed since
        files.write(file, lambda new: new.write(whole))


def _events(copy: Copy) -> bytes:
    """The events as the file has them: always the same bytes for the same journal."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb
    from tensorboard.plugins.text.summary import text_pb
    from tensorboard.summary.writer.record_writer import RecordWriter

    writer = RecordWriter(stream := BytesIO())
    for row in copy.rows():

        def add(at: float = row["time"], step: int = row["step"], **what: Any) -> None:
            event = Event(wall_time=at, step=step, **what)
            writer.write(event.SerializeToString(deterministic=True))

        if row["line"] == 1:
            add(file_version="brain.Event:2")  # from which on steps may decrease
            settings = copy.about["settings"].items()
            plain = {k: v if isinstance(v, bool | int | float) else str(v) for k, v in settings}
            add(summary=hparams_pb(plain, start_time_secs=row["time"]))
        for name, text in row["texts"].items():
            add(summary=text_pb(name, text))
        values = [Summary.Value(tag=k, simple_value=v) for k, v in row["metrics"].items()]
        for name, path in row["images"].items():
            png = path.read_bytes()
            width, height = struct.unpack(">II", png[16:24])  # w3.org/TR/png, IHDR
            image = Summary.Image(width=width, height=height, encoded_image_string=png)
            values.append(Summary.Value(tag=name, image=image))
        if values:
            add(summary=Summary(value=values))
    return stream.getvalue()


# Trackio: a run for each attempt, in the project's database in Trackio's own folder.
#
# The key of a row has the number of its line in the journal, so no row is added twice.


def write_trackio(copy: Copy) -> None:
    """Send what an attempt has measured."""
    from trackio.sqlite_storage import SQLiteStorage

    project = copy.project
    for run in SQLiteStorage.get_run_records(project):
        if run["name"].endswith(f" {copy.end}") and run["id"] != copy.journal:
            SQLiteStorage.delete_run(project, run["name"], run["id"])  # --force has replaced it
    rows = [row for row in copy.rows() if row["metrics"] or row["images"]]
    SQLiteStorage.bulk_log(
        project,
        copy.title,
        [row["metrics"] | _images(copy, row) for row in rows],
        steps=[row["step"] for row in rows],
        timestamps=[datetime.fromtimestamp(row["time"], UTC).isoformat() for row in rows],
        config=copy.config,
        log_ids=[f"{copy.journal}-{row['line']}" for row in rows],
        run_id=copy.journal,
    )


def _images(copy: Copy, row: dict[str, Any]) -> dict[str, Any]:
    """The images of a row as Trackio names them, each copied once to where it has its own."""
    from trackio.media.utils import get_project_media_path
    from trackio.utils import MEDIA_DIR

    found = {}
    for name, image in row["images"].items():
        place = get_project_media_path(copy.project, copy.title, row["step"]) / image.name
        if not place.exists():  # else half of it could stay
            shutil.copy(image, part := place.with_suffix(".part"))
            part.rename(place)
        path = str(place.relative_to(MEDIA_DIR))
        found[name] = {"_type": "trackio.image", "file_path": path, "caption": None}
    return found


# Weights & Biases: offline folders in `wandb/` of the project, or of WANDB_DIR, for `wandb sync`.
#
# `wandb sync` adds whatever a folder has to a run. So each time that an attempt ends, what is new
# becomes one more folder of the same run, and `wandb.json` notes how far the folders reach.


def write_wandb(copy: Copy) -> None:
    """Make a folder of what has come since the last one."""
    place = Path(os.environ.get("WANDB_DIR") or PROJECT) / layout.WANDB
    part = place / f".{copy.journal}"
    noted = journal.record_of(copy.attempt, layout.WANDB_SENT)
    done = noted["lines"] if noted.get("journal") == copy.journal else 0
    if done and (ready := part / layout.WANDB / noted["folder"]).exists():
        ready.rename(place / ready.name)  # since its courier was killed
    shutil.rmtree(part, ignore_errors=True)
    rows = [row for row in copy.rows() if row["line"] > done and (row["metrics"] or row["images"])]
    if rows:
        made = _offline(copy, rows, part)
        about = {"schema": 1, "id": copy.attempt.parent.name, "journal": copy.journal}
        about |= {"lines": rows[-1]["line"], "folder": made.name}
        files.write_record(copy.attempt / layout.WANDB_SENT, about)
        made.rename(place / made.name)
        shutil.rmtree(part)


def _offline(copy: Copy, rows: Sequence[dict[str, Any]], part: Path) -> Path:
    """The folder, below a hidden one that `wandb sync` does not see."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # to its makers
    import wandb

    part.mkdir(parents=True)
    nothing = {"disable_code": True, "disable_git": True, "x_disable_meta": True}
    quiet = wandb.Settings(console="off", silent=True, x_disable_stats=True, **nothing)
    run = wandb.init(
        mode="offline",
        dir=part,
        project=copy.project,
        id=copy.journal,
        name=copy.title,
        group=copy.tags.get("seed_group"),
        config=copy.config,
        settings=quiet,
    )
    # Its own steps may not decrease; those of test results do. They are the journal's lines.
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    for row in rows:
        images = {name: wandb.Image(str(path)) for name, path in row["images"].items()}
        at = {"step": row["step"], "_timestamp": row["time"]}
        run.log(row["metrics"] | images | at, step=row["line"])
    run.finish(exit_code=int(copy.status != "FINISHED"))
    return Path(run.dir).parent


TRACKERS = {"tensorboard": write_events, "trackio": write_trackio, "wandb": write_wandb}
"""Their packages, and the project's groups of packages, have these names."""
