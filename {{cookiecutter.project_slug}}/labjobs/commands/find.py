"""The command `jobs.py find`: a value for a setting or a flag, from short jobs that measure it."""

import json
import math
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labjobs import exit_status, machine
from labjobs.cli.flags import option
from labjobs.commands import short_jobs
from labjobs.commands.short_jobs import Target, Trials
from labjobs.errors import JobError, SettingsError
from labjobs.job import runtime
from labjobs.job.folder import JobFolder
from labjobs.job.runtime import EXAMPLES, LOADER, MEMORY, NOISE, RATE, SIGNAL, WORKERS
from labjobs.job.terminal import Interruption
from labjobs.results import intervals

Row = dict[str, str | int | float | None]
"""A row of the table, by the names of its columns."""


class Answer(NamedTuple):
    """The answer for a setting or flag: its name as a field, the suggested value or None, how that
    was found or why there is none, and a table."""

    what: str
    value: float | int | None
    why: str
    rows: Sequence[Row]


def find(given: Namespace, words: Sequence[str], runs_root: Path | None) -> int:
    """Find what `given.command` names for the job with these flags, and print it; return the exit
    status: 0 if something is suggested, else 1.

    Raises SettingsError for wrong flags, JobError if a job cannot be measured.
    """
    for name, least in {"steps": 20, "seeds": 1, "smallest": 1, "largest": 0}.items():
        value = getattr(given, name, None)
        if value is not None and value < least:
            raise SettingsError(f"--{name} {value}: must be at least {least}")
    if getattr(given, "up_to", 1.0) <= 0:
        raise SettingsError(f"--up-to {given.up_to:g}: must be above 0")
    what = given.command
    target = short_jobs.read_target(words, runs_root)
    Interruption().listen()
    trials = Trials(what, target.runtime.device, given.force)
    answer = FINDERS[what](target, given, trials)
    found, following = answer.value is not None, target
    if found:
        change = target.running if what == runtime.FIND_WORKERS else target.having
        following = change(**{answer.what: answer.value})
    if given.json:
        content = {
            "suggestion": {answer.what: answer.value} if found else None,
            "why": answer.why,
            "rows": answer.rows,
            "jobs": [*trials.jobs],
            "next": following.command,
        }
        print(json.dumps(content, indent=2))
    else:
        _print_table(answer.rows)
        suggestion = f"suggestion: {option(answer.what)} {answer.value} ({answer.why})"
        print(suggestion if found else f"nothing stands out: {answer.why}")
        print(f"next: {following.command}")
    return exit_status.DONE if found else exit_status.FAILED


def _print_table(rows: Sequence[Row]) -> None:
    def text(value: str | int | float | None) -> str:
        if isinstance(value, float):
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        return "-" if value is None else str(value)

    texts = [[*rows[0]], *([text(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    for row in texts:
        print("  ".join(map(str.ljust, row, widths)).rstrip())


# `find lr`: a learning rate, from range tests.
#
# Each test is a job of the student's script with the schedule `range-test`, which raises the rate
# by the same factor in each step, from a millionth of --up-to to --up-to. A job is expected to
# diverge at a high rate; its points until then count. Source: Smith 2015, arxiv.org/abs/1506.01186.

SCHEDULE = "range-test"


def _find_lr(target: Target, given: Namespace, trials: Trials) -> Answer:
    name = target.named("lr", given.setting)
    test = target.long(given.steps + 1).paused_after(given.steps)  # so it is never evaluated
    test = test.having(**{name: given.up_to, _schedule(target): SCHEDULE})
    if "warmup" in target.known:
        test = test.having(warmup=target.known["warmup"].reader("0"))
    tests = [test]
    if "seed" in target.known:
        first = target.settings.seed
        tests = [test.having(seed=first + place) for place in range(given.seeds)]
    loss = _loss(target)
    jobs = [trials.measure(each) for each in tests]
    curves = [_curve(job, name, loss) for job in jobs]
    longest = max((rates for rates, _ in curves), key=len)
    try:
        found = valley(longest, [losses for _, losses in curves])
    except ValueError as error:
        said = f"{loss} has {error}; see {jobs[0].label}'s log.txt"
        raise JobError(f"find lr: {said}") from None
    rows: list[Row] = []
    for job, (rates, losses) in zip(jobs, curves, strict=True):
        lowest = min(filter(math.isfinite, losses), default=math.nan)
        seed = getattr(job.settings, "seed", None)
        row: Row = {"job": job.id, "seed": seed, "steps": len(losses)}
        row |= {f"lowest {loss}": lowest, f"at {name}": rates[losses.index(lowest)]}
        rows.append(row)
    return Answer(name, found.rate, found.about, rows)


# Where a loss is low while the learning rate rises, and whether it stands out from the noise.

WINDOW = 7  # points in the running mean
BEFORE = 0.1  # fraction of the points, at the start, whose rates are too low to change the loss
SIGMAS = 2.0  # a fall must exceed this many standard deviations of a single point to stand out
OF_THE_FALL = 0.9  # the fraction of its whole fall after which the loss counts as low
TO_NORMAL = 1.4826  # standard deviation by median absolute deviation, of normal values

Floats = NDArray[np.float64]


class Valley(NamedTuple):
    """The rate in the middle of where the loss is low, None if there is none; and why."""

    rate: float | None
    about: str


def valley(rates: ArrayLike, losses: Sequence[ArrayLike]) -> Valley:
    """Return the valley in the losses of repeated range tests.

    Args:
        rates: Learning rates, rising (n,).
        losses: The losses of each test (n,), by rate. A test that ended early has fewer values, and
            values may be infinite or NaN.

    Everything after a breakdown is cut off: after the first value that is not finite, or after the
    running mean is as far above its initial level as it had been below it. This works for losses of
    any scale and sign. Raises ValueError if nothing is left.
    """
    every = np.asarray(rates, dtype=float)
    first = max(3, round(BEFORE * len(every)))
    count = min(len(np.asarray(each)) for each in losses)
    values = np.stack([np.asarray(each, dtype=float)[:count] for each in losses])
    wrong = np.flatnonzero(~np.isfinite(values).all(axis=0))
    values = values[:, : wrong[0]] if len(wrong) else values
    smooth = _running_mean(values)
    before, spread = values[:, :first].mean(), values[:, :first].std()
    fallen = before - np.minimum.accumulate(smooth)
    above = np.flatnonzero(smooth > before + np.maximum(fallen, SIGMAS * spread))
    values = values[:, : above[0]] if len(above) else values
    if values.shape[1] <= first:
        raise ValueError(f"only {values.shape[1]} finite values")
    smooth = _running_mean(values)
    count, bottom = len(smooth), int(smooth.argmin())
    low, noise = float(smooth[bottom]), TO_NORMAL * float(np.median(np.abs(values - smooth)))
    if before - low <= SIGMAS * noise:
        return Valley(
            None,
            f"the loss falls by {before - low:.3g}, within {SIGMAS:g} standard deviations of its "
            f"noise, {noise:.2g}",
        )
    fall = f"the loss falls from {before:.3g} to {low:.3g} (noise {noise:.2g})"
    high = np.flatnonzero(smooth > low + (1 - OF_THE_FALL) * (before - low) + SIGMAS * noise)
    left, right = high[high < bottom], high[high > bottom]
    if not len(right) and count == len(every):
        last = f"has not risen again at {every[-1]:.2g}"
        return Valley(None, f"{fall} and {last}; give a larger --up-to")
    start = every[left[-1] + 1 if len(left) else 0]
    end = every[right[0] - 1 if len(right) else count - 1]
    rate = float(f"{np.sqrt(start * end):.1e}")  # the geometric mean
    return Valley(rate, f"{fall} and is low from {start:.2g} to {end:.2g}")


def _running_mean(values: Floats) -> Floats:
    """The mean over tests (tests, n), and over WINDOW values around each; fewer at the ends."""
    half, mean = WINDOW // 2, values.mean(axis=0)
    return np.array([mean[max(0, i - half) : i + half + 1].mean() for i in range(len(mean))])


def _schedule(target: Target) -> str:
    """The setting that has the range test as a value. Raises SettingsError if there is none."""
    for name, flag in target.known.items():
        if SCHEDULE in (*flag.names, *flag.reader.words):
            return name
    raise SettingsError(
        f"find lr: settings.py and optimizers.py have no schedule {SCHEDULE!r}; add one that "
        "returns 10 ** (6 * (done - 1)), where done is the fraction of the job that is done"
    )


def _loss(target: Target) -> str:
    """The training loss: of the monitored metric if lower is better, or else of the first such
    metric. Raises SettingsError if there is none."""
    monitored = str(getattr(target.settings, "monitor", "none")).removeprefix("val_")
    declared = target.script.metrics
    losses = [name for name, metric in declared.items() if metric.better == "lower"]
    if not losses:
        raise SettingsError("find lr: METRICS declares no metric for which lower is better")
    return f"train_{monitored if monitored in losses else losses[0]}"


def _curve(job: JobFolder[Any], name: str, loss: str) -> tuple[list[float], list[float]]:
    """The rates and losses of a job, starting at the step with the lowest rate."""
    points = short_jobs.points(job, loss)
    if not points:
        raise JobError(f"find lr: {job.label} logs no {loss}")
    logged_as = next((key for key in ("lr", name) if key in points[0]), "")
    if not logged_as:
        raise JobError(
            f"find lr: {job.label} does not log its learning rate; call job.log(measured, lr=lr) "
            "in the loop"
        )
    rates = [point[logged_as] for point in points]
    start = rates.index(min(rates))
    return rates[start:], [point[loss] for point in points][start:]


# `find batch-size` and `find workers`: the smallest value with which a job is nearly as fast as it
# can be. Jobs measure their speed in several windows of time (training/probes.py).

ENOUGH = 0.95  # the fraction of the highest speed that counts as equally good
USED = 0.8  # largest fraction of the available memory that a job may be expected to take


class Speed(NamedTuple):
    """The speed of a job with some value of a setting or flag: examples per second in each of
    several windows of time, and the most bytes of memory that it took."""

    value: int
    rates: Sequence[float]
    memory: float = 0.0

    @property
    def median(self) -> float:
        """The median of the rates."""
        return float(np.median(self.rates))

    @property
    def error(self) -> float:
        """The standard error of the mean, as a fraction of it; infinite for one window."""
        if len(self.rates) < 2:
            return np.inf
        of_mean = np.std(self.rates, ddof=1) / np.sqrt(len(self.rates))
        return float(of_mean / np.mean(self.rates))

    @property
    def row(self) -> Row:
        """The speed in a table."""
        return {"examples/s": self.median, "lowest": min(self.rates), "highest": max(self.rates)}


def smallest_good(speeds: Sequence[Speed]) -> tuple[int | None, str]:
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
    return good.value, (
        f"{good.median:,.0f} examples/s, {good.median / best.median:.0%} of the highest speed, "
        f"which {best.value} has"
    )


def _find_batch_size(target: Target, given: Namespace, trials: Trials) -> Answer:
    """Each size is a job in its own process, so there is nothing to clean up if it runs out of
    memory. A machine without a GPU would swap first, so there a size is not tried if it is unlikely
    to fit, judging by the memory that smaller sizes took."""
    if given.smallest > given.largest:
        raise SettingsError(f"--smallest {given.smallest}: must be at most --largest")
    name = target.named("batch_size", given.setting)
    speeds: list[Speed] = []
    rows: list[Row] = []
    end, size = f"--largest {given.largest} was reached", given.smallest
    while size <= given.largest:
        free = np.inf if trials.on_gpu else USED * machine.available_memory()
        if speeds and 2 * speeds[-1].memory > free:
            end = f"{size} was not tried: it could take twice the memory, which is not available"
            break
        try:
            test = target.long().having(**{name: size})
        except SettingsError as error:  # the setting has a range, or goes with others
            end = str(error)
            break
        measured = _measured(test, name, size, trials)
        if isinstance(measured, str):
            end = measured
            break
        speeds.append(measured)
        memory = round(measured.memory / 2**20)
        rows.append({name: size, "job": test.job.id, **measured.row, "memory (MiB)": memory})
        size *= 2
    if not speeds:
        raise JobError(f"find batch-size: {end}")
    good, why = smallest_good(speeds)
    why += f"; {speeds[-1].value} is the largest that fits ({end})"
    return Answer(name, good, why, rows)


def _measured(test: Target, name: str, size: int, trials: Trials) -> Speed | str:
    """The speed with a batch size, or why there is none. Raises JobError for a job that fails for
    another reason than memory or too few examples."""
    ended = trials.run(test)
    if ended.out_of_memory:
        killed = "was killed, probably because memory ran out"
        return f"{size} {killed if ended.how == 'killed' else 'ran out of memory'}"
    points = short_jobs.points(test.job, RATE) if ended.has_measured else []
    if not points:
        raise JobError(f"find batch-size, {option(name)} {size}: {ended.said}")
    examples, memory = (max(point[what] for point in points) for what in (EXAMPLES, MEMORY))
    if examples < size:
        return f"the training data has {examples:.0f} examples"
    return Speed(size, [point[RATE] for point in points], memory)


def _find_workers(target: Target, given: Namespace, trials: Trials) -> Answer:
    """Their number is not a setting, so a single job tries one number after another: it pauses each
    time its speed has been measured, and continues with the next number."""
    if target.runtime.loader == "resident":
        raise SettingsError("find workers: with --loader resident no process reads data")
    most = machine.cores() if given.largest is None else given.largest
    counts = {0, most, *(2**power for power in range(most.bit_length()) if 2**power <= most)}
    long, speeds, again = target.long(), list[Speed](), given.force
    for count in sorted(counts):
        rates = [] if again else _rates(long, count)
        if not rates:
            ended = trials.run(long.running(workers=count), once=False)
            rates = _rates(long, count)
            if not rates:
                raise JobError(f"find workers, --workers {count}: {ended.said}")
        trials.jobs[long.job.id] = long.job
        again = False
        tags = [line["tags"] for line in short_jobs.lines(long.job) if "tags" in line]
        if [each[LOADER] for each in tags if LOADER in each][-1] != "workers":
            raise JobError(
                "find workers: this job does not read its data in the background, but keeps it in "
                "memory; add -- --loader workers"
            )
        speeds.append(Speed(count, rates))
    good, why = smallest_good(speeds)
    rows: list[Row] = [{"workers": speed.value, **speed.row} for speed in speeds]
    return Answer("workers", good, f"{why}; job {long.job.id}", rows)


def _rates(long: Target, count: int) -> list[float]:
    """The latest speeds measured with this number of workers and the present code."""
    job = long.job
    if not job.begun or job.change:
        return []
    return [point[RATE] for point in short_jobs.points(job, RATE) if point.get(WORKERS) == count]


# `find noise-scale`: the batch size above which more examples add little to a step.
#
# A job's batches are split by --accumulate, and the gradients of the parts show how much of them is
# noise (training/probes.py). The simple noise scale tr Σ / |G|² is about the batch size at which
# training takes twice the minimum number of steps, and twice the minimum number of examples.
# Source: McCandlish et al. 2018, arxiv.org/abs/1812.06162.

PARTS = 8  # of a batch, unless the job already splits it
LEAST = 16  # steps for which an interval can be trusted
WIDEST = 4.0  # the largest factor by which an interval's end may differ from the estimate


def _find_noise_scale(target: Target, given: Namespace, trials: Trials) -> Answer:
    name = target.named("batch_size", given.setting)
    if "accumulate" not in target.known:
        raise SettingsError(
            "find noise-scale: settings.py has no setting `accumulate` to split batches with"
        )
    test = target.long().paused_after(given.steps)
    if target.settings.accumulate < 2:
        test = test.having(accumulate=min(PARTS, max(2, getattr(target.settings, name) // 2)))
    job = trials.measure(test)
    points = short_jobs.points(job, f"train_{SIGNAL}")
    if not points:
        raise JobError(
            f"find noise-scale: {job.label} does not split its batches; use `for part, "
            "fraction in job.parts(batch)` in the loop"
        )
    names = ("step", f"train_{NOISE}", f"train_{SIGNAL}")
    measured = [tuple(point[each] for each in names) for point in points]
    finite = [each for each in measured if all(map(math.isfinite, each))]  # fp16 can overflow
    halves = noise_scales([each for each in finite if each[0] <= given.steps])
    _, scale, low, high = halves[-1]
    suggested = None
    why = "the gradient cannot be told from its noise; use a larger batch or more --steps"
    if 0 < scale < WIDEST * low and high < WIDEST * scale:
        suggested = 2 ** max(0, round(math.log2(scale)))
        why = f"noise scale {scale:.3g}, 95% interval {low:.3g} to {high:.3g}, at the end"
    columns = ("steps", "noise scale", "low", "high")
    rows: list[Row] = [dict(zip(columns, half, strict=True)) for half in halves]
    return Answer(name, suggested, f"{why}; job {job.id}", rows)


def noise_scales(measured: Sequence[tuple[float, ...]]) -> list[tuple[str, float, float, float]]:
    """Return the noise scale in both halves of the steps, since it grows as the loss falls: the
    steps, the scale and its 95 % interval, in examples; from the step, tr Σ and |G|² of each.

    Raises JobError if they are too few.
    """
    if len(measured) < 2 * LEAST:
        raise JobError(f"only {len(measured)} steps were measured; use more --steps")
    halves = []
    for half in np.array_split(np.array(measured), 2):
        steps, noise, signal = half.T
        scale, low, high = map(float, intervals.ratio(noise, signal))
        halves.append((f"{steps[0]:.0f}–{steps[-1]:.0f}", scale, low, high))
    return halves


FINDERS: dict[str, Callable[[Target, Namespace, Trials], Answer]] = {
    runtime.FIND_LR: _find_lr,
    runtime.FIND_BATCH_SIZE: _find_batch_size,
    runtime.FIND_NOISE_SCALE: _find_noise_scale,
    runtime.FIND_WORKERS: _find_workers,
}
