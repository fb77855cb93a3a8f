"""`adopt`: takes the jobs of a published folder into this clone of the project, as if they had run
here. What comes from others is not trusted: nothing but known files of jobs is copied, none that
could run code or lies outside, and each as it was published.
"""

import argparse
import json
import os
import random
import re
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from labjobs import exit_status, layout, locks
from labjobs.commands import inventory, repeat
from labjobs.commands.disk import ADOPTED
from labjobs.commands.inventory import Project
from labjobs.commands.publish import FILES, PUBLISHED, RUNS, sha256
from labjobs.commands.replay import Recorded, compare_outputs
from labjobs.errors import JobError, SettingsError, cause, require
from labjobs.files import read_json, write_record
from labjobs.job import attempts, identity
from labjobs.job.terminal import Interruption, counted, leave

IN_ATTEMPT = re.compile(
    rf"{RUNS}/([0-9a-f]{{12}}/[0-9a-f]{{8}}(?:-\d+)?)/"
    rf"(?:{'|'.join(map(re.escape, PUBLISHED))}|{layout.LOGGED}/[\w -][\w. -]*)"
)
"""The name of a file of an attempt."""

SHARED = (layout.CODES, layout.DATA_LISTS, layout.SPLITS, layout.INSTALLED)
"""The folders of files that jobs share."""

KNOWN = re.compile(
    rf"{IN_ATTEMPT.pattern}|{RUNS}/[0-9a-f]{{12}}/{layout.DRAWN}"
    rf"|{RUNS}/(?:{'|'.join(map(re.escape, SHARED))})/\w[\w.-]*"
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
    now, new = datetime.now(UTC).isoformat(timespec="seconds"), set[str]()
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
            if _move(runs / name, project.runs_root / name):
                new.add(name.split("/")[0])
    there = {name.split("/")[0] for name in every} - {*new}
    print(f"adopted {counted(len(new), 'job')}" + (f"; {len(there)} already here" if there else ""))
    status = exit_status.DONE
    for name in every:
        if attempts.status_of(project.runs_root / name) != "finished":
            line = f"jobs.py: {name} is already here, but not finished: continue it, or remove it"
            status = leave(exit_status.FAILED, line)
    status = inventory.sync(project.runs_root) or status
    if chosen := random.sample(sorted(new), min(given.spot_check, len(new))):
        wanted = argparse.Namespace(what=chosen, seed=None, json=False, command="audit")
        status = repeat.audit_jobs(project, wanted) or status
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
    listed = read_json(folder / FILES).get("files")
    if not isinstance(listed, dict):
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
            os.utime(copy, ns=(path.stat().st_mtime_ns,) * 2)
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
        compare_outputs(path, path)
    except Exception as error:  # whatever comes of strange records
        raise JobError(f"job {attempt.job} cannot be adopted: {cause(error)}") from error


def _move(source: Path, target: Path) -> bool:
    """Move a file, or the folder of an attempt, unless it is there; return whether it was not."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        return False
    source.rename(target)
    return True
