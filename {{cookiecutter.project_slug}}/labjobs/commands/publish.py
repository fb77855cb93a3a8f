"""`publish`: jobs with all that their results rest on, in a folder to give away; `adopt`: such a
folder's jobs, taken into another clone of the project, as if they had run there.

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
import platform
import random
import re
import shutil
import sys
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import BadZipFile, ZipFile

from labjobs import exit_status, layout, locks
from labjobs.commands import inventory, replay
from labjobs.commands.disk import ADOPTED
from labjobs.commands.inventory import Project
from labjobs.commands.replay import Recorded
from labjobs.errors import JobError, SettingsError, cause, few, require
from labjobs.files import PROJECT, json_of, read_json, shown, write_json, write_record
from labjobs.job import attempts, code_evidence, data_evidence, identity, journal
from labjobs.job.folder import JobFolder
from labjobs.job.provenance import CODE_COPY, ENGINE_COPY, INSTALLED
from labjobs.job.runtime import Runtime
from labjobs.job.terminal import Interruption, counted, leave
from labjobs.results import page
from labjobs.sweeps.grid import BEST
from labjobs.tracking import costs
from labjobs.tracking.mlflow_store import experiment_name, user

FILES = "files.json"  # the names of all published files of jobs, with their SHA-256

SCHEMA = 1  # of that file

RUNS = "runs"

COPIED = (layout.AUDIT, layout.PREDICTIONS, layout.LOGGED)
"""Files of an attempt that are published as they are."""

LOGS = (layout.LOG, layout.OUTPUT, layout.PROFILE, layout.PROFILE_JSON)
"""Files that show the machine on which a job ran."""

PUBLISHED = (*COPIED, *LOGS, layout.BEST, layout.OUTCOME, layout.SETTINGS, layout.JOURNAL)
"""All files that may be published of an attempt."""

PERSONAL = ("host", "gpu", "mlflow.source.git.branch", "mlflow.user")
"""Tags of the journal that name a machine, its GPU, a user or their work."""


def publish(project: Project, given: argparse.Namespace) -> None:
    """Write jobs into a new folder, and print what it holds. Raises SettingsError if a job or a
    figure does not exist, or the folder does; JobError if a job cannot be published, OSError."""
    out: Path = given.folder
    if out.exists():
        raise SettingsError(f"{out} already exists; name a new folder")
    if len(str(out)) > 3 and any(job.id.startswith(str(out)) for job in project.all()):
        raise SettingsError(f"{out} is the beginning of a job's id; name the new folder last")
    if out.resolve().is_relative_to(project.runs_root.resolve()):
        raise SettingsError(f"{out} is in the folder of runs; name one outside")
    found = dict[Path, JobFolder[Any] | None]()
    for job in replay.named(project, given.what).values():
        with _publishing(f"job {job.id}"):
            found[replay.finished(job).path] = job.folder
    every, stale = [*found], [p for p, now in found.items() if not now or now.compare(p).change]
    out.parent.mkdir(parents=True, exist_ok=True)
    Interruption().listen()
    with TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as temporary:
        part = Path(temporary) / out.name
        published = _write(part, every, given)
        files = sorted(path for path in part.rglob("*") if path.is_file())
        traces = {str(f.relative_to(part)): words for f in files if (words := _traces(f))}
        size = sum(file.stat().st_size for file in files) / 1e6
        part.rename(out)  # the whole folder, or nothing
    jobs, old = ([path.parent.name for path in some] for some in (every, stale))
    of_all = {path for each in every for path in attempts.with_ancestors(each)}
    inputs = sorted(path.parent.name for path in of_all - {*every})
    if given.json:
        about = {"folder": str(out), "jobs": jobs, "inputs": inputs}
        about |= {"files": published, "stale": old}
        print(json_of({**about, "names": traces}))
        return
    more = f" with {counted(len(inputs), 'input')}" * bool(inputs)
    count = f"{counted(len(jobs), 'job')}{more}, {counted(len(published), 'file')}"
    print(f"{shown(out)}: {count}, {size:.1f} MB")
    if old:
        what = "published with the code that they ran with, which is not today's"
        print(f"stale: {few(old, 4)}; {what}")
    for name, words in traces.items():
        print(f"{name} names {', '.join(words)}: part of a setting, the code or an output")


def _write(part: Path, every: Iterable[Path], given: argparse.Namespace) -> list[str]:
    """Write the folder, with the attempts that others are derived from; return the names of the
    files in runs/. Raises JobError."""
    runs = part / RUNS
    runs.mkdir(parents=True)
    for path in dict.fromkeys(path for each in every for path in attempts.with_ancestors(each)):
        attempt = Recorded(path)
        with _publishing(attempt.name):
            if attempts.status_of(path) != "finished" or not attempt.about:
                raise JobError("records are missing or damaged")
            _write_attempt(attempt, runs, given.weights, given.logs)
    drawn = list[Path]()
    for figure in filter(Path.is_file, map(Path, given.what)):
        (part / "figures").mkdir(exist_ok=True)
        for file in sorted(figure.parent.glob(f"{figure.stem}.*")):
            drawn.append(Path(shutil.copyfile(file, part / "figures" / file.name)))
    if (PROJECT / "vendor").is_dir():
        shutil.copytree(PROJECT / "vendor", part / "vendor")
    _write_page(part, every, drawn)
    files = (path for path in sorted(runs.rglob("*")) if path.is_file())
    sums = {str(path.relative_to(part)): sha256(path) for path in files}
    write_json(part / FILES, {"schema": SCHEMA, "files": sums})
    return [*sums]


@contextmanager
def _publishing(name: str) -> Iterator[None]:
    """Within, a JobError says which attempt or job it is about."""
    try:
        yield
    except JobError as error:
        raise JobError(f"{name} cannot be published: {error}") from error


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_attempt(attempt: Recorded, runs: Path, weights: bool, logs: bool) -> None:
    """Copy an attempt, and what it shares with other jobs, into a folder of runs."""
    source, folder = attempt.path, runs / attempt.job / attempt.path.name
    folder.mkdir(parents=True)
    has_kept = any(BEST in line.get("metrics", ()) for line in attempt.lines)
    if weights and has_kept and not (source / layout.BEST).exists():
        raise JobError(f"its {layout.BEST} is missing")
    for name in filter(attempt.about.get, (CODE_COPY, ENGINE_COPY)):
        attempt.copy(name)  # which raises JobError if it is missing
    for name in (*COPIED, *((layout.BEST,) if weights else ()), *(LOGS if logs else ())):
        if (source / name).is_dir():
            shutil.copytree(source / name, folder / name)
        elif (source / name).exists():
            shutil.copyfile(source / name, folder / name)
    for name in layout.PREDICTIONS, layout.BEST:
        if (folder / name).exists() and not _is_whole(folder / name):
            raise JobError(f"{name} is damaged; --force makes the job start over")
    outcome = journal.record_of(source, layout.OUTCOME)
    if Path(outcome["data_root"]).is_absolute():
        outcome["data_root"] = str(Runtime.data_root)
    if used := costs.seen(source):  # by process, and so by machine
        outcome["processes"] = dict(enumerate(used.values(), 1))
    write_record(folder / layout.OUTCOME, outcome)
    write_record(folder / layout.SETTINGS, dict(attempt.about))
    _write_journal(attempt, folder)
    if (drawn := source.parent / layout.DRAWN).exists():
        shutil.copyfile(drawn, folder.parent / layout.DRAWN)
    shared = [attempt.about.get(name) for name in (CODE_COPY, ENGINE_COPY, INSTALLED, "split")]
    shared.append(f"{layout.CODES}/{code_evidence.definitions(source).name}")
    shared.append(f"{layout.DATA_LISTS}/{data_evidence.digest(source)}.jsonl")
    for name in filter(None, shared):
        path = source.parents[1] / name
        if path.is_file() and not (runs / name).exists():  # another attempt may share it
            (runs / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(path, runs / name)


def _is_whole(path: Path) -> bool:
    """Whether a file of arrays or weights, which is a zip archive, can be read."""
    try:
        with ZipFile(path) as packed:
            return packed.testzip() is None
    except (BadZipFile, zlib.error, NotImplementedError):
        return False


def _write_journal(attempt: Recorded, folder: Path) -> None:
    """Write the lines of a journal without names of users and machines, and without files that are
    not published; their numbers stay."""
    seed = journal.seed_of(attempt.about["journal"]["journal"])
    with (folder / layout.JOURNAL).open("wb") as file:
        for line in attempt.lines:
            plain = {name: each for name, each in line.items() if name not in ("line", "crc")}
            if tags := plain.get("tags"):
                texts = {k: re.sub(r"\n*Folder: `.*`", "", v) for k, v in tags.items()}
                plain["tags"] = {k: text for k, text in texts.items() if k not in PERSONAL}
            if files := plain.get("files"):
                plain["files"] = [name for name in files if (folder / name).exists()]
            file.write(journal.encoded(line["line"], json.dumps(plain), seed))


def _write_page(part: Path, every: Iterable[Path], drawn: list[Path]) -> None:
    """Write the page: settings that differ, results and curves of the monitored metrics."""
    rows, curves, monitored = list[dict[str, Any]](), dict[str, page.Curve](), set[str]()
    shown = {"job_id"}
    for attempt in map(Recorded, every):  # one after another, since journals can be large
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


# `adopt`. What comes from others is not trusted: nothing but known files of jobs is copied, none
# that could run code or lies outside, and each as it was published.

IN_ATTEMPT = re.compile(
    rf"{RUNS}/([0-9a-f]{{12}}/[0-9a-f]{{8}}(?:-\d+)?)/"
    rf"(?:{'|'.join(map(re.escape, PUBLISHED))}|{layout.LOGGED}/[\w -][\w. -]*)"
)
"""The name of a file of an attempt."""

KNOWN = re.compile(
    rf"{IN_ATTEMPT.pattern}|{RUNS}/[0-9a-f]{{12}}/{layout.DRAWN}"
    rf"|{RUNS}/(?:{'|'.join(map(re.escape, layout.SHARED))})/\w[\w.-]*"
)
"""The names of files that are taken."""

UNPACKED, SMALL = 100, 100_000_000
"""How many times larger than an archive its content may be, and a size in bytes that always may."""


def adopt(project: Project, given: argparse.Namespace) -> int:
    """Copy the jobs that are not here yet, upload them, and print how many there are; audit some of
    them, if that is asked for. Returns the exit status.

    Raises SettingsError if there is no such folder or archive; JobError, before anything is copied,
    if it is not as it was published, or its jobs are not of this project; OSError.
    """
    require(given.spot_check >= 0, "--spot-check", given.spot_check, "a number of jobs, or 0")
    Interruption().listen()
    now, new, more = datetime.now(UTC).isoformat(timespec="seconds"), set[str](), set[str]()
    project.runs_root.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        folder = held.enter_context(TemporaryDirectory(prefix=ADOPTED, dir=project.runs_root))
        held.enter_context(locks.waiting(Path(folder) / layout.LOCK))  # `clean` leaves it alone
        runs = Path(folder) / RUNS
        with _opened(given.source) as published:
            names = _copied(published, Path(folder))  # which nobody else changes any more
        every = sorted({found[1] for name in names if (found := IN_ATTEMPT.match(name))})
        for name in every:
            _check_attempt(runs / name)
        for name in (name.removeprefix(f"{RUNS}/") for name in names if not IN_ATTEMPT.match(name)):
            _move(runs / name, project.runs_root / name)  # what it holds is checked when it is read
        for name in every:
            note = {"schema": 1, "id": name.split("/")[0], "from": given.source.name, "on": now}
            write_record(runs / name / layout.ADOPTED, note)
            if _move(runs / name, here := project.runs_root / name):
                new.add(name.split("/")[0])
            elif (here / layout.ADOPTED).exists() and _start(here) == _start(runs / name):
                # Perhaps without weights or logs.
                kept = [file for file in (runs / name).rglob("*") if file.is_file()]
                if any([_move(file, here / file.relative_to(runs / name)) for file in kept]):
                    more.add(name.split("/")[0])
    there = {name.split("/")[0] for name in every} - {*new}
    about = {"adopted": sorted(new), "already": sorted(there), "completed": sorted(more)}
    with redirect_stdout(sys.stderr) if given.json else nullcontext():
        print(
            f"adopted {counted(len(new), 'job')}"
            + f"; {len(there)} already here" * bool(there)
            + f"; {len(more)} with further files now" * bool(more)
        )
        status = _take_in(project, every, sorted(new), given.spot_check)
    if given.json:
        print(json_of(about))
    return status


def _take_in(project: Project, every: Sequence[str], new: Sequence[str], count: int) -> int:
    """Upload adopted attempts, and audit so many of the new jobs; return the exit status."""
    status = exit_status.DONE
    for name in every:
        if attempts.status_of(project.runs_root / name) != "finished":
            line = f"jobs.py: {name} is already here, but not finished: continue it, or remove it"
            status = leave(exit_status.FAILED, line)
    status = inventory.sync(project, argparse.Namespace(json=False)) or status
    if chosen := random.sample(new, min(count, len(new))):
        wanted = argparse.Namespace(what=chosen, seed=None, json=False, command="audit")
        status = replay.audit_jobs(project, wanted) or status
    return status


@contextmanager
def _opened(source: Path) -> Iterator[Path]:
    """The published folder, from an archive unpacked in a temporary folder."""
    if source.is_dir():
        yield _found_in(source, source)
        return
    if not source.is_file():
        raise SettingsError(f"{source}: there is no such folder or archive")
    with TemporaryDirectory(prefix="adopt-") as folder:
        try:
            with tarfile.open(source) as archive:
                most = max(SMALL, UNPACKED * source.stat().st_size)
                for member in archive:
                    most -= member.size + tarfile.BLOCKSIZE
                    if most < 0:
                        raise JobError(f"{source} holds far more than its size allows; not adopted")
                    archive.extract(member, folder, filter="data")
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise JobError(f"{source} cannot be unpacked: {cause(error)}; not adopted") from error
        yield _found_in(Path(folder), source)


def _found_in(folder: Path, source: Path) -> Path:
    """The published folder: the folder itself, or one in it, as an archive of `source` has it."""
    inside = [path for path in (folder, *folder.iterdir()) if (path / FILES).is_file()]
    if not inside:
        raise SettingsError(f"{source}: has no {FILES}, so it is not a published folder")
    return inside[0]


def _copied(folder: Path, place: Path) -> list[str]:
    """Copy the files of jobs that are listed, and return their names. Raises JobError if one is not
    as it was published."""
    about = read_json(folder / FILES)
    if about.get("schema", SCHEMA) != SCHEMA:
        line = "is of another version of the engine; update this project"
        raise JobError(f"{FILES} {line}; not adopted")
    listed = about.get("files")
    if not isinstance(listed, dict) or not listed:
        raise JobError(f"{FILES} is damaged; not adopted")
    for name, digest in listed.items():
        path, copy = folder / name, place / name
        if not KNOWN.fullmatch(name):
            raise JobError(f"{name!r} is not a file of a job; not adopted")
        if any(each.is_symlink() for each in (path, *path.parents[: name.count("/")])):
            raise JobError(f"{name} is a symbolic link, or behind one; not adopted")
        if path.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)  # without its mode, by which others could run it as we
        if not copy.is_file() or sha256(copy) != digest:
            raise JobError(f"{name} is missing or was changed since it was published; not adopted")
    return list(listed)


CONTROL = re.compile(r"\\(?:u00[0189]|u007f|[bfr])")
"""A character in JSON that moves a terminal's cursor, or that a terminal obeys."""


def _check_attempt(path: Path) -> None:
    """Raise JobError unless an attempt finished, its files can be read without running code, and
    the job is what its settings say, according to today's settings.py."""
    attempt = Recorded(path)
    try:
        if attempts.status_of(path) != "finished":
            raise JobError("it has not finished")
        if not attempt.about:
            raise JobError(f"its {layout.SETTINGS} is damaged")
        records = [attempt.lines, *map(read_json, path.glob("*.json"))]
        if CONTROL.search(json.dumps(records).replace("\\\\", "")):
            raise JobError("its records have control characters in them")
        script = identity.read(attempt.about["script"])
        settings = identity.restore(script.settings, attempt.about["settings"])
        if identity.job_id(settings, script.name) != attempt.job:
            raise JobError("with today's settings.py, it is another job")
        inventory.on_disk(path, None)
        if (outputs := path / layout.PREDICTIONS).exists():
            with ZipFile(outputs) as packed:
                unpacked = sum(each.file_size for each in packed.infolist())
            if unpacked > max(SMALL, UNPACKED * outputs.stat().st_size):
                raise JobError(f"{outputs.name} holds far more than its size allows")
        replay.compare_outputs(path, path)
    except Exception as error:  # whatever comes of strange records
        why = cause(error).removesuffix(f"; {journal.WAY_OUT}")
        raise JobError(f"job {attempt.job} cannot be adopted: {why}") from error


def _start(attempt: Path) -> Any:
    """What its first process has written down, which no other attempt has."""
    return journal.record_of(attempt, layout.SETTINGS).get("journal")


def _move(source: Path, target: Path) -> bool:
    """Move a file, or the folder of an attempt, unless it is there; return whether it was not."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        return False
    source.rename(target)
    return True
