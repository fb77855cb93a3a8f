"""What a job keeps of each test example, such as the predicted class, in a plain file.

with numpy.load("runs/<job id>/<attempt>/predictions.npz") as kept:
    kept["label"], kept["predicted"]  # (N,) each, in the order of the examples
    kept["index"]                     # (N,), where each example is in its dataset

Batches are copied to the host while the device works on, and from there into temporary files, so
neither holds more than a few of them. Tensors of different lengths, given as a list, are kept one
after another, with their `<name>.lengths` (N,).
"""

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labjobs import files
from labjobs.data.batches import Batches
from labjobs.errors import JobError
from labjobs.training import devices

FILE = "predictions.npz"

LENGTHS = ".lengths"
"""Ending of the name of a column that has the lengths of another column's rows."""

AHEAD = 8
"""Largest number of batches on their way to the host; then the oldest is waited for."""

NUMPY = (torch.float16, torch.float32, torch.float64)
"""Floating-point formats that NumPy has."""

Value = Tensor | Sequence[Tensor]
"""Of the examples of a batch: (B, …), or a tensor for each, of different lengths."""


class Outputs:
    """Values of single examples, by name, over many batches."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        self._folder, self._device = folder, device
        self._columns: dict[str, _Column] = {}
        self._copies: deque[tuple[devices.Event, dict[str, Tensor]]] = deque()
        self._examples = 0
        self._sources: set[Batches | None] = set()
        self.batch_of: Batches | None = None
        """Where the batch comes from whose outputs are added next; None if that is not known."""

    def add(self, values: Mapping[str, Value]) -> None:
        """Add all that is kept of a batch. Nothing here waits for the device, unless the copies of
        AHEAD batches are late.

        Raises JobError for values of different lengths, or unlike those of earlier batches.
        """
        columns = dict(column for each in values.items() for column in _columns(*each))
        self._examples += _examples(values)
        self._sources.add(self.batch_of)
        self.batch_of = None
        copies = {name: self._to_host(value) for name, value in columns.items()}
        copied = devices.event(self._device)
        copied.record()
        self._copies.append((copied, copies))
        while self._copies and (len(self._copies) > AHEAD or self._copies[0][0].query()):
            self._write()

    def save(self) -> list[str]:
        """Write the file, whole or not at all; returns the names of the files written."""
        while self._copies:
            self._write()
        if not self._columns:
            return []
        own = {name: column.array() for name, column in self._columns.items()}
        arrays = self._index() | own
        files.write(self._folder / FILE, lambda file: np.savez_compressed(file, **arrays))  # type: ignore
        return [FILE]

    def _index(self) -> dict[str, NDArray[Any]]:
        """Where the examples are in their dataset, if all are surely of one pass over it."""
        source = next(iter(self._sources)) if len(self._sources) == 1 else None
        indices = None if source is None else source.indices
        if indices is None or len(indices) != self._examples:
            return {}
        return {"index": indices.numpy()}

    def _to_host(self, value: Tensor) -> Tensor:
        """A tensor on the host that the value is being copied to."""
        if value.is_floating_point() and value.dtype not in NUMPY:
            value = value.float()
        copy = devices.pinned(value.shape, value.dtype, self._device)
        return copy.copy_(value, non_blocking=devices.runs_ahead(self._device))

    def _write(self) -> None:
        """Write the oldest batch to the temporary files."""
        copied, copies = self._copies.popleft()
        copied.synchronize()
        rows = {name: value.numpy() for name, value in copies.items()}
        if not self._columns:
            self._columns = {name: _Column(self._folder, each) for name, each in rows.items()}
        if rows.keys() != self._columns.keys():
            names = f"{', '.join(rows)}, after {', '.join(self._columns)} of another batch"
            raise JobError(f"job.keep_outputs: {names}; keep the same of each")
        for name, each in rows.items():
            self._columns[name].append(name, each)


class _Column:
    """An array that grows, in a temporary file on the disk of the job's folder."""

    def __init__(self, folder: Path, first: NDArray[Any]) -> None:
        self._file = TemporaryFile(dir=folder)  # noqa: SIM115 # open as long as there is a column
        self._shape, self._dtype = first.shape[1:], first.dtype
        self._length = 0

    def append(self, name: str, rows: NDArray[Any]) -> None:
        """Add rows (B, …). Raises JobError if they are unlike those before."""
        if (rows.shape[1:], rows.dtype) != (self._shape, self._dtype):
            unlike = f"{rows.shape[1:]} {rows.dtype}, after {self._shape} {self._dtype}"
            cure = "if the lengths differ, give a list of tensors"
            raise JobError(f"job.keep_outputs: {name} of an example is {unlike}; {cure}")
        self._file.write(rows.tobytes())
        self._length += len(rows)

    def array(self) -> NDArray[Any]:
        """Return the array (N, …), which stays on the disk."""
        self._file.flush()
        shape = (self._length, *self._shape)
        if 0 in shape:
            return np.zeros(shape, self._dtype)
        return np.memmap(self._file, self._dtype, "r", shape=shape)


def _columns(name: str, value: Value) -> list[tuple[str, Tensor]]:
    """The tensors that are kept for a value, by name."""
    parts: list[Any] = [*value] if isinstance(value, list | tuple) else [value]
    if not parts or not all(isinstance(part, Tensor) and part.ndim for part in parts):
        wanted = "must be a tensor (B, …), or a list with a tensor (L, …) for each example"
        raise JobError(f"job.keep_outputs: {name} {wanted}")
    if isinstance(value, Tensor):
        return [(name, value.detach())]
    lengths = torch.tensor([len(part) for part in parts])
    return [(name, torch.cat(parts).detach()), (f"{name}{LENGTHS}", lengths)]


def _examples(values: Mapping[str, Value]) -> int:
    """How many examples the values are of, which is the same for all."""
    lengths = {name: len(value) for name, value in values.items()}
    if len({*lengths.values()}) > 1:
        each = ", ".join(f"{length} of {name}" for name, length in lengths.items())
        raise JobError(f"job.keep_outputs: needs a value for each example, but has {each}")
    return next(iter(lengths.values()), 0)
