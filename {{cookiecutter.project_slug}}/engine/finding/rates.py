"""`find lr`: a learning rate, from range tests.

Each test is a job of the student's script whose schedule, `range-test`, raises the rate from a
millionth of --up-to by the same factor in each step. A job that diverges at a high rate is what is
wanted; its points until then count. Source of the test: Smith 2015, arxiv.org/abs/1506.01186.
"""

import math
from argparse import Namespace
from collections.abc import Mapping
from functools import partial
from typing import Any

from engine.cli.metrics import Metric
from engine.errors import JobError, SettingsError, did_you_mean
from engine.finding import drawing, trials
from engine.finding.answer import Answer, Row
from engine.finding.falling import fall
from engine.finding.target import Target
from engine.finding.trials import Trials
from engine.job.folder import JobFolder

SCHEDULE = "range-test"

EVERY_STEP = "--log-every=1"


def find(target: Target, given: Namespace, running: Trials) -> Answer:
    """Return the learning rate that is suggested. Raises SettingsError for a job that cannot be
    tested, JobError for one that fails."""
    name = target.named("lr", given.setting)
    test = target.long(given.steps + 1)
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
        ended = running.run(each, f"--pause-after={given.steps}", EVERY_STEP)
        if not ended.has_measured:
            raise JobError(ended.said)
        jobs.append(each.job)
    return _answer(target, name, metric, jobs)


def _answer(target: Target, name: str, metric: str, jobs: list[JobFolder[Any]]) -> Answer:
    curves = [_curve(job, name, metric) for job in jobs]
    longest = max((rates for rates, _ in curves), key=len)
    try:
        found = fall(longest, [losses for _, losses in curves])
    except ValueError as error:
        raise JobError(
            f"{metric} of {jobs[0].label} has {error}, too few; see its log.txt"
        ) from None
    rows = [_row(job, name, metric, *curve) for job, curve in zip(jobs, curves, strict=True)]
    suggested = None if found.why_not else float(f"{found.rate:.1e}")
    next_one = target if suggested is None else target.having(**{name: suggested})
    why = found.why_not or (
        f"{metric} falls from {found.before:.3g} to {found.low:.3g}, which it reaches at "
        f"{found.lowest:.2g}; noise {found.noise:.2g}"
    )
    if found.why_not and not found.broke_down:
        why += "; give a larger --up-to"
    draw = partial(drawing.range_test, found, curves, name, metric, suggested)
    return Answer(name, suggested, why, rows, next_one.command, draw)


def _row(
    job: JobFolder[Any], name: str, metric: str, rates: list[float], losses: list[float]
) -> Row:
    lowest = min(filter(math.isfinite, losses), default=math.nan)
    return {
        "job": job.id,
        "seed": getattr(job.settings, "seed", None),
        "steps": len(losses),
        f"lowest {metric}": lowest,
        f"at {name}": rates[losses.index(lowest)],
    }


def _schedule(target: Target) -> str:
    """The setting that the range test is a value of. Raises SettingsError if there is none."""
    for name, flag in target.known.items():
        if SCHEDULE in (*flag.names, *flag.reader.words):
            return name
    raise SettingsError(
        f"find lr: settings.py and optimizers.py have no schedule {SCHEDULE!r}; it returns "
        "10 ** (6 * (done - 1)), where done is the fraction of the job that is done"
    )


def _metric(declared: Mapping[str, Metric], settings: Any, given: str) -> str:
    """The training loss by its name in the journal. Raises SettingsError if it is not known."""
    if given:
        name = given.removeprefix("train_")
        if name not in declared:
            raise SettingsError(f"--metric {given}: {did_you_mean(name, declared)}")
        return f"train_{name}"
    monitored = str(getattr(settings, "monitor", "none")).removeprefix("val_")
    losses = [name for name, metric in declared.items() if metric.better == "lower"]
    if not losses:
        raise SettingsError("find lr: METRICS declares no metric of which lower is better")
    return f"train_{monitored if monitored in losses else losses[0]}"


def _curve(job: JobFolder[Any], name: str, metric: str) -> tuple[list[float], list[float]]:
    """The rates and the losses of a job, from the step on at which the rate was lowest."""
    points = trials.points(job, [metric])
    if not points:
        known = ", ".join(sorted(trials.logged(job))) or "nothing"
        raise JobError(f"find lr: {job.label} logs no {metric}, only {known}; name one: --metric …")
    logged_as = next((key for key in ("lr", name) if key in points[0]), "")
    if not logged_as:
        raise JobError(
            f"find lr: {job.label} does not log its learning rate; in the loop, job.log(measured, "
            "lr=lr) does"
        )
    rates = [point[logged_as] for point in points]
    start = rates.index(min(rates))
    return rates[start:], [point[metric] for point in points][start:]
