"""What a job keeps of each test example, such as the predicted class, in a plain file.

with numpy.load("runs/<job id>/<attempt>/predictions.npz") as kept:
    kept["label"], kept["predicted"]  # (N,) each, in the order of the examples
    kept["index"]                     # (N,), where each example is in its dataset

Batches are copied to the host while the device works on, and from there into temporary files, so
neither holds more than a few of them. Tensors of different lengths, given as a list, are kept one
after another, with their `<name>.lengths` (N,).
"""

import csv
import hashlib
import math
import re
import shutil
from collections import deque
from collections.abc import Mapping, Sequence
from io import BytesIO, StringIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from labjobs import devices, files, layout
from labjobs.data.batches import Batches
from labjobs.data.order import slice_of, underlying
from labjobs.distributed.collectives import Processes
from labjobs.errors import JobError
from labjobs.job.journal import Journal

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
        path = self._folder / layout.PREDICTIONS
        files.write(path, lambda file: np.savez_compressed(file, **arrays))  # type: ignore
        return [layout.PREDICTIONS]

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
    return [(name, torch.cat(parts).detach()), (f"{name}{layout.LENGTHS}", lengths)]


def _examples(values: Mapping[str, Value]) -> int:
    """How many examples the values are of, which is the same for all."""
    lengths = {name: len(value) for name, value in values.items()}
    if len({*lengths.values()}) > 1:
        each = ", ".join(f"{length} of {name}" for name, length in lengths.items())
        raise JobError(f"job.keep_outputs: needs a value for each example, but has {each}")
    return next(iter(lengths.values()), 0)


# Images, texts, tables and files that a loop logs, each a plain file in the job's `logged` folder.
#
# Their names end with the optimizer step. The journal names them, and the courier copies them to
# the job's run.

IN_ROW = 8
"""Images side by side in a grid."""

GAP = 1
"""Black pixels around each image of a grid."""


class Artifacts:
    """Writes the files that a job logs."""

    def __init__(self, folder: Path, journal: Journal) -> None:
        self._folder, self._journal = folder, journal

    def image(self, name: str, step: int, image: Any) -> None:
        """Log an image, (H, W), (C, H, W) or (H, W, C), or several in a grid, (N, C, H, W).

        Pixels are uint8, or floats in [0, 1].
        """
        from PIL import Image

        png = BytesIO()
        Image.fromarray(_pixels(name, image)).save(png, "png")
        self._write(name, step, "png", png.getvalue())

    def text(self, name: str, step: int, text: str) -> None:
        """Log a text."""
        self._write(name, step, "txt", text.encode())

    def table(self, name: str, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log a table, as CSV: a dictionary for each row."""
        text = StringIO()
        columns = list(dict.fromkeys(column for row in rows for column in row))
        writer = csv.DictWriter(text, columns)
        writer.writeheader()
        writer.writerows(rows)
        self._write(name, step, "csv", text.getvalue().encode())

    def file(self, path: Path, step: int) -> None:
        """Log a copy of a file."""
        target = self._target(path.stem, step, path.suffix.removeprefix("."))
        shutil.copy(path, target)
        self._journal.files([f"{layout.LOGGED}/{target.name}"])

    def _write(self, name: str, step: int, kind: str, content: bytes) -> None:
        target = self._target(name, step, kind)
        files.write(target, lambda file: file.write(content))
        self._journal.files([f"{layout.LOGGED}/{target.name}"])

    def _target(self, name: str, step: int, kind: str) -> Path:
        if not re.fullmatch(r"[\w. -]+", name) or name.startswith("."):
            raise JobError(
                f"{name!r} is not a valid file name: use letters, digits, dots and dashes"
            )
        folder = self._folder / layout.LOGGED
        folder.mkdir(exist_ok=True)
        return folder / f"{name}-{step:08d}.{kind}"


def _pixels(name: str, image: Any) -> Any:
    """An image as uint8, (H, W) or (H, W, C)."""
    array = image.detach().float().cpu().numpy() if _is_float(image) else np.asarray(_host(image))
    if array.ndim == 4:
        array = _grid(array)
    if array.ndim == 3 and array.shape[0] in (1, 3, 4) and array.shape[2] not in (3, 4):
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3):
        wanted = "(H, W), (C, H, W) or (N, C, H, W)"
        raise JobError(f"image {name!r}: has the shape {array.shape}, not {wanted}")
    if array.dtype != np.uint8:
        array = (np.clip(array, 0, 1) * 255).round().astype(np.uint8)
    return array


def _grid(images: Any) -> Any:
    """Images (N, C, H, W) in rows of eight: (C, H, W)."""
    count, channels, height, width = images.shape
    columns = min(count, IN_ROW)
    rows = math.ceil(count / columns)
    padded = np.pad(images, ((0, rows * columns - count), (0, 0), (GAP, GAP), (GAP, GAP)))
    height, width = height + 2 * GAP, width + 2 * GAP
    grid = padded.reshape(rows, columns, channels, height, width).transpose(2, 0, 3, 1, 4)
    return grid.reshape(channels, rows * height, columns * width)


def _is_float(image: Any) -> bool:
    return isinstance(image, torch.Tensor) and image.is_floating_point()


def _host(image: Any) -> Any:
    return image.cpu().numpy() if isinstance(image, torch.Tensor) else image


# Records which examples a job trained, validated and tested on, in plain files.
#
# with numpy.load("runs/.splits/<digest>.npz") as kept:
#     kept["train"]  # (N,), indices into the dataset that the part was taken from
#
# `split.json` in the attempt's folder names that file, which jobs with the same split share, and
# has the number of examples in each part.


def save_split(attempt: Path, parts: Mapping[str, Dataset[Any] | None]) -> list[str]:
    """Write down which examples each part has; returns the names of the files written in the
    attempt's folder. Parts that are None, or have no length, are left out."""
    sized = {name: part for name, part in parts.items() if hasattr(part, "__len__")}
    indices = {name: underlying(part)[1].numpy() for name, part in sized.items() if part}
    path = Path(layout.SPLITS, f"{_digest(indices)}.npz")
    shared = attempt.parent.parent / path
    if not shared.exists():
        files.write_shared(shared, lambda file: np.savez_compressed(file, **indices))  # type: ignore
    examples = {name: len(part) for name, part in indices.items()}
    about = {"id": attempt.parent.name, "split": path.as_posix(), "examples": examples}
    files.write_record(attempt / layout.SPLIT, {"schema": 1, **about})
    return [layout.SPLIT]


def _digest(indices: Mapping[str, Any]) -> str:
    found = hashlib.sha256()
    for name, part in sorted(indices.items()):
        found.update(f"{name} {len(part)}\n".encode() + part.tobytes())
    return found.hexdigest()[:16]


# What the processes of a job keep of the test examples, in one file.

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
        path = self._folder / layout.PREDICTIONS
        files.write(path, lambda file: np.savez_compressed(file, **whole))  # type: ignore
        return [layout.PREDICTIONS]

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
        if f"{name}{layout.LENGTHS}" in parts[0]
        else np.concatenate([part[name] for part in parts])[order]
        for name in parts[0]
        if name != PLACES
    }


def _ragged(parts: list[Arrays], name: str, order: NDArray[Any]) -> NDArray[Any]:
    """A column with rows of different lengths, one after another."""
    rows = [
        row
        for part in parts
        for row in np.split(part[name], np.cumsum(part[f"{name}{layout.LENGTHS}"])[:-1])
    ]
    return np.concatenate([rows[place] for place in order])
