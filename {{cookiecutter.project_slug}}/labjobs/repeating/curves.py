"""Where two journals first differ."""

from typing import NamedTuple

from labjobs.job import costs
from labjobs.repeating.recorded import Journal

OTHER_EACH_TIME = (
    "elapsed_seconds",
    "data_wait_fraction",
    "mfu",
    "find_",
    "system/",
    *costs.NAMES,
)
"""Beginnings of the names of metrics that measure time or the machine."""

SPEED = "_per_second"
"""Endings of the names of speeds."""

Point = tuple[int, str]
"""A step and the name of a metric."""


class Difference(NamedTuple):
    """The first value that differs: its name, and its step if it has one."""

    what: str
    step: int | None
    recorded: str
    repeated: str
    more: str = ""

    def __str__(self) -> str:
        at = "" if self.step is None else f" at step {self.step}"
        more = f" ({self.more})" if self.more else ""
        return f"{self.what}{at} was {self.recorded} and is now {self.repeated}{more}"


def points(journal: Journal) -> dict[Point, str]:
    """Return the points of all metrics that are the same each time, in the order in which they were
    logged; each value is a text that is different for different floats."""
    return {
        (line["step"], name): repr(value)
        for line in journal.said
        for name, value in line.get("metrics", {}).items()
        if not (name.startswith(OTHER_EACH_TIME) or name.endswith(SPEED))
    }


def difference(before: dict[Point, str], after: dict[Point, str]) -> Difference | None:
    """Return the first difference between points, by step; None if all are the same."""
    for step, name in sorted({**before, **after}, key=lambda point: point[0]):
        values = [each.get((step, name), "missing") for each in (before, after)]
        if values[0] != values[1]:
            return Difference(name, step, values[0], values[1])
    return None
