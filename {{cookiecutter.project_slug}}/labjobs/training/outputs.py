"""What a job keeps of each test example, such as the predicted class, in a plain file.

with numpy.load("runs/<job id>/<attempt>/predictions.npz") as kept:
    kept["label"], kept["predicted"]  # (N,) each, in the order of the examples
    kept["index"]                     # (N,), where each example is in its dataset
    kept["group"]                     # (N,), a number for its group, if that was split by groups

Batches are copied to the host while the device works on, and from there into temporary files, so
neither holds more than a few of them. Tensors of different lengths, given as a list, are kept one
after another, with their `<name>.lengths` (N,).
"""

import csv
import hashlib
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO, StringIO
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO
from zipfile import ZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from labjobs import devices, files, layout
from labjobs.data.batches import Batches
from labjobs.data.order import Order, underlying
from labjobs.distributed.collectives import Processes
from labjobs.errors import JobError
from labjobs.job.terminal import log

AHEAD = 8  # largest number of batches on their way to the host; then the oldest is waited for
NUMPY = (torch.float16, torch.float32, torch.float64)  # floating-point formats that NumPy has
Value = Tensor | Sequence[Tensor]  # of a batch: (B, …), or one for each example


Arrays = dict[str, NDArray[Any]]

PLACES = "job.places"  # where the examples of a process are in the order of all processes (N,)


class Outputs:
    """Values of single examples, by name, over many batches, in the order of one process.

    Several processes exchange what they have kept at the end, and process 0 writes the file.
    """

    def __init__(self, folder: Path, device: torch.device, processes: Processes) -> None:
        self._folder, self._device, self._processes = folder, device, processes
        self._sizes: list[int] = []  # examples in each batch
        self._columns: dict[str, _Column] = {}
        self._copies: deque[tuple[Any, dict[str, Tensor]]] = deque()
        self._passes: dict[Batches | None, int] = {}  # of each set of batches that values come from
        self.batch_of: Batches | None = None  # where the next outputs' batch comes from

    def add(self, values: Mapping[str, Value], measured: Mapping[str, Any] = {}) -> None:
        """Add all that is kept of a batch, and what of `measured` has a value (B,) for each of its
        examples. Nothing here waits for the device, unless the copies of AHEAD batches are late.

        Raises JobError for no values, for some of different lengths, or unlike those of earlier
        batches.
        """
        columns = dict(column for each in values.items() for column in _columns(*each))
        tensors = {n: each for n, each in measured.items() if isinstance(each, Tensor)}
        flat = {name: each for name, each in tensors.items() if each.ndim == 1}
        size = _examples(values or flat)
        for name, each in flat.items():
            if len(each) == size:
                columns.setdefault(name, each)
        self._sizes.append(size)
        source, self.batch_of = self.batch_of, None
        number = 0 if source is None else source.passes
        if self._passes.setdefault(source, number) != number:
            line = "a second pass over the same batches, whose examples would be there twice"
            raise JobError(f"job.keep_outputs: {line}; keep all values of an example in one pass")
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
        if not any(self._processes.everyones(bool(self._columns))):
            return []
        arrays, rank = self._index(), self._processes.rank
        arrays |= {name: column.array() for name, column in self._columns.items()}
        if rank.size > 1:
            arrays[PLACES] = self._places()
            every = self._processes.everyones(arrays)
            if rank.number:
                return []
            arrays = in_order([part for part in every if len(part[PLACES])])

        def fill(file: BinaryIO) -> None:
            np.savez_compressed(file, **arrays)  # type: ignore
            file.flush()
            with ZipFile(file.name, "a") as archive:
                archive.comment = self._folder.parent.name.encode()  # the job's id

        files.write(self._folder / layout.PREDICTIONS, fill)
        return [layout.PREDICTIONS]

    @property
    def _order(self) -> Order | None:
        """The order of the batches that all values are of, if they are surely of the same ones."""
        source = next(iter(self._passes)) if len(self._passes) == 1 else None
        return None if source is None else source.order

    def _index(self) -> Arrays:
        """Where the examples are in their dataset, and the groups by which that was split, if all
        are surely of one pass over it."""
        indices = None if self._order is None else self._order.epoch(0)
        if indices is None or len(indices) != sum(self._sizes):
            return {}
        groups = next(each.groups for each in self._passes if each)
        found = {layout.INDEX: indices.numpy()}
        return found if groups is None else {**found, layout.GROUP: groups[found[layout.INDEX]]}

    def _places(self) -> NDArray[Any]:
        """Where the examples of this process are in the order of all, also for a few batches.

        Raises JobError unless they are whole batches of one pass, as this process has them.
        """
        if not self._columns:
            return np.zeros(0, np.int64)
        order, sizes = self._order, self._sizes
        if order is not None and sizes == order.own_sizes(0)[: len(sizes)]:
            return order.positions[: sum(sizes)].numpy()
        raise JobError(
            "job.keep_outputs: several processes need one pass over the test batches, with all "
            "examples of a batch, or none, and all their values in one call"
        )

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
        """Return the array (N, …), which stays on the disk; no rows can be added any longer."""
        shape = (self._length, *self._shape)
        with self._file as file:
            file.flush()
            if 0 in shape:
                return np.zeros(shape, self._dtype)
            return np.memmap(file, self._dtype, "r", shape=shape)


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
    if not lengths:
        line = "nothing has a value for each example; give one, such as label=batch[1]"
        raise JobError(f"job.keep_outputs: {line}")
    if len({*lengths.values()}) > 1:
        each = ", ".join(f"{length} of {name}" for name, length in lengths.items())
        raise JobError(f"job.keep_outputs: needs a value for each example, but has {each}")
    return next(iter(lengths.values()))


def in_order(parts: list[Arrays]) -> Arrays:
    """Return the columns of several processes as one process would have them, by their PLACES."""
    together = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.argsort(together.pop(PLACES))

    def ordered(name: str) -> NDArray[Any]:
        if (lengths := together.get(f"{name}{layout.LENGTHS}")) is None:
            return together[name][order]
        rows = np.split(together[name], np.cumsum(lengths)[:-1])
        return np.concatenate([rows[place] for place in order])

    return {name: ordered(name) for name in together}


# Images, texts, tables and files that a loop logs: plain files, whose names end with the optimizer
# step. The journal names them, and the courier copies them to the job's run.

IN_ROW = 8  # images side by side in a grid
BEYOND = 0.01  # a pixel's value may be beyond 0 and 1 without a remark


def keep_file(folder: Path, name: str, end: str, fill: Callable[[BinaryIO], object]) -> str:
    """Write a file into the folder of logged ones, filled by a function; returns its path.

    Raises JobError for a name that is none of a file's.
    """
    if not re.fullmatch(r"[\w. -]+", name) or name.startswith("."):
        raise JobError(f"{name!r} is not a valid file name: use letters, digits, dots and dashes")
    (folder / layout.LOGGED).mkdir(exist_ok=True)
    path = f"{layout.LOGGED}/{name}-{end}"
    files.write(folder / path, fill)
    return path


def as_csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return a table as CSV: a dictionary for each row."""
    text = StringIO()
    columns = list(dict.fromkeys(column for row in rows for column in row))
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def as_png(name: str, image: Any) -> bytes:
    """Return an image as a PNG file. Raises JobError for a shape that is none of an image's."""
    from PIL import Image
    from torchvision.utils import make_grid  # slow

    pixels = torch.as_tensor(image).detach().cpu()
    if pixels.dtype != torch.uint8:
        if bool(((pixels < -BEYOND) | (pixels > 1 + BEYOND)).any()):
            log.warning("image %s: has pixels outside 0 to 1, which are clipped", name)
        pixels = (pixels.float().clamp(0, 1) * 255).round().to(torch.uint8)
    if pixels.ndim == 4:
        pixels = make_grid(pixels, IN_ROW, padding=1)
    if pixels.ndim == 3 and len(pixels) in (1, 3, 4) and pixels.shape[2] not in (3, 4):
        pixels = pixels.permute(1, 2, 0)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.ndim not in (2, 3):
        wanted = "(H, W), (C, H, W) or (N, C, H, W)"
        raise JobError(f"image {name!r}: has the shape {tuple(pixels.shape)}, not {wanted}")
    png = BytesIO()
    Image.fromarray(pixels.numpy()).save(png, "png")
    return png.getvalue()


# Records which examples a job trained, validated and tested on, in plain files.
#
# with numpy.load("runs/.splits/<digest>.npz") as kept:
#     kept["train"]  # (N,), indices into the dataset that the part was taken from
#
# The attempt's `settings.json` names that file, which jobs with the same split share, and has the
# number of examples in each part.


def save_split(runs: Path, parts: Mapping[str, Dataset[Any] | None]) -> dict[str, Any]:
    """Write down, in a folder of runs, which examples each part has; returns what settings.json
    says of it. Parts that are None, or have no length, are left out. Raises JobError if two of
    `train`, `val` and `test` share examples."""
    sized = {name: part for name, part in parts.items() if hasattr(part, "__len__")}
    found_in = {name: underlying(part) for name, part in sized.items() if len(part)}  # type: ignore
    indices = {name: places.numpy() for name, (_, places) in found_in.items()}
    for one, other in combinations((n for n in ("train", "val", "test") if n in indices), 2):
        same = found_in[one][0] is found_in[other][0]
        if same and (both := np.isin(indices[other], indices[one]).sum()):
            line = f"{one} and {other} share examples ({both:,}): results on them are too good"
            raise JobError(f"job.save_split: {line}")
    found = hashlib.sha256()
    for name, part in sorted(indices.items()):
        found.update(f"{name} {len(part)}\n".encode() + part.tobytes())
    path = Path(layout.SPLITS, f"{found.hexdigest()[:16]}.npz")
    if not (runs / path).exists():
        files.write_shared(runs / path, lambda file: np.savez_compressed(file, **indices))  # type: ignore
    examples = {name: len(part) for name, part in indices.items()}
    return {"split": path.as_posix(), "examples": examples}
