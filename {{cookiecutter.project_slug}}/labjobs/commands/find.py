"""The command `jobs.py find`: a value for a setting or a flag, from short jobs that measure it."""

import json
import math
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from labjobs import exit_status, machine
from labjobs.cli.flags import option
from labjobs.commands import short_jobs
from labjobs.commands.range_test import Valley, valley
from labjobs.commands.short_jobs import Target, Trials
from labjobs.errors import JobError, SettingsError, did_you_mean
from labjobs.files import PROJECT, shown
from labjobs.job import runtime
from labjobs.job.folder import JobFolder
from labjobs.job.runtime import EXAMPLES, LOADER, MEMORY, NOISE, RATE, SIGNAL, WORKERS
from labjobs.job.terminal import Interruption
from labjobs.results import figure_files, figures, style
from labjobs.results.groups import ratio_interval
from labjobs.results.metrics import Measured
from labjobs.settings import Metric

Row = dict[str, str | int | float | None]
"""A row of the table, by the names of its columns."""


class Answer(NamedTuple):
    """The answer for a setting or flag: its name as a field, the suggested value or None, how that
    was found or why there is none, a table, and the paths of a figure's images."""

    what: str
    value: float | int | None
    why: str
    rows: Sequence[Row]
    figure: Sequence[str] = ()


def find(given: Namespace, words: Sequence[str], runs_root: Path | None) -> int:
    """Find what `given.command` names for the job with these flags, and print it; return the exit
    status: 0 if something is suggested, else 1.

    Raises SettingsError for wrong flags, JobError if a job cannot be measured.
    """
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
            "figure": answer.figure,
            "next": following.command,
        }
        print(json.dumps(content, indent=2))
    else:
        _print_table(answer.rows)
        suggestion = f"suggestion: {option(answer.what)} {answer.value} ({answer.why})"
        print(suggestion if found else f"nothing stands out: {answer.why}")
        for file in answer.figure:
            print(f"figure: {file}")
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
    metric = _loss(target.script.metrics, target.settings, given.metric)
    jobs = [trials.measure(each) for each in tests]
    curves = [_curve(job, name, metric) for job in jobs]
    longest = max((rates for rates, _ in curves), key=len)
    try:
        found = valley(longest, [losses for _, losses in curves])
    except ValueError as error:
        said = f"{metric.key} has {error}; see {jobs[0].label}'s log.txt"
        raise JobError(f"find lr: {said}") from None
    rows: list[Row] = []
    for job, (rates, losses) in zip(jobs, curves, strict=True):
        lowest = min(filter(math.isfinite, losses), default=math.nan)
        seed = getattr(job.settings, "seed", None)
        row: Row = {"job": job.id, "seed": seed, "steps": len(losses)}
        row |= {f"lowest {metric.key}": lowest, f"at {name}": rates[losses.index(lowest)]}
        rows.append(row)
    more = "; give a larger --up-to" if found.stands_out and not found.rises else ""
    stem = PROJECT / "figures" / f"find-lr-{target.job.id}"
    figure = _draw(stem, found, curves, metric, [job.id for job in jobs])
    return Answer(name, found.rate, found.about + more, rows, figure)


def _schedule(target: Target) -> str:
    """The setting that has the range test as a value. Raises SettingsError if there is none."""
    for name, flag in target.known.items():
        if SCHEDULE in (*flag.names, *flag.reader.words):
            return name
    raise SettingsError(
        f"find lr: settings.py and optimizers.py have no schedule {SCHEDULE!r}; add one that "
        "returns 10 ** (6 * (done - 1)), where done is the fraction of the job that is done"
    )


def _loss(declared: Mapping[str, Metric], settings: Any, given: str) -> Measured:
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
    points = short_jobs.points(job, metric.key)
    if not points:
        logged = {name for line in short_jobs.lines(job) for name in line.get("metrics", ())}
        known = ", ".join(sorted(logged)) or "nothing"
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


def _draw(
    stem: Path,
    found: Valley,
    curves: Sequence[tuple[list[float], list[float]]],
    metric: Measured,
    jobs: Sequence[str],
) -> list[str]:
    """Draw the tests; return the paths of the images. If they would not print correctly, say why
    and return none."""
    venue = style.VENUES[style.DEFAULT]
    figures.use(venue)
    fig, ax = figures.figure("column", 2.4)
    for rates, losses in curves:
        ax.plot(rates, losses, color=style.GREY, linewidth=0.4, alpha=0.6)
    ax.plot(found.rates, found.smooth, color=style.COLOURS[0], label="running mean")
    figures.log_scale(ax.xaxis)
    ax.set_xlabel("learning rate")
    figures.value_axis(ax.yaxis, metric.axis)
    margin = 0.1 * (found.before - found.low) + 4 * found.noise
    ax.set_ylim(found.low - margin, max(found.before, float(found.smooth.max())) + margin)
    if found.rate is not None:
        line = {"color": style.COLOURS[1], "linestyle": style.LINES[1], "linewidth": 0.9}
        ax.axvline(found.rate, label="suggested rate", **line)
    figures.legend(fig)
    caption = (
        f"{metric.title} in {len(curves)} range {'tests' if len(curves) > 1 else 'test'}, in which "
        "the learning rate rises with each step, and its running mean until a test breaks down."
    )
    about = {"jobs": sorted(jobs), "venue": venue.name}
    try:
        return [shown(file.path) for file in figure_files.save(fig, stem, caption, about, venue)]
    except figure_files.Misprint as error:
        print(f"{stem.name}: not written: {error}", file=sys.stderr)
        return []


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
    name = target.named("batch_size", given.setting)
    speeds: list[Speed] = []
    rows: list[Row] = []
    size = given.smallest
    while True:
        if size > given.largest:
            end = f"--largest {given.largest} was reached"
            break
        if not trials.on_gpu and (short := too_large(speeds)):
            end = f"{size} was not tried: {short}"
            break
        try:
            test = target.long().having(**{name: size})
        except SettingsError as error:  # the setting has a range, or goes with others
            if speeds or 2 * size > given.largest:
                end = str(error)
                break
            size *= 2
            continue
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


def too_large(speeds: Sequence[Speed]) -> str:
    """Return why not to try the next size; empty to try it. Memory grows linearly with it."""
    if not speeds:
        return ""
    last = speeds[-1].memory
    growth = 2 * (last - speeds[-2].memory) if len(speeds) > 1 else last
    wanted, free = last + max(growth, 0.0), USED * machine.available_memory()
    if wanted <= free:
        return ""
    return f"it would take {wanted / 2**30:.1f} GiB of memory, and {free / 2**30:.1f} GiB are free"


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
SPANS = 4  # of training, with a noise scale each, since it grows as the loss falls
LEAST = 8  # steps of a span for which an interval can be trusted
WIDEST = 4.0  # the largest factor by which an interval's end may differ from the estimate


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
        return 0 < self.scale < WIDEST * self.low and self.high < WIDEST * self.scale


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
    spans = spans_of([each for each in finite if each[0] <= given.steps])
    suggested = None
    why = "the gradient cannot be told from its noise; use a larger batch or more --steps"
    if known := [span for span in spans if span.is_known]:
        last = known[-1]
        suggested = 2 ** max(0, round(math.log2(last.scale)))
        why = (
            f"noise scale {last.scale:.3g}, 95% interval {last.low:.3g} to {last.high:.3g}, over "
            f"steps {last.first} to {last.last}"
        )
        if last is not spans[-1]:
            why += "; after that, these batches are too small to estimate it"
    rows: list[Row] = [
        {"steps": f"{first}–{last}", "noise scale": scale, "low": low, "high": high}
        for first, last, scale, low, high in spans
    ]
    return Answer(name, suggested, f"{why}; job {job.id}", rows)


def spans_of(measured: Sequence[tuple[float, ...]]) -> list[Span]:
    """Return the noise scale in SPANS spans of equal length, from the step, tr Σ and |G|² of each.

    Raises JobError if they are too short.
    """
    if len(measured) < SPANS * LEAST:
        raise JobError(f"only {len(measured)} steps were measured; use more --steps")
    spans = []
    for each in np.array_split(np.array(measured), SPANS):
        steps, noise, signal = each.T
        scale, low, high = map(float, ratio_interval(noise, signal))
        spans.append(Span(int(steps[0]), int(steps[-1]), scale, low, high))
    return spans


FINDERS: dict[str, Callable[[Target, Namespace, Trials], Answer]] = {
    runtime.FIND_LR: _find_lr,
    runtime.FIND_BATCH_SIZE: _find_batch_size,
    runtime.FIND_NOISE_SCALE: _find_noise_scale,
    runtime.FIND_WORKERS: _find_workers,
}
