"""Random search: settings drawn from ranges, as jobs of a grid. For run.sh's `search`:

    search 20 --lr 'log 1e-4 1e-1' --batch-size 'choice 32 64 128' -- --model convnet
    search 20 seed=1 --dropout 'uniform 0 0.5' --warmup 'int 0 5'

draws 20 jobs; what follows `--` is the same for all. The draws are the first points of a sequence
that fills the ranges evenly, so 20 of them stay the same when 40 are asked for later: a Halton
sequence with a random start (X. Wang, F. J. Hickernell, Randomized Halton sequences, Mathematical
and Computer Modelling 32, 2000). It is implemented here because a library's sequence may change
with its version, which would change the jobs.
"""

import random
import shlex
from collections.abc import Callable, Iterator

from labjobs.errors import SettingsError, did_you_mean

Draw = Callable[[float], str]
"""Maps a number in [0, 1) to a value, as a word of a command."""


KINDS = ("log", "uniform", "int", "choice")

PRIMES = [n for n in range(2, 200) if all(n % k for k in range(2, n))]
"""Bases of the sequence, one for each setting that is drawn."""


def points(count: int, seed: int, dimensions: int) -> Iterator[list[float]]:
    """The first points in [0, 1)^d of the sequence that begins where the seed says."""
    starts = random.Random(seed)
    bases = [(base, starts.randrange(2**30)) for base in PRIMES[:dimensions]]
    for i in range(count):
        yield [_radical_inverse(start + i, base) for base, start in bases]


def _radical_inverse(number: int, base: int) -> float:
    """The number's digits mirrored at the decimal point: 6 is 110 in base 2, and 0.011 is 3/8."""
    inverse, weight = 0.0, 1.0
    while number:
        number, digit = divmod(number, base)
        weight /= base
        inverse += weight * digit
    return inverse


def draw(flag: str, text: str) -> Draw:
    """The meaning of ranges such as `log 1e-4 1e-1`. Raises SettingsError if a range is not
    valid."""
    kind = text.split(" ")[0]
    if kind not in KINDS:
        hint = f"{did_you_mean(kind, KINDS)}; settings that are the same for all jobs go after --"
        raise SettingsError(f"search: {flag} '{text}': {hint}")
    try:
        words = shlex.split(text)[1:]
        if kind == "choice" and words:
            return lambda u: words[int(u * len(words))]
        low, high = map(int if kind == "int" else float, words)
    except ValueError:
        low, high = 0, -1
    if low > high or (kind == "log" and low <= 0):
        rising = "with two increasing numbers, both above 0 for log"
        raise SettingsError(f"search: {flag} '{text}': must look like '{kind} 1 10', {rising}")
    if kind == "int":
        return lambda u: str(low + int(u * (high + 1 - low)))
    if kind == "uniform":
        return lambda u: f"{low + u * (high - low):.4g}"
    return lambda u: f"{low * (high / low) ** u:.4g}"


def jobs(words: list[str]) -> Iterator[list[str]]:
    """The jobs that `search` names: the words of each. Raises SettingsError."""
    cut = words.index("--") if "--" in words else len(words)
    (count, *drawn), fixed = words[:cut] or [""], words[cut + 1 :]
    seed = drawn.pop(0).removeprefix("seed=") if drawn and drawn[0].startswith("seed=") else "0"
    if not (count.isdecimal() and seed.isdecimal()):
        raise SettingsError("search: must begin with the number of jobs, such as search 20 seed=0")
    flags, texts = drawn[::2], drawn[1::2]
    if not flags or len(flags) != len(texts) or not all(flag.startswith("--") for flag in flags):
        pairs = "pairs of a flag and a range, such as --lr 'log 1e-4 1e-1'"
        raise SettingsError(f"search: expects {pairs}")
    draws = [draw(flag, text) for flag, text in zip(flags, texts, strict=True)]
    for point in points(int(count), int(seed), len(flags)):
        values = [value(u) for value, u in zip(draws, point, strict=True)]
        yield [word for pair in zip(flags, values, strict=True) for word in pair] + fixed
