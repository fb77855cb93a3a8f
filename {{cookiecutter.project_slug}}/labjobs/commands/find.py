"""The command `jobs.py find`: a value for a setting or a flag, from short jobs that measure it.

Each job pauses as soon as it is measured. They run one after another, on a GPU that is held as a
sweep holds it. What the present code has measured already is not run again.
"""

import json
import math
import os
import platform
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labjobs import exit_status, machine
from labjobs.cli import flags
from labjobs.cli.flags import as_text, option
from labjobs.commands.inventory import Project
from labjobs.commands.replay import Recorded, run
from labjobs.errors import JobError, SettingsError, require
from labjobs.files import CODE, json_of
from labjobs.job import attempts, identity
from labjobs.job.folder import JobFolder
from labjobs.job.journal import EXAMPLES, MEMORY, NOISE, RATE, SIGNAL
from labjobs.job.runtime import LENGTHS, Runtime
from labjobs.job.terminal import Interruption
from labjobs.results import intervals
from labjobs.settings import Span
from labjobs.sweeps import gpus
from labjobs.sweeps.gpus import Gpu

Row = dict[str, str | int | float | None]  # a row of the table, by the names of its columns
Point = dict[str, float]  # the metrics of a step, with its number as `step`


Answer = tuple[float | int | None, str, Sequence[Row]]
"""The suggested value or None, how that was found or why there is none, and a table."""


def find(_: Project, given: Namespace) -> int:
    """Find what `given.command` names for the job with these flags, and print it; return the exit
    status: 0 if something is suggested, else 1. Raises SettingsError for wrong flags, JobError if a
    job cannot be measured."""
    for flag, least in {"steps": 20, "seeds": 1, "smallest": 1, "largest": 0}.items():
        value = getattr(given, flag, None)
        require(value is None or value >= least, f"--{flag}", value, f"at least {least}")
    job = _read(given.words, given.runs_root)
    name = getattr(given, "setting", "workers").removeprefix("--").replace("-", "_")
    known = flags.of(type(job.settings))
    kind = float if given.command == identity.FIND_LR else int
    if "setting" in given and (name not in known or kind not in known[name].reader.types):
        what = "a number" if kind is float else "a whole number"
        line = f"settings.py has no setting `{name}` that is {what}"
        raise SettingsError(f"{line}; name the setting to use instead with --setting")
    Interruption().listen()
    trials = Trials(given.command, job.runtime.device, given.force)
    value, why, rows = FINDERS[given.command](job, name, given, trials)
    then = job if value is None else _changed(job, **{name: value})
    following = shlex.join(["python", *words_of(then)])
    if given.json:
        found = None if value is None else {name: value}
        about = {"suggestion": found, "why": why, "rows": rows, "jobs": trials.jobs}
        print(json_of({**about, "next": following}))
    else:
        _print_table(rows)
        suggestion = f"suggestion: {option(name)} {value} ({why})"
        print(f"nothing stands out: {why}" if value is None else suggestion)
        print(f"next: {following}")
    return exit_status.FAILED if value is None else exit_status.DONE


def _print_table(rows: Sequence[Row]) -> None:
    def text(value: str | int | float | None) -> str:
        if isinstance(value, float):
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        return "-" if value is None else str(value)

    texts = [[*rows[0]], *([text(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    for row in texts:
        print("  ".join(map(str.ljust, row, widths)).rstrip())


# The jobs that measure.

REFUSED = (
    *("check", "continue_anyway", "force", "log_every", "pause_after", "profile", "quiet"),
    "scratch",
)
"""Flags of the engine that the finder sets itself, or with which nothing is measured."""

LONG = 1_000_000  # optimizer steps of a job that pauses long before it is evaluated


def _read(words: Sequence[str], runs_root: Path | None) -> JobFolder[Any]:
    """The job of a command line, which has its flags and, optionally, its script first. Raises
    SettingsError if they are wrong."""
    given = [*words]
    named = bool(given) and given[0].endswith(".py") and not given[0].startswith("-")
    script = identity.read(given.pop(0).removesuffix(".py") if named else identity.DEFAULT)
    settings, engines = attempts.read(script.settings, script.name, given)
    length = {name: getattr(settings, name) for name in LENGTHS if hasattr(settings, name)}
    os.environ[identity.LENGTH] = json.dumps(length)  # by which `auto` compiles or not
    for name in REFUSED:
        if getattr(engines, name) != getattr(Runtime, name):
            raise SettingsError(f"{option(name)}: cannot be used with find")
    if runs_root:
        engines = replace(engines, runs_root=runs_root)
    return JobFolder(settings, engines, script.metrics, script.name)


def _changed(job: JobFolder[Any], **values: Any) -> JobFolder[Any]:
    """The job with other values of some settings, or of flags of the engine. Raises SettingsError
    if there is no such setting, or the value is not allowed."""
    engines = {name: value for name, value in values.items() if name in flags.of(Runtime)}
    own = {name: value for name, value in values.items() if name not in engines}
    for name, value in own.items():
        if name not in flags.of(type(job.settings)):
            raise SettingsError(f"settings.py has no setting `{name}`, which find needs")
        flags.of(type(job.settings))[name].read(as_text(value))
    try:
        settings = replace(job.settings, **own)
    except ValueError as error:  # a rule in __post_init__
        raise SettingsError(str(error)) from None
    return JobFolder(settings, replace(job.runtime, **engines), job.metrics, job.script)


def _long(job: JobFolder[Any], steps: int = LONG, pause_after: int = 0) -> JobFolder[Any]:
    """The job with this many steps, evaluated only at its end; if it pauses, it logs each step."""
    others = {"minutes": 0.0, "eval_every": Span(str(steps))}
    values: dict[str, Any] = {k: v for k, v in others.items() if hasattr(job.settings, k)}
    if pause_after:
        values |= {"pause_after": Span(str(pause_after)), "log_every": 1}
    return _changed(job, steps=steps, **values)


def words_of(job: JobFolder[Any]) -> list[str]:
    """Return the words with which Python runs a job: its script, its settings and its flags."""
    folders = ("data_root", "runs_root")  # absolute, since jobs run in the project's folder
    places = {name: getattr(job.runtime, name).expanduser().absolute() for name in folders}
    engines = replace(job.runtime, **places)
    return [f"{job.script}.py", *identity.as_flags(job.settings), *identity.as_flags(engines)]


class OutOfMemory(JobError):
    """A job has run out of memory, or was probably killed for that reason."""


class Trials:
    """Runs jobs for a purpose, such as `find lr`, on the device that --device names; with `again`,
    jobs that were run before are run again. `jobs` are the ids of those that were measured. Raises
    SettingsError for a GPU that does not exist."""

    def __init__(self, purpose: str, device: str, again: bool) -> None:
        self.jobs: list[str] = []
        self._purpose, self._again = purpose, again
        kind, _, number = device.partition(":")
        named = number or (None if kind == "auto" else "0")
        on_gpus = gpus.on_gpus(named) if kind in ("auto", "cuda") else []
        self.on_gpu = bool(on_gpus)
        self._gpus = on_gpus or [Gpu({})]

    @cached_property
    def _gpu(self) -> Gpu:
        """The first GPU that nobody uses, for all jobs, or the CPU. Raises JobError if all GPUs are
        in use."""
        for gpu in self._gpus:
            if gpu.take():
                return gpu
        raise JobError(f"GPU {gpu.device} {gpu.why}; wait, or choose another with -- --device")

    def measure(self, job: JobFolder[Any], *metrics: str, cure: str = "") -> list[Point]:
        """Return the points of a job that have the first of some metrics that it logs; run it, if
        it is not measured yet. `cure` says what to do if there are none. Raises SettingsError for
        wrong settings, JobError for a job that cannot be measured."""
        outcome, said = job.outcome(), ""
        over = self._again or bool(job.evidence.change) or self._was_other(job)
        if over or not (outcome.get("status") in MEASURED or _lacked_memory(outcome)):
            said = self._run(job, ["--force"] if over else [])
            job = _changed(job)
            outcome = job.outcome()
        said = outcome.get("said", said)
        if _lacked_memory(outcome):
            raise OutOfMemory(f"{job.label} ran out of memory")
        if outcome.get("status") not in MEASURED:
            raise JobError(said)
        self.jobs.append(job.id)
        lines = [line for line in Recorded(job.latest or job.path).lines if "metrics" in line]
        for metric in metrics:
            if own := [line for line in lines if metric in line["metrics"]]:
                return [{"step": line["step"], **line["metrics"]} for line in own]
        raise JobError(f"{self._purpose}: {job.label} logs no {metrics[0]}; {cure or said}")

    def _purpose_of(self, job: JobFolder[Any]) -> str:
        """The purpose, and what speed and memory depend on: the job's flags and the machine."""
        command = shlex.join(["python", *words_of(job)])
        return f"{self._purpose}; {command} on {platform.node()}"

    def _was_other(self, job: JobFolder[Any]) -> bool:
        """Whether the job has run for another purpose, with other flags or elsewhere."""
        with suppress(JobError, OSError):
            path = job.latest
            return bool(path and Recorded(path).tag(identity.TAG) != self._purpose_of(job))
        return True

    def _run(self, job: JobFolder[Any], words: Sequence[str]) -> str:
        """Run a job's process to its end; return its last line."""
        gpu, purpose = self._gpu, self._purpose_of(job)
        print(f"job {job.id} started: {job.name}", file=sys.stderr, flush=True)
        if gpu.env:  # in which it is the only one
            job = _changed(job, device="auto")
        command = [sys.executable, *words_of(job), "--quiet", *words]
        env = os.environ | {identity.PURPOSE: purpose} | gpu.env
        # It holds the GPU, even if this process is killed.
        status, line = run(command, CODE, env, gpu.files)
        if status == exit_status.WRONG:
            raise SettingsError(line)
        print(line.split("; the same command")[0], file=sys.stderr, flush=True)
        if status in (exit_status.OTHER_CODE, exit_status.ELSEWHERE):
            raise JobError(line)
        if status < 0:
            raise OutOfMemory(f"{job.label} was killed, probably because memory ran out")
        return line


MEASURED = ("paused", "finished", "diverged")  # outcomes of jobs whose journals have measurements


def _lacked_memory(outcome: Mapping[str, Any]) -> bool:
    return outcome.get("status") == "failed" and "out of memory" in outcome["said"]


# `find lr`: a learning rate, from range tests.
#
# Each test is a job of the student's script with the schedule `range-test`, which raises the rate
# by the same factor in each step, from a millionth of --up-to to --up-to. A job is expected to
# diverge at a high rate; its points until then count. Source: Smith 2015, arxiv.org/abs/1506.01186.


def _find_lr(job: JobFolder[Any], name: str, given: Namespace, trials: Trials) -> Answer:
    test = _long(job, given.steps + 1, pause_after=given.steps)  # so it is never evaluated
    test = _changed(test, **{name: given.up_to}, schedule="range-test")
    if hasattr(job.settings, "warmup"):
        test = _changed(test, warmup=Span("0"))
    first, losses = getattr(job.settings, "seed", None), _losses(job)
    cure = "log a metric for which lower is better with job.log(…) in the loop"
    seeds = [None] if first is None else range(first, first + given.seeds)
    rates, curves, rows = list[float](), list[list[float]](), list[Row]()
    for seed in seeds:
        own = test if seed is None else _changed(test, seed=seed)
        points = trials.measure(own, *losses, cure=cure)
        loss = next(each for each in losses if each in points[0])
        logged_as = next((each for each in ("lr", name) if each in points[0]), "")
        if not logged_as:
            line = "find lr: the learning rate is not logged"
            raise JobError(f"{line}; call job.log(measured, lr=lr) in the loop")
        rates = max(rates, [point[logged_as] for point in points], key=len)
        rows.append({"job": trials.jobs[-1], "seed": seed, "steps": len(points)})
        curves.append([point[loss] for point in points])
    for row, values in zip(rows, _until_breakdown(len(rates), curves), strict=True):
        if len(values):
            row[f"lowest {loss}"] = float(values.min())
            row[f"at {name}"] = rates[int(values.argmin())]
    return *valley(rates, curves), rows


def _losses(job: JobFolder[Any]) -> list[str]:
    """What may be the training loss: metrics for which lower is better, the monitored one first.
    Raises SettingsError if there is none."""
    monitored = str(getattr(job.settings, "monitor", "none")).removeprefix("val_")
    losses = [name for name, metric in job.metrics.items() if metric.better == "lower"]
    if not losses:
        raise SettingsError("find lr: METRICS declares no metric for which lower is better")
    return [f"train_{name}" for name in sorted(losses, key=lambda name: name != monitored)]


# Where a loss is low while the learning rate rises, and whether it stands out from the noise.

WINDOW = 7  # points in the running mean
BEFORE = 0.1  # fraction of the points, at the start, whose rates are too low to change the loss
SIGMAS = 2.0  # a fall must exceed this many standard deviations of a single point to stand out
OF_THE_FALL = 0.9  # the fraction of its whole fall after which the loss counts as low
TO_NORMAL = 1.4826  # standard deviation by median absolute deviation, of normal values

Floats = NDArray[np.float64]


def valley(rates: ArrayLike, losses: Sequence[ArrayLike]) -> tuple[float | None, str]:
    """Return the rate in the middle of where the losses of repeated range tests are low, None if
    there is none; and a line that says why.

    Args:
        rates: Learning rates, rising (n,).
        losses: The losses of each test (n,), by rate. A test that ended early has fewer values, and
            values may be infinite or NaN.

    Everything after a breakdown is cut off: after the first value that is not finite, or after the
    running mean is as far above its initial level as it had been below it. This works for losses of
    any scale and sign.
    """
    every = np.asarray(rates, dtype=float)
    values, first = _until_breakdown(len(every), losses), _first(len(every))
    if values.shape[1] <= first:
        return None, f"the loss has only {values.shape[1]} finite values"
    smooth, before = _running_mean(values), values[:, :first].mean()
    count, bottom = len(smooth), int(smooth.argmin())
    low, noise = float(smooth[bottom]), TO_NORMAL * float(np.median(np.abs(values - smooth)))
    if before - low <= SIGMAS * noise:
        within = f"within {SIGMAS:g} standard deviations of its noise, {noise:.2g}"
        return None, f"the loss falls by {before - low:.3g}, {within}"
    fall = f"the loss falls from {before:.3g} to {low:.3g} (noise {noise:.2g})"
    high = np.flatnonzero(smooth > low + (1 - OF_THE_FALL) * (before - low) + SIGMAS * noise)
    left, right = high[high < bottom], high[high > bottom]
    if not len(right) and count == len(every):
        last = f"has not risen again at {every[-1]:.2g}"
        return None, f"{fall} and {last}; give a larger --up-to"
    start = every[left[-1] + 1 if len(left) else 0]
    end = every[right[0] - 1 if len(right) else count - 1]
    rate = float(f"{np.sqrt(start * end):.1e}")  # the geometric mean
    return rate, f"{fall} and is low from {start:.2g} to {end:.2g}"


def _first(count: int) -> int:
    """How many of the points have rates that are too low to change the loss."""
    return max(3, round(BEFORE * count))


def _until_breakdown(count: int, losses: Sequence[ArrayLike]) -> Floats:
    """The losses of range tests of `count` points (tests, n), up to a breakdown."""
    common = min(len(np.asarray(each)) for each in losses)
    values = np.stack([np.asarray(each, dtype=float)[:common] for each in losses])
    wrong = np.flatnonzero(~np.isfinite(values).all(axis=0))
    values = values[:, : wrong[0]] if len(wrong) else values
    if not values.size:
        return values
    initial, smooth = values[:, : _first(count)], _running_mean(values)
    fallen = initial.mean() - np.minimum.accumulate(smooth)
    above = np.flatnonzero(smooth > initial.mean() + np.maximum(fallen, SIGMAS * initial.std()))
    return values[:, : above[0]] if len(above) else values


def _running_mean(values: Floats) -> Floats:
    """The mean over tests (tests, n), and over WINDOW values around each; fewer at the ends."""
    half, mean = WINDOW // 2, values.mean(axis=0)
    return np.array([mean[max(0, i - half) : i + half + 1].mean() for i in range(len(mean))])


# `find batch-size` and `find workers`: the smallest value with which a job is nearly as fast as it
# can be. Jobs measure their speed in several windows of time (training/probes.py).

ENOUGH = 0.95  # the fraction of the highest speed that counts as equally good
USED = 0.8  # largest fraction of the available memory that a job may be expected to take


def smallest_good(rates: Mapping[int, Sequence[float]]) -> tuple[int | None, str]:
    """Return the smallest value whose speed is within 5 % of the highest, and a line that says why;
    from the examples per second in each of several windows of time, by rising values.

    The first is None if the windows vary so much that a difference of 5 % cannot be measured.
    """
    speeds = {value: median(each) for value, each in rates.items()}
    best = max(speeds, key=speeds.__getitem__)
    good = next(value for value, speed in speeds.items() if speed >= ENOUGH * speeds[best])
    error = max(_error(rates[good]), _error(rates[best]))
    if error > 1 - ENOUGH:
        return None, (
            f"the speed varies too much between windows of time (standard error {error:.0%}) to "
            f"measure a difference of {1 - ENOUGH:.0%}; try again with --force when nothing else "
            "runs"
        )
    said = f"{speeds[good]:,.0f} examples/s, {speeds[good] / speeds[best]:.0%}"
    return good, f"{said} of the highest speed, which {best} has"


def _error(rates: Sequence[float]) -> float:
    """The standard error of the mean, as a fraction of it; infinite for one window."""
    if len(rates) < 2:
        return np.inf
    return float(np.std(rates, ddof=1) / np.sqrt(len(rates)) / np.mean(rates))


def _fastest(
    name: str, measured: Mapping[int, Sequence[Point]], trials: Trials, remark: str = ""
) -> Answer:
    rates = {value: [point[RATE] for point in points] for value, points in measured.items()}
    rows: list[Row] = [
        {
            name: value,
            "job": job,
            "examples/s": median(rates[value]),
            "lowest": min(rates[value]),
            "highest": max(rates[value]),
            "memory (MiB)": round(_most(points, MEMORY) / 2**20),
        }
        for (value, points), job in zip(measured.items(), trials.jobs, strict=False)
    ]
    good, why = smallest_good(rates)
    return good, why + remark, rows


def _most(points: Sequence[Point], metric: str) -> float:
    return max(point[metric] for point in points)


FITS = " is the largest that fits"


def _find_batch_size(job: JobFolder[Any], name: str, given: Namespace, trials: Trials) -> Answer:
    """Each size is a job in its own process, so there is nothing to clean up if it runs out of
    memory. A machine without a GPU would swap first, so there a size is not tried if it is unlikely
    to fit, judging by the memory that smaller sizes took."""
    measured: dict[int, list[Point]] = {}
    size, memory, end = given.smallest, 0.0, f" fits; --largest {given.largest} was reached"
    require(size <= given.largest, "--smallest", size, "at most --largest")
    while size <= given.largest:
        if not trials.on_gpu and 2 * memory > USED * machine.available_memory():
            end = f"{FITS} ({size} could take twice the memory, which is not available)"
            break
        try:
            test = _changed(_long(job), **{name: size})  # the setting may have a range
            points = trials.measure(test, RATE)
            if (examples := _most(points, EXAMPLES)) < size:
                raise SettingsError(f"the training data has {examples:.0f} examples")
        except (SettingsError, OutOfMemory) as error:
            if not measured:
                raise
            end = f"{FITS} (with {size}, {error})"
            break
        measured[size], memory = points, _most(points, MEMORY)
        size *= 2
    return _fastest(name, measured, trials, f"; {[*measured][-1]}{end}")


def _find_workers(job: JobFolder[Any], name: str, given: Namespace, trials: Trials) -> Answer:
    if job.runtime.loader != "workers":
        raise SettingsError("find workers: needs -- --loader workers, whose processes it counts")
    most = machine.cores() if given.largest is None else given.largest
    counts = {0, most, *(2**power for power in range(most.bit_length()))}
    # Their number is not a setting, so the length makes them different jobs.
    tests = {count: _changed(_long(job, LONG + count), workers=count) for count in sorted(counts)}
    measured = {count: trials.measure(test, RATE) for count, test in tests.items()}
    return _fastest(name, measured, trials)


# `find noise-scale`: the batch size above which more examples add little to a step.
#
# A job's batches are split by --accumulate, and the gradients of the parts show how much of them is
# noise (training/probes.py). The simple noise scale tr Σ / |G|² is about the batch size at which
# training takes twice the minimum number of steps, and twice the minimum number of examples.
# Source: McCandlish et al. 2018, arxiv.org/abs/1812.06162.

PARTS = 8  # of a batch, unless the job already splits it
LEAST = 16  # steps for which an interval can be trusted
WIDEST = 4.0  # the largest factor by which an interval's end may differ from the estimate


def _find_noise_scale(job: JobFolder[Any], name: str, given: Namespace, trials: Trials) -> Answer:
    test = _long(job, LONG + given.steps, pause_after=given.steps)
    if getattr(job.settings, "accumulate", 1) < 2:
        parts = min(PARTS, max(2, getattr(job.settings, name) // 2))
        test = _changed(test, accumulate=parts)
    noise, signal = f"train_{NOISE}", f"train_{SIGNAL}"
    cure = "split batches by `for part, fraction in job.parts(batch)` in the loop"
    points = trials.measure(test, signal, cure=cure)
    # fp16 can overflow
    finite = [each for each in points if math.isfinite(each[noise] + each[signal])]
    if len(finite) < 2 * LEAST:
        raise JobError(f"only {len(finite)} steps were measured; use more --steps")
    rows, middle = list[Row](), len(finite) // 2
    for half in (finite[:middle], finite[middle:]):  # the scale grows as the loss falls
        found = intervals.ratio([each[noise] for each in half], [each[signal] for each in half])
        scale, low, high = map(float, found)
        steps = f"{half[0]['step']}–{half[-1]['step']}"
        rows.append({"steps": steps, "noise scale": scale, "low": low, "high": high})
    if not (0 < scale < WIDEST * low and high < WIDEST * scale):
        why = "the gradient cannot be told from its noise; use a larger batch or more --steps"
        return None, why, rows
    why = f"noise scale {scale:.3g}, 95% interval {low:.3g} to {high:.3g}, at the end"
    return 2 ** max(0, round(math.log2(scale))), why, rows


FINDERS: dict[str, Callable[[JobFolder[Any], str, Namespace, Trials], Answer]] = {
    identity.FIND_LR: _find_lr,
    identity.FIND_BATCH_SIZE: _find_batch_size,
    identity.FIND_NOISE_SCALE: _find_noise_scale,
    identity.FIND_WORKERS: _find_workers,
}
