"""`find workers`: how many processes should read the data.

Their number is not a setting, so a single job tries one number after another: it pauses each time
its speed has been measured, and continues with the next number.
"""

from argparse import Namespace
from collections.abc import Iterator
from functools import partial

from labjobs import machine
from labjobs.errors import JobError, SettingsError
from labjobs.finding import drawing, trials
from labjobs.finding.answer import Answer, Row
from labjobs.finding.speeds import Speed, smallest_good
from labjobs.finding.target import MANY, Target
from labjobs.finding.trials import Trials
from labjobs.job.purpose import LOADER, RATE, WORKERS


def find(target: Target, given: Namespace, running: Trials) -> Answer:
    """Return the suggested number of workers. Raises SettingsError for a job that shall not read in
    the background, JobError for one that fails or does not."""
    if target.runtime.loader == "resident":
        raise SettingsError("find workers: with --loader resident no process reads data")
    long = target.long(MANY)
    speeds = []
    again = given.force
    for count in _counts(given.largest):
        rates = [] if again else _rates(long, count)
        if not rates:
            ended = running.run(long.running(workers=count), once=False)
            rates = _rates(long, count)
            if not rates:
                raise JobError(f"find workers, --workers {count}: {ended.said}")
        running.jobs[long.job.id] = long.job
        again = False
        if trials.tag(long.job, LOADER) != "workers":
            raise JobError(
                "find workers: this job does not read its data in the background, but keeps it in "
                "memory; add -- --loader workers"
            )
        speeds.append(Speed(count, rates))
    return _answer(target, long, speeds)


def _counts(largest: int | None) -> Iterator[int]:
    """Yield 0, 1, 2, 4, … and the largest, which is by default the number of cores."""
    most = machine.cores() if largest is None else largest
    doubled = (2**power for power in range(most.bit_length()))
    yield from sorted({0, most, *(count for count in doubled if count <= most)})


def _rates(long: Target, count: int) -> list[float]:
    """The latest speeds measured with this number of workers and the present code."""
    job = long.job
    if not job.begun or job.change:
        return []
    return [point[RATE] for point in trials.points(job, [RATE]) if point.get(WORKERS) == count]


def _answer(target: Target, long: Target, speeds: list[Speed]) -> Answer:
    good, why = smallest_good(speeds)
    rows: list[Row] = [
        {
            "workers": speed.value,
            "examples/s": speed.median,
            "lowest": min(speed.rates),
            "highest": max(speed.rates),
        }
        for speed in speeds
    ]
    suggested = good.value if good else None
    next_one = target if suggested is None else target.running(workers=suggested)
    draw = partial(drawing.speeds, speeds, "workers", suggested)
    return Answer("workers", suggested, f"{why}; job {long.job.id}", rows, next_one.command, draw)
