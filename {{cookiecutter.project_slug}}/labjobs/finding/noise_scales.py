"""`find noise-scale`: the batch size above which more examples add little to a step.

A job's batches are split by --accumulate, and the gradients of the parts show how much of them is
noise (noise_scale.py in training). The simple noise scale tr Σ / |G|² is about the batch size at
which training takes twice the minimum number of steps, and twice the minimum number of examples.

Source: McCandlish et al. 2018, arxiv.org/abs/1812.06162.
"""

import math
from argparse import Namespace
from functools import partial
from typing import NamedTuple

import numpy as np

from labjobs.errors import JobError, SettingsError
from labjobs.finding import drawing, trials
from labjobs.finding.answer import Answer, Row
from labjobs.finding.target import MANY, Target
from labjobs.finding.trials import Trials
from labjobs.job.purpose import NOISE, SIGNAL
from labjobs.results.statistics import ratio_interval

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


def find(target: Target, given: Namespace, running: Trials) -> Answer:
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
    points = trials.points(test.job, [LOGGED_SIGNAL])
    if not points:
        raise JobError(
            f"find noise-scale: {test.job.label} does not split its batches; use `for part, "
            "fraction in job.parts(batch)` in the loop"
        )
    measured = [(point["step"], point[LOGGED_NOISE], point[LOGGED_SIGNAL]) for point in points]
    finite = [each for each in measured if all(map(math.isfinite, each))]  # fp16 can overflow
    spans = spans_of([each for each in finite if each[0] <= given.steps])
    return _answer(target, test, name, spans)


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


def _answer(target: Target, test: Target, name: str, spans: list[Span]) -> Answer:
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
    draw = partial(drawing.noise_scales, spans, suggested, test.settings.accumulate)
    return Answer(name, suggested, f"{why}; job {test.job.id}", rows, next_one.command, draw)
