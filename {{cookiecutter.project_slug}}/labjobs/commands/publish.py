"""`publish`: jobs with all that their results rest on, in a folder to give away; `adopt` takes
them into another clone of the project.

    index.html    figures with captions, and all jobs with their curves, for a browser
    files.json    the SHA-256 of every file in runs/
    runs/         journals, settings, predictions, code, versions, lists of the data
    figures/      the figures and tables that were named
    vendor/       the engine

Names of users, machines and their folders are left out, unless they are part of a setting or of
the code; a line then says so.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from labjobs import exit_status, layout
from labjobs.commands import inventory, repeat
from labjobs.commands.inventory import Project
from labjobs.commands.replay import Recorded
from labjobs.errors import JobError, SettingsError
from labjobs.files import PROJECT, record, shown, write_json
from labjobs.job import attempts, code_evidence, data_evidence, journal
from labjobs.job.provenance import CODE_COPY, ENGINE_COPY, INSTALLED
from labjobs.job.runtime import Runtime
from labjobs.job.terminal import Interruption, counted
from labjobs.results import page
from labjobs.tracking.mlflow_client import experiment_name
from labjobs.tracking.mlflow_store import user

FILES = "files.json"
"""The names of all published files of jobs, with their SHA-256."""

RUNS = "runs"

COPIED = (
    *(layout.TRAINED, layout.CODE, layout.SPEC, layout.SPLIT, layout.AUDIT, layout.PREDICTIONS),
    layout.LOGGED,
)
"""Files of an attempt that are published as they are."""

LOGS = (layout.LOG, layout.OUTPUT, layout.PROFILE, layout.PROFILE_JSON)
"""Files that show the machine on which a job ran."""

WRITTEN = (layout.BEST, layout.OUTCOME, layout.SETTINGS, layout.COST, layout.JOURNAL)

PUBLISHED = (*COPIED, *LOGS, *WRITTEN)
"""All that may be published of an attempt."""

PERSONAL = ("host", "gpu", "mlflow.source.git.branch", "mlflow.user")
"""Tags of the journal that name a machine, its GPU, a user or their work."""


def publish(project: Project, given: argparse.Namespace) -> int:
    """Write jobs into a new folder, and print what it holds; returns 0.

    Raises SettingsError if a job or a figure does not exist, or the folder does; JobError if a job
    cannot be published, OSError.
    """
    out: Path = given.folder
    if out.exists():
        raise SettingsError(f"{out} already exists; name a new folder")
    every = [_attempt(job, found) for job, found in repeat.named(project, given.what).items()]
    part = out.with_name(f"{out.name}.{uuid4().hex}.part")
    Interruption().listen()
    try:
        published = _write(part, every, given)
        files = sorted(path for path in part.rglob("*") if path.is_file())
        traces = {str(f.relative_to(part)): found for f in files if (found := _traces(f))}
        part.rename(out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) / 1e6
    count = f"{counted(len(every), 'job')}, {counted(len(published), 'file')}"
    print(f"{shown(out)}: {count}, {size:.1f} MB")
    for name, found in traces.items():
        print(f"{name} names {', '.join(found)}: part of a setting, the code or an output")
    return exit_status.DONE


def _write(part: Path, every: Iterable[Recorded], given: argparse.Namespace) -> list[str]:
    """Write the folder; return the names of the files in runs/."""
    runs = part / RUNS
    runs.mkdir(parents=True)
    for attempt in _with_inputs(every):
        _write_attempt(attempt, runs, given.weights, given.logs)
    drawn = [file for word in given.what for file in _write_figure(Path(word), part)]
    if (PROJECT / "vendor").is_dir():
        shutil.copytree(PROJECT / "vendor", part / "vendor")
    _write_page(part, every, drawn)
    files = (path for path in sorted(runs.rglob("*")) if path.is_file())
    sums = {str(path.relative_to(part)): sha256(path) for path in files}
    write_json(part / FILES, {"schema": 1, "files": sums})
    return [*sums]


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _attempt(job_id: str, job: inventory.Job | None) -> Recorded:
    """The finished attempt that counts. Raises JobError if it has none here."""
    try:
        if not job or not job.attempts:
            raise JobError("it has not run in this folder of runs")
        return repeat.finished(job)
    except JobError as error:
        raise JobError(f"job {job_id} cannot be published: {error}") from None


def _with_inputs(every: Iterable[Recorded]) -> Iterator[Recorded]:
    """Attempts, and those that they are derived from, each once. Raises JobError."""
    left, seen = [*every], set[Path]()
    while left:
        attempt = left.pop()
        if attempts.status_of(attempt.path) != "finished" or not attempt.about:
            raise JobError(f"{attempt.name} cannot be published: records are missing or damaged")
        if attempt.path not in seen:
            seen.add(attempt.path)
            inputs = attempt.about.get("inputs", {})
            left += [Recorded(attempt.path.parents[1] / job / name) for job, name in inputs.items()]
            yield attempt


def _write_attempt(attempt: Recorded, runs: Path, weights: bool, logs: bool) -> None:
    """Copy an attempt, and what it shares with other jobs, into a folder of runs."""
    source, folder = attempt.path, runs / attempt.job / attempt.path.name
    folder.mkdir(parents=True)
    for name in (*COPIED, *((layout.BEST,) if weights else ()), *(LOGS if logs else ())):
        if (source / name).is_dir():
            shutil.copytree(source / name, folder / name)
        elif (source / name).exists():
            shutil.copyfile(source / name, folder / name)
    outcome = journal.record_of(source, layout.OUTCOME)
    if Path(outcome["data_root"]).is_absolute():
        outcome["data_root"] = str(Runtime.data_root)
    _write_record(folder / layout.OUTCOME, outcome)
    _write_record(folder / layout.SETTINGS, dict(attempt.about))
    if cost := journal.record_of(source, layout.COST):  # by process, and so by machine
        cost["processes"] = dict(enumerate(cost["processes"].values(), 1))
        _write_record(folder / layout.COST, cost)
    _write_journal(attempt, folder)
    if (drawn := source.parent / layout.DRAWN).exists():
        shutil.copyfile(drawn, folder.parent / layout.DRAWN)
    for name in _shared(attempt):
        if (path := source.parents[1] / name).is_file():  # there need not be a split
            (runs / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(path, runs / name)


def _shared(attempt: Recorded) -> Iterator[str]:
    """The names of the files that an attempt shares with others: its code, versions, data and
    split."""
    yield from (str(attempt.about.get(name, "")) for name in (CODE_COPY, ENGINE_COPY, INSTALLED))
    yield f"{layout.CODES}/{code_evidence.digest(attempt.path)}.json"
    yield f"{layout.DATA_LISTS}/{data_evidence.digest(attempt.path)}.jsonl"
    yield str(journal.record_of(attempt.path, layout.SPLIT).get("split", ""))


def _write_record(path: Path, content: Mapping[str, Any]) -> None:
    path.write_bytes(record({name: each for name, each in content.items() if name != "crc"}))


def _write_journal(attempt: Recorded, folder: Path) -> None:
    """Write the lines of a journal without names of users and machines, and without files that are
    not published; their numbers stay."""
    seed = journal.seed_of(attempt.about["journal"]["journal"])
    with (folder / layout.JOURNAL).open("wb") as file:
        for line in attempt.lines:
            plain = {name: each for name, each in line.items() if name not in ("line", "crc")}
            if tags := plain.get("tags"):
                plain["tags"] = {k: _impersonal(v) for k, v in tags.items() if k not in PERSONAL}
            if files := plain.get("files"):
                plain["files"] = [name for name in files if (folder / name).exists()]
            file.write(journal.encoded(line["line"], json.dumps(plain), seed))
    written = (attempt.path / layout.JOURNAL).stat().st_mtime_ns
    os.utime(folder / layout.JOURNAL, ns=(written, written))  # as which its end is listed


def _impersonal(text: str) -> str:
    return re.sub(r"\n*Folder: `.*`", "", text)


def _write_figure(figure: Path, part: Path) -> Iterator[Path]:
    """Copy the files of a figure or a table that was named, and yield them."""
    if figure.is_file():
        (part / "figures").mkdir(exist_ok=True)
        for file in sorted(figure.parent.glob(f"{figure.stem}.*")):
            yield Path(shutil.copyfile(file, part / "figures" / file.name))


def _write_page(part: Path, every: Iterable[Recorded], drawn: list[Path]) -> None:
    """Write the page: settings that differ, results and curves of the monitored metrics."""
    rows, curves, monitored = list[dict[str, Any]](), dict[str, page.Curve](), set[str]()
    shown = {"job_id"}
    for attempt in every:
        settings = attempt.about["settings"]
        results = inventory.on_disk(attempt.path, None)["metrics"]
        rows.append({"job_id": attempt.job, **settings, **results})
        shown |= {*results}
        monitor = str(settings.get("monitor"))
        points = [line for line in attempt.lines if monitor in line.get("metrics", ())]
        curves[attempt.job] = [(line["step"], line["metrics"][monitor]) for line in points]
        monitored |= {monitor} if points else set()
    names = dict.fromkeys(name for row in rows for name in row)
    columns = [n for n in names if n in shown or len({str(row.get(n)) for row in rows}) > 1]
    table = [[row.get(name) for name in columns] for row in rows]
    jobs = page.Jobs(columns, table, " or ".join(sorted(monitored)), curves)
    page.write(part / "index.html", experiment_name(), "", drawn, jobs)


def _traces(path: Path) -> list[str]:
    """What a published file says of this user and this machine."""
    words = [str(PROJECT), str(Path.home()), platform.node(), user()]
    long = "|".join(re.escape(word) for word in words if len(word) > 3 and word != "root")
    return sorted({*re.findall(rf"(?<![\w.-])(?:{long})(?![\w-])", _text(path))})


def _text(path: Path) -> str:
    """What can be read in a published file, of a student's code or logged, drawn or written."""
    if path.name.startswith("labjobs-") or path.suffix in (".pt", ".npz", ".whl"):
        return ""
    if not path.name.endswith(".tar.gz"):
        return path.read_bytes().decode(errors="replace")
    with tarfile.open(path) as archive:
        files = {each.name: file for each in archive if (file := archive.extractfile(each))}
        texts = (file.read().decode(errors="replace") for file in files.values())
        return "\n".join([*files, *texts])
