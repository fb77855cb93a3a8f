"""The states of jobs, seen from outside: for run.sh's `--list` and `--watch`, and before a sweep.

finished     all of its results are in the store
stale        finished or begun with other code or data; --redo-stale runs it again
unsent       finished, but not everything has been uploaded
running      a process is training it, here or elsewhere
queued       it is in the queue of a cluster
paused       it has reached its --pause-after, or a rung of a halving that is not decided yet
stopped      others were better at a rung of a halving; without that line, it trains on
interrupted  it stopped before its end, or was killed; it continues from its last checkpoint
failed       it ended with an error
diverged     its loss or its weights were no longer finite; --force starts it over
pending      it has not begun
"""

import fcntl
import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from labjobs import exit_status, layout, locks, privacy
from labjobs.errors import SettingsError, cause, few
from labjobs.files import ENGINE, PROJECT, json_of
from labjobs.job import journal, provenance
from labjobs.job.folder import JobFolder, owner_of
from labjobs.job.identity import identity
from labjobs.job.terminal import counted, duration, leave
from labjobs.sweeps import arrays
from labjobs.sweeps.forecast import Forecast
from labjobs.sweeps.gpus import LOOK
from labjobs.sweeps.grid import Entry
from labjobs.tracking import copies, courier, stored_jobs
from labjobs.tracking.mlflow_store import experiment_name

OVER = {"finished", "stale", "failed", "unsent", "diverged", "paused", "stopped"}
"""States of jobs that no running sweep will train."""

STATES = sorted({*OVER, "running", "queued", "interrupted", "pending", "unreadable"})
"""All words for states; `unreadable` is that of jobs whose settings are not known."""


class State(NamedTuple):
    """A job's state, and details about it."""

    word: str
    about: str = ""


class View:
    """What the store and batch systems know about the project's jobs at one moment; `silent` says
    which systems cannot be asked."""

    def __init__(self) -> None:
        self.known = stored_jobs.known(experiment_name())
        away = self.known.problem
        self.problems = [f"{away}; going by the jobs' folders alone"] if away else []
        self.queued, self.silent = arrays.queued(PROJECT / layout.SWEEPS)
        self.problems += [f"{why}; the jobs in its queue are not known" for why in self.silent]

    def state(self, job: JobFolder[Any]) -> State:
        """Return the state of a job."""
        counts = not job.runtime.force
        found = self.known.evidence(job, "finished")
        lacks_copies = copies.wanted() and copies.lacking(job.path)
        if counts and found and not job.redone and not lacks_copies:
            return State("finished", found.unchecked or ("adopted" if job.adopted else ""))
        for folder in (job.path, job.latest or job.path):  # it may have only just begun
            if locks.held(folder / layout.LOCK):
                return State("running", progress(folder))
        if host := self.known.host(job, owner_of(job.path)):
            return State("running", f"on {host}")
        if queued := self.queued.get(job.id):
            return State("queued", queued)
        state = self._by_folder(job) if counts else State("pending")
        killed = state.word in ("pending", "interrupted") and (job.path / layout.TASK).exists()
        return state._replace(about="its task was killed") if killed else state

    def of(self, entry: Entry) -> State:
        """Return the state of a job of a grid: where it is halved, that says who trains on."""
        job, (word, about) = entry.job, self.state(entry.job)
        if not entry.bracket:
            return State("interrupted" if word == "stopped" else word, about)
        word, rung = entry.bracket.state(job, word), entry.bracket.stopped_at(job)
        return State(word, f"at {rung}" if word == "stopped" else about)

    def warn(self) -> None:
        """Print the problems in asking the store or a batch system."""
        for problem in self.problems:
            leave(exit_status.FAILED, f"run.sh: {problem}")

    def _by_folder(self, job: JobFolder[Any]) -> State:
        """The state of a job that no process trains and that the store does not have."""
        if not job.latest:
            if self.known.evidence(job, "diverged"):
                return State("diverged", "in another folder")
            for run in self.known.of(job.id, "finished"):
                return State("stale", stored_jobs.evidence(job, run).change)
            return State("pending")
        outcome, evidence = job.outcome(), job.evidence
        status, said = outcome.get("status"), str(outcome.get("said", ""))
        if change := evidence.change:
            return State("pending" if job.starts_over else "stale", change)
        if status == "finished":
            sent = self.known.problem and courier.delivered(job.path)
            return State("finished" if sent else "unsent", evidence.unchecked)
        if status in ("failed", "diverged", "stopped"):
            return State(status, said)
        if status == "paused" and outcome.get("pause_after") == job.runtime.pause_after:
            return State("paused", progress(job.path))
        return State("interrupted", progress(job.path))


def progress(folder: Path) -> str:
    """Return how far a job has come at its last evaluation, such as `step 120/300, 40 s left`."""
    match journal.last_of(folder, "elapsed_seconds"):
        case {"step": int(step), "of": int(total), "metrics": {"elapsed_seconds": float(seconds)}}:
            return f"step {step}/{total}, {duration(seconds / max(step, 1) * (total - step))} left"
        case {"step": int(step)}:
            return f"step {step}"
    return ""


def show(
    entries: Sequence[Entry],
    as_json: bool = False,
    forecast: Forecast | None = None,
    only: Collection[str] = (),
) -> Set[str]:
    """Print a line for each job (only for those in some states, if these are named), and the
    totals, with what they will take if there is a forecast; or all that is known of each job, as
    JSON. Return the words for the states of all jobs."""
    view = View()
    for bracket in {entry.bracket for entry in entries if entry.bracket}:
        bracket.look()
    of_jobs = {entry.job.id: entry for entry in entries}.values()
    states = {entry: view.of(entry) for entry in of_jobs}
    count = Counter(state.word for state in states.values())
    shown = {entry: state for entry, state in states.items() if not only or state.word in only}
    left = forecast.left({entry: s.word for entry, s in shown.items()}) if forecast else {}
    if as_json:
        rows = [
            {"id": job.id, "state": word, "about": about, "folder": str(job.path)}
            | {"code": job.code.digest, "script": job.script, "settings": identity(job.settings)}
            | ({"cost": cost and cost._asdict()} if forecast else {})
            for job, (word, about), cost in ((e.job, s, left.get(e)) for e, s in shown.items())
        ]
        print(json_of(rows))
    else:
        for entry, (word, about) in shown.items():
            job, cost = entry.job, f"{left.get(entry) or ''!s:7}  " if forecast else ""
            print(f"{job.id}  {word:11}  {cost}{job.name}" + (about and f"  [{about}]"))
        said = ", ".join(f"{n} {word}" for word, n in sorted(count.items()))
        print(f"{counted(len(states), 'job')}: {said}")
        for line in forecast.lines(left) if forecast else ():
            print(line)
    sys.stdout.flush()
    view.warn()
    return count.keys()


def watch(entries: Sequence[Entry]) -> None:
    """Keep showing the states in short, until nothing is left to run."""
    while True:
        if sys.stdout.isatty():
            print("\033[H\033[2J", end="")
        found = show(entries, only=("running", "failed", "diverged"))
        if found <= OVER:
            return
        if not found & {"running", "queued"}:
            print("no job is running; run.sh starts those that are left", flush=True)
        time.sleep(LOOK)


# A sweep runs the code with which it was started, a copy in the sweep's folder. Large files, files
# that may hold secrets, and data that git ignores are linked, not copied; only the owner can read
# the copy.

LARGEST = 10_000_000  # bytes of a file above which it is linked
YOUNG = 60.0  # seconds within which a sweep has certainly locked its folder


def take_snapshot(target: Path) -> None:
    """Copy the project's code, with its commit and what has changed since. Raises SettingsError."""
    # Files with secrets lie in the root, and git usually ignores them.
    secret = {Path(path.name) for path in PROJECT.iterdir() if path.is_file()}
    paths = provenance.paths() | {path for path in secret if privacy.is_secret(path)}
    ignored = provenance.ignored()
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
        for name in ignored:
            source, copy = PROJECT / name, target / name
            with suppress(OSError):  # it may be anything
                copy.parent.mkdir(parents=True, exist_ok=True)
                if source.suffix == ".py" and source.is_file():
                    shutil.copy2(source, copy)
                else:
                    copy.symlink_to(source)
        if not (target / ENGINE.name).exists():  # an upgrade changes no job that waits
            shutil.copytree(ENGINE, target / ENGINE.name)
    except OSError as error:
        raise SettingsError(f"the code cannot be copied: {cause(error)}") from error
    about = {**provenance.version(), "files": sorted(map(str, paths)), "ignored": ignored}
    (target / layout.FROZEN).write_text(json.dumps(about), "utf-8")  # last: see keep_written


def _is_to_be_linked(path: Path) -> bool:
    """Whether a path must be linked: folders, large files, and files that may hold secrets,
    directly or through a link."""
    source = PROJECT / path
    if source.is_dir() or source.stat().st_size > LARGEST:
        return True
    return privacy.is_secret(path) or privacy.is_secret(Path(source.resolve().name))


def keep_written(folder: Path) -> bool:
    """Keep the folder of a sweep in whose copy of the code jobs have written files, and say so;
    return whether there are any. The sweep is over."""
    if (folder / layout.KEPT).exists():
        return True
    code, written = folder / "code", list[str]()
    with suppress(OSError):  # there is no copy
        copied = (code / layout.FROZEN).stat().st_ctime_ns
        for place, folders, files in os.walk(code):
            folders[:] = [name for name in folders if name != "__pycache__"]
            each = (Path(place, name) for name in files if not name.endswith(".pyc"))
            written += [str(path) for path in each if path.lstat().st_ctime_ns > copied]
    if written:
        (folder / layout.KEPT).touch()
        names = few(sorted(os.path.relpath(name, PROJECT) for name in written), 2)
        line = "beside their code, a copy that is kept for that; better write in job.path"
        print(f"run.sh: jobs have written {names} {line}", flush=True)
    return bool(written)


def lock_snapshot(folder: Path) -> int:
    """Return the lock of a sweep's folder, which all processes of the sweep inherit: once nobody
    holds the lock, another sweep removes the folder."""
    file = locks.opened(folder / layout.LOCK, mode=0o600)
    with locks.explained(folder / layout.LOCK):
        fcntl.flock(file, fcntl.LOCK_EX)
    return file


def clear_snapshots(mine: Path, keep: Callable[[Path], bool] = keep_written) -> None:
    """Remove the folders of sweeps that have no running process and no job in a queue, and nothing
    to keep."""
    for folder in mine.parent.iterdir():
        with suppress(FileNotFoundError):  # another sweep has removed it in the meantime
            if folder != mine and not _alive(folder) and not keep(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _alive(folder: Path) -> bool:
    """Whether anything of a sweep still runs: it holds the lock, or is in a queue."""
    if arrays.was_given(folder):
        if arrays.has(folder):
            return True
    elif time.time() - folder.stat().st_mtime < YOUNG:
        return True
    try:
        with os.fdopen(locks.opened(folder / layout.LOCK, os.O_RDONLY), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False
