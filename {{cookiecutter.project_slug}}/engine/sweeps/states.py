"""The states of jobs, seen from outside: for run.sh's `--list` and `--watch`, and before a sweep.

finished     the store has all of it
unsent       finished, but not everything has been uploaded
running      a process trains it, here or elsewhere
queued       Slurm has it in its queue
paused       it has come to its --pause-after
interrupted  it stopped before its end, or was killed; it continues from its last checkpoint
failed       it ended with an error
diverged     its loss or its weights were no longer finite; --force starts it over
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
from engine.errors import SettingsError
from engine.files import read_json
from engine.job import journal
from engine.job.folder import JobFolder
from engine.job.terminal import duration, leave
from engine.paths import PROJECT
from engine.sweeps import slurm
from engine.tracking import reading
from engine.tracking.store import experiment_name

LOOK = 2.0
"""Seconds between two looks."""

TAIL = 65_536
"""Bytes at a journal's end that surely hold the last evaluation's line."""

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

    def state(self, job: JobFolder[Any]) -> State:
        """The state of one job."""
        done = self._known and job.id in self._known.finished
        if done and not job.runtime.force:
            return State("finished")
        outcome = job.outcome()
        if locks.held(job.path / "lock"):
            return State("running", progress(job.path))
        if lease := self._lease(job.id, job.path):
            return State("running", f"on {lease.host}")
        if job.id in self._queued:
            return State("queued", self._queued[job.id])
        if outcome.get("status") == "finished":
            here = self._known is None and not job.runtime.force
            return State("finished" if here else "pending" if done else "unsent")
        if outcome.get("status") in ("failed", "diverged"):
            return State(outcome["status"], str(outcome.get("said", "")))
        if outcome.get("status") == "paused" and outcome.get("pause_after") == job.pause_after:
            return State("paused", progress(job.path))
        begun = (job.path / journal.FILE).exists()
        return State("interrupted", progress(job.path)) if begun else State("pending")

    def seconds(self, jobs: Sequence[JobFolder[Any]]) -> list[float]:
        """How long the finished ones among the jobs have taken."""
        known = self._known.finished if self._known else {}
        return [known[job.id] for job in jobs if job.id in known]

    def _lease(self, job_id: str, folder: Path) -> reading.Lease | None:
        leases = self._known.leases.get(job_id, []) if self._known else []
        owner = read_json(folder / "lock").get("owner") if leases else None
        return next((lease for lease in leases if lease.owner != owner), None)


def progress(folder: Path) -> str:
    """Return how far a job has come, such as `step 120/300, 40 s left`."""
    last = _last_evaluation(folder / journal.FILE)
    step, total = last.get("step"), last.get("of")
    seconds = last.get("metrics", {}).get("elapsed_seconds")
    if not (step and total and seconds):
        return f"step {step}" if step else ""
    return f"step {step}/{total}, {duration(seconds / step * (total - step))} left"


def show(jobs: Sequence[JobFolder[Any]], view: View, brief: bool = False) -> Counter[str]:
    """Print a line a job (if brief, only of those that run or failed) and the sum of all."""
    states = {job.id: view.state(job) for job in jobs}
    unlike = {job.id: job for job in jobs}
    for job_id, job in unlike.items():
        word, about = states[job_id]
        if not brief or word in {"running", "failed"}:
            print(f"{job_id}  {word:11}  {job.name}" + (about and f"  [{about}]"))
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


def watch(jobs: Sequence[JobFolder[Any]]) -> None:
    """Show the states in short, again and again, until nothing is left to run."""
    while True:
        if sys.stdout.isatty():
            print("\033[H\033[2J", end="")
        words = show(jobs, View(), brief=True)
        if words.keys() <= {"finished", "failed", "unsent", "diverged", "paused"}:
            return
        time.sleep(LOOK)


def _last_evaluation(path: Path) -> dict[str, Any]:
    """The journal's last line of an evaluation."""
    if not path.exists():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL))
        lines = [line for line in file.read().splitlines() if b'"elapsed_seconds"' in line]
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
