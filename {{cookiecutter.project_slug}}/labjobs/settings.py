"""What settings.py says: fields of a settings dataclass, lengths, other jobs, and metrics."""

import math
import re
from collections.abc import Collection, Mapping, Sized
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self

from labjobs.errors import SettingsError as SettingsError
from labjobs.errors import did_you_mean

# What a project measures: a declaration for each metric, the only place that says what is better.
# Metrics are logged as `train_`, `val_` or `test_` followed by their declared name.

PARTS = ("train_", "val_", "test_")

AT_START = re.compile(r"ln\((\w+)\)")  # what `at_start` is, unless it is a number


@dataclass(frozen=True)
class Metric:
    """A metric, as early stopping, figures and tables treat it.

    Args:
        better: Which of two values is better, the "lower" or the "higher".
        label: Its name in figures, without the unit. Empty: the declared name.
        unit: Its unit, such as "nats" or "ms".
        range: The lowest and the highest value possible; None: no bound.
        scale: How it is shown: "linear"; "log", with geometric means and ratios; or "percent",
            which shows 0.97 as 97%.
        target: The value that counts as reached, for figures of the time to it.
        at_start: Its approximate value in the first training step, which --check tests: a number
            other than 0, or "ln(classes)", the cross-entropy of equal chances for all `classes`.
            That is an entry of the spec that the job saves, which has a length or is a number.
    """

    better: Literal["lower", "higher"] = ""  # type: ignore[assignment]  # check() wants one
    label: str = ""
    unit: str = ""
    range: tuple[float | None, float | None] = (None, None)
    scale: Literal["linear", "log", "percent"] = "linear"
    target: float | None = None
    at_start: float | str | None = None


def check(metrics: Mapping[str, Metric]) -> None:
    """Raise SettingsError for a declaration that cannot be right: not when it is made, so that a
    mistake in settings.py is reported in one line."""
    if not isinstance(metrics, Mapping):
        raise SettingsError("METRICS: must be a dict of names and Metric(…)")
    for name, metric in metrics.items():
        if wrong := _wrong(name, metric):
            raise SettingsError(f"METRICS[{name!r}]: {wrong}")


def is_name(name: object) -> bool:
    """Return whether every tracking store takes a metric of this name."""
    return isinstance(name, str) and bool(re.fullmatch(r"[A-Za-z0-9_.-]{1,200}", name))


def monitors(metrics: Mapping[str, Metric]) -> tuple[str, ...]:
    """Return the allowed values of --monitor."""
    return ("none", *(f"val_{name}" for name in metrics))


def no_monitor(name: str, metrics: Mapping[str, Metric]) -> str:
    """Return why this cannot be the --monitor of a job, and what to do."""
    known, measured = did_you_mean(name, monitors(metrics)), name.removeprefix("val_")
    if measured == name:
        return f"must be none, or val_ and a metric; {known}"
    return f"METRICS in settings.py has no {measured} ({known}); add a line if it is measured"


def outside(metric: Metric, value: float) -> bool:
    """Return whether a value is outside a metric's range, by more than a rounding error."""
    low, high = metric.range
    slack = 1e-4 * max(abs(bound) for bound in (low or 0.0, high or 0.0, 1.0))
    return (low is not None and value < low - slack) or (high is not None and value > high + slack)


def value_at_start(metric: Metric, spec: Mapping[str, Any]) -> float | None:
    """Return the number that `at_start` means, given a job's spec; None if that does not say."""
    found = AT_START.fullmatch(metric.at_start) if isinstance(metric.at_start, str) else None
    if not found:
        return metric.at_start  # type: ignore[return-value]  # check() wants a number then
    entry = spec.get(found[1])
    count: Any = len(entry) if isinstance(entry, Sized) else entry
    return math.log(count) if _is_number(count) and count > 0 else None


def as_plain(metrics: Mapping[str, Metric]) -> dict[str, Any]:
    """Return declarations as JSON can hold them."""
    return {name: asdict(metric) for name, metric in metrics.items()}


def from_plain(plain: Mapping[str, Any]) -> dict[str, Metric]:
    """Return the declarations that `as_plain` wrote; what a later version added is left out. Raises
    SettingsError if they are not of that form."""
    known = {field.name for field in fields(Metric)}
    found = {}
    try:
        for name, stored in plain.items():
            values = {key: value for key, value in stored.items() if key in known}
            if "range" in values:
                values["range"] = tuple(values["range"])
            found[name] = Metric(**values)
    except (AttributeError, TypeError) as error:
        raise SettingsError(f"METRICS: cannot be read ({error})") from None
    check(found)
    return found


def _wrong(name: object, metric: object) -> str:
    if not is_name(name):
        return "its name must be letters, digits, '_', '-' and '.'"
    for part in PARTS:
        if str(name).startswith(part):
            return f"{part} is added to the name when it is logged; leave it out"
    if not isinstance(metric, Metric):
        return 'must be a Metric, such as Metric(better="lower")'
    if metric.better not in ("lower", "higher"):
        cure = "; where a value between is best, measure the distance from it"
        return f'better={metric.better!r}: must be "lower" or "higher"{cure}'
    if metric.scale not in ("linear", "log", "percent"):
        return f'scale={metric.scale!r}: must be "linear", "log" or "percent"'
    if not _rises(metric.range):
        return f"range={metric.range!r}: must be two increasing numbers, with None for no bound"
    if metric.target is not None and not _is_number(metric.target):
        return f"target={metric.target!r}: must be a number"
    start = metric.at_start
    named = isinstance(start, str) and AT_START.fullmatch(start)
    if start is not None and not named and not (_is_number(start) and start):
        return f'at_start={start!r}: must be a number other than 0, or like "ln(classes)"'
    return ""


def _rises(pair: Any) -> bool:
    if not isinstance(pair, tuple) or len(pair) != 2:
        return False
    bounds = [bound for bound in pair if bound is not None]
    return all(map(_is_number, bounds)) and bounds == sorted({*bounds})


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# What a field of a settings dataclass may say about itself, kept as the field's metadata.

Role = Literal["repeat", "task", "method"]
"""What figures do with a setting. Jobs that differ in `repeat` settings alone are averaged; those
of different `task`s are never compared; everything else is a `method`."""

ROLES: Mapping[str, Role] = {
    "seed": "repeat",
    "fold": "repeat",
    "split_seed": "repeat",
    "dataset": "task",
}
"""The roles of settings with these names, unless they declare another one."""

HELD_OUT = ("fold", "split_seed", "val_fraction")
"""Settings that say which examples are not trained on."""

CONFIRMING = 4_000_000_000
"""Seeds from here on are those of `confirm` in run.sh: nothing is chosen by their jobs, and tables
report these jobs where there are any. Times in seconds are below, and NumPy's limit is above."""


def roles(kind: type[Any] | None) -> dict[str, Role]:
    """Return the roles of settings; those that are not named are methods."""
    declared = {each.name: each.metadata.get("role") for each in fields(kind)} if kind else {}
    return {**ROLES, **{name: role for name, role in declared.items() if role}}


def setting(
    default: Any,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    names: str = "",
    others: str = "",
    metric: Mapping[str, Metric] | None = None,
    replaces: str = "",
    when: Mapping[str, Any] | None = None,
    formerly: str = "",
    alone: Any = None,
    role: Role | None = None,
    only_with: Collection[str] = (),
) -> Any:
    """Return a dataclass field with a default, and with rules that the command line checks.

    Args:
        default: Its value unless the command line names another.
        above, at_least, below, at_most: The range of a number, or of each number in a tuple.
        names: A registry, such as "models.MODELS"; the value must be one of its names.
        others: Which other values are allowed, in words; the project's own code checks them.
        metric: METRICS; the value must be "none" or "val_" and a name declared there.
        replaces: Another setting, which does not count if this one is above 0.
        when: Settings that must have these values for this one to count, {"optimizer": "sgd"}; a
            list means any of its values.
        formerly: The name that this setting had when the first jobs ran.
        alone: The value of the flag if it is given without a value.
        role: What figures do with it, see Role; by default what ROLES says of its name.
        only_with: For flags of the engine: a script has the flag only if it has one of these
            settings.
    """
    return field(default=default, metadata=locals())  # all of the arguments


def added(default: Any, *, neutral: Any, **rules: Any) -> Any:
    """Return a field for a setting that was added after the first jobs had run.

    `neutral` is the value with which the code does what it did before, such as 0.0 for a dropout.
    Jobs with that value keep their ids, so it must never change. `rules` are those of `setting`.
    """
    later = setting(default, **rules)
    return field(default=default, metadata={**later.metadata, "neutral": neutral})


# A length of training, in optimizer steps or in epochs.

SPAN_PATTERN = re.compile(r"0*([0-9]{1,12})|0*([0-9]{1,12})(?:\.([0-9]{1,12}))?e")


class Span(str):
    """A number of optimizer steps, such as "500", or of epochs, such as "2e" or "0.5e".

    The text is kept in canonical form ("2.0e" is "2e"). A span of 0 is false. Raises ValueError
    for any other text; a number such as 1e3 is refused, since it looks like epochs.
    """

    WANTED = "a number of steps such as 500, or of epochs such as 2e or 0.5e"

    def __new__(cls, text: str) -> "Span":
        """Return the span of a text in canonical form."""
        found = SPAN_PATTERN.fullmatch(text)
        if not found:
            raise ValueError(f"must be {cls.WANTED}")
        steps, epochs, decimals = found.groups(default="")
        number = f"{epochs}.{decimals}".rstrip("0").rstrip(".")
        return super().__new__(cls, steps or (f"{number}e" if number != "0" else "0"))

    def __bool__(self) -> bool:
        return self.number > 0

    @property
    def number(self) -> float:
        """The number, of steps or of epochs."""
        return float(self.removesuffix("e"))

    def steps(self, steps_per_epoch: int | None) -> int:
        """Return the span in whole optimizer steps. Raises SettingsError for epochs of data without
        a length (None)."""
        if not self.endswith("e"):
            return int(self)
        if steps_per_epoch is None:
            raise SettingsError(f"{self}: this training data has no epochs; give a number of steps")
        return round(self.number * steps_per_epoch)


LAST, FORK = ":last", ":fork"


class JobId(str):
    """The id of a job, such as "1872aa178ea7". A job with such a setting is derived from the other
    job: it starts when the other job has finished, and is stale when the other job is.

    Raises ValueError for any other text.
    """

    PATTERN = "[0-9a-f]{12}"
    WANTED = "the id of a job, 12 hexadecimal digits or at least its first 4"

    def __new__(cls, text: str) -> Self:
        """Return the id in a text."""
        if not re.fullmatch(cls.PATTERN, text):
            raise ValueError(f"must be {cls.WANTED}")
        return super().__new__(cls, text)

    @property
    def job(self) -> "JobId":
        """The job that is named."""
        return JobId(self.partition(":")[0])


class Weights(JobId):
    """The weights of another job: "1872aa178ea7" for its best weights, "1872aa178ea7:last" for the
    whole state at the end of its training, "1872aa178ea7:fork" for that under other settings."""

    PATTERN = f"{JobId.PATTERN}({LAST}|{FORK})?"
    WANTED = f"{JobId.WANTED}, or such an id followed by {LAST} or {FORK}"

    @property
    def last(self) -> bool:
        """Whether they stand for the whole state at the end of its training."""
        return self.endswith((LAST, FORK))

    @property
    def fork(self) -> bool:
        """Whether that training goes on under other settings."""
        return self.endswith(FORK)
