"""Jobs that follow from the results of others, for run.sh's `propose` and `breed`:

    propose tuned 8 x 5 --lr 'log 1e-4 1e-1' --width 'logint 16 512' -- --epochs 30
    propose other 8 x 5 seed=1 with=tpe --lr 'log 1e-4 1e-1'
    breed family 8 x 5 x 4e --lr 'log 1e-4 1e-1' -- --schedule constant

are five generations of eight jobs each. The first is drawn as by `search`. Each later one follows
from the declaration and the results of those before it (labjobs.commands.propose); those of `breed`
go on from the ends of others, four epochs each. What was proposed is in `searches/tuned.txt`, which
is meant to be committed: its jobs are then the same for everybody, as if they stood in the grid.
"""

import hashlib
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from labjobs import layout
from labjobs.cli.flags import option
from labjobs.cli.ranges import Range
from labjobs.errors import SettingsError, did_you_mean
from labjobs.files import PROJECT, shown, write_shared
from labjobs.job.runtime import LENGTHS
from labjobs.settings import HELD_OUT, Span
from labjobs.sweeps import search

SAMPLERS = ("tpe", "gp", "cmaes")  # what `with=` can name: samplers of Optuna

FORMS = {
    "propose": "propose NAME 8 x 5 --lr 'log 1e-4 1e-1' -- --epochs 30",
    "breed": "breed NAME 8 x 5 x 4e --lr 'log 1e-4 1e-1' -- --schedule constant",
}

INIT_FROM = "--init-from"
TAKEN = (*map(option, LENGTHS), INIT_FROM)  # flags that `breed` gives its jobs itself

STATE = ("--dataset", "--batch-size", "--model", *map(option, HELD_OUT))
"""Flags that `breed` cannot draw, since its jobs go on from the states of others."""


class Generation(NamedTuple):
    """The arguments of its jobs, and the digest of the results that it follows from."""

    jobs: list[list[str]]
    basis: str = ""


@dataclass(frozen=True)
class Proposals:
    """A line of a grid: its `words`; the first two of them, as in `propose tuned` (`line`), and the
    second; the number of `generations`, the number of jobs in each, `count`, and the `length` of
    training in one of `breed`."""

    words: list[str]
    line: str
    name: str
    count: int
    generations: int
    length: Span | None
    seed: str
    sampler: str
    ranges: list[Range]
    fixed: list[str]

    def same(self, generation: int) -> list[str]:
        """Return the arguments that all jobs of a generation have, the first being 1."""
        if not self.length:
            return self.fixed
        unit = "--epochs" if self.length.endswith("e") else "--steps"
        return [*self.fixed, f"{unit}={int(self.length.number) * generation}"]

    @property
    def path(self) -> Path:
        """The file with what was proposed."""
        return PROJECT / layout.SEARCHES / f"{self.name}.txt"

    def known(self) -> list[Generation]:
        """Return the generations that are written down, or the first if there is no file. Raises
        SettingsError if the file is of another declaration, or was edited."""
        if not self.path.exists():
            drawn = search.draws(self.count, self.seed, self.ranges, self.same(1))
            return [Generation([job for job, _ in drawn])]
        text, found = self.path.read_text("utf-8", "replace"), list[Generation]()
        with suppress(ValueError):  # as in a merge that was not finished
            for line in text.splitlines()[1:]:
                if line.startswith("# generation"):
                    found.append(Generation([], line.partition("from results ")[2]))
                elif found:
                    found[-1].jobs.append(shlex.split(line))
        if not text.startswith(self._text([])):
            line = f"is of another {self.words[0]} line; give this one another name"
            raise SettingsError(f"{self.line}: {shown(self.path)} {line}, or remove the file")
        whole = all(len(each.jobs) == self.count for each in found)
        if text != self._text(found) or not whole or not found:
            line = "was edited or merged; restore it from version control"
            raise SettingsError(f"{self.line}: {shown(self.path)} {line}")
        return found[: self.generations]

    def write(self, generations: Sequence[Generation]) -> None:
        """Write generations down. Raises OSError."""
        text = self._text(generations).encode()
        write_shared(self.path, lambda file: file.write(text))

    def _text(self, generations: Sequence[Generation]) -> str:
        """The content of the file. The digest of a generation is over all that is above it too."""
        # Without the number of generations, so that more can be added.
        text = f"# {self.line} {self.count} x … {shlex.join(self.words[5:])}\n"
        for number, (jobs, basis) in enumerate(generations, 1):
            lines = "".join(f"{shlex.join(job)}\n" for job in jobs)
            jobs_digest = digest(text + lines)
            source = f", from results {basis}" if basis else ""
            text += f"# generation {number}, jobs {jobs_digest}{source}\n{lines}"
        return text

    def jobs(self) -> Iterator[tuple[list[str], dict[str, Any]]]:
        """Yield the jobs that are known: their arguments, and how they were proposed."""
        ranges = search.texts(self.ranges)
        about = {"proposal": self.name, "seed": int(self.seed), "ranges": ranges}
        about |= {"length": self.length} if self.length else {}
        for number, generation in enumerate(self.known()):
            for index, job in enumerate(generation.jobs, number * self.count):
                yield job, {**about, "generation": number + 1, "index": index}


def read(words: list[str]) -> Proposals:
    """Return what a line says. Raises SettingsError."""
    cut = words.index("--") if "--" in words else len(words)
    each, options = "", {"seed": "0"}
    match words[:cut]:
        case ["propose", name, count, "x", generations, *rest]:
            options["with"] = ""
        case ["breed", name, count, "x", generations, "x", each, *rest]:
            pass
        case _:
            name, count, generations, rest = "", "", "", []
    while rest and rest[0].partition("=")[0] in options:
        key, _, options[key] = rest.pop(0).partition("=")
    numbers = (count, generations, each.removesuffix("e") or "1")
    whole = all(number.isdecimal() and int(number) for number in numbers)
    if not (name.isidentifier() and whole and int(count) > 1 and options["seed"].isdecimal()):
        raise SettingsError(f"{words[0]}: must look like {FORMS[words[0]]}")
    length, sampler = Span(each) if each else None, options.get("with", "")
    line, fixed = f"{words[0]} {name}", words[cut + 1 :]
    try:
        ranges = search.ranges(rest, fixed)
    except SettingsError as error:
        raise SettingsError(f"{line}: {str(error).removeprefix('search: ')}") from None
    own = (int(count), int(generations), length, options["seed"], sampler)
    found = Proposals(words, line, name, *own, ranges, fixed)
    _check(found)
    return found


def _check(asked: Proposals) -> None:
    """Raise SettingsError for what its ranges, or Optuna if that is missing, do not allow."""
    line, drawn = asked.line, [each.flag for each in asked.ranges]
    given = [*drawn, *search.flags(asked.fixed)]
    for flag in filter(TAKEN.__contains__, given if asked.length else ()):
        raise SettingsError(f"{line}: {flag}: is set for each generation, by {asked.length}")
    for flag in filter(STATE.__contains__, drawn if asked.length else ()):
        raise SettingsError(f"{line}: {flag}: cannot be drawn; give one value, after --")
    sampler = asked.sampler
    if sampler and sampler not in SAMPLERS:
        raise SettingsError(f"{line}: with={sampler}: {did_you_mean(sampler, SAMPLERS)}")
    if sampler == "cmaes" and any(each.choices or each.condition for each in asked.ranges):
        cure = "takes neither choices nor conditions; with=tpe does"
        raise SettingsError(f"{line}: with=cmaes: {cure}")
    packages = ["optuna", *["cmaes"] * (sampler == "cmaes")] if sampler else []
    if not all(map(find_spec, packages)) and len(asked.known()) < asked.generations:
        cure = "uv sync --group search, or pip install --group search"
        raise SettingsError(f"{line}: with={sampler} needs Optuna: {cure}")


def digest(text: str) -> str:
    """Return a digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
