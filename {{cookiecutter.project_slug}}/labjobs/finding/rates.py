"""`find lr`: a learning rate, from range tests.

Each test is a job of the student's script with the schedule `range-test`, which raises the rate by
the same factor in each step, from a millionth of --up-to to --up-to. A job is expected to diverge
at a high rate; its points until then count.

Source of the test: Smith 2015, arxiv.org/abs/1506.01186.
"""

import math
from argparse import Namespace
from collections.abc import Mapping
from functools import partial
from typing import Any

from labjobs.cli.metrics import Metric
from labjobs.errors import JobError, SettingsError, did_you_mean
from labjobs.finding import drawing, trials
from labjobs.finding.answer import Answer, Row
from labjobs.finding.target import Target
from labjobs.finding.trials import Trials
from labjobs.finding.valley import valley
from labjobs.job.folder import JobFolder
from labjobs.results.metrics import Measured

SCHEDULE = "range-test"


def find(target: Target, given: Namespace, running: Trials) -> Answer:
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
    return _answer(target, name, metric, jobs)


def _answer(target: Target, name: str, metric: Measured, jobs: list[JobFolder[Any]]) -> Answer:
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
    draw = partial(drawing.range_tests, found, curves, metric)
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
    points = trials.points(job, [metric.key])
    if not points:
        known = ", ".join(sorted(trials.logged(job))) or "nothing"
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
