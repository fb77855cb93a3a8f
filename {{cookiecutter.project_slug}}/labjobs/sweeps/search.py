"""Lines of run.sh's grid that search: `search` draws settings, `halving` stops the worse ones."""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

from labjobs import layout
from labjobs.cli.flags import option
from labjobs.cli.ranges import Range, parse
from labjobs.errors import JobError, SettingsError
from labjobs.job import attempts, journal
from labjobs.job.folder import JobFolder
from labjobs.job.identity import identity
from labjobs.job.terminal import counted
from labjobs.settings import Span, roles

# Random search: settings drawn from ranges, as jobs of a grid. For run.sh's `search`:
#
#     search 20 --lr 'log 1e-4 1e-1' --batch-size 'choice 32 64 128' -- --model convnet
#     search 20 seed=1 --dropout 'uniform 0 0.5' --width 'logint 16 512' --bias 'normal 0 0.1'
#     search 20 --optimizer 'choice adam sgd' --momentum 'uniform 0.8 0.99 if --optimizer=sgd'
#
# draws 20 jobs; what follows `--` is the same for all. Each flag has a sequence of its own, which
# its name and the seed determine: other flags, their order and the number of jobs do not change it,
# so the first 20 of 40 jobs are the same 20. The first 2, 4, 8, … values of a flag fill its range
# evenly. The sequences are made here, because a library's may change with its version, which would
# change the jobs.

BITS = 32  # binary digits of the numbers that are drawn
LAST = 1 - 2**-BITS  # the largest of them
MOST = 2**20  # the largest number of jobs of a search

# grid.needed says how many jobs this draws:
UNTIL = "search until 10 without improvement --at-most 100 --lr 'log 1e-4 1e-1'"

FRUITLESS = 1000  # draws without a new job after which a range has no further ones


def point(key: str, index: int) -> float:
    """Return a number in [0, 1), the index-th of the sequence with this key.

    It is van der Corput's sequence, an index with its binary digits mirrored at the point, shifted
    by a random number digit by digit, so that the first 2**n numbers remain evenly spread: Cranley
    and Patterson 1976, doi.org/10.1137/0713071, in base 2. The numbers that are new among the first
    2**n are in random order, so that two keys are independent.
    """
    start = 1 << max(0, index.bit_length() - 1)
    place = _order(key, start)[index - start] if index else 0
    mirrored = int(f"{place:0{BITS}b}"[::-1], 2)
    return float((mirrored ^ _hash(key)) / 2**BITS)


@cache
def _order(key: str, start: int) -> list[int]:
    """The numbers from a power of two to the next, in random order."""
    return sorted(range(start, 2 * start), key=lambda number: _hash(f"{key} {number}"))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[: BITS // 8])


def jobs(words: list[str]) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Yield the jobs of a search, each once: its arguments, and how it was drawn, by the `seed`,
    the `ranges` of the flags and the `index` of the draw. Raises SettingsError."""
    until: dict[str, int] = {}
    if words[:1] == ["until"]:
        _, patience, *said = [*words, "", ""][:5]
        if said != ["without", "improvement", "--at-most"] or not patience.strip("0").isdecimal():
            raise SettingsError(f"search {' '.join(words[:6])}: must look like {UNTIL}")
        until, words = {"until": int(patience)}, words[5:]
    cut = words.index("--") if "--" in words else len(words)
    (count, *drawn), fixed = words[:cut] or [""], words[cut + 1 :]
    seed = drawn.pop(0).removeprefix("seed=") if drawn and drawn[0].startswith("seed=") else "0"
    if not (count.isdecimal() and seed.isdecimal() and int(count) < MOST):
        raise SettingsError("search: must begin with the number of jobs, such as search 20 seed=0")
    of = ranges(drawn, fixed)
    declared = {"seed": int(seed), "ranges": texts(of), **until}
    for job, index in draws(int(count), seed, of, fixed):
        yield job, {**declared, "index": index}


def texts(of: Iterable[Range]) -> dict[str, str]:
    """Return what flags are drawn from, as it was written."""
    return {each.flag: each.text for each in of}


def draws(
    count: int, seed: str, of: Sequence[Range], fixed: Sequence[str]
) -> Iterator[tuple[list[str], int]]:
    """Yield the arguments of `count` jobs, each once, with the index of the draw. Raises
    SettingsError if there are fewer."""
    seen, index, newest = set[tuple[str, ...]](), 0, 0
    while len(seen) < count:
        if index - newest > FRUITLESS:
            few = f"its ranges have {len(seen)} different jobs"
            raise SettingsError(f"search {count}: {few}; ask for as many, or widen a range")
        numbers = {each.flag: point(f"{seed} {each.flag}", index) for each in of}
        job = arguments(of, fixed, numbers)
        if job not in seen:
            seen.add(job)
            newest = index
            yield [*job, *fixed], index
        index += 1


def arguments(
    of: Sequence[Range], fixed: Sequence[str], numbers: Mapping[str, float]
) -> tuple[str, ...]:
    """Return the flags of a job, from a number in [0, 1) for each range."""
    values = dict(given := flags(fixed))
    for each in of:
        if each.holds(values):
            values[each.flag] = each.draw(numbers[each.flag])
    return tuple(f"{flag}={value}" for flag, value in values.items() if flag not in given)


def ranges(words: Sequence[str], fixed: Sequence[str]) -> list[Range]:
    """Return the ranges in pairs such as --lr 'log 1e-4 1e-1'. Raises SettingsError."""
    for word in (*words[:1], *fixed[:1]):
        if word.endswith(".py"):
            cure = "in run.sh, vary those of another script in a loop"
            raise SettingsError(f"search: {word}: only settings of run.py can be drawn; {cure}")
    names, ranges = words[::2], words[1::2]
    if not names or len(names) != len(ranges) or not all(name.startswith("--") for name in names):
        pairs = "pairs of a flag and a range, such as --lr 'log 1e-4 1e-1'"
        raise SettingsError(f"search: expects {pairs}")
    found = [parse(flag, text) for flag, text in zip(names, ranges, strict=True)]
    known = [*(given := flags(fixed))]
    for each in found:
        if each.flag in known:
            twice = "after --" if each.flag in given else "twice"
            raise SettingsError(f"search: {each.flag}: is drawn, and given {twice}")
        if each.condition and each.condition.partition("=")[0] not in known:
            before = "must name a flag that stands before it, or after --"
            raise SettingsError(f"search: {each.flag}: 'if {each.condition}' {before}")
        known.append(each.flag)
    return found


def flags(words: Sequence[str]) -> dict[str, str]:
    """The values of flags, written as `--lr 1` or `--lr=1`."""
    given = {}
    for word, after in pairwise([*words, ""]):
        if word.startswith("--"):
            flag, is_one, value = word.partition("=")
            given[flag] = value if is_one else after
    return given


# Successive halving: which settings train on, rung by rung. For run.sh's `halving`:
#
#     halving 3 2e 6e 18e
#
# Of the settings below, a third trains on after 2 epochs, a third of these after 6, and a third of
# these after 18 (Jamieson and Talwalkar 2016, proceedings.mlr.press/v51/jamieson16.html). Settings
# are compared by the metric that their jobs monitor, at the rung, in the mean over repeats. Who
# trains on is a function of the journals alone, so it depends neither on which job was first nor on
# kills or the number of machines. It is known as soon as nothing that is missing can change it.

Score = float | None  # lower is better, infinite is diverged, None is not known yet

UNDEFINED = 1e300
"""The score where a metric is NaN: worse than any value, and not diverged. Its mean is finite."""


class Decision(NamedTuple):
    """What is certain by now."""

    passed: dict[str, int]  # how many rungs each unit has passed
    stopped: set[str]  # the units that do not pass the next rung

    leading: list[str]
    """Units that may pass it: they would if no others came. Those that have not trained beyond it,
    the best first."""


def decide(factor: int, rungs: Sequence[Mapping[str, Score]]) -> Decision:
    """Return which units go on, from the scores of all units at each rung. Of n units, n / factor
    pass the first rung, n / factor² the second, and so on: at least one, and only those that have
    not diverged. Equal scores are in the order of their names."""
    units = rungs[0].keys()
    passed, stopped, leading = dict.fromkeys(units, 0), set[str](), list[str]()
    for number, scores in enumerate(rungs):
        places = max(1, len(units) // factor ** (number + 1))
        coming = {unit: scores[unit] for unit in units if unit not in stopped}
        known = {unit: score for unit, score in coming.items() if score is not None}
        unknown = len(coming) - len(known)
        after: Mapping[str, Score] = next(iter(rungs[number + 1 :]), {})
        better = 0  # of those that are certainly here
        for rank, unit in enumerate(sorted(known, key=lambda unit: (known[unit], unit))):
            if passed[unit] < number:  # it may not come here
                continue
            if better >= places or math.isinf(known[unit]):
                stopped.add(unit)
            elif rank + unknown < places:
                passed[unit] += 1
            elif rank < places and after.get(unit, 0) is None:
                leading.append(unit)
            better += 1
    return Decision(passed, stopped, leading)


class Halving(NamedTuple):
    """A line `halving` of a grid, the `number`-th: of the settings at each of the `rungs`, one in
    `factor` trains on."""

    number: int
    factor: int
    rungs: tuple[Span, ...]


def read_halving(number: int, words: Sequence[str]) -> Halving:
    """Return what a line means. Raises SettingsError if it means nothing."""
    factor, *spans = words or [""]
    try:
        rungs = tuple(map(Span, spans))
    except ValueError:
        rungs = ()
    rise = [*rungs] == sorted({*rungs}, key=lambda rung: rung.number) and all(rungs)
    one_unit = len({rung.endswith("e") for rung in rungs}) == 1
    if not (factor.isdecimal() and int(factor) > 1 and rise and one_unit):
        about = "one in how many continues, and increasing rungs, all in steps or all in epochs"
        line = f"must look like halving 3 2e 6e 18e: {about}"
        raise SettingsError(f"{' '.join(['halving', *words])}: {line}")
    return Halving(number, int(factor), rungs)


def check_monitor(line: str, job: JobFolder[Any]) -> None:
    """Raise SettingsError for a job that a line of the grid cannot compare with others."""
    monitor = getattr(job.settings, "monitor", "none")
    if monitor.removeprefix("val_") not in job.metrics:
        why = "must be a metric on validation data, by which jobs are compared"
        raise SettingsError(f"{line}: --monitor {monitor}: {why}")


def final(job: JobFolder[Any]) -> Score:
    """Return the best value that a job has monitored, once it has ended: infinity if it has
    diverged, or none was defined."""
    monitor, status = job.settings.monitor, attempts.status_of(job.path)
    if status != "finished":
        return math.inf if status == "diverged" else None
    best = journal.last_of(job.path, f"best_{monitor}").get("metrics", {})
    sign = 1 if job.metrics[monitor.removeprefix("val_")].better == "lower" else -1
    value = sign * float(best.get(f"best_{monitor}", math.nan))
    return math.inf if math.isnan(value) else value


def check_halving(halving: Halving, job: JobFolder[Any]) -> None:
    """Raise SettingsError for a job that cannot be compared at the rungs."""
    settings, last = job.settings, halving.rungs[-1]
    given = {"--pause-after": job.runtime.pause_after, "--minutes": getattr(settings, "minutes", 0)}
    for flag in filter(given.get, given):
        raise SettingsError(f"halving: {flag}: not with halving, whose rungs are epochs or steps")
    check_monitor("halving", job)
    name = "steps" if getattr(settings, "steps", 0) else "epochs"
    length, in_epochs = int(getattr(settings, name, 0)), last.endswith("e")
    if in_epochs != (name == "epochs"):
        raise SettingsError(f"halving: {option(name)} {length}: the rungs are not in {name}")
    if last.number >= length:
        raise SettingsError(f"halving: rung {last} is not before the end, {option(name)} {length}")
    for rung in halving.rungs:
        check_evaluated(f"halving: rung {rung}", rung, job)


def check_evaluated(line: str, at: Span, job: JobFolder[Any]) -> None:
    """Raise SettingsError for a job that is not evaluated after each such span."""
    every = Span(getattr(job.settings, "eval_every", "1e"))
    whole = math.isclose(round(at.number / every.number) * every.number, at.number)  # 3 * 0.1e
    if every.endswith("e") != at.endswith("e") or not whole:
        raise SettingsError(f"{line}: no evaluation there, --eval-every {every}")


OPEN = ("paused", "stopped", "interrupted", "failed")  # states of jobs that may train on


class Bracket:
    """The jobs of a `halving` on one task. A unit is the jobs that differ in repeats alone; its
    name is the first of their ids."""

    def __init__(self, halving: Halving, jobs: Sequence[JobFolder[Any]]) -> None:
        self.halving = halving
        self._jobs = {job.id: job for job in jobs}
        monitors = sorted({job.settings.monitor for job in jobs})
        if len(monitors) > 1:
            line = f"its jobs monitor {' and '.join(monitors)}; they are compared by one metric"
            raise SettingsError(f"halving: {line}")
        alike: dict[str, list[str]] = {}
        for job in sorted(self._jobs.values(), key=lambda job: job.id):
            alike.setdefault(_without(job, "repeat"), []).append(job.id)
        self._units = {ids[0]: ids for ids in alike.values()}
        self._unit = {job: unit for unit, ids in self._units.items() for job in ids}
        self._scores: dict[str, list[Score]] = {}
        self._read_at: dict[str, list[tuple[int, int]]] = {}
        self.look()

    def look(self) -> None:
        """Read what the jobs have written since, and decide."""
        for job in self._jobs.values():
            at = [_stamp(job, name) for name in (layout.JOURNAL, layout.OUTCOME)]
            if self._read_at.get(job.id) != at:
                self._read_at[job.id] = at
                self._scores[job.id] = _scores(job, self.halving.rungs)
        rungs = [
            {unit: self._score(unit, rung) for unit in self._units}
            for rung in range(len(self.halving.rungs))
        ]
        self._decision = decide(self.halving.factor, rungs)
        self._ranks = {unit: rank for rank, unit in enumerate(self._decision.leading)}

    def _score(self, unit: str, rung: int) -> Score:
        """The mean over a unit's jobs, once all of them have come to a rung."""
        each = [self._scores[job][rung] for job in self._units[unit]]
        known = [score for score in each if score is not None]
        return fmean(known) if len(known) == len(each) else None

    def _left(self, job: JobFolder[Any]) -> list[tuple[Span | None, Score]]:
        """The rungs that a job has not passed, and its end, None, each with its score there."""
        each = zip(self.halving.rungs, self._scores[job.id], strict=True)
        return [*each, (None, None)][self._decision.passed[self._unit[job.id]] :]

    def pause_after(self, job: JobFolder[Any]) -> Span | None:
        """Return the rung that a job trains to next; None: to its end."""
        return next(rung for rung, score in self._left(job) if score is None)

    def is_due(self, job: JobFolder[Any]) -> bool:
        """Return whether it is certain that a job trains on, if it has not finished."""
        return self._unit[job.id] not in self._decision.stopped and self._left(job)[0][1] is None

    def lead(self, job: JobFolder[Any]) -> int | None:
        """Return the rank of a job that may pass its rung and has not come to the next one; None
        for others. What it measures there changes no decision here, so a free GPU may train it."""
        waits = [score is None for _, score in self._left(job)[:2]] == [False, True]
        return self._ranks.get(self._unit[job.id]) if waits else None

    def stopped_at(self, job: JobFolder[Any]) -> Span | None:
        """Return the rung at which a job was stopped; None if it was not, had diverged by then, or
        has finished, in a smaller search."""
        (rung, score), status = self._left(job)[0], attempts.status_of(job.path)
        # One that was killed before it could say that it had diverged is not over.
        over = status == "finished" or (status == "diverged" and score == math.inf)
        return rung if self._unit[job.id] in self._decision.stopped and not over else None

    def state(self, job: JobFolder[Any], state: str) -> str:
        """Return the state of a job, from the state that it has by itself."""
        if state in (*OPEN, "diverged") and self.stopped_at(job):
            return "stopped"
        if state not in OPEN:
            return state
        if not self.is_due(job):
            return "paused"
        return "interrupted" if state in ("paused", "stopped") else state

    @property
    def expected(self) -> dict[str, Span | None]:
        """The rung at which each job is expected to stop; None if it trains to its end. As many
        units train on as pass each rung, the ones that have come furthest first."""
        passed, stopped, _ = self._decision

        def place(unit: str) -> tuple[bool, int, int]:
            known = [score for job in self._units[unit] for score in self._scores[job]]
            return unit in stopped, -passed[unit], known.count(None)

        ends, count, factor = [*self.halving.rungs, None], len(self._units), self.halving.factor
        places = [max(1, count // factor**number) for number in range(len(ends))]
        return {
            job: ends[sum(number < each for each in places) - 1]
            for number, unit in enumerate(sorted(self._units, key=place))
            for job in self._units[unit]
        }

    @property
    def undefined(self) -> Iterator[str]:
        """Sentences about the rungs at which jobs had no value to be compared by."""
        monitor = next(iter(self._jobs.values())).settings.monitor
        for number, rung in enumerate(self.halving.rungs):
            each = [scores[number] for scores in self._scores.values()]
            if count := each.count(UNDEFINED):
                of = f"{count} of {counted(len(each) - each.count(None), 'job')}"
                yield f"halving: {monitor} was NaN after {rung} in {of}, which counted as the worst"

    @property
    def missing(self) -> list[str]:
        """The jobs for which others wait: those that are due to a rung and have not come there."""
        return [j.id for j in self._jobs.values() if self.is_due(j) and self.pause_after(j)]


def brackets(jobs: Sequence[tuple[Halving, JobFolder[Any]]]) -> dict[str, Bracket]:
    """Return the bracket of each job that is in one, by its id. Raises SettingsError for a job of
    two halvings, and for several metrics in one."""
    alike: dict[tuple[Halving, str], list[JobFolder[Any]]] = {}
    of: dict[str, Halving] = {}
    for halving, job in jobs:
        if of.setdefault(job.id, halving) != halving:
            cure = "give the second search another seed=1"
            raise SettingsError(f"halving: job {job.id} ({job.name}) is in two of them; {cure}")
        alike.setdefault((halving, _without(job, "task", only=True)), []).append(job)
    made = [(Bracket(halving, own), own) for (halving, _), own in alike.items()]
    return {job.id: bracket for bracket, own in made for job in own}


def _without(job: JobFolder[Any], role: str, only: bool = False) -> str:
    """The script and the settings of a job that do not have a role, or those alone that have it."""
    of = roles(type(job.settings))
    plain = identity(job.settings).items()
    return str((job.script, {k: v for k, v in plain if (of.get(k) == role) == only}))


def _stamp(job: JobFolder[Any], name: str) -> tuple[int, int]:
    with suppress(OSError):
        about = (job.path / name).stat()
        return about.st_mtime_ns, about.st_size
    return 0, 0


def _scores(job: JobFolder[Any], rungs: Sequence[Span]) -> list[Score]:
    """The scores of a job at the rungs: what it monitors in the evaluation there, or in its last
    one if it has finished earlier."""
    monitor = job.settings.monitor
    sign = 1 if job.metrics[monitor.removeprefix("val_")].better == "lower" else -1
    points: dict[int, float] = {}
    per_epoch = 0
    with suppress(OSError, JobError):
        for line in journal.lines_of(job.path):
            step, metrics = line.get("step", 0), line.get("metrics", {})
            if monitor in metrics:
                value = sign * metrics[monitor]
                undefined = UNDEFINED if math.isnan(value) else math.inf
                points[step] = value if math.isfinite(value) else undefined
                per_epoch = round(step / metrics["epoch"]) if metrics.get("epoch") else 0
    status = attempts.status_of(job.path)
    later = {"diverged": math.inf, "finished": next(reversed(points.values()), None)}.get(status)
    return [points.get(rung.steps(per_epoch), later) for rung in rungs]
