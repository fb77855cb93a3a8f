"""Settings that are proposed from the results of others, for run.sh's `propose`:

    propose tuned 8 x 5 --lr 'log 1e-4 1e-1' --width 'logint 16 512' -- --epochs 30
    propose other 8 x 5 seed=1 with=tpe --lr 'log 1e-4 1e-1'

are five generations of eight jobs each. The first is drawn as by `search`. Each later one follows
from the declaration and the results of those before it (labjobs.commands.propose). What was
proposed is in `searches/tuned.txt`, which is meant to be committed: its jobs are then the same for
everybody, as if they stood in the grid.
"""

import hashlib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from labjobs import layout
from labjobs.cli.ranges import Range
from labjobs.errors import SettingsError, did_you_mean
from labjobs.files import PROJECT, shown, write_shared
from labjobs.sweeps import search

SAMPLERS = ("tpe", "gp", "cmaes")
"""What `with=` can name: samplers of Optuna."""

FORM = "must look like propose NAME 8 x 5 --lr 'log 1e-4 1e-1' -- --epochs 30"

DIGITS = 12  # of the digests in a file


class Generation(NamedTuple):
    """The arguments of its jobs, and the digest of the results that it follows from."""

    jobs: list[list[str]]
    basis: str = ""


@dataclass(frozen=True)
class Proposals:
    """A line `propose` of a grid: its `words`, the number of `generations`, and the number of jobs
    in each, `count`."""

    words: list[str]
    name: str
    count: int
    generations: int
    seed: str
    sampler: str
    ranges: list[Range]
    fixed: list[str]

    @property
    def path(self) -> Path:
        """The file with what was proposed."""
        return PROJECT / layout.SEARCHES / f"{self.name}.txt"

    def known(self) -> list[Generation]:
        """Return the generations that are written down, or the first if there is no file. Raises
        SettingsError if the file is of another declaration, or was edited."""
        if not self.path.exists():
            drawn = search.draws(self.count, self.seed, self.ranges, self.fixed)
            return [Generation([job for job, _ in drawn])]
        text, found = self.path.read_text("utf-8", "replace"), list[Generation]()
        for line in text.splitlines()[1:]:
            if line.startswith("# generation"):
                found.append(Generation([], line.partition("from results ")[2]))
            elif found:
                found[-1].jobs.append(_split(line))
        if not text.startswith(self._text([])):
            line = "is of another propose line; give this one another name, or remove the file"
            raise SettingsError(f"propose {self.name}: {shown(self.path)} {line}")
        whole = all(len(each.jobs) == self.count for each in found)
        if text != self._text(found) or not whole or not found:
            line = "was edited or merged; restore it from version control"
            raise SettingsError(f"propose {self.name}: {shown(self.path)} {line}")
        return found[: self.generations]

    def write(self, generations: Sequence[Generation]) -> None:
        """Write generations down. Raises OSError."""
        text = self._text(generations).encode()
        write_shared(self.path, lambda file: file.write(text))

    def _text(self, generations: Sequence[Generation]) -> str:
        """The content of the file. The digest of a generation is over all that is above it too."""
        # Without the number of generations, so that more can be added.
        text = f"# propose {self.name} {self.count} x … {shlex.join(self.words[4:])}\n"
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
        for number, generation in enumerate(self.known()):
            for index, job in enumerate(generation.jobs, number * self.count):
                yield job, {**about, "generation": number + 1, "index": index}


def read(words: list[str]) -> Proposals:
    """Return what a line `propose` says. Raises SettingsError."""
    cut = words.index("--") if "--" in words else len(words)
    match words[:cut]:
        case [name, count, "x", generations, *rest] if name.isidentifier():
            pass
        case _:
            raise SettingsError(f"propose: {FORM}")
    options = {"seed": "0", "with": ""}
    while rest and rest[0].partition("=")[0] in options:
        option, _, options[option] = rest.pop(0).partition("=")
    numbers = (count, generations, options["seed"])
    if not (all(map(str.isdecimal, numbers)) and int(count) > 1 and int(generations)):
        raise SettingsError(f"propose {name}: {FORM}")
    if (sampler := options["with"]) and sampler not in SAMPLERS:
        raise SettingsError(f"propose {name}: with={sampler}: {did_you_mean(sampler, SAMPLERS)}")
    fixed = words[cut + 1 :]
    try:
        ranges = search.ranges(rest, fixed)
    except SettingsError as error:
        raise SettingsError(f"propose {name}: {str(error).removeprefix('search: ')}") from None
    if sampler == "cmaes" and any(each.choices or each.condition for each in ranges):
        line = "takes neither choices nor conditions; with=tpe does"
        raise SettingsError(f"propose {name}: with=cmaes: {line}")
    each = (int(count), int(generations), options["seed"], sampler)
    found = Proposals(words, name, *each, ranges, fixed)
    packages = ["optuna", *["cmaes"] * (sampler == "cmaes")] if sampler else []
    if not all(map(find_spec, packages)) and len(found.known()) < found.generations:
        cure = "uv sync --group search, or pip install --group search"
        raise SettingsError(f"propose {name}: with={sampler} needs Optuna: {cure}")
    return found


def digest(text: str) -> str:
    """Return a digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # as in a merge that was not finished
        return [line]
