"""Random damage to the files of a job, and what comes of it when the job goes on.

The job is that of replayed.py, at rest in one of several states.
"""

import copy
import random
import shutil
import traceback
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import replayed
from attempts import At, signals
from byte_damage import MUTATIONS
from labjobs import layout
from labjobs.files import read_record
from labjobs.job import journal
from labjobs.job.folder import owner_of
from labjobs.sweeps import states
from labjobs.tracking import courier
from labjobs.tracking.courier import Delivery, delivered
from labjobs.training.loop import Job
from replayed import EVERY, TOTAL, Courier, Killed, Store, points_of
from toy import Settings

RECORDS = ("metrics.jsonl", "settings.json", "outcome.json", "lock", "sent.json")
STATES = {
    "killed": "killed after its checkpoint, nothing sent",
    "sent": "killed after its checkpoint, all sent",
    "stopped": "interrupted, with a checkpoint at the end",
    "unsent": "finished while the store was away",
    "done": "finished, all sent",
}
WORDS = ("harmless", "repaired", "refused", "silent", "traceback")


class Result(NamedTuple):
    """What has become of a job: the last exit status, its points on disk and in the store."""

    status: int
    disk: Counter[object] | None
    """None if the journal is refused."""
    store: Counter[object]
    run: tuple[str, frozenset[str]]
    """Its status and its files."""


@dataclass
class State:
    """A job at rest: its runs folder and the store. `result` is what comes of it undamaged."""

    runs: Path
    store: Store
    owner: str = ""
    result: Result | None = None


class Came(NamedTuple):
    """What came of a mutation: one of WORDS, what it was and what was said."""

    word: str
    about: str


def killing(what: str, job: Job[Settings]) -> None:
    """Kill the job before its last steps."""
    if job.step == TOTAL - 3:
        raise Killed


class Damages:
    """A job in several states, to be damaged and continued. Works in one folder."""

    def __init__(self, root: Path) -> None:
        self._live = root / "live" / "runs"
        self._folder = replayed.job(self._live).path
        self._id = self._folder.parent.name
        self._relative = self._folder.relative_to(self._live)
        self._others = self._files_of_another(root)
        self._states = {name: self._made(name, root / name) for name in STATES}
        for state in self._states.values():
            self._restore(state)
            state.result = self._finished()[1]
            state.owner = owner_of(self._folder)

    def try_one(self, record: str, chance: random.Random) -> Came:
        """Damage a record of the job in some state, and give its command again."""
        there = [n for n, s in self._states.items() if (s.runs / self._relative / record).exists()]
        name, change = chance.choice(there), chance.choice(MUTATIONS)
        self._restore(self._states[name])
        path = self._folder / record
        path.write_bytes(change(bytearray(path.read_bytes()), chance, self._others[record]))
        about = f"{record}, {name}, {change.__name__}"
        try:
            return self._came(self._states[name], path, about, chance)
        except Exception:
            return Came("traceback", f"{about}: {traceback.format_exc()}")

    def _came(self, state: State, path: Path, about: str, chance: random.Random) -> Came:
        assert state.result
        wrong = self._misread(state)
        said = self._synchronised() if chance.random() < 0.5 else ""
        more, result = self._finished()
        said += more
        log = (self._folder / "log.txt").read_text()
        reported = any(word in said + log for word in ("damaged", "missing", "lost"))
        about = f"{about}: {said}{wrong}"
        if wrong or "Traceback" in said:
            return Came("traceback" if "Traceback" in said else "silent", about)
        if result == state.result:
            whole = path.name == layout.JOURNAL or bool(read_record(path))
            return Came(("repaired" if whole else "refused") if reported else "harmless", about)
        if result._replace(disk=state.result.disk) == state.result and result.disk is None:
            return Came("refused", about)
        if result.status and result.store <= state.result.store:
            return Came("refused", about)
        return Came("silent", f"{about} {result}")

    def _made(self, name: str, root: Path) -> State:
        shutil.rmtree(self._live, ignore_errors=True)
        Courier.store, Courier.away = Store(), name == "unsent"
        at = At("step", TOTAL - 3) if name == "stopped" else None
        with suppress(Killed):
            replayed.command(self._live, killing if name in ("killed", "sent") else signals(at))
        if name == "sent":
            with replayed.here():
                Delivery(self._folder).send()
        Courier.away = False
        shutil.copytree(self._live, root)
        return State(root, copy.deepcopy(Courier.store))

    def _files_of_another(self, root: Path) -> dict[str, bytes]:
        """The same records of another job."""
        Courier.store = Store()
        with_seed = patch.object(replayed, "SEED", 1)
        with with_seed:
            other = replayed.job(self._live).path
            replayed.command(self._live)
        return {name: (other / name).read_bytes() for name in RECORDS}

    def _restore(self, state: State) -> None:
        shutil.rmtree(self._live, ignore_errors=True)
        shutil.copytree(state.runs, self._live)
        Courier.store = copy.deepcopy(state.store)

    def _misread(self, state: State) -> str:
        """What those say that only look at the job, if it is wrong."""
        shown = states.progress(self._folder)
        whole = {f"step {step}/{TOTAL}" for step in range(EVERY, TOTAL + 1, EVERY)}
        if shown and shown.split(",")[0] not in whole:
            return f"progress {shown}"
        if owner_of(self._folder) not in ("", state.owner):
            return f"owner {owner_of(self._folder)}"
        open_still = (self._states[name] for name in ("killed", "sent", "unsent"))
        if delivered(self._folder) and state in open_still:
            return "delivered"
        return ""

    def _synchronised(self) -> str:
        """What `sync` prints."""
        with replayed.here() as said:
            courier.sync(self._live)
        return said.getvalue()

    def _finished(self) -> tuple[str, Result]:
        """Give the job's command until it has finished; return what it printed and the result."""
        all_said = ""
        for _ in range(3):
            status, said = replayed.command(self._live)
            all_said += said
            if status == 0:
                break
        runs = [run for (job, _), run in Courier.store.runs.items() if job == self._id]
        points = [(*point, value) for run in runs for point, value in run.points.items()]
        run = ",".join(run.status for run in runs), frozenset().union(*(run.files for run in runs))
        return all_said, Result(status, self._on_disk(), Counter(points), run)

    def _on_disk(self) -> Counter[object] | None:
        try:
            said = journal.lines_of(self._folder)
        except journal.Damaged:
            return None
        if not said or said[-1].get("end") != "FINISHED":
            return None
        return Counter((*point, v) for line in said for point, v in points_of(line).items())
