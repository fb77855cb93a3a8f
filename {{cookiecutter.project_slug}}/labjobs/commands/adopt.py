"""`adopt`: takes the jobs of a published folder into this clone of the project, as if they had run
here. What comes from others is not trusted: nothing but known files of jobs is copied, none that
could run code or lies outside, and each as it was published.
"""

import argparse
import random
import re
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from labjobs import layout
from labjobs.commands import inventory, repeat
from labjobs.commands.inventory import Project
from labjobs.commands.publish import FILES, RUNS, sha256
from labjobs.commands.replay import Recorded, compare_outputs
from labjobs.errors import JobError, SettingsError, cause
from labjobs.files import read_json, write_record
from labjobs.job import attempts
from labjobs.job.terminal import counted

IN_ATTEMPT = re.compile(
    rf"{RUNS}/([0-9a-f]{{12}}/[0-9a-f]{{8}}(?:-\d+)?)/(?:{layout.LOGGED}/)?\w[\w.-]*"
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
    with _opened(given.source) as folder:
        names = _checked(folder)
        every = sorted({found[1] for name in names if (found := IN_ATTEMPT.match(name))})
        for name in every:
            _check_attempt(folder / RUNS, folder / RUNS / name)
        for name in (name.removeprefix(f"{RUNS}/") for name in names if not IN_ATTEMPT.match(name)):
            _copy(folder / RUNS / name, project.runs_root / name)
        pairs = {name: (folder / RUNS / name, project.runs_root / name) for name in every}
        new = [name.split("/")[0] for name in every if _copy(*pairs[name], given.source.name)]
    there = len(every) - len(new)
    print(f"adopted {counted(len(new), 'job')}" + (f"; {there} already here" if there else ""))
    status = inventory.sync(project.runs_root)
    if chosen := random.sample(new, min(given.spot_check, len(new))):
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
                    most -= member.size
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


def _checked(folder: Path) -> list[str]:
    """The names of the files of jobs. Raises JobError if one is not as it was published."""
    listed = read_json(folder / FILES).get("files")
    if not isinstance(listed, dict):
        raise JobError(f"{FILES} is damaged; not adopted")
    for name, digest in listed.items():
        path = folder / name
        if not KNOWN.fullmatch(name):
            raise JobError(f"{name!r} is not a file of a job; not adopted")
        if any(each.is_symlink() for each in (path, *path.parents[: name.count("/")])):
            raise JobError(f"{name} is a symbolic link, or behind one; not adopted")
        if not path.is_file() or sha256(path) != digest:
            raise JobError(f"{name} is missing or was changed since it was published; not adopted")
    return list(listed)


def _check_attempt(runs: Path, path: Path) -> None:
    """Raise JobError unless an attempt finished, its files can be read without running code, and
    the job is what its settings say, according to today's settings.py."""
    what, attempt = f"job {path.parent.name}", Recorded(path)
    try:
        if attempts.status_of(path) != "finished" or not attempt.lines:
            raise JobError("it has not finished")
        if problem := Project(runs).one(path.parent.name).problem:
            raise JobError(problem)
        compare_outputs(path, path)
    except JobError as error:
        raise JobError(f"{what} cannot be adopted: {error}") from error


def _copy(source: Path, target: Path, origin: str = "") -> bool:
    """Copy a file, or the folder of an attempt with a note of its origin, whole or not at all;
    return whether it was not there yet."""
    if target.exists():
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".adopted-", dir=target.parent) as folder:
        copy = Path(folder) / target.name
        if source.is_dir():
            shutil.copytree(source, copy)
            now = datetime.now(UTC).isoformat(timespec="seconds")
            note = {"schema": 1, "id": target.parent.name, "from": origin, "on": now}
            write_record(copy / layout.ADOPTED, note)
        else:
            shutil.copy2(source, copy)
        with suppress(OSError):  # another process was first
            copy.rename(target)
            return True
    return False
