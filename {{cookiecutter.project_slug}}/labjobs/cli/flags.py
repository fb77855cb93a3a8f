"""The fields of a settings dataclass as flags: each with its reader and its rules.

A mistake in settings.py raises SettingsError here, with a line that names the field.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from operator import ge, gt, le, lt
from pathlib import Path
from typing import Any, get_type_hints

from labjobs.cli import metrics, registries
from labjobs.cli.job_ids import JobId, Weights
from labjobs.cli.spans import Span
from labjobs.cli.values import Reader, as_plain, as_text, reader
from labjobs.errors import SettingsError, did_you_mean

RANGE: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "above": ("above", gt),
    "at_least": ("at least", ge),
    "below": ("below", lt),
    "at_most": ("at most", le),
}
LARGEST = 2**63 - 1
"""The largest whole number: neither torch's seeds nor most files take more."""


def option(name: str) -> str:
    """Return what a field is called on the command line."""
    return "--" + name.replace("_", "-")


@dataclass(frozen=True)
class Flag:
    """A field as a flag."""

    name: str
    default: Any
    rules: Mapping[str, Any]
    """What `setting` noted."""

    reader: Reader
    names: tuple[str, ...]
    """The allowed values; empty if any text is allowed."""

    @property
    def required(self) -> bool:
        """Whether the flag must be given."""
        return self.default is MISSING

    def read(self, text: str) -> Any:
        """Return the value of a text. Raises SettingsError if it cannot be read, or breaks a
        rule."""
        try:
            value = self.reader(text)
            self.check(value)
        except ValueError as error:
            raise SettingsError(f"{option(self.name)} {text}: {error}") from None
        return value

    def stored(self, text: str) -> Any:
        """Return the value of a text that was valid when it was stored; today's registries and
        limits do not matter. Raises SettingsError if it cannot be read."""
        try:
            return self.reader(text)
        except ValueError as error:
            raise SettingsError(f"{option(self.name)} {text}: {error}") from None

    def check(self, value: Any) -> None:
        """Raise ValueError for a value that breaks a rule."""
        for element in value if isinstance(value, tuple) else (value,):
            number = element.number if isinstance(element, Span) else element
            if isinstance(number, int | float) and not isinstance(number, bool):
                self._check_number(number)
        known = (*self.names, *self.reader.words.values())
        if self.names and value not in known and not self.rules["others"]:
            if self.rules["metric"] is not None:
                raise ValueError(metrics.no_monitor(str(value), self.rules["metric"]))
            what = self.name.replace("_", " ")
            raise ValueError(f"no such {what}; {did_you_mean(str(value), self.names)}")

    def _check_number(self, number: float) -> None:
        if not math.isfinite(number):
            raise ValueError("must be finite")
        given = {rule: bound for rule in RANGE if (bound := self.rules.get(rule)) is not None}
        if not all(RANGE[rule][1](number, bound) for rule, bound in given.items()):
            raise ValueError(f"must be {_in_words(given)}")
        if isinstance(number, int) and abs(number) > LARGEST:
            raise ValueError("must be below 2**63")


class Flags(dict[str, Flag]):
    """The flags of a settings dataclass, by the names of its fields."""

    def __init__(self, flags: Mapping[str, Flag], former: Mapping[str, Any]) -> None:
        super().__init__(flags)
        self.former = former
        """The deleted settings, with the values that match what the code does today."""
        self.neutral: dict[str, Any] = {}
        """What the code did before a setting was added, as plain values."""
        self.formerly: dict[str, str] = {}
        """The former names of the renamed settings."""
        self.replacing: dict[str, list[str]] = {}
        """The settings that replace another setting, by its name."""
        for name, flag in flags.items():
            if "neutral" in flag.rules:
                self.neutral[name] = as_plain(flag.rules["neutral"])
            if before := flag.rules.get("formerly"):
                self.formerly[name] = before
            if replaced := flag.rules.get("replaces"):
                self.replacing.setdefault(replaced, []).append(name)


def of(kind: type) -> Flags:
    """Return the flags of a settings dataclass.

    Raises SettingsError if the dataclass cannot be turned into flags.
    """
    return _of(kind)


@cache
def _of(kind: type) -> Flags:
    if not is_dataclass(kind) or not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise SettingsError(f"{kind.__name__}: must be a @dataclass(frozen=True, kw_only=True)")
    try:
        hints = get_type_hints(kind)
    except (NameError, TypeError) as error:
        raise SettingsError(f"{kind.__name__}: a type cannot be read: {error}") from None
    for name in _without_type(kind, hints):
        raise SettingsError(f"{kind.__name__}.{name}: needs a type, such as `{name}: int = …`")
    found = {}
    for field in fields(kind):
        try:
            found[field.name] = _flag(field, hints[field.name])
        except (TypeError, ValueError) as error:
            raise SettingsError(f"{kind.__name__}.{field.name}: {error}") from None
    flags = Flags(found, getattr(kind, "FORMER", {}))
    _check_together(kind.__name__, flags)
    return flags


def _without_type(kind: type, hints: Mapping[str, Any]) -> Iterator[str]:
    """Attributes that look like settings, but are not fields because they have no type."""
    plain = (bool, int, float, str, tuple, Path)
    for base in kind.__mro__[:-1]:
        for name, value in vars(base).items():
            if name not in hints and not name.startswith("_") and isinstance(value, plain):
                yield name


def _flag(field: Field[Any], annotation: Any) -> Flag:
    """The flag of a field. Raises TypeError or ValueError if it cannot be one."""
    rules, default = field.metadata, field.default
    if default is MISSING and annotation not in (JobId, Weights):
        raise ValueError("needs a default")
    if not field.init:
        raise ValueError("a value computed from other settings must be a property, not a field")
    flag = Flag(field.name, default, rules, reader(annotation), _names(rules))
    if not flag.required:
        _check_in_code(flag, "default", default)
    if "neutral" in rules:
        _check_in_code(flag, "neutral value", rules["neutral"])
    return flag


def _in_words(bounds: Mapping[str, float]) -> str:
    if bounds.keys() == {"at_least", "at_most"}:
        return f"from {bounds['at_least']:,} to {bounds['at_most']:,}"
    return " and ".join(f"{RANGE[rule][0]} {bound:,}" for rule, bound in bounds.items())


def _names(rules: Mapping[str, Any]) -> tuple[str, ...]:
    """The allowed values, from METRICS or from a registry."""
    if (declared := rules.get("metric")) is not None:
        metrics.check(declared)
        return metrics.monitors(declared)
    return registries.names(rules["names"]) if rules.get("names") else ()


def _check_in_code(flag: Flag, what: str, value: object) -> None:
    """Raise ValueError for a value in the code that the command line would refuse."""
    try:
        read = flag.reader(as_text(value))
        kinds = (int, float) if isinstance(read, float) else type(read)
        if read != value or not isinstance(value, kinds):
            raise ValueError(f"must be {flag.reader.wanted}")
        flag.check(read)
    except ValueError as error:
        raise ValueError(f"its {what} {value!r}: {error}") from None


def _check_together(kind: str, flags: Flags) -> None:
    """Raise SettingsError if the rules of several settings contradict each other."""
    if not isinstance(flags.former, Mapping):
        raise SettingsError(f"{kind}.FORMER: must be a dict of deleted settings")
    for name in flags.keys() & flags.former.keys():
        raise SettingsError(f"{kind}.{name}: is in FORMER as well, among the deleted settings")
    for name, before in flags.formerly.items():
        if before in flags or before in flags.former:
            taken = "is the name of a setting, or is in FORMER"
            raise SettingsError(f'{kind}.{name}: formerly="{before}" {taken}')
    for replaced, names in flags.replacing.items():
        if replaced not in flags:
            raise SettingsError(
                f'{kind}.{names[0]}: replaces="{replaced}", but there is no such setting'
            )
        on = [f"{kind}.{name}" for name in names if flags[name].default]
        if len(on) > 1:
            raise SettingsError(f"{' and '.join(on)}: only one may have a default above 0")
