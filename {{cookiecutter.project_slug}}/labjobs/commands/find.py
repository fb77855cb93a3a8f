"""The command `jobs.py find`, from its arguments to its output."""

import argparse
import math
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from labjobs import exit_status, machine
from labjobs.commands import findings, short_jobs
from labjobs.commands.findings import Answer, Row, show, valley
from labjobs.commands.short_jobs import MANY, Ended, Target, Trials
from labjobs.errors import JobError, SettingsError, did_you_mean
from labjobs.job import runtime
from labjobs.job.folder import JobFolder
from labjobs.job.runtime import EXAMPLES, LOADER, MEMORY, NOISE, RATE, SIGNAL, WORKERS
from labjobs.job.terminal import Interrupted, leave
from labjobs.results.groups import Interval, mean_interval, ratio_interval
from labjobs.results.metrics import Measured
from labjobs.settings import Metric

# `find lr`: a learning rate, from range tests.
#
# Each test is a job of the student's script with the schedule `range-test`, which raises the rate
# by the same factor in each step, from a millionth of --up-to to --up-to. A job is expected to
# diverge at a high rate; its points until then count.
#
# Source of the test: Smith 2015, arxiv.org/abs/1506.01186.

SCHEDULE = "range-test"


def find_lr(target: Target, given: Namespace, running: Trials) -> Answer:
    """Return the suggested learning rate. Raises SettingsError for a job that cannot be tested,
    JobError for one that fails."""
    name = target.named("lr", given.setting)
    test = target.long(given.steps + 1).paused_after(given.steps)  # so it is never evaluated
    test = test.having(**{name: given.up_to, _schedule(target): SCHEDULE})
    if "warmup" in target.known:
        test = test.having(warmup=target.known["warmup"].reader("0"))
    first = getattr(target.settings, "seed", 0)
    tests = [test]
    if "seed" in target.known:
        tests = [test.having(seed=first + place) for place in range(given.seeds)]
    metric = _metric(target.script.metrics, target.settings, given.metric)
    jobs = []
    for each in tests:
        ended = running.run(each)
        if not ended.has_measured:
            raise JobError(ended.said)
        jobs.append(each.job)
    return _lr_answer(target, name, metric, jobs)


def _lr_answer(target: Target, name: str, metric: Measured, jobs: list[JobFolder[Any]]) -> Answer:
    curves = [_curve(job, name, metric) for job in jobs]
    longest = max((rates for rates, _ in curves), key=len)
    try:
        found = valley(longest, [losses for _, losses in curves])
    except ValueError as error:
        raise JobError(
            f"find lr: {metric.key} has {error}; see {jobs[0].label}'s log.txt"
        ) from None
    rows = [_row(job, name, metric, *curve) for job, curve in zip(jobs, curves, strict=True)]
    next_one = target if found.rate is None else target.having(**{name: found.rate})
    more = "; give a larger --up-to" if found.stands_out and not found.rises else ""
    draw = partial(findings.range_tests, found, curves, metric)
    return Answer(name, found.rate, found.about + more, rows, next_one.command, draw)


def _row(
    job: JobFolder[Any], name: str, metric: Measured, rates: list[float], losses: list[float]
) -> Row:
    lowest = min(filter(math.isfinite, losses), default=math.nan)
    return {
        "job": job.id,
        "seed": getattr(job.settings, "seed", None),
        "steps": len(losses),
        f"lowest {metric.key}": lowest,
        f"at {name}": rates[losses.index(lowest)],
    }


def _schedule(target: Target) -> str:
    """The setting that has the range test as a value. Raises SettingsError if there is none."""
    for name, flag in target.known.items():
        if SCHEDULE in (*flag.names, *flag.reader.words):
            return name
    raise SettingsError(
        f"find lr: settings.py and optimizers.py have no schedule {SCHEDULE!r}; add one that "
        "returns 10 ** (6 * (done - 1)), where done is the fraction of the job that is done"
    )


def _metric(declared: Mapping[str, Metric], settings: Any, given: str) -> Measured:
    """The training loss. Raises SettingsError if it is not known."""
    monitored = str(getattr(settings, "monitor", "none")).removeprefix("val_")
    losses = [name for name, metric in declared.items() if metric.better == "lower"]
    if given and given not in losses:
        hint = did_you_mean(given, losses)
        raise SettingsError(f"--metric {given}: is not one for which lower is better; {hint}")
    if not losses:
        raise SettingsError("find lr: METRICS declares no metric for which lower is better")
    name = given or (monitored if monitored in losses else losses[0])
    return Measured(name, declared[name], "train")


def _curve(job: JobFolder[Any], name: str, metric: Measured) -> tuple[list[float], list[float]]:
    """The rates and losses of a job, starting at the step with the lowest rate."""
    points = short_jobs.points(job, [metric.key])
    if not points:
        known = ", ".join(sorted(short_jobs.logged(job))) or "nothing"
        raise JobError(
            f"find lr: {job.label} logs no {metric.key}, only {known}; choose one with --metric"
        )
    logged_as = next((key for key in ("lr", name) if key in points[0]), "")
    if not logged_as:
        raise JobError(
            f"find lr: {job.label} does not log its learning rate; call job.log(measured, lr=lr) "
            "in the loop"
        )
    rates = [point[logged_as] for point in points]
    start = rates.index(min(rates))
    return rates[start:], [point[metric.key] for point in points][start:]


# How fast jobs are, as measured in them by pace.py in training.

ENOUGH = 0.95
"""The fraction of the highest speed that counts as equally good."""


class Speed(NamedTuple):
    """The speed of jobs with some value of a setting or flag, over several windows of time."""

    value: int
    rates: Sequence[float]
    """Examples per second, in each window."""

    @property
    def median(self) -> float:
        """The median of the rates."""
        return float(np.median(self.rates))

    @property
    def interval(self) -> Interval:
        """The mean of the rates, with its interval."""
        return mean_interval(self.rates)

    @property
    def error(self) -> float:
        """The standard error of the mean, as a fraction of it; infinite for one window."""
        if len(self.rates) < 2:
            return np.inf
        of_mean = np.std(self.rates, ddof=1) / np.sqrt(len(self.rates))
        return float(of_mean / np.mean(self.rates))


def smallest_good(speeds: Sequence[Speed]) -> tuple[Speed | None, str]:
    """Return the smallest value whose speed is within 5 % of the highest, and a line that says why.

    The first is None if the windows vary so much that a difference of 5 % cannot be measured.
    """
    best = max(speeds, key=lambda speed: speed.median)
    good = next(speed for speed in speeds if speed.median >= ENOUGH * best.median)
    error = max(good.error, best.error)
    if error > 1 - ENOUGH:
        return None, (
            f"the speed varies too much between windows of time (standard error {error:.0%}) to "
            f"measure a difference of {1 - ENOUGH:.0%}; try again with --force when nothing else "
            "runs"
        )
    return good, (
        f"{good.median:,.0f} examples/s, {good.median / best.median:.0%} of the highest speed, "
        f"which {best.value} has"
    )


# `find batch-size`: the largest batch that fits, and the smallest that is nearly as fast as any.
#
# Each size is a job of the student's script in its own process, so there is nothing to clean up if
# it runs out of memory. A machine without a GPU would swap first, so there a size is not tried if
# it is unlikely to fit, judging by the memory that smaller sizes took.

USED = 0.8
"""Largest fraction of the available memory that a job may be expected to take."""


class Size(NamedTuple):
    """The measurements for a batch size: its job, its speed and its peak memory in bytes."""

    job: str
    speed: Speed
    memory: float
    examples: float
    """The largest number of examples in a step."""


def find_batch_size(target: Target, given: Namespace, running: Trials) -> Answer:
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
    return _batch_size_answer(target, name, sizes, why)


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
    points = short_jobs.points(test.job, [RATE]) if ended.has_measured else []
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


def _batch_size_answer(target: Target, name: str, sizes: list[Size], end: str) -> Answer:
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
    draw = partial(findings.speeds, [each.speed for each in sizes], name, suggested)
    return Answer(name, suggested, why, rows, next_one.command, draw)


# `find noise-scale`: the batch size above which more examples add little to a step.
#
# A job's batches are split by --accumulate, and the gradients of the parts show how much of them is
# noise (noise_scale.py in training). The simple noise scale tr Σ / |G|² is about the batch size at
# which training takes twice the minimum number of steps, and twice the minimum number of examples.
#
# Source: McCandlish et al. 2018, arxiv.org/abs/1812.06162.

LOGGED_SIGNAL, LOGGED_NOISE = f"train_{SIGNAL}", f"train_{NOISE}"

PARTS = 8
"""Parts of a batch, unless the job already splits it."""

SPANS = 4
"""Spans of training with a noise scale each, since it grows as the loss falls."""

LEAST = 8
"""The fewest steps of a span for which an interval can be trusted."""

WIDEST = 4.0
"""The largest factor by which an interval's end may differ from the estimate."""


class Span(NamedTuple):
    """The noise scale over some steps, with its 95 % interval, in examples."""

    first: int
    last: int
    scale: float
    low: float
    high: float

    @property
    def is_known(self) -> bool:
        """Whether the interval is narrow enough for the estimate to be used."""
        ends = self.low > 0 and math.isfinite(self.high)
        return ends and self.high / self.scale < WIDEST and self.scale / self.low < WIDEST


def find_noise_scale(target: Target, given: Namespace, running: Trials) -> Answer:
    """Return the suggested batch size. Raises SettingsError for a job whose batches cannot
    be split, JobError for one that fails or does not split them."""
    name = target.named("batch_size", given.setting)
    if "accumulate" not in target.known:
        raise SettingsError(
            "find noise-scale: settings.py has no setting `accumulate` to split batches with"
        )
    test = target.long(MANY).paused_after(given.steps)
    if target.settings.accumulate < 2:
        test = test.having(accumulate=min(PARTS, max(2, getattr(target.settings, name) // 2)))
    ended = running.run(test)
    if not ended.has_measured:
        raise JobError(ended.said)
    points = short_jobs.points(test.job, [LOGGED_SIGNAL])
    if not points:
        raise JobError(
            f"find noise-scale: {test.job.label} does not split its batches; use `for part, "
            "fraction in job.parts(batch)` in the loop"
        )
    measured = [(point["step"], point[LOGGED_NOISE], point[LOGGED_SIGNAL]) for point in points]
    finite = [each for each in measured if all(map(math.isfinite, each))]  # fp16 can overflow
    spans = spans_of([each for each in finite if each[0] <= given.steps])
    return _noise_scale_answer(target, test, name, spans)


def spans_of(measured: list[tuple[float, float, float]]) -> list[Span]:
    """Return the noise scale in SPANS spans of equal length, from the step, tr Σ and |G|² of each.

    Raises JobError if they are too short.
    """
    if len(measured) < SPANS * LEAST:
        raise JobError(f"only {len(measured)} steps were measured; use more --steps")
    spans = []
    for each in np.array_split(np.array(measured), SPANS):
        steps, noise, signal = each.T
        scale, low, high = ratio_interval(noise, signal)
        spans.append(Span(int(steps[0]), int(steps[-1]), float(scale), float(low), float(high)))
    return spans


def _noise_scale_answer(target: Target, test: Target, name: str, spans: list[Span]) -> Answer:
    rows: list[Row] = [
        {
            "steps": f"{span.first}–{span.last}",
            "noise scale": span.scale,
            "low": span.low,
            "high": span.high,
        }
        for span in spans
    ]
    known = [span for span in spans if span.is_known]
    suggested, why = (
        None,
        "the gradient cannot be told from its noise; use a larger batch or more --steps",
    )
    if known:
        *_, last = known
        suggested = 2 ** max(0, round(math.log2(last.scale)))
        why = (
            f"noise scale {last.scale:.3g}, 95% interval {last.low:.3g} to {last.high:.3g}, over "
            f"steps {last.first} to {last.last}"
        )
    if known and last is not spans[-1]:
        why += "; after that, these batches are too small to estimate it"
    next_one = target.having(**{name: suggested}) if suggested else target
    draw = partial(findings.noise_scales, spans, suggested, test.settings.accumulate)
    return Answer(name, suggested, f"{why}; job {test.job.id}", rows, next_one.command, draw)


# `find workers`: how many processes should read the data.
#
# Their number is not a setting, so a single job tries one number after another: it pauses each time
# its speed has been measured, and continues with the next number.


def find_workers(target: Target, given: Namespace, running: Trials) -> Answer:
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
        if short_jobs.tag(long.job, LOADER) != "workers":
            raise JobError(
                "find workers: this job does not read its data in the background, but keeps it in "
                "memory; add -- --loader workers"
            )
        speeds.append(Speed(count, rates))
    return _workers_answer(target, long, speeds)


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
    return [point[RATE] for point in short_jobs.points(job, [RATE]) if point.get(WORKERS) == count]


def _workers_answer(target: Target, long: Target, speeds: list[Speed]) -> Answer:
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
    draw = partial(findings.speeds, speeds, "workers", suggested)
    return Answer("workers", suggested, f"{why}; job {long.job.id}", rows, next_one.command, draw)


FINDERS: dict[str, Callable[[Target, argparse.Namespace, Trials], Answer]] = {
    runtime.FIND_LR: find_lr,
    runtime.FIND_BATCH_SIZE: find_batch_size,
    runtime.FIND_NOISE_SCALE: find_noise_scale,
    runtime.FIND_WORKERS: find_workers,
}


def find(given: argparse.Namespace, words: Sequence[str], runs_root: Path | None) -> int:
    """Find what `given.command` names for the job with these flags; return the exit status.

    Raises SettingsError for wrong flags.
    """
    what = given.command
    wanted = short_jobs.read_target(words, runs_root)
    try:
        with Trials(what, wanted.runtime.device, given.force) as running:
            answer = FINDERS[what](wanted, given, running)
    except Interrupted as stop:
        line = f"jobs.py: {what} was interrupted {stop}; the same command continues it"
        return leave(short_jobs.KILLED + stop.number, line)
    except JobError as error:
        return leave(exit_status.FAILED, f"jobs.py: {error}")
    jobs = [*running.jobs.values()]
    answer.jobs = jobs
    name = f"{what.replace(' ', '-')}-{wanted.job.id}"
    answer.figure = findings.write(name, answer.draw, jobs)
    return show(answer, given.json)
