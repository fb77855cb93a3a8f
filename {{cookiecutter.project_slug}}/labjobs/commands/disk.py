"""`disk`: how much space files take; `clean`: removes what nothing needs; `rm`: removes jobs, on
this disk and in the store. Symbolic links are not followed, and what runs is left alone.
"""

import argparse
import os
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from labjobs import exit_status, layout, locks
from labjobs.commands.inventory import JOB_ID, Job, Project
from labjobs.errors import JobError, cause, few
from labjobs.files import PROJECT, json_of, read_json, shown
from labjobs.job import attempts, identity
from labjobs.job.folder import owner_of
from labjobs.job.journal import record_of
from labjobs.job.terminal import counted, leave
from labjobs.tracking import courier, stored_jobs

KINDS = {
    layout.BEST: "best weights",
    **dict.fromkeys(layout.CHECKPOINTS, "checkpoints"),
    **dict.fromkeys((layout.PREDICTIONS, layout.LOGGED), "outputs"),
    layout.BEFORE: "put aside",
}
"""What the files and folders of an attempt are."""

BESIDE = (layout.CACHE, layout.SWEEPS, layout.EXPORTED, *layout.COPIES, "mlflow.db", "mlruns")
"""What else jobs leave in the project's folder."""

REMOVED, ADOPTED = ".removed-", ".adopted-"
"""Beginnings of the names of folders that are being removed, or adopted."""

LARGEST = 5  # how many jobs are named


def print_disk(project: Project, given: argparse.Namespace) -> None:
    """Print the space that each kind of file takes, and the largest jobs."""
    kinds, jobs = Counter[str](), Counter[str]()
    runs = project.runs_root
    for path, size in _files(runs, *(PROJECT / name for name in BESIDE)):
        first, *rest = path.relative_to(runs if path.is_relative_to(runs) else PROJECT).parts
        own = JOB_ID.fullmatch(first)
        jobs.update({first: size} if own else {})
        kind = KINDS.get((*rest, "", "")[1], "journals and records")
        kinds[kind if own else first] += size
    if given.json:
        print(json_of({"total": kinds.total(), "kinds": kinds, "jobs": jobs}))
        return
    for kind, size in (+kinds).most_common():
        print(f"{_megabytes(size)}  {kind}")
    for job, size in jobs.most_common(LARGEST):
        print(f"{_megabytes(size)}  job {job}")
    print(f"{_megabytes(kinds.total())}  in all, {counted(len(jobs), 'job')}")


def _files(*paths: Path) -> Iterator[tuple[Path, int]]:
    """The files in folders, or files, with the bytes that each takes on the disk. If a file has
    several names, as best weights have in the store, its bytes count for the first."""
    linked: dict[tuple[int, int], Path] = {}
    for path in paths:
        inside = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
        for file in inside if path.is_dir() else [path]:
            with suppress(OSError):
                about = file.lstat()
                first = linked.setdefault((about.st_dev, about.st_ino), file) == file
                yield file, about.st_blocks * 512 * first


def _megabytes(size: int) -> str:
    return f"{size / 1e6:12,.1f} MB"


class Useless(NamedTuple):
    """Something to remove: where it is, why, the attempts that must not run meanwhile, and the job
    whose runs in the store go too."""

    path: Path
    why: str
    attempts: Sequence[Path] = ()
    job: Job | None = None

    def check(self) -> None:
        """Raise JobError if it is a link or in use."""
        if self.path.is_symlink():
            raise JobError("it is a link, which is not followed")
        files = (a / name for a in self.attempts for name in (layout.LOCK, layout.COURIER_LOCK))
        if any(map(locks.held, files)):
            raise JobError("it is in use")

    def remove(self, project: Project) -> None:
        """Remove it. Raises JobError if it is a link or in use, FileNotFoundError if somebody else
        has removed it, OSError, ConnectionError."""
        self.check()
        own = [*map(owner_of, self.attempts)]  # read before: closing a lock's file would free it
        with ExitStack() as held:
            for attempt in self.attempts:
                if not (lock := locks.take(attempt / layout.LOCK)):
                    raise JobError("it is in use")
                held.enter_context(lock)
            if self.job:
                known = project.view.known
                if known.problem:
                    raise ConnectionError(known.problem)
                for run in known.of(self.job.id, "running"):  # with any code
                    if run["tags"].get("owner") not in own:
                        raise JobError(f"it is running on {run['tags'].get('host')}")
                stored_jobs.delete(run["run_id"] for run in known.runs.get(self.job.id, []))
            if not self.path.is_dir():
                self.path.unlink(missing_ok=bool(self.job))
            elif not self.attempts:
                shutil.rmtree(self.path)
            else:  # renamed first, so that no job begins in half a folder
                aside = project.runs_root / f"{REMOVED}{uuid4().hex}"
                (aside / self.path.parent.name).mkdir(parents=True)
                try:
                    self.path.rename(aside / self.path.parent.name / self.path.name)
                finally:
                    shutil.rmtree(aside)


def _remove(project: Project, found: Iterable[Useless], given: argparse.Namespace) -> int:
    """Remove what was found, or with --dry-run say what would be; return the exit status: 1 if
    something had to be left."""
    removed, left = list[dict[str, Any]](), list[dict[str, Any]]()
    for each in found:
        size = sum(size for _, size in _files(each.path))
        about = {"path": shown(each.path), "why": each.why, "bytes": size}
        try:
            each.check() if given.dry_run else each.remove(project)
            removed.append(about)
        except FileNotFoundError:  # somebody else was first
            continue
        except (JobError, OSError) as error:
            said = str(error) if isinstance(error, ConnectionError) else cause(error)
            left.append(about | {"left": said})
    total = sum(row["bytes"] for row in removed)
    if given.json:
        print(json_of({"bytes": total, "removed": removed, "left": left}))
    else:
        for row in removed:
            print(f"{_megabytes(row['bytes'])}  {row['path']}: {row['why']}")
        print(f"{_megabytes(total)}  {'would be removed' if given.dry_run else 'removed'}")
    for row in left:
        leave(exit_status.FAILED, f"jobs.py: {row['path']} was left: {row['left']}")
    return exit_status.FAILED if left else exit_status.DONE


# `clean`.


def clean(project: Project, given: argparse.Namespace) -> int:
    """Remove what no job, figure, `repeat` or longer job needs; return the exit status."""
    return _remove(project, _clutter(project), given)


def _clutter(project: Project) -> Iterator[Useless]:
    for path in sorted(project.runs_root.glob(f"{REMOVED}*")):
        yield Useless(path, "left when a removal was interrupted")
    for path in sorted(project.runs_root.glob(f"{ADOPTED}*")):
        yield Useless(path, "left when adopt was interrupted", [path])
    busy, needed = False, {job for job, _ in _drawn()}
    for job in project.all():
        own = _own(project.runs_root / job.id)
        if any(locks.held(path / layout.LOCK) for path in own):
            busy = True
        elif own and job.id not in needed and all(map(attempts.was_measured, own)):
            yield Useless(project.runs_root / job.id, "measured for find", own, job)
        else:
            for attempt in own:
                with suppress(FileNotFoundError):  # somebody else was first
                    yield from _outdated(job, attempt)
    cache = PROJECT / layout.CACHE
    if cache.is_dir() and not cache.is_symlink() and not busy:
        yield Useless(cache, "compiled code, made again when it is needed")


def _own(job: Path) -> list[Path]:
    """The folders of a job's attempts that are no links, also of one that is about to begin."""
    return [p for p in ([] if job.is_symlink() else job.glob("*/")) if not p.is_symlink()]


def _outdated(job: Job, attempt: Path) -> Iterator[Useless]:
    status, present = attempts.status_of(attempt), job.folder.path if job.folder else attempt
    goes_on = record_of(attempt, layout.OUTCOME).get(attempts.GOES_ON, True)
    if status == "finished" and not goes_on and courier.delivered(attempt):
        for path in (attempt / name for name in layout.CHECKPOINTS):
            if path.exists():
                yield Useless(path, "a checkpoint that nothing can continue from", [attempt])
    known = status or not (attempt / layout.OUTCOME).exists()  # and not damaged
    given_up = status in ("", "failed", "interrupted") and attempt != present
    ours = attempt.stat().st_uid == os.getuid()  # others may go on with theirs, on another branch
    if known and given_up and ours and attempts.status_of(present) == "finished":
        why = "given up: the job has finished with the present code and data"
        yield Useless(attempt, why, [attempt])


# `rm`.


def remove_jobs(project: Project, given: argparse.Namespace) -> int:
    """Remove jobs, here and in the store; return the exit status: 1 without removing any if one is
    needed. Raises SettingsError for an unknown job, ConnectionError if the store is away."""
    jobs = {job.id: job for job in map(project.one, given.jobs)}
    if problem := project.view.known.problem:
        raise ConnectionError(f"{problem}; nothing was removed")
    needs: dict[str, list[str]] = {}
    for job_id, what in () if given.anyway else _needs(project, jobs):
        needs.setdefault(job_id, []).append(what)
    for job_id, every in needs.items():
        what = few(every, LARGEST)
        line = f"jobs.py: job {job_id} is needed by {what}; --anyway removes it nevertheless"
        leave(exit_status.FAILED, line)
    if needs:
        return exit_status.FAILED
    root = project.runs_root
    whole = (Useless(root / name, job.words, _own(root / name), job) for name, job in jobs.items())
    return _remove(project, whole, given)


def _needs(project: Project, jobs: Collection[str]) -> Iterator[tuple[str, str]]:
    """What needs some jobs, each with the job."""
    every = {job.id: (job.folder, job.folder.drawn) for job in project.all() if job.folder}
    for other, (folder, drawn) in every.items():
        if other in jobs:
            continue
        for job in sorted({*jobs} & {*map(str, identity.inputs(folder.settings))}):
            yield job, f"job {other}, which is derived from it"
        status = str(folder.outcome().get("status"))
        for job, (own, draw) in ((job, every[job]) for job in jobs if job in every):
            if own.script == folder.script and (act := _act(draw, drawn, status)):
                yield job, f"job {other}, which a search has {act}"
    yield from ((job, what) for job, what in _drawn() if job in jobs)


def _act(draw: Mapping[str, Any], drawn: Mapping[str, Any], status: str) -> str:
    """What a search has done to a job of this status by the result of another one, from how both
    were drawn; empty if nothing."""
    if any(draw.get(name) != drawn.get(name) for name in ("seed", "ranges", "proposal")):
        return ""
    for turn in ("generation", "index") if {"until", "proposal"} & drawn.keys() else ():
        if draw.get(turn, 0) < drawn.get(turn, 0):
            return "drawn"
    return status if status == "stopped" or (status == "paused" and drawn) else ""


def _drawn() -> Iterator[tuple[str, str]]:
    """The jobs in figures and tables, each with the figure or table."""
    records = (path for name in ("figures", "tables") for path in (PROJECT / name).glob("*.json"))
    for record in sorted(records):
        for job in sorted(map(str, read_json(record).get("jobs", []))):
            yield job, shown(record.with_suffix(""))
