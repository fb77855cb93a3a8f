"""Networks divided among the processes of a job (--shard): each holds its part of every weight.

The weights of a block are gathered before it computes and dropped afterwards, in the backward pass
too; gradients are added up there, and each process keeps and updates those of its part. Source:
Zhao et al. 2023, arxiv.org/abs/2304.11277;
docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html.
"""

import hashlib
import pickle
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.optim import SGD, Optimizer

from labjobs import layout
from labjobs.distributed.collectives import Processes, copiers, is_divided, own
from labjobs.errors import JobError, SettingsError, first_line
from labjobs.training.checkpoints import Damaged, sync_folder
from labjobs.training.compilation import blocks
from labjobs.training.optim import Muon

MUON = "--shard: Muon needs whole matrices; choose another --optimizer"


def check(models: Mapping[str, nn.Module], optimizer: str) -> None:
    """Raise SettingsError for a model that cannot be divided, or such an --optimizer."""
    if optimizer == "muon":
        raise SettingsError(MUON)
    for name, model in models.items():
        for weight_name, weight in model.named_parameters():
            if not weight.ndim:
                raise SettingsError(
                    f"--shard: {name}.{weight_name} is a single number, which cannot be divided; "
                    "give it a dimension, torch.zeros(1)"
                )
        if both := _shared_by_blocks(model):
            raise SettingsError(f"--shard: {name}.{both} is shared by a block and another layer")


def divide(model: nn.Module, mesh: DeviceMesh) -> None:
    """Divide a model's weights among the processes of a mesh, and put it on their devices.

    All processes have to have the same weights.
    """
    empty = _without_weights(model, torch.device("meta"))
    _divide(model, mesh)
    copiers[model] = partial(_copied, empty, mesh)


def refuse(parts: Iterable[Any]) -> None:
    """Raise SettingsError for an optimizer that needs whole weights."""
    if any(isinstance(part, Muon) for part in parts):
        raise SettingsError(MUON)


def prepare(optimizer: Optimizer) -> None:
    """Let an optimizer of divided weights load a state that is not divided."""
    optimizer.register_load_state_dict_pre_hook(_divided_optimizer)
    optimizer.register_load_state_dict_post_hook(_not_fused)  # a loaded state may say otherwise
    _not_fused(optimizer)


def _not_fused(optimizer: Optimizer) -> None:
    """Have SGD update by several operations: torch has no single one for divided weights."""
    if isinstance(optimizer, SGD):
        for group in optimizer.param_groups:
            group["fused"] = False


def held(content: Any) -> tuple[int, int]:
    """Return the bytes of the divided tensors in nested values: of this process's part and of all
    processes."""
    found = [each for each in _tensors(content) if is_divided(each)]
    return sum(own(each).nbytes for each in found), sum(each.nbytes for each in found)


def part_of(whole: Tensor, divided: Any) -> Tensor:
    """Return a tensor divided like another one of its shape; each process takes its own part."""
    mesh, placements = divided.device_mesh, divided.placements
    return distribute_tensor(whole.to(divided.device), mesh, placements, src_data_rank=None)


def _divide(model: nn.Module, mesh: DeviceMesh) -> None:
    for part in (*blocks(model), model):
        # The whole network drops its weights too: the EMA's, which has no backward pass, would
        # otherwise keep those of its first evaluation.
        made = fully_shard(part, mesh=mesh, reshard_after_forward=True)
        made.set_gradient_divide_factor(1.0)  # the losses are weighted by their part of the batch
        made.set_force_sum_reduction_for_comms(True)
    model.register_load_state_dict_pre_hook(_divided_weights)


def _without_weights(model: nn.Module, device: torch.device) -> nn.Module:
    """A copy with new weights, whose values are arbitrary."""
    made = {
        id(weight): nn.Parameter(torch.empty_like(weight, device=device), weight.requires_grad)
        for weight in model.parameters()
    }
    return deepcopy(model, made)


def _copied(empty: nn.Module, mesh: DeviceMesh, model: nn.Module) -> nn.Module:
    copy = _without_weights(empty, torch.device("cpu"))  # pages that nobody writes take no memory
    copy.train(model.training)
    _divide(copy, mesh)
    theirs = (*model.parameters(), *model.buffers())
    for mine, other in zip((*copy.parameters(), *copy.buffers()), theirs, strict=True):
        own(mine).copy_(own(other))
    return copy


def _divided_weights(
    model: nn.Module, state: dict[str, Any], prefix: str, *_: object, **__: object
) -> None:
    """Divide the weights in a state that is to be loaded."""
    for name, mine in model.state_dict(prefix=prefix).items():
        if _can_be_divided(state.get(name), mine):
            state[name] = part_of(state[name], mine)


def _divided_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """The state of an optimizer, divided as its weights are."""
    saved = [number for group in state["param_groups"] for number in group["params"]]
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    of = dict(zip(saved, weights, strict=False))  # torch says what does not fit
    return state | {
        "state": {
            number: {
                name: part_of(value, of[number]) if _can_be_divided(value, of[number]) else value
                for name, value in values.items()
            }
            for number, values in state["state"].items()
        }
    }


def _can_be_divided(value: Any, like: Any) -> bool:
    whole = isinstance(value, Tensor) and not is_divided(value)
    return whole and is_divided(like) and value.shape == like.shape


def _shared_by_blocks(model: nn.Module) -> str:
    """The name of a weight that a block has in common with what is outside of it; or empty."""
    found = [*blocks(model)]
    inside = {id(each) for block in found for each in block.modules()}
    outside = [each for each in model.modules() if id(each) not in inside]
    owners: dict[int, int] = {}
    for number, block in enumerate(found):
        for weight in block.parameters():
            if owners.setdefault(id(weight), number) != number:
                return _name(model, weight)
    for layer in outside:
        for weight in layer.parameters(recurse=False):
            if id(weight) in owners:
                return _name(model, weight)
    return ""


def _name(model: nn.Module, weight: Tensor) -> str:
    return next(name for name, each in model.named_parameters() if each is weight)


def _tensors(content: Any) -> Iterator[Tensor]:
    if isinstance(content, Tensor):
        yield content
    elif isinstance(content, dict):
        yield from (found for value in content.values() for found in _tensors(value))
    elif isinstance(content, list | tuple):
        yield from (found for value in content for found in _tensors(value))


# The divided tensors of a checkpoint, written by torch.distributed.checkpoint: each process writes
# its part of them into a folder, `shards.…`.
#
# `last.pt` names the folder, and is written when that is whole; so a checkpoint is whole or absent,
# as ever. It also has the SHA-256 of each file. Any number of processes can read the parts. Source:
# docs.pytorch.org/docs/stable/distributed.checkpoint.html.

FIELD = "shards"
"""The field of a checkpoint that says where its divided tensors are."""

MARK = "job.shard"
"""What stands in the place of a divided tensor."""

Make = Callable[[tuple[int, ...], torch.dtype], Tensor]
"""Makes a tensor to read into, of a shape and a number format."""


def shards_taken_out(content: Any, found: dict[str, Tensor]) -> Any:
    """Return nested values without their divided tensors, which are added to `found`."""
    if is_divided(content):
        name = str(len(found))
        found[name] = content
        return {MARK: name, "shape": tuple(content.shape), "dtype": content.dtype}
    if isinstance(content, dict):
        return {key: shards_taken_out(value, found) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return type(content)(shards_taken_out(value, found) for value in content)
    return content


def save_shards(tensors: dict[str, Tensor], folder: Path, processes: Processes) -> dict[str, Any]:
    """Write divided tensors into a new folder in this one; returns what `filled` needs to find
    them. All processes call it. Raises OSError in all of them if one cannot write."""
    name = processes.tell(f"{layout.SHARDS}{token_hex(4)}")
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


def filled_shards(
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


def clean_shards(folder: Path, keep: set[str]) -> None:
    """Remove the folders of checkpoints that are not to be kept."""
    for path in folder.glob(f"{layout.SHARDS}*"):
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
