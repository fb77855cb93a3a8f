"""The states of jobs, seen from outside: for run.sh's `--list` and `--watch`, and before a sweep.

finished     all of its results are in the store
stale        finished or begun with other code or data; --redo-stale runs it again
unsent       finished, but not everything has been uploaded
running      a process is training it, here or elsewhere
queued       it is in Slurm's queue
paused       it has reached its --pause-after
interrupted  it stopped before its end, or was killed; it continues from its last checkpoint
failed       it ended with an error
diverged     its loss or its weights were no longer finite; --force starts it over
pending      it has not begun
"""

import fcntl
import json
import os
import shutil
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from labjobs import exit_status, layout, locks, privacy
from labjobs.errors import SettingsError, cause
from labjobs.files import ENGINE, PROJECT
from labjobs.job import attempts, code_evidence, journal, provenance
from labjobs.job.folder import JobFolder, owner_of
from labjobs.job.identity import identity
from labjobs.job.terminal import counted, duration, leave
from labjobs.sweeps import slurm
from labjobs.tracking import courier, stored_jobs
from labjobs.tracking.mlflow_client import experiment_name

LOOK = 2.0
"""Seconds between two looks."""

TAIL = 65_536
"""Bytes at a journal's end that surely hold the last evaluation's line."""

OVER = {"finished", "stale", "failed", "unsent", "diverged", "paused"}
"""States of jobs that no running sweep will train."""

SWEEPS = PROJECT / layout.SWEEPS


class State(NamedTuple):
    """A job's state, details about it, and for how many seconds it will still train, if that is
    known."""

    word: str
    about: str = ""
    left: float | None = None


class View:
    """What the store and Slurm know about the project's jobs at one moment."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.store_is_away = False
        self._known = stored_jobs.NOTHING
        self.queued: dict[str, slurm.Queued] = {}
        try:
            self._known = stored_jobs.known(experiment_name())
        except ConnectionError as error:
            self.store_is_away = True
            self.problems.append(f"{error}; going by the jobs' folders alone")
        try:
            self.queued = slurm.queued(SWEEPS)
        except SettingsError as error:
            self.problems.append(f"{error}; the jobs in its queue are not known")

    @property
    def over(self) -> Set[str]:
        """The ids of the jobs that are finished or diverged in the store, with any code."""
        return self._known.finished.keys() | self._known.diverged.keys()

    def state(self, job: JobFolder[Any]) -> State:
        """Return the state of a job."""
        finished = self._known.finished.get(job.id, [])
        counts = any(job.fits(each.code, each.data) for each in finished)
        if counts and not job.runtime.force and not job.redone:
            return State("unsent" if courier.copies_lack(job.path) else "finished")
        if (latest := job.latest) and locks.held(latest / layout.LOCK):
            return State("running", *progress(latest))
        if lease := self._lease(job):
            return State("running", f"on {lease.host}")
        if queued := self.queued.get(job.id):
            return State("queued", f"Slurm {queued.task} {queued.state}")
        if not latest and not job.runtime.force:
            diverged = self._known.diverged.get(job.id, [])
            if any(job.fits(each.code, each.data) for each in diverged):
                return State("diverged", "in another folder")
            if finished:
                return State("stale", "in another folder")
        return State("pending") if job.runtime.force else self._by_folder(job)

    def warn(self) -> None:
        """Print the problems in asking the store or Slurm."""
        for problem in self.problems:
            leave(exit_status.FAILED, f"run.sh: {problem}")

    def seconds(self, jobs: Iterable[JobFolder[Any]]) -> list[float]:
        """Return how many seconds each finished job among these has taken."""
        return [each.seconds for job in jobs for each in self._known.finished.get(job.id, [])]

    def _by_folder(self, job: JobFolder[Any]) -> State:
        """The state of a job that no process trains and that is not in the store, from its
        folder."""
        if not job.latest:
            return State("pending")
        outcome, change = job.outcome(), job.change
        status, said = outcome.get("status"), str(outcome.get("said", ""))
        if change:
            return State("pending" if job.starts_over else "stale", change)
        if status == "finished":
            sent = self.store_is_away and courier.all_have(job.path)
            return State("finished" if sent else "unsent")
        if status in ("failed", "diverged"):
            return State(status, said)
        if status == "paused" and outcome.get("pause_after") == job.runtime.pause_after:
            return State("paused", *progress(job.path))
        return State("interrupted", *progress(job.path))

    def _lease(self, job: JobFolder[Any]) -> stored_jobs.Lease | None:
        leases = self._known.leases.get(job.id, [])
        owner = owner_of(job.path) if leases else ""
        others = (lease for lease in leases if lease.owner != owner)
        return next((lease for lease in others if code_evidence.fits(lease.code, job.code)), None)


def progress(folder: Path) -> tuple[str, float | None]:
    """Return how far a job has come, such as `step 120/300, 40 s left`, and those seconds."""
    match _last_evaluation(folder):
        case {"step": int(step), "of": int(total), "metrics": {"elapsed_seconds": float(seconds)}}:
            left = seconds / max(step, 1) * (total - step)
            return f"step {step}/{total}, {duration(left)} left", left
        case {"step": int(step)}:
            return f"step {step}", None
    return "", None


def _last_evaluation(folder: Path) -> dict[str, Any]:
    """The journal's last line of an evaluation; empty if there is none or it is damaged."""
    start = journal.record_of(folder, layout.SETTINGS).get("journal", {})
    seed = journal.seed_of(start.get("journal", ""))
    try:
        with (folder / layout.JOURNAL).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            found = [line for line in file if b'"elapsed_seconds"' in line]
    except OSError:
        return {}
    return journal.decoded(found[-1], seed) if found else {}


def print_json(jobs: Sequence[JobFolder[Any]]) -> None:
    """Print all that is known of each job, as JSON."""
    view = View()
    rows = []
    for job in _unlike(jobs):
        word, about, _ = view.state(job)
        row = {"id": job.id, "state": word, "about": about, "folder": str(job.path)}
        row |= {"code": job.code.digest, "script": job.script}
        rows.append(row | {"settings": identity(job.settings)})
    print(json.dumps(rows, indent=2))
    view.warn()


def show(jobs: Sequence[JobFolder[Any]], brief: bool = False) -> Counter[str]:
    """Print a line for each job (brief: only for jobs that run, failed or diverged), and the
    totals."""
    view = View()
    unlike = _unlike(jobs)
    states = [view.state(job) for job in unlike]
    for job, (word, about, _) in zip(unlike, states, strict=True):
        if not brief or word in {"running", "failed", "diverged"}:
            print(f"{job.id}  {word:11}  {job.name}" + (about and f"  [{about}]"))
    count = Counter(state.word for state in states)
    said = ", ".join(f"{n} {word}" for word, n in sorted(count.items()))
    print(f"{counted(len(unlike), 'job')}: {said}")
    if took := view.seconds(unlike):
        _print_left(states, statistics.median(took))
    sys.stdout.flush()
    view.warn()
    return count


def _unlike(jobs: Sequence[JobFolder[Any]]) -> list[JobFolder[Any]]:
    return [*{job.id: job for job in jobs}.values()]


def _print_left(states: Sequence[State], each: float) -> None:
    """Print the time left, assuming this many seconds for jobs that do not report it themselves."""
    running = [
        each if state.left is None else state.left for state in states if state.word == "running"
    ]
    waiting = sum(state.word not in OVER | {"running"} for state in states)
    if running:
        left = max(*running, (sum(running) + waiting * each) / len(running))
        print(f"about {duration(left)} left, if as many jobs run at once as now")


def watch(jobs: Sequence[JobFolder[Any]]) -> None:
    """Keep showing the states in short, until nothing is left to run."""
    while True:
        if sys.stdout.isatty():
            print("\033[H\033[2J", end="")
        found = show(jobs, brief=True).keys()
        if found <= OVER:
            return
        if not found & {"running", "queued"}:
            print("no job is running; run.sh starts those that are left", flush=True)
        time.sleep(LOOK)


def is_trained(folder: Path) -> bool:
    """Whether a process holds the lock of this attempt or of another attempt at the same job, or
    another folder has its lease."""
    if any(map(locks.held, folder.parent.glob("*/lock"))):
        return True
    try:
        leases = stored_jobs.known(experiment_name()).leases.get(folder.parent.name, [])
    except ConnectionError:
        return False
    owner = owner_of(folder)
    return any(each.owner != owner for each in leases if attempts.name(each.code) == folder.name)


# A sweep runs the code with which it was started, a copy in the sweep's folder. Large files and
# files that may hold secrets are linked, not copied; only the owner can read the copy.

LARGEST = 10_000_000
"""Bytes of a file above which it is linked."""

YOUNG = 60.0
"""Seconds within which a sweep has certainly locked its folder."""


def take_snapshot(target: Path) -> None:
    """Copy the project's code, with its commit and what has changed since.

    Raises SettingsError if that cannot be done.
    """
    # Files with secrets lie in the root, and git usually ignores them.
    secret = {Path(path.name) for path in PROJECT.iterdir() if path.is_file()}
    paths = provenance.paths() | {path for path in secret if privacy.is_secret(path)}
    try:
        target.mkdir(mode=0o700)
        for path in paths:
            source, copy = PROJECT / path, target / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # an editor's temporary file
                if _is_to_be_linked(path):
                    copy.symlink_to(source)
                else:
                    shutil.copy2(source, copy)
        if not (target / ENGINE.name).exists():  # an upgrade changes no job that waits
            shutil.copytree(ENGINE, target / ENGINE.name)
    except OSError as error:
        raise SettingsError(f"the code cannot be copied: {cause(error)}") from error
    (target / provenance.FROZEN).write_text(json.dumps(provenance.version()))


def _is_to_be_linked(path: Path) -> bool:
    """Whether a path must be linked: folders, large files, and files that may hold secrets,
    directly or through a link."""
    source = PROJECT / path
    if source.is_dir() or source.stat().st_size > LARGEST:
        return True
    return privacy.is_secret(path) or privacy.is_secret(Path(source.resolve().name))


def lock_snapshot(folder: Path) -> int:
    """Return the lock of a sweep's folder, which all processes of the sweep inherit: once nobody
    holds the lock, another sweep removes the folder."""
    file = locks.opened(folder / layout.LOCK, mode=0o600)
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


def clear_snapshots(mine: Path) -> None:
    """Remove the folders of sweeps that have no running process and no job in Slurm."""
    for folder in mine.parent.iterdir():
        with suppress(FileNotFoundError):  # another sweep has removed it in the meantime
            if folder != mine and not _alive(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _alive(folder: Path) -> bool:
    """Whether anything that a sweep has started is still running: it holds the lock, or is in
    Slurm's queue."""
    if slurm.was_given(folder):
        if slurm.has(folder):
            return True
    elif time.time() - folder.stat().st_mtime < YOUNG:
        return True
    try:
        with os.fdopen(locks.opened(folder / layout.LOCK, os.O_RDONLY)) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False
