"""`find batch-size`: the largest batch that fits, and the smallest that is nearly as fast as any.

Each size is a job of the student's script in its own process, so there is nothing to clean up if it
runs out of memory. A machine without a GPU would swap first, so there a size is not tried if it is
unlikely to fit, judging by the memory that smaller sizes took.
"""

from argparse import Namespace
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from labjobs import machine
from labjobs.errors import JobError, SettingsError
from labjobs.finding import drawing, trials
from labjobs.finding.answer import Answer, Row
from labjobs.finding.speeds import Speed, smallest_good
from labjobs.finding.target import MANY, Target
from labjobs.finding.trials import Ended, Trials
from labjobs.job.purpose import EXAMPLES, MEMORY, RATE

USED = 0.8
"""Largest fraction of the available memory that a job may be expected to take."""


class Size(NamedTuple):
    """The measurements for a batch size: its job, its speed and its peak memory in bytes."""

    job: str
    speed: Speed
    memory: float
    examples: float
    """The largest number of examples in a step."""


def find(target: Target, given: Namespace, running: Trials) -> Answer:
    """Return the suggested batch size. Raises SettingsError for a job that cannot be
    measured, JobError for one that fails for another reason than memory."""
    name = target.named("batch_size", given.setting)
    long = target.long(MANY)
    sizes: list[Size] = []
    size, why = given.smallest, ""
    while not why:
        if size > given.largest:
            why = f"--largest {given.largest} was reached"
        elif not running.on_gpu and (expected := _too_large(sizes)):
            why = f"{size} was not tried: {expected}"
        else:
            size, why = _tried(long, name, size, running, sizes)
    if not sizes:
        raise JobError(f"find batch-size: {why}")
    return _answer(target, name, sizes, why)


def _tried(
    long: Target, name: str, size: int, running: Trials, sizes: list[Size]
) -> tuple[int, str]:
    """Measure a size; return the next size, and why the search ends or an empty text."""
    try:
        test = long.having(**{name: size})
    except SettingsError as error:  # the setting has a range, or goes with others
        if not sizes:
            return 2 * size, "" if size < MANY else str(error)
        return size, str(error)
    ended = running.before(test)
    if not _out_of_memory(ended):
        ended = running.run(test)
    if _out_of_memory(ended):
        killed = "was killed, probably because memory ran out"
        return size, f"{size} {killed if ended.how == 'killed' else 'ran out of memory'}"
    points = trials.points(test.job, [RATE]) if ended.has_measured else []
    if not points:
        raise JobError(f"find batch-size, --{name.replace('_', '-')} {size}: {ended.said}")
    speed = Speed(size, [point[RATE] for point in points])
    examples, memory = (max(point[what] for point in points) for what in (EXAMPLES, MEMORY))
    if examples < size:
        return size, f"the training data has {examples:.0f} examples"
    sizes.append(Size(test.job.id, speed, memory, examples))
    return 2 * size, ""


def _out_of_memory(ended: Ended) -> bool:
    """Whether a job ran out of memory: it was killed by the system, or its error says so."""
    return ended.how == "killed" or (ended.how == "failed" and "out of memory" in ended.said)


def _too_large(sizes: list[Size]) -> str:
    """Why not to try the next size; empty to try it. Memory grows linearly with the size."""
    if not sizes:
        return ""
    grown = [after.memory - before.memory for before, after in pairwise(sizes)]
    growth = 2 * grown[-1] if grown else sizes[-1].memory
    wanted, free = sizes[-1].memory + max(growth, 0.0), USED * machine.available_memory()
    if wanted <= free:
        return ""
    return f"it would take {wanted / 2**30:.1f} GiB of memory, and {free / 2**30:.1f} GiB are free"


def _answer(target: Target, name: str, sizes: list[Size], end: str) -> Answer:
    good, why = smallest_good([each.speed for each in sizes])
    rows: list[Row] = [
        {
            name: each.speed.value,
            "job": each.job,
            "examples/s": each.speed.median,
            "lowest": min(each.speed.rates),
            "highest": max(each.speed.rates),
            "memory (MiB)": round(each.memory / 2**20),
        }
        for each in sizes
    ]
    why += f"; {sizes[-1].speed.value} is the largest that fits ({end})"
    suggested = good.value if good else None
    next_one = target.having(**{name: suggested}) if suggested else target
    draw = partial(drawing.speeds, [each.speed for each in sizes], name, suggested)
    return Answer(name, suggested, why, rows, next_one.command, draw)
