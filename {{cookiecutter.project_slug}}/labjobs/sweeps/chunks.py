"""The jobs submitted to Slurm, in chunks. A task of an array runs the jobs of one chunk, in order.

They are written to `chunks.json` in the sweep's folder.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from labjobs import files

FILE = "chunks.json"

Inputs = Sequence[int | str]
"""What a job waits for: indices of jobs, from 0, and tasks that are already in Slurm's queue."""


class Given(NamedTuple):
    """A job submitted to Slurm: its id, its attempt's folder, and its words, the script first."""

    id: str
    folder: str
    words: list[str]


class Chunk(NamedTuple):
    """The jobs of one task, and what they wait for: earlier chunks, and tasks in Slurm's queue."""

    jobs: list[Given]
    waits: Inputs


def divide(jobs: Sequence[Given], inputs: Sequence[Inputs], most: int) -> list[Chunk]:
    """Return the jobs in chunks of `most` or fewer, each after the chunks that it waits for. A job
    comes after its inputs. Jobs share a chunk if they wait for the same chunks, so that no job
    waits for more than its inputs and the jobs that run with them; and they join these inputs if
    there is space for all of them.
    """
    chunks: list[Chunk] = []
    home: dict[int | str, int | str] = {}
    for level in _levels(inputs):
        alike: dict[frozenset[int | str], list[int]] = {}
        for place in level:
            waits = frozenset(home.get(each, each) for each in inputs[place])
            alike.setdefault(waits, []).append(place)
        for waits, places in alike.items():
            joined = _with_space(chunks, waits, most - len(places))
            if joined is None:
                several = [places[n : n + most] for n in range(0, len(places), most)]
                first = len(chunks)
                chunks += [Chunk([], sorted(waits, key=str)) for _ in several]
            else:
                several, first = [places], joined
            for chunk, own in enumerate(several, first):
                chunks[chunk].jobs.extend(jobs[place] for place in own)
                home |= dict.fromkeys(own, chunk)
    return chunks


def _levels(inputs: Sequence[Inputs]) -> Iterator[list[int]]:
    """The indices of the jobs by level: those without inputs, then those whose inputs are at
    earlier levels, and so on."""
    depths: list[int] = []
    for each in inputs:
        depths.append(1 + max((depths[i] for i in each if isinstance(i, int)), default=-1))
    for _, level in groupby(range(len(inputs)), depths.__getitem__):
        yield [*level]


def _with_space(chunks: Sequence[Chunk], waits: frozenset[int | str], full: int) -> int | None:
    """The only chunk that is waited for, if there is just one and it has at most `full` jobs."""
    match [*waits]:
        case [int(chunk)] if len(chunks[chunk].jobs) <= full:
            return chunk
    return None


def write(folder: Path, chunks: Sequence[Chunk], since: int) -> None:
    """Write down the jobs of each chunk, and when they were checked, in ns."""
    files.write_json(folder / FILE, {"since": since, "chunks": [chunk.jobs for chunk in chunks]})


def read(folder: Path) -> tuple[list[list[Given]], int]:
    """Return the jobs of each chunk, and when they were checked, in ns: anything written before
    that time belongs to an earlier sweep. Raises FileNotFoundError for a sweep whose folder was
    removed."""
    found = json.loads((folder / FILE).read_bytes())
    return [[Given(*job) for job in jobs] for jobs in found["chunks"]], found["since"]
