"""What the processes of a job keep of the test examples, in one file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from labjobs import files
from labjobs.data.batches import Batches
from labjobs.data.order import slice_of
from labjobs.errors import JobError
from labjobs.training.outputs import FILE, LENGTHS, Outputs, Value
from labjobs.training.processes import Processes

Arrays = dict[str, NDArray[Any]]

PLACES = "job.places"
"""Where the examples of a process are in the order of all processes (N,)."""


class SharedOutputs(Outputs):
    """Values of single examples, in the order that one process would have them.

    The files of the other processes lie in `shared` until process 0 has read them.
    """

    def __init__(
        self, folder: Path, device: torch.device, processes: Processes, shared: Path
    ) -> None:
        super().__init__(folder, device)
        self._processes, self._shared = processes, shared
        self._sizes: list[int] = []  # of the batches whose values were added

    def add(self, values: Mapping[str, Value]) -> None:
        """Add all that is kept of a batch, as the values of one process."""
        before = self._examples
        super().add(values)
        self._sizes.append(self._examples - before)

    def save(self) -> list[str]:
        """Have process 0 write the file; returns the names of the files written."""
        while self._copies:
            self._write()
        if not any(self._processes.everyones(bool(self._columns))):
            return []
        arrays, number = self._arrays(), self._processes.rank.number
        if number:
            files.write(self._part(number), lambda file: np.savez(file, **arrays))  # type: ignore
        self._processes.wait()
        if number:
            return []
        others = [self._taken(each) for each in range(1, self._processes.rank.size)]
        whole = in_order([part for part in (arrays, *others) if len(part[PLACES])])
        files.write(self._folder / FILE, lambda file: np.savez_compressed(file, **whole))  # type: ignore
        return [FILE]

    def _arrays(self) -> Arrays:
        """What this process has kept, with the PLACES."""
        source: Batches | None = next(iter(self._sources)) if len(self._sources) == 1 else None
        if not self._columns:
            return {PLACES: np.zeros(0, np.int64)}
        if source is None or not self._are_batches(source):
            raise JobError(
                "job.keep_outputs: several processes need one pass over the test batches, with all "
                "examples of a batch, or none, and all their values in one call"
            )
        own = {name: column.array() for name, column in self._columns.items()}
        places = source.positions[: self._examples]  # tells the order of a few batches, too
        return {PLACES: places.numpy(), **self._index(), **own}

    def _are_batches(self, source: Batches) -> bool:
        """Whether the values are of whole batches, as this process has them, of one pass."""
        size = len(slice_of(source.batch_size, self._processes.rank))
        whole = all(each == size for each in self._sizes[:-1])
        return whole and self._examples <= len(source.positions)

    def _part(self, number: int) -> Path:
        return self._shared / f"predictions.{number}.part"

    def _taken(self, number: int) -> Arrays:
        path = self._part(number)
        with np.load(path) as part:
            arrays = dict(part)
        path.unlink()
        return arrays


def in_order(parts: list[Arrays]) -> Arrays:
    """Return the columns of several processes as one process would have them, by their PLACES."""
    order = np.argsort(np.concatenate([part[PLACES] for part in parts]))
    return {
        name: _ragged(parts, name, order)
        if f"{name}{LENGTHS}" in parts[0]
        else np.concatenate([part[name] for part in parts])[order]
        for name in parts[0]
        if name != PLACES
    }


def _ragged(parts: list[Arrays], name: str, order: NDArray[Any]) -> NDArray[Any]:
    """A column with rows of different lengths, one after another."""
    rows = [
        row
        for part in parts
        for row in np.split(part[name], np.cumsum(part[f"{name}{LENGTHS}"])[:-1])
    ]
    return np.concatenate([rows[place] for place in order])
