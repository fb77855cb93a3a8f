"""Random search: settings drawn from ranges, as jobs of a grid. For run.sh's `search`:

    search 20 --lr 'log 1e-4 1e-1' --batch-size 'choice 32 64 128' -- --model convnet
    search 20 seed=1 --dropout 'uniform 0 0.5' --width 'logint 16 512' --bias 'normal 0 0.1'
    search 20 --optimizer 'choice adam sgd' --momentum 'uniform 0.8 0.99 if --optimizer=sgd'

draws 20 jobs; what follows `--` is the same for all. Each flag has a sequence of its own, which its
name and the seed determine: other flags, their order and the number of jobs do not change it, so
the first 20 of 40 jobs are the same 20. The first 2, 4, 8, … values of a flag fill its range
evenly. The sequences are made here, because a library's may change with its version, which would
change the jobs.
"""

import hashlib
import math
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from statistics import NormalDist
from typing import Any, NamedTuple

from labjobs.errors import SettingsError, did_you_mean

BITS = 32  # binary digits of the numbers that are drawn
MOST = 2**20  # the largest number of jobs of a search

KINDS = ("log", "logint", "uniform", "int", "normal", "choice")

FRUITLESS = 1000  # draws without a new job after which a range has no further ones


def point(key: str, index: int) -> float:
    """Return a number in [0, 1), the index-th of the sequence with this key.

    It is van der Corput's sequence, an index with its binary digits mirrored at the point, shifted
    by a random number digit by digit, so that the first 2**n numbers remain evenly spread: Cranley
    and Patterson 1976, doi.org/10.1137/0713071, in base 2. The numbers that are new among the first
    2**n are in random order, so that two keys are independent.
    """
    start = 1 << max(0, index.bit_length() - 1)
    place = _order(key, start)[index - start] if index else 0
    mirrored = int(f"{place:0{BITS}b}"[::-1], 2)
    return float((mirrored ^ _hash(key)) / 2**BITS)


@cache
def _order(key: str, start: int) -> list[int]:
    """The numbers from a power of two to the next, in random order."""
    return sorted(range(start, 2 * start), key=lambda number: _hash(f"{key} {number}"))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[: BITS // 8])


class Range(NamedTuple):
    """What a flag is drawn from, and the condition under which it is given, `--optimizer=sgd`."""

    flag: str
    draw: Callable[[float], str]  # from a number in [0, 1) to a value, as a word of a command

    condition: str

    def holds(self, given: dict[str, str]) -> bool:
        """Return whether the flags that are given fulfil the condition."""
        flag, _, values = self.condition.partition("=")
        return not flag or given.get(flag) in values.split(",")


def parse(flag: str, text: str) -> Range:
    """Return the range that a text such as `log 1e-4 1e-1` means. Raises SettingsError if it means
    none."""
    text, _, condition = text.partition(" if ")
    kind = text.split(" ")[0]
    if kind not in KINDS:
        hint = f"{did_you_mean(kind, KINDS)}; settings that are the same for all jobs go after --"
        raise SettingsError(f"search: {flag} '{text}': {hint}")
    try:
        words = shlex.split(text)[1:]
        if kind == "choice" and words:
            return Range(flag, lambda u: words[int(u * len(words))], condition)
        low, high = map(int if kind.endswith("int") else float, words)
    except ValueError:
        low, high = 0, -1
    if kind == "normal":
        if not (high > 0 and math.isfinite(low + high)):
            raise SettingsError(f"search: {flag} '{text}': must look like 'normal 0 1': mean, SD")
        return Range(flag, lambda u: f"{NormalDist(low, high).inv_cdf(u or 2**-60):.4g}", condition)
    if not low <= high or (kind.startswith("log") and low <= 0) or math.isinf(high - low):
        rising = "with two increasing numbers, both above 0 for log and logint"
        raise SettingsError(f"search: {flag} '{text}': must look like '{kind} 1 10', {rising}")
    draws: dict[str, Callable[[float], str]] = {
        "uniform": lambda u: f"{low + u * (high - low):.4g}",
        "log": lambda u: f"{low * (high / low) ** u:.4g}",
        "int": lambda u: str(low + int(u * (high + 1 - low))),
        # Each whole number has the part of the range that rounds to it.
        "logint": lambda u: str(round((low - 0.5) * ((high + 0.5) / (low - 0.5)) ** u)),
    }
    return Range(flag, draws[kind], condition)


def jobs(words: list[str]) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Yield the jobs of a search, each once: its arguments, and how it was drawn, by the `seed`,
    the `ranges` of the flags and the `index` of the draw. Raises SettingsError."""
    cut = words.index("--") if "--" in words else len(words)
    (count, *drawn), fixed = words[:cut] or [""], words[cut + 1 :]
    seed = drawn.pop(0).removeprefix("seed=") if drawn and drawn[0].startswith("seed=") else "0"
    if not (count.isdecimal() and seed.isdecimal() and int(count) < MOST):
        raise SettingsError("search: must begin with the number of jobs, such as search 20 seed=0")
    ranges, given = _ranges(drawn), _flags(fixed)
    declared = {"seed": int(seed), "ranges": dict(zip(drawn[::2], drawn[1::2], strict=True))}
    _check(ranges, given)
    seen, index, newest = set[tuple[str, ...]](), 0, 0
    while len(seen) < int(count):
        if index - newest > FRUITLESS:
            few = f"its ranges have {len(seen)} different jobs"
            raise SettingsError(f"search {count}: {few}; ask for as many, or widen a range")
        values = dict(given)
        for each in ranges:
            if each.holds(values):
                values[each.flag] = each.draw(point(f"{seed} {each.flag}", index))
        job = tuple(f"{flag}={value}" for flag, value in values.items() if flag not in given)
        if job not in seen:
            seen.add(job)
            newest = index
            yield [*job, *fixed], {**declared, "index": index}
        index += 1


def _ranges(words: list[str]) -> list[Range]:
    flags, texts = words[::2], words[1::2]
    if not flags or len(flags) != len(texts) or not all(flag.startswith("--") for flag in flags):
        pairs = "pairs of a flag and a range, such as --lr 'log 1e-4 1e-1'"
        raise SettingsError(f"search: expects {pairs}")
    return [parse(flag, text) for flag, text in zip(flags, texts, strict=True)]


def _flags(words: list[str]) -> dict[str, str]:
    """The values of flags, written as `--lr 1` or `--lr=1`."""
    given = {}
    for word, after in pairwise([*words, ""]):
        if word.startswith("--"):
            flag, is_one, value = word.partition("=")
            given[flag] = value if is_one else after
    return given


def _check(ranges: list[Range], given: dict[str, str]) -> None:
    known = [*given]
    for flag, _, condition in ranges:
        if flag in known:
            twice = "after --" if flag in given else "twice"
            raise SettingsError(f"search: {flag}: is drawn, and given {twice}")
        if condition and condition.partition("=")[0] not in known:
            before = "must name a flag that stands before it, or after --"
            raise SettingsError(f"search: {flag}: 'if {condition}' {before}")
        known.append(flag)
