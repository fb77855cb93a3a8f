"""What a project measures: a declaration for each metric, the only place that says what is better.

Metrics are logged as `train_`, `val_` or `test_` followed by their declared name.
"""

import math
import re
from collections.abc import Mapping, Sized
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from labjobs.errors import SettingsError, did_you_mean

PARTS = ("train_", "val_", "test_")

AT_START = re.compile(r"ln\((\w+)\)")
"""What `at_start` is, unless it is a number."""


@dataclass(frozen=True)
class Metric:
    """A metric, as early stopping, figures and tables treat it.

    Args:
        better: Which of two values is better, the "lower" or the "higher".
        label: Its name in figures, without the unit. Empty: the declared name.
        unit: Its unit, such as "nats" or "ms".
        range: The lowest and the highest value possible; None: no bound.
        scale: The axis of figures, "linear" or "log".
        target: The value that counts as reached, for figures of the time to it.
        at_start: Its approximate value in the first training step, which --check tests: a number
            other than 0, or "ln(classes)", the cross-entropy of equal chances for all `classes`.
            That is an entry of the spec that the job saves, which has a length or is a number.
    """

    better: Literal["lower", "higher"] = ""  # type: ignore[assignment]  # check() wants one
    label: str = ""
    unit: str = ""
    range: tuple[float | None, float | None] = (None, None)
    scale: Literal["linear", "log"] = "linear"
    target: float | None = None
    at_start: float | str | None = None


def check(metrics: Mapping[str, Metric]) -> None:
    """Raise SettingsError for a declaration that cannot be right.

    Declarations are checked here and not when they are made, so that a mistake in settings.py is
    reported in one line.
    """
    if not isinstance(metrics, Mapping):
        raise SettingsError("METRICS: must be a dict of names and Metric(…)")
    for name, metric in metrics.items():
        wrong = _wrong_name(name) or _wrong(metric)
        if wrong:
            raise SettingsError(f"METRICS[{name!r}]: {wrong}")


def is_name(name: object) -> bool:
    """Return whether every tracking store takes a metric of this name."""
    return isinstance(name, str) and bool(re.fullmatch(r"[A-Za-z0-9_.-]{1,200}", name))


def monitors(metrics: Mapping[str, Metric]) -> tuple[str, ...]:
    """Return the allowed values of --monitor."""
    return ("none", *(f"val_{name}" for name in metrics))


def no_monitor(name: str, metrics: Mapping[str, Metric]) -> str:
    """Return why this cannot be the --monitor of a job, and what to do."""
    known = did_you_mean(name, monitors(metrics))
    measured = name.removeprefix("val_")
    if measured == name:
        return f"must be none or a metric on validation data; {known}"
    return f"METRICS in settings.py has no {measured} ({known}); add a line if it is measured"


def outside(metric: Metric, value: float) -> bool:
    """Return whether a value is outside a metric's range, by more than a rounding error."""
    low, high = metric.range
    slack = 1e-4 * max(abs(bound) for bound in (low or 0.0, high or 0.0, 1.0))
    return (low is not None and value < low - slack) or (high is not None and value > high + slack)


def value_at_start(metric: Metric, spec: Mapping[str, Any]) -> float | None:
    """Return the number that `at_start` means, given the spec of a job; None if the spec has no
    such entry."""
    found = AT_START.fullmatch(metric.at_start) if isinstance(metric.at_start, str) else None
    if not found:
        return metric.at_start  # type: ignore[return-value]  # check() wants a number then
    entry = spec.get(found[1])
    count: Any = len(entry) if isinstance(entry, Sized) else entry
    return math.log(count) if _is_number(count) and count > 0 else None


def as_plain(metrics: Mapping[str, Metric]) -> dict[str, Any]:
    """Return declarations as JSON can hold them."""
    return {
        name: asdict(metric) | {"range": list(metric.range)} for name, metric in metrics.items()
    }


def from_plain(plain: Mapping[str, Any]) -> dict[str, Metric]:
    """Return the declarations that `as_plain` wrote; what a later version added is left out.

    Raises SettingsError if they are not of that form.
    """
    try:
        found = {name: _from_plain(values) for name, values in plain.items()}
    except (AttributeError, TypeError) as error:
        raise SettingsError(f"METRICS: cannot be read ({error})") from None
    check(found)
    return found


def _from_plain(plain: Mapping[str, Any]) -> Metric:
    known = {field.name for field in fields(Metric)}
    values: dict[str, Any] = {name: value for name, value in plain.items() if name in known}
    if "range" in values:
        values["range"] = tuple(values["range"])
    return Metric(**values)


def _wrong_name(name: object) -> str:
    if not is_name(name):
        return "its name must be letters, digits, '_', '-' and '.'"
    assert isinstance(name, str)
    part = next((part for part in PARTS if name.startswith(part)), "")
    return f"{part} is added to the name when it is logged; leave it out" if part else ""


def _wrong(metric: object) -> str:
    """What is wrong with a declaration; empty if nothing is."""
    if not isinstance(metric, Metric):
        return 'must be a Metric, such as Metric(better="lower")'
    if metric.better not in ("lower", "higher"):
        return f'better={metric.better!r}: must be "lower" or "higher"'
    if metric.scale not in ("linear", "log"):
        return f'scale={metric.scale!r}: must be "linear" or "log"'
    for name in ("label", "unit"):
        if not isinstance(getattr(metric, name), str):
            return f"{name}={getattr(metric, name)!r}: must be text"
    if not _is_range(metric.range):
        return f"range={metric.range!r}: must be two increasing numbers, with None for no bound"
    if metric.target is not None and not _is_number(metric.target):
        return f"target={metric.target!r}: must be a number"
    if metric.at_start is not None and not _is_start(metric.at_start):
        return f'at_start={metric.at_start!r}: must be a number other than 0, or like "ln(classes)"'
    return ""


def _is_start(value: object) -> bool:
    return bool(
        AT_START.fullmatch(value) if isinstance(value, str) else _is_number(value) and value
    )


def _is_range(value: object) -> bool:
    if not (isinstance(value, tuple) and len(value) == 2):
        return False
    bounds = [bound for bound in value if bound is not None]
    return all(map(_is_number, bounds)) and (len(bounds) < 2 or bounds[0] < bounds[1])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
