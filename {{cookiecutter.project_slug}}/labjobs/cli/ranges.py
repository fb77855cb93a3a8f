"""What a flag is drawn from: a range such as `log 1e-4 1e-1`, as run.sh's `search` has it."""

import math
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from statistics import NormalDist
from typing import NamedTuple

from labjobs.errors import SettingsError, did_you_mean

KINDS = ("log", "logint", "uniform", "int", "normal", "choice")


class Range(NamedTuple):
    """What a flag is drawn from, a `text` such as `log 1e-4 1e-1`, and the condition under which it
    is given, `--optimizer=sgd`. Of a choice, `choices` are the values; of other kinds, `low` and
    `high` the bounds, or the mean and the standard deviation."""

    flag: str
    text: str
    condition: str
    kind: str
    low: float = 0
    high: float = 0
    choices: Sequence[str] = ()

    def holds(self, given: Mapping[str, str]) -> bool:
        """Return whether the flags that are given fulfil the condition."""
        flag, _, values = self.condition.partition("=")
        return not flag or given.get(flag) in values.split(",")

    def draw(self, u: float) -> str:
        """Return the value for a number in [0, 1), as a word of a command."""
        low, high = self.low, self.high
        match self.kind:
            case "choice":
                return self.choices[int(u * len(self.choices))]
            case "uniform":
                return self._rounded(low + u * (high - low))
            case "log":
                return self._rounded(low * (high / low) ** u)
            case "int":
                return str(low + int(u * (high + 1 - low)))
            case "logint":  # each whole number has the part of the range that rounds to it
                return str(round((low - 0.5) * ((high + 0.5) / (low - 0.5)) ** u))
        return self._rounded(NormalDist(low, high).inv_cdf(u or 2**-60))

    def _rounded(self, value: float) -> str:
        """A value in four digits of the range's width, within the range."""
        is_normal = self.kind == "normal"
        width = self.high if is_normal else self.high - self.low
        largest = max(abs(self.low), abs(self.high))
        if not width:
            return str(self.low)
        text = f"{value:.{4 + max(0, math.floor(math.log10(largest / width)))}g}"
        if is_normal or self.low <= float(text) <= self.high:
            return text
        return str(self.low if value < (self.low + self.high) / 2 else self.high)

    def next_to(self, value: str, factor: float) -> str:
        """Return a value close to one, on the side of it that a factor such as 0.8 or 1.2 says:
        that many times as much, a whole number at least one away, the choice beside it. At the end
        of the range it stays."""
        side = 1 if factor > 1 else -1
        if self.kind == "choice":
            place = self.choices.index(value) + side
            return self.choices[min(max(place, 0), len(self.choices) - 1)]
        low, high = (-math.inf, math.inf) if self.kind == "normal" else (self.low, self.high)
        moved = min(max(factor * float(value), low), high)
        if not self.kind.endswith("int"):
            return self._rounded(moved)
        further = max if side > 0 else min
        return str(int(min(max(further(round(moved), int(value) + side), low), high)))

    def place(self, value: str) -> float:
        """Return a number for which a value is drawn."""
        low, high = self.low, self.high
        match self.kind:
            case "choice":
                return (self.choices.index(value) + 0.5) / len(self.choices)
            case "uniform":
                return (float(value) - low) / (high - low or 1)
            case "log":
                return math.log(float(value) / low) / (math.log(high / low) or 1)
            case "int":
                return (int(value) + 0.5 - low) / (high + 1 - low)
            case "logint":
                return math.log(int(value) / (low - 0.5), (high + 0.5) / (low - 0.5))
        return NormalDist(low, high).cdf(float(value))


def meaning(word: str) -> float | str:
    """Return a word of a command as a number, if it is one: 1e-3 and 0.001 are the same."""
    with suppress(ValueError):
        return float(word)
    return word


def parse(flag: str, text: str) -> Range:
    """Return the range that a text such as `log 1e-4 1e-1` means. Raises SettingsError if it means
    none."""
    form, _, condition = text.partition(" if ")
    kind, said = form.split(" ")[0], f"search: {flag} '{form}'"
    if kind not in KINDS:
        hint = f"{did_you_mean(kind, KINDS)}; settings that are the same for all jobs go after --"
        raise SettingsError(f"{said}: {hint}")
    try:
        words = shlex.split(form)[1:]
        if kind == "choice" and words:
            if len({*map(meaning, words)}) < len({*words}):
                raise SettingsError(f"{said}: two of its values are the same number")
            return Range(flag, text, condition, kind, choices=words)
        low, high = map(int if kind.endswith("int") else float, words)
    except ValueError:
        low, high = 0, -1
    if kind == "choice":
        raise SettingsError(f"{said}: must look like 'choice 32 64'")
    if kind == "normal":
        if not (high > 0 and math.isfinite(low + high)):
            raise SettingsError(f"{said}: must look like 'normal 0 1': mean, SD")
    elif not low <= high or (kind.startswith("log") and low <= 0) or math.isinf(high - low):
        rising = "with two increasing numbers, both above 0 for log and logint"
        raise SettingsError(f"{said}: must look like '{kind} 1 10', {rising}")
    return Range(flag, text, condition, kind, low, high)
