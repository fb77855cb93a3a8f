"""The divided tensors of a checkpoint, written by torch.distributed.checkpoint: each process writes
its part of them into a folder, `shards.…`.

`last.pt` names the folder, and is written when that is whole; so a checkpoint is whole or absent,
as ever. It also has the SHA-256 of each file. Any number of processes can read the parts. Source:
docs.pytorch.org/docs/stable/distributed.checkpoint.html.
"""

import hashlib
import pickle
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.state_dict_loader import load

from labjobs.errors import JobError, first_line
from labjobs.job.attempts import SHARDS
from labjobs.training.checkpoints import Damaged, sync_folder
from labjobs.training.divided import is_divided
from labjobs.training.processes import Processes

FIELD = "shards"
"""The field of a checkpoint that says where its divided tensors are."""

MARK = "job.shard"
"""What stands in the place of a divided tensor."""

Make = Callable[[tuple[int, ...], torch.dtype], Tensor]
"""Makes a tensor to read into, of a shape and a number format."""


def taken_out(content: Any, found: dict[str, Tensor]) -> Any:
    """Return nested values without their divided tensors, which are added to `found`."""
    if is_divided(content):
        name = str(len(found))
        found[name] = content
        return {MARK: name, "shape": tuple(content.shape), "dtype": content.dtype}
    if isinstance(content, dict):
        return {key: taken_out(value, found) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return type(content)(taken_out(value, found) for value in content)
    return content


def save(tensors: dict[str, Tensor], folder: Path, processes: Processes) -> dict[str, Any]:
    """Write divided tensors into a new folder in this one; returns what `filled` needs to find
    them. All processes call it. Raises OSError in all of them if one cannot write."""
    name = processes.tell(f"{SHARDS}{token_hex(4)}")
    path = folder / name
    writer = FileSystemWriter(path, single_file_per_rank=True, sync_files=True)
    processes.save(tensors, writer)
    number = processes.rank.number
    mine = [*path.glob(f"__{number}_*"), *([path / ".metadata"] if number == 0 else [])]
    digests = processes.everyones({file.name: _digest(file) for file in mine})
    if number == 0:
        sync_folder(path)
    return {"folder": name, "files": {k: v for found in digests for k, v in found.items()}}


def whole(size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a tensor that is not divided, to read into."""
    return torch.empty(size, dtype=dtype)


def filled(
    content: dict[str, Any], folder: Path, make: Make = whole, check: bool = True
) -> dict[str, Any]:
    """Return a checkpoint with its divided tensors, read from a folder in this one; by default as
    tensors that are not divided.

    Raises Damaged if they are not as they were written.
    """
    record = content.get(FIELD)
    if not record:
        return content
    path = folder / record["folder"]
    if check:
        _check(path, record["files"])
    targets: dict[str, Tensor] = {}
    put_back: dict[str, Any] = _put_back(content, make, targets)
    _read(targets, path)
    return put_back


def clean(folder: Path, keep: set[str]) -> None:
    """Remove the folders of checkpoints that are not to be kept."""
    for path in folder.glob(f"{SHARDS}*"):
        if path.name not in keep:
            shutil.rmtree(path)


def _read(targets: dict[str, Tensor], path: Path) -> None:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*in a single process")  # which is meant
            load(targets, storage_reader=_Reader(path), no_dist=True)
    except CheckpointException as error:
        cause = next((each for each, _ in error.failures.values()), error)
        raise Damaged(f"{path.name} cannot be read ({first_line(cause)})") from error


def _put_back(content: Any, make: Make, targets: dict[str, Tensor]) -> Any:
    if isinstance(content, dict):
        if MARK in content:
            return targets.setdefault(content[MARK], make(content["shape"], content["dtype"]))
        return {key: _put_back(value, make, targets) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return type(content)(_put_back(value, make, targets) for value in content)
    return content


def _check(path: Path, files: dict[str, str]) -> None:
    for name, digest in files.items():
        if not (path / name).exists() or _digest(path / name) != digest:
            raise Damaged(f"{path.name}/{name} is damaged; give the same command again")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


KNOWN = {
    ("torch", "Size"),
    ("torch", "device"),
    ("torch.serialization", "_get_layout"),
    ("pathlib", "PosixPath"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    *(
        ("torch.distributed.checkpoint.metadata", name)
        for name in (
            *("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex"),
            *("StorageMeta", "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
        )
    ),
}
"""What the description of a checkpoint may be made of, besides number formats."""


class _Plain(pickle.Unpickler):
    """Reads a description of tensors, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what a name stands for. Raises JobError for what is no such description."""
        number_format = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if number_format or (module, name) in KNOWN:
            return super().find_class(module, name)
        raise JobError(f"a checkpoint holds more than plain data ({module}.{name}): delete it")


class _Reader(FileSystemReader):
    """torch's reader, which would run whatever code a description names."""

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Return the description of the tensors."""
        with (Path(self.path) / ".metadata").open("rb") as file:
            metadata: Metadata = _Plain(file).load()
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        return metadata
