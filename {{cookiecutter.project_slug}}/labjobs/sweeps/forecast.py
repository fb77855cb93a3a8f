"""What the jobs of a grid will take: time and energy, forecast from the journals of similar jobs.

A job is expected to be as fast as comparable ones: jobs with the same settings, apart from repeats,
the length, and settings that do not affect the time. The jobs themselves show which settings do
not: jobs that differ in them are equally fast. If no job is comparable, the most similar ones stand
in, and the range is that of all jobs. A job that has begun is expected to go on as before.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from heapq import heappop, heappush, nlargest
from itertools import combinations, pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from labjobs import files, layout
from labjobs.errors import SettingsError
from labjobs.job import attempts, identity, journal
from labjobs.job.folder import JobFolder
from labjobs.job.runtime import LENGTHS
from labjobs.job.terminal import counted, duration
from labjobs.settings import Span, roles
from labjobs.sweeps.grid import Entry
from labjobs.tracking import costs

LATEST = 200  # attempts, at most, that a forecast is made from
EQUAL = 1.25  # the ratio of times up to which two jobs count as equally fast
TO_RUN = ("failed", "interrupted", "pending", "queued", "running")
ENDED = ("finished", "failed", "diverged")  # how jobs have ended that do not go on
BATCH, ELAPSED = "batch_size", "elapsed_seconds"


class Pace(NamedTuple):
    """How fast an attempt is: the seconds of a `step`, with its part of the evaluations, the steps
    of an epoch (0 if it has none), and the seconds that a process takes to `start` and to end."""

    script: str
    settings: Mapping[str, str]
    batch: float
    steps: int  # that are done
    step: float
    per_epoch: float
    start: float
    power: float  # kW, 0 if it is not known
    memory: float  # bytes, 0 if it is not known

    def seconds(self, end: Span | None, minutes: float, done: int, batch: float) -> list[float]:
        """Return the least and the most seconds up to the end of a job, or for its minutes; nothing
        if that is not known. With a larger batch a step takes as long, or longer in proportion."""
        if end and end.endswith("e") and not self.per_epoch:
            return []
        if end is None:
            return 2 * [self.start + max(0.0, 60 * minutes - done * self.step)]
        ratio = batch / self.batch
        steps = end.number * (self.per_epoch / ratio if end.endswith("e") else 1) - done
        times = (self.start + steps * self.step * each for each in (1, ratio))
        return sorted(times) if steps > 0 else [0.0, 0.0]


def pace(attempt: Path) -> Pace | None:
    """Return how fast an attempt is; None if that is not known, if it ran on another machine, or
    was run by `find` to measure something."""
    about, used = journal.record_of(attempt, layout.SETTINGS), costs.seen(attempt).values()
    last, finished = journal.last_of(attempt, ELAPSED), attempts.status_of(attempt) == "finished"
    elsewhere = (attempt / layout.ADOPTED).exists() or journal.tag_of(attempt, identity.TAG)
    if elsewhere or not (last or (finished and used)):
        return None
    try:
        settings = identity.restore(identity.read(about["script"]).settings, about["settings"])
    except (LookupError, SettingsError):
        return None
    of = ("seconds", "gpu_seconds", "joules")
    wall, gpu, joules = (sum(process.get(each, 0.0) for process in used) for each in of)
    metrics, step = last.get("metrics", {}), last.get("step", 0)
    planned = last.get("of", step) if finished else step  # it may have stopped early
    trained, epoch = metrics.get(ELAPSED, 0.0), metrics.get("epoch", 0.0)
    if not any(hasattr(settings, name) for name in LENGTHS):  # it always takes the same
        trained = 0.0
    per_epoch, start = step / (epoch or math.inf), (wall - trained) / max(len(used), 1)
    times = trained / max(planned, 1), per_epoch, max(0.0, start), joules / (gpu or math.inf) / 1000
    peak = max((process.get("host_bytes", 0.0) for process in used), default=0.0)
    return Pace(about["script"], _alike(settings, gpu > 0), _batch(settings), step, *times, peak)


def _alike(settings: Any, on_gpu: bool) -> dict[str, str]:
    """What comparable jobs share: the device, and all settings but repeats, length, batch size."""
    of, plain = roles(type(settings)), identity.identity(settings).items()
    own = {k: str(v) for k, v in plain if of.get(k) != "repeat" and k not in (*LENGTHS, BATCH)}
    return {**own, "on a GPU": str(on_gpu)}


def _batch(settings: Any) -> float:
    size = getattr(settings, BATCH, 1)
    return size if isinstance(size, int | float) and size > 0 else 1


def immaterial(paces: Sequence[Pace]) -> set[str]:
    """Return the settings that do not affect the time, as far as jobs show it: jobs that differ in
    them are equally fast, and none that differ in one of them alone have different speeds."""
    groups: dict[Any, list[float]] = {}
    for each in paces:
        seconds = each.step * (each.per_epoch or 1) or each.start or 1.0
        key = frozenset([*each.settings.items(), (BATCH, str(each.batch))])
        groups.setdefault(key, []).append(math.log(seconds))
    repeats = [abs(one - other) for logs in groups.values() for one, other in pairwise(logs)]
    equal = max(math.log(EQUAL), median(repeats or [0.0]))
    pairs = [
        ({name for name, _ in one ^ other}, abs(median(groups[one]) - median(groups[other])))
        for one, other in combinations(groups, 2)
    ]
    found: set[str] = set()
    while True:
        ratios: dict[frozenset[str], list[float]] = {}
        for differ, ratio in pairs:
            ratios.setdefault(frozenset(differ - found), []).append(ratio)
        same = {names for names, each in ratios.items() if median(each) <= equal}
        alone = (names for names in ratios.keys() - same if len(names) == 1)
        material = frozenset([BATCH]).union(*alone)
        more = [names for names in same if names and not names & material]
        if not more:
            return found
        found |= min(more, key=len)


class Cost(NamedTuple):
    """The `seconds` that a job takes, then the least and the most; its energy in kWh, 0 if that is
    not known; whether a comparable job has run (`alike`); the seconds of these that it takes to
    `start`."""

    seconds: tuple[float, float, float]
    kwh: float
    alike: bool
    start: float

    def __str__(self) -> str:
        return duration(self.seconds[0]) + ("" if self.alike else "?")


class Forecast:
    """What jobs of a grid take, judging by the latest attempts in their folders of runs. `at_once`
    is the number of jobs that run at the same time (0 if that is not known), and `processes` the
    number of processes of each job."""

    def __init__(
        self, entries: Sequence[Entry], at_once: int, on_gpus: bool, processes: int
    ) -> None:
        self.at_once, self.on_gpus, self.processes = at_once, on_gpus, processes
        self._roots = {entry.job.runs_root for entry in entries}
        self.look()

    def look(self) -> None:
        """Read what has been written by now."""
        found = [path for root in self._roots for path in root.glob(f"*/*/{layout.JOURNAL}")]
        latest = nlargest(LATEST, found, key=files.changed)
        self._paces: dict[str, list[Pace]] = {}
        for each in filter(None, (pace(path.parent) for path in latest)):
            self._paces.setdefault(each.script, []).append(each)
        self._idle = {script: immaterial(own) for script, own in self._paces.items()}
        self.of, self._near = cache(self._of), cache(self._nearest)

    def left(self, states: Mapping[Entry, str]) -> dict[Entry, Cost | None]:
        """Return what the jobs take that are left to run, from the states of all; None if no job is
        similar. Below `halving`, as many are counted at each rung as pass it."""
        ends = dict[str, Span | None]()
        for bracket in {entry.bracket for entry in states if entry.bracket}:
            ends |= bracket.expected
        found = {
            entry: self.of(entry.job, ends.get(entry.job.id))
            for entry, state in states.items()
            if state in TO_RUN or (state == "paused" and entry.bracket)
        }
        return {entry: cost for entry, cost in found.items() if not cost or any(cost.seconds)}

    def _of(self, job: JobFolder[Any], until: Span | None = None) -> Cost | None:
        """What a job takes up to `until`, by default its end; None if no job is similar."""
        settings, batch = job.settings, _batch(job.settings)
        own = pace(job.path) if attempts.status_of(job.path) not in ENDED else None
        alike, near = (True, [own]) if own else self._similar(job)
        end, minutes = until or job.runtime.pause_after, getattr(settings, "minutes", 0.0)
        work = end or _end(settings), minutes, own.steps if own else 0, batch
        nearest = [found for each in near if (found := each.seconds(*work))]
        if not nearest:
            return None
        others = [] if alike else self._paces[job.script]
        within = [*nearest, *(found for each in others if (found := each.seconds(*work)))]
        wider = EQUAL ** (1 / len(nearest))  # a few jobs do not show the whole range
        middle = median(math.sqrt(low * high) for low, high in nearest)
        low, high = min(low for low, _ in within), max(high for _, high in within)
        kwh = self.processes * middle / 3600 * median(each.power for each in near)
        start = max(each.start for each in near)
        return Cost((middle, low / wider, high * wider), kwh, alike, start)

    def memory(self, job: JobFolder[Any]) -> float:
        """Return the bytes of memory that a job needs, and a quarter more; 0 if that is not known.
        One that was killed on a cluster, or ran out of memory there, gets twice what it had."""
        alike, near = self._similar(job)
        own = 1e9 * costs.totals(job.path).get("peak_host_memory_gb", 0.0)
        most = max([own, *(each.memory for each in near if alike)])
        if not (killed := files.read_record(job.path / layout.TASK)):
            return EQUAL * most
        return max(EQUAL * most, 2 * (killed.get("bytes") or own))

    def _similar(self, job: JobFolder[Any]) -> tuple[bool, list[Pace]]:
        """Whether jobs have run that are comparable with a job, and their paces; or those of the
        most similar ones."""
        mine = _alike(job.settings, self.on_gpus and job.runtime.device != "cpu").items()
        idle = self._idle.get(job.script, ())
        those = frozenset((name, value) for name, value in mine if name not in idle)
        return self._near(job.script, those, _batch(job.settings))

    def _nearest(
        self, script: str, those: frozenset[tuple[str, str]], batch: float
    ) -> tuple[bool, list[Pace]]:
        """The same for jobs with some settings, and a batch size."""
        found: dict[tuple[int, float], list[Pace]] = {}
        mine, idle = dict(those), self._idle.get(script, set())
        for each in self._paces.get(script, []):
            names = {name for name, _ in those ^ each.settings.items()} - idle
            apart = (_apart(mine.get(name, ""), each.settings.get(name, "")) for name in names)
            distance = len(names), sum(apart) + abs(math.log(batch / each.batch))
            found.setdefault(distance, []).append(each)
        best = min(found, default=(1, 0.0))
        return not best[0], found.get(best, [])

    def lines(self, left: Mapping[Entry, Cost | None]) -> Iterator[str]:
        """Yield what the jobs that are left to run take together, and for how many it is unsure."""
        known = {entry: cost for entry, cost in left.items() if cost}
        of = f"of {counted(len(left), 'job')}"
        if known:
            line = f"{counted(len(known), 'job')} to run: {self._hours([*known.values()])}"
            if all(kwh := [cost.kwh for cost in known.values()]):
                line += f", {sum(kwh):.3g} kWh"
            if self.at_once:
                ends = self.ends(known)
                end = time.strftime("%a %d %b %H:%M", time.localtime(time.time() + ends[0]))
                middle, least, most = map(duration, ends)
                line += f"; {self.at_once} at once: {middle} ({least} to {most}), until {end}"
            yield line
        if unlike := [cost for cost in known.values() if not cost.alike]:
            line = "no comparable job has run; counted like the most similar ones"
            yield f"{len(unlike)} {of}: {line}, {self._hours(unlike)}"
        if unknown := len(left) - len(known):
            yield f"{unknown} {of}: no similar job has run; not counted"

    def _hours(self, of: Sequence[Cost]) -> str:
        sums = (sum(each) for each in zip(*(cost.seconds for cost in of), strict=True))
        middle, low, high = (f"{self.processes * seconds / 3600:.3g}" for seconds in sums)
        unit = "GPU hours" if self.on_gpus else "hours on the CPU"
        return f"{middle} {unit} ({low} to {high})"

    def ends(self, jobs: Mapping[Entry, Cost]) -> list[float]:
        """Return after how many seconds all jobs have ended, then at least and at most, if each
        place takes the next one as soon as it is free, and jobs wait for their inputs."""
        found = []
        for part in range(3):
            free, ended = [0.0] * self.at_once, dict[str, float]()
            for entry, cost in jobs.items():
                begin = max([heappop(free), *(ended.get(job, 0.0) for job in entry.inputs)])
                ended[entry.job.id] = begin + cost.seconds[part]
                heappush(free, ended[entry.job.id])
            found.append(max(free))
        return found


def _end(settings: Any) -> Span | None:
    """Where a job ends; None if its length is in minutes, or if it has no length."""
    steps, epochs = (getattr(settings, name, 0) for name in ("steps", "epochs"))
    if getattr(settings, "minutes", 0) or not (steps or epochs):
        return None
    return Span(str(steps) if steps else f"{epochs}e")


def _apart(one: str, other: str) -> float:
    """How far two values are apart: numbers by the logarithm of their ratio."""
    with suppress(ValueError, ZeroDivisionError):
        return abs(math.log(float(one) / float(other)))
    return 1.0


STOPPING = 30.0  # seconds within which a job writes a checkpoint and stops


class Budget:
    """The seconds that jobs may take, in all places together, and how many they have taken."""

    forecast: Forecast | None = None

    def __init__(self, seconds: float) -> None:
        self._all, self._ended = seconds, 0.0
        self._stopping = min(STOPPING, seconds / 10)
        self._running: dict[Entry, tuple[float, float]] = {}

    def begin(self, entry: Entry) -> None:
        """Count the time of a job from here on."""
        self._running[entry] = time.monotonic(), self._takes(entry)

    def end(self, entry: Entry) -> None:
        """Stop counting the time of a job."""
        if entry in self._running:
            self._ended += time.monotonic() - self._running.pop(entry)[0]
            if self.forecast:
                self.forecast.look()

    @property
    def used(self) -> float:
        """The seconds that jobs have taken so far."""
        return self._ended + sum(time.monotonic() - begun for begun, _ in self._running.values())

    @property
    def is_spent(self) -> bool:
        """Whether the running jobs have to stop now."""
        stopping = min(self._stopping * len(self._running), self._all / 10)
        return bool(self._running) and self.used + stopping >= self._all

    def lasts(self, entry: Entry) -> bool:
        """Return whether it is enough for one more job, as far as that is known."""
        now = time.monotonic()
        running = sum(max(now - begun, takes) for begun, takes in self._running.values())
        return self._ended + running + max(self._takes(entry), self._stopping) <= self._all

    def _takes(self, entry: Entry) -> float:
        if not self.forecast:
            return 0.0
        until = entry.bracket.pause_after(entry.job) if entry.bracket else None
        cost = self.forecast.of(entry.job, until)
        return cost.seconds[0] if cost else 0.0

    def lines(self, entries: Sequence[Entry]) -> Iterator[str]:
        """Yield what was used, and what is left to run; nothing without a forecast."""
        if by := self.forecast:
            yield f"{by.processes * self.used / 3600:.3g} hours used"
            states = {entry: entry.state_after for entry in entries}
            waiting = {entry: entry.state for entry, s in states.items() if s == "not started"}
            yield from by.lines(by.left(states | waiting))

    def ordered(self, jobs: list[Entry], by: Forecast) -> list[Entry]:
        """Return the jobs, the longest first if the budget is enough and all then end sooner."""
        self.forecast = by
        known = {entry: cost for entry in jobs if (cost := by.of(entry.job))}
        longest = dict(sorted(known.items(), key=lambda each: each[1].seconds, reverse=True))
        lasts = self._ended + sum(cost.seconds[0] for cost in known.values()) <= self._all
        sooner = len(known) == len(jobs) and by.ends(longest) < by.ends(known)
        return [*longest] if lasts and sooner else jobs
