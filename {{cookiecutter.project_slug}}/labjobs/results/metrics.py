"""The metrics of jobs: which direction is better, as their project declared it when they ran, and
how they are shown, as it declares that today."""

import json
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from labjobs.errors import SettingsError, few, require_known
from labjobs.results.style import number, setting, signed
from labjobs.settings import Metric, from_plain

Part = Literal["train", "val", "test"]

WORDS = {"train": "training", "val": "validation", "test": "test"}

DECLARED = "declared metrics"
"""The column of a table of jobs that has the declarations, as JSON, and the attribute that has
today's. No setting can have a name with a space."""

SHOWN = "shown metric"  # the attribute of a table of jobs with the metric of `plot.py --metric`

CURE = "name the values to draw in ONLY of plot.py"  # if jobs differ in too many settings


class NoResults(Exception):
    """There is nothing correct to draw. Its text is one line: the cause and what to do."""


@dataclass(frozen=True)
class Measured:
    """A metric on one part of the data. As text it is what captions call it."""

    name: str
    declared: Metric
    part: Part | None = None

    def __str__(self) -> str:
        label = self.declared.label or self.name.replace("_", " ")
        return f"{WORDS[self.part]} {label}" if self.part else label

    @property
    def key(self) -> str:
        """The name it is logged by, such as `val_loss`."""
        return f"{self.part}_{self.name}" if self.part else self.name

    @property
    def result(self) -> str:
        """The name of a job's single result: on validation data, the result of its best weights."""
        return f"best_{self.key}" if self.part == "val" else self.key

    @property
    def unit(self) -> str:
        """The unit in which it is shown."""
        return "%" if self.declared.scale == "percent" else self.declared.unit

    @property
    def factor(self) -> int:
        """What its values are multiplied by to be shown in that unit."""
        return 100 if self.declared.scale == "percent" else 1

    @property
    def axis(self) -> str:
        """The label of an axis."""
        return f"{self} ({self.unit})" if self.unit else str(self)

    @property
    def goal(self) -> str:
        """Its target: `≥ 0.95`, `≤ 5 mmHg`."""
        assert self.declared.target is not None
        target = signed(number(self.factor * self.declared.target))
        unit = f" {self.unit}" if self.unit not in ("", "%") else self.unit
        return f"{'≥' if self.sign > 0 else '≤'} {target}{unit}"

    @property
    def title(self) -> str:
        """How a caption begins."""
        label = str(self)
        return label[:1].upper() + label[1:]

    @property
    def log(self) -> bool:
        """Whether axes, means and intervals are logarithmic."""
        return self.declared.scale == "log"

    @property
    def sign(self) -> int:
        """1 if higher is better, else -1."""
        return 1 if self.declared.better == "higher" else -1

    @property
    def within(self) -> tuple[float, float]:
        """The least and the largest value possible."""
        low, high = self.declared.range
        return -np.inf if low is None else low, np.inf if high is None else high

    def bounds(self, values: ArrayLike) -> tuple[float, float]:
        """Return the ends of its range; none where some values are beyond it all the same."""
        (low, high), each = self.within, np.asarray(values)
        return -np.inf if (each < low).any() else low, np.inf if (each > high).any() else high

    def of(self, part: Part | None) -> "Measured":
        """Return the same metric on another part of the data, or on none in particular."""
        return Measured(self.name, self.declared, part)

    def checked(self, values: ArrayLike) -> NDArray[np.float64]:
        """Return values as an array. Raises NoResults if its scale cannot show them."""
        each = np.asarray(values, dtype=float)
        if self.log and (each <= 0).any():
            cure = 'declare scale="linear" in METRICS'
            raise NoResults(f"{self} is not always above 0, so it has no logarithm; {cure}")
        return each


THROUGHPUT = Measured(  # which every job measures
    "examples_per_second",
    Metric(better="higher", label="training examples per second", range=(0, None)),
)


def declared(jobs: pd.DataFrame) -> dict[str, Metric]:
    """Return the metrics that the jobs declare, by name; if there are several declarations, the
    newest, or today's if its direction is the same: another label or scale changes no result.
    Raises NoResults if one name has two directions."""
    metrics: dict[str, Metric] = {}
    better: dict[str, dict[str, list[str]]] = {}
    for text, alike in jobs.sort_values("ended").groupby(DECLARED, sort=False):
        of_these = _read(str(text))
        metrics |= of_these
        for name, metric in of_these.items():
            better.setdefault(name, {}).setdefault(metric.better, []).extend(alike["job_id"])
    for name, directions in better.items():
        if len(directions) > 1:
            fewest = min(directions.values(), key=len)
            raise NoResults(
                f"lower {name} is better in {len(directions['lower'])} of the jobs, higher in "
                f"{len(directions['higher'])}; run those declared wrongly again with --force, or "
                f"delete them ({few(fewest, 3)})"
            )
    today = _read(jobs.attrs.get(DECLARED, "{}")).items()
    metrics |= {n: m for n, m in today if n in metrics and metrics[n].better == m.better}
    own = metrics.keys() - {*jobs.attrs.get("settings", ())}  # a label may be that of a setting
    return metrics | {n: replace(metrics[n], label=setting(n, metrics[n].label)) for n in own}


def _read(text: str) -> dict[str, Metric]:
    try:
        return dict(from_plain(json.loads(text)))
    except (ValueError, SettingsError) as error:
        raise NoResults(f"the metrics that the jobs declare cannot be read: {error}") from error


def monitored(jobs: pd.DataFrame) -> Measured:
    """Return the metric by which jobs are chosen: the one that most jobs monitor on validation
    data. If `monitor` is `none`, it is the first declared metric with validation values, else with
    training values, else with values that belong to no part of the data, as for a script that does
    not train. Raises NoResults if the jobs have no such values."""
    metrics = declared(jobs)
    monitors = jobs.get("monitor", jobs["job_id"].map(lambda _: "none"))
    name = str(monitors.mode()[0]).removeprefix("val_")
    if name in metrics:
        return Measured(name, metrics[name], "val")
    parts: tuple[Part | None, ...] = ("val", "train", None)
    for part in parts:
        for name, metric in metrics.items():
            found = Measured(name, metric, part)
            if found.key in jobs and jobs[found.key].notna().any():
                return found
    raise NoResults("the jobs have no values of a declared metric; declare it in METRICS")


def shown(jobs: pd.DataFrame) -> Measured:
    """Return the metric that figures show: the one of `plot.py --metric` on validation data, else
    the monitored one. Raises NoResults if the jobs have no values of it."""
    name = jobs.attrs.get(SHOWN, "")
    if not name:
        return monitored(jobs)
    metrics = declared(jobs)
    require_known([name], metrics, "--metric {}: no metric of METRICS")
    found = Measured(name, metrics[name], "val")
    if found.key not in jobs or jobs[found.key].isna().all():
        raise NoResults(f"no finished job has a {found}")
    return found


def chooser(jobs: pd.DataFrame) -> Measured:
    """Return the monitored metric, by which settings are chosen and ranked. Raises NoResults if it
    is not measured on validation data."""
    metric = monitored(jobs)
    if metric.part != "val":
        raise NoResults("there are no validation results to choose by; hold out validation data")
    return metric


def with_target(jobs: pd.DataFrame) -> Measured:
    """Return the metric on validation data for the time to its target: the one of `plot.py
    --metric` or the monitored one, else the first one with a target. Raises NoResults if no metric
    has a target."""
    others = [Measured(name, each, "val") for name, each in declared(jobs).items()]
    for each in (shown(jobs), monitored(jobs), *others):
        if each.part == "val" and each.declared.target is not None and each.key in jobs:
            return each
    raise NoResults("no validation metric has a target; declare one in METRICS with target=…")
