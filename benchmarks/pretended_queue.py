"""Run by many_hosts.py in a project: its queue, with places and a cluster that only pretend to run
jobs. Prints what came of it, as JSON."""

import json
import math
import os
import random
import resource
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from labjobs import files, layout
from labjobs.sweeps import clusters, grid, queue, states
from labjobs.sweeps.clusters import Array, Cluster, System
from labjobs.sweeps.forecast import Budget
from labjobs.sweeps.grid import Entry
from labjobs.sweeps.options import Flags

SHORTEST, LONGEST = 1.0, 3.0
"""Seconds that jobs take."""

asked: dict[str, list[float]] = {"scheduler": [], "store": []}
"""When each was asked something."""

ran: dict[str, list[Path]] = {"places": [], "cluster": []}
"""The attempts that have run on each."""

chance = random.Random(0)


def finish(attempt: Path, where: str) -> None:
    """Leave what a finished job leaves."""
    ran[where].append(attempt)
    attempt.mkdir(parents=True, exist_ok=True)
    files.write_record(attempt / layout.OUTCOME, {"status": "finished"})


class Place:
    """A place on a host, which is always there."""

    env: ClassVar[dict[str, str]] = {}
    files: ClassVar[list[int]] = []
    why = ""

    def __init__(self, number: int) -> None:
        self.device = f"host{number} cpu"

    def take(self) -> bool:
        return True

    def release(self) -> None:
        pass


class Job:
    """A job in a place, in the place of a process."""

    def __init__(self, attempt: Path, *_: Any) -> None:
        self._attempt, self._end = attempt, time.monotonic() + chance.uniform(SHORTEST, LONGEST)

    def status(self) -> int | None:
        if time.monotonic() < self._end:
            return None
        finish(self._attempt, "places")
        return 0

    def ending(self, _: int) -> str:
        return f"job {self._attempt.parent.name} finished"

    def failed_by(self, _: int) -> str:
        return ""


class Nodes(System):
    """A batch system, whose nodes take tasks in their order."""

    title = "Pretended"
    forms: ClassVar[dict[str, str]] = {}

    def __init__(self, folder: Path, count: int) -> None:
        self._folder, self._free = folder, [0.0] * count
        self._arrays = 0
        self._waiting: dict[tuple[str, int], tuple[Path, float]] = {}
        self._running: dict[tuple[str, int], tuple[Path, float]] = {}

    def largest_array(self) -> int:
        asked["scheduler"].append(time.monotonic())
        return 1001

    def submit(self, cluster: Cluster, array: Array) -> str:
        """Take an array into the queue; returns its id."""
        asked["scheduler"].append(time.monotonic())
        self._arrays += 1
        first = int(shlex.split(array.script)[-1])
        jobs = files.read_json(self._folder / layout.SUBMITTED)["jobs"]
        for number in range(array.size):
            attempt = Path(jobs[first + number][0])
            self._waiting[str(self._arrays), number] = attempt, time.monotonic()
        return str(self._arrays)

    def cancel(self, tasks: Iterable[str]) -> None:
        asked["scheduler"].append(time.monotonic())
        for task in tasks:
            array, number = task.split("_")
            self._waiting.pop((array, int(number)), None)

    def _tasks(self) -> Iterator[tuple[str, int, str, str]]:
        asked["scheduler"].append(time.monotonic())
        self._go_on()
        for word, tasks in (("PENDING", self._waiting), ("RUNNING", self._running)):
            for array, number in tasks:
                yield array, number, word, ""

    def _go_on(self) -> None:
        """Do what the nodes have done since the last look."""
        now = time.monotonic()
        for task, (attempt, since) in [*self._waiting.items()]:
            node = min(range(len(self._free)), key=self._free.__getitem__)
            if self._free[node] > now:
                break
            del self._waiting[task]
            begin = max(self._free[node], since)
            self._free[node] = begin + chance.uniform(SHORTEST, LONGEST)
            self._running[task] = attempt, self._free[node]
        for task, (attempt, end) in [*self._running.items()]:
            if end <= now:
                del self._running[task]
                finish(attempt, "cluster")


def noting(what: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, which also notes when the store was asked."""

    def noted(*words: Any) -> Any:
        asked["store"].append(time.monotonic())
        return what(*words)

    return noted


def busiest(times: list[float], begun: float) -> float:
    """The most questions in ten seconds, by the second, without the first ten seconds."""
    each = Counter(int((time - begun) // 10) for time in times)
    return max((count for start, count in each.items() if start > 0), default=0) / 10


def main(count: int, hosts: int, nodes: int) -> None:
    """Run `count` jobs in a place on each of the hosts and on each of the cluster's nodes."""
    folder = Path.cwd() / layout.SWEEPS / "pretended"
    (folder / "code").mkdir(parents=True)
    clusters.SYSTEMS["pretended"] = Nodes(folder, nodes)
    queue.Running, states.stored_jobs.known = Job, noting(states.stored_jobs.known)
    begun = time.monotonic()
    entries = [Entry(number, "run", [f"--seed={number}"]) for number in range(1, count + 1)]
    grid.each(entries, Entry.read)
    planned = time.monotonic() - begun
    since = time.time_ns()
    cluster = Cluster(system="pretended", gpus=0, time="1:00:00", memory="1G")
    share = queue.Share(folder, cluster, since) if nodes else None
    places: list[Any] = [(Place(number), None) for number in range(hosts)]
    begun, used = time.monotonic(), time.process_time()
    more = Budget(math.inf), os.getppid(), share
    line = queue.Queue(entries, count, places, Flags(), since, *more)
    line.run()
    took, used = time.monotonic() - begun, time.process_time() - used
    each = Counter(path for paths in ran.values() for path in paths)
    assert len(each) == count and {*each.values()} == {1}, "a job ran twice, or not at all"
    assert all(entry.status == 0 for entry in entries)
    found: Mapping[str, float] = {
        "planned": planned,
        "took": took,
        "used": used,
        "ideal": count * (SHORTEST + LONGEST) / 2 / (hosts + nodes),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "on the cluster": len(ran["cluster"]),
        **{what: busiest(times, begun) for what, times in asked.items()},
    }
    sys.stdout.flush()
    print(json.dumps(found))


if __name__ == "__main__":
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{Path.cwd()}/mlflow.db")
    main(*map(int, sys.argv[1:]))
