"""The states of jobs, seen from outside: for run.sh's `--list` and `--watch`, and before a sweep.

finished     the store has all of it
unsent       finished, but the store has not got it all
running      a process trains it, here or elsewhere
queued       Slurm has it in its queue
interrupted  it stopped before its end, or was killed; it goes on from its last checkpoint
failed       it ended with an error
pending      it has not begun

`python -m engine.sweeps.states FOLDER` waits until nobody trains a job.
"""

import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from engine import locks
from engine.cli.settings import as_words
from engine.errors import SettingsError
from engine.files import read_json
from engine.job import journal
from engine.job.folder import Job
from engine.job.terminal import leave
from engine.paths import PROJECT
from engine.sweeps import slurm
from engine.tracking import reading
from engine.tracking.store import experiment_name

LOOK = 2.0
"""Seconds between two looks."""

TAIL = 65_536
"""Bytes at a journal's end that surely hold the last epoch's line."""

SWEEPS = PROJECT / ".sweeps"


class State(NamedTuple):
    """A job's state, and more about it."""

    word: str
    about: str = ""


class View:
    """What the store and Slurm know of the project's jobs at one time."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        try:
            self._known: reading.Known | None = reading.known(experiment_name())
        except ConnectionError as error:
            self.problems.append(f"{error}; going by the jobs' folders alone")
            self._known = None
        try:
            self._queued = slurm.queued(SWEEPS)
        except SettingsError as error:
            self.problems.append(f"{error}; what is in its queue is not known")
            self._queued = {}

    def state(self, job: Job[Any]) -> State:
        """The state of one job."""
        done = self._known and job.id in self._known.finished
        if done and not job.settings.force:
            return State("finished")
        outcome = job.outcome()
        if locks.held(job.folder / "lock"):
            return State("running", progress(job.folder))
        if lease := self._lease(job.id, job.folder):
            return State("running", f"on {lease.host}")
        if job.id in self._queued:
            return State("queued", self._queued[job.id])
        if outcome.get("status") == "finished":
            here = self._known is None and not job.settings.force
            return State("finished" if here else "pending" if done else "unsent")
        if outcome.get("status") == "failed":
            return State("failed", outcome.get("said", ""))
        begun = (job.folder / journal.FILE).exists()
        return State("interrupted", progress(job.folder)) if begun else State("pending")

    def seconds(self, jobs: Sequence[Job[Any]]) -> list[float]:
        """How long the finished ones among the jobs have taken."""
        known = self._known.finished if self._known else {}
        return [known[job.id] for job in jobs if job.id in known]

    def _lease(self, job_id: str, folder: Path) -> reading.Lease | None:
        leases = self._known.leases.get(job_id, []) if self._known else []
        owner = read_json(folder / "lock").get("owner") if leases else None
        return next((lease for lease in leases if lease.owner != owner), None)


def progress(folder: Path) -> str:
    """How far a job has come, such as `epoch 12/30, 40 s left`."""
    epoch = _last_epoch(folder / journal.FILE)
    epochs = read_json(folder / "settings.json").get("settings", {}).get("epochs")
    if not (epoch and epochs):
        return ""
    left = (epochs - epoch["step"]) * epoch["metrics"]["epoch_seconds"]
    return f"epoch {epoch['step']}/{epochs}, {duration(left)} left"


def show(jobs: Sequence[Job[Any]], view: View, brief: bool = False) -> Counter[str]:
    """Print a line a job (if brief, only of those that run or failed) and the sum of all."""
    states = {job.id: view.state(job) for job in jobs}
    unlike = {job.id: job for job in jobs}
    for job_id, job in unlike.items():
        word, about = states[job_id]
        if not brief or word in {"running", "failed"}:
            print(f"{job_id}  {word:11}  {as_words(job.settings)}" + (about and f"  [{about}]"))
    words = Counter(state.word for state in states.values())
    print(f"{len(unlike)} jobs: " + ", ".join(f"{n} {word}" for word, n in sorted(words.items())))
    seconds = view.seconds(list(unlike.values()))
    if words["running"] and seconds:
        each = statistics.median(seconds)
        rate = words["running"] / each
        left = len(unlike) - words["finished"] - words["unsent"] - words["failed"]
        print(f"{3600 * rate:.3g} jobs an hour, {duration(left / rate)} left")
    for problem in view.problems:
        leave(1, f"run.sh: {problem}")
    return words


def watch(jobs: Sequence[Job[Any]]) -> None:
    """Show the states in short, again and again, until nothing is left to run."""
    while True:
        if sys.stdout.isatty():
            print("\033[H\033[2J", end="")
        words = show(jobs, View(), brief=True)
        if words.keys() <= {"finished", "failed", "unsent"}:
            return
        time.sleep(LOOK)


def duration(seconds: float) -> str:
    """A time in the unit that suits it: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _last_epoch(path: Path) -> dict[str, Any]:
    """The journal's last line of an epoch."""
    if not path.exists():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL))
        lines = [line for line in file.read().splitlines() if b'"epoch_seconds"' in line]
    return dict(json.loads(lines[-1])) if lines else {}


def _wait_for(folder: Path) -> None:
    """Return once no process has a job's lock and no other folder has its lease."""
    with locks.waiting(folder / "lock"):
        pass
    while True:
        try:
            known = reading.known(experiment_name())
        except ConnectionError:
            return
        owner = read_json(folder / "lock").get("owner")
        if all(lease.owner == owner for lease in known.leases.get(folder.name, [])):
            return
        time.sleep(LOOK)


if __name__ == "__main__":
    _wait_for(Path(sys.argv[1]))
