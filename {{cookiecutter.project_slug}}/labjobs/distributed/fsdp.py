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
from collections.abc import Callable, Iterable, Mapping
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
from torch.distributed.tensor import Shard, distribute_tensor, zeros
from torch.optim import SGD, Optimizer

from labjobs import layout
from labjobs.distributed.collectives import Processes, copiers, is_divided, own
from labjobs.errors import Diverged, JobError, SettingsError, first_line
from labjobs.files import sync_folder
from labjobs.job.journal import Damaged
from labjobs.job.terminal import log

Blocks = Callable[[nn.Module], Iterable[nn.Module]]
"""From a network to its blocks, each of which is gathered by itself."""

MUON = "--shard: Muon needs whole matrices; choose another --optimizer"


def check(name: str, model: nn.Module, blocks: Blocks) -> None:
    """Raise SettingsError for a model that cannot be divided."""
    for weight_name, weight in model.named_parameters():
        if not weight.ndim:
            raise SettingsError(
                f"--shard: {name}.{weight_name} is a single number, which cannot be divided; "
                "give it a dimension, torch.zeros(1)"
            )
    owners: dict[int, nn.Module] = {}
    for block in blocks(model):
        for weight in block.parameters():
            owners.setdefault(id(weight), block)
    inside = {id(module): block for block in blocks(model) for module in block.modules()}
    # A weight that a block shares with what is outside of it would be gathered and dropped twice.
    for module in model.modules():
        for weight in module.parameters(recurse=False):
            if owners.get(id(weight)) is not inside.get(id(module)):
                both = next(each for each, other in model.named_parameters() if other is weight)
                raise SettingsError(
                    f"--shard: {name}.{both} is shared by a block and another layer"
                )


def divide(model: nn.Module, mesh: DeviceMesh, blocks: Blocks) -> None:
    """Divide a model's weights among the processes of a mesh, and put it on their devices.

    All processes have to have the same weights.
    """
    empty = _without_weights(model, torch.device("meta"))
    _divide(model, mesh, blocks)
    copiers[model] = partial(_copied, empty, mesh, blocks)


def prepare(optimizer: Optimizer) -> None:
    """Let an optimizer of divided weights load a state that is not divided. Raises SettingsError
    for one that needs whole weights."""
    if getattr(optimizer, "needs_matrices", False):
        raise SettingsError(MUON)
    optimizer.register_load_state_dict_pre_hook(_divided_optimizer)
    optimizer.register_load_state_dict_post_hook(_not_fused)  # a loaded state may say otherwise
    _not_fused(optimizer)


def _not_fused(optimizer: Optimizer) -> None:
    """Have SGD update by several operations: torch has no single one for divided weights."""
    if isinstance(optimizer, SGD):
        for group in optimizer.param_groups:
            group["fused"] = False


def part_of(whole: Tensor, divided: Any) -> Tensor:
    """Return a tensor divided like another one of its shape; each process takes its own part."""
    mesh, placements = divided.device_mesh, divided.placements
    return distribute_tensor(whole.to(divided.device), mesh, placements, src_data_rank=None)


def _divide(model: nn.Module, mesh: DeviceMesh, blocks: Blocks) -> None:
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


def _copied(empty: nn.Module, mesh: DeviceMesh, blocks: Blocks, model: nn.Module) -> nn.Module:
    copy = _without_weights(empty, torch.device("cpu"))  # pages that nobody writes take no memory
    copy.train(model.training)
    _divide(copy, mesh, blocks)
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

MB = 1e6

Make = Callable[[tuple[int, ...], torch.dtype], Tensor]
"""Makes a tensor to read into, of a shape and a number format."""


class Shards:
    """The divided tensors of a job's checkpoints, in folders in the attempt's `folder`."""

    def __init__(self, folder: Path, processes: Processes, mesh: DeviceMesh) -> None:
        self._folder, self._processes, self._mesh = folder, processes, mesh
        self._kept: list[str] = []
        """The folders of the last two checkpoints."""
        self._held: tuple[int, int] | None = None

    def write(self, parts: dict[str, Any], models: Mapping[str, nn.Module]) -> dict[str, Any]:
        """Write the divided tensors of the parts' states; returns the fields of a checkpoint that
        has the states without them. All processes call it.

        Raises Diverged if the weights of a model are not finite, and OSError in all processes if
        one cannot write.
        """
        for name, model in models.items():
            bad = any(not own(weight).isfinite().all() for weight in model.parameters())
            if self._processes.largest([float(bad)])[0]:
                raise Diverged(f"weights of {name} are no longer finite; lower the learning rate")
        found: dict[str, Tensor] = {}
        plain = _taken_out(parts, found)
        sizes = [(own(each).nbytes, each.nbytes) for each in found.values()]
        self._held = sum(mine for mine, _ in sizes), sum(whole for _, whole in sizes)
        record = self._save(found)
        self._kept = [*self._kept[-1:], record["folder"]]
        return {"parts": plain, FIELD: record}

    def read(self, content: dict[str, Any], check: bool) -> dict[str, Any]:
        """Return a checkpoint with its divided tensors, divided again. Raises Damaged if they are
        not as they were written, as far as that is to be checked."""
        if record := content.get(FIELD):
            self._kept = [record["folder"]]
        return filled(content, self._folder, self._make, check)

    def clean(self, last: int = 2) -> None:
        """Remove the folders of all checkpoints but the last ones."""
        keep = self._kept[-last:]
        for path in self._folder.glob(f"{layout.SHARDS}*"):
            if path.name not in keep:
                shutil.rmtree(path)

    def tell_held(self) -> None:
        """Say in the log how much of the weights and the optimizer's state each process holds. All
        processes call it."""
        everyones = self._processes.everyones(self._held)
        if self._held:
            self._held = None
            parts = ", ".join(f"{mine / MB:.3g}" for mine, _ in everyones)
            whole = everyones[0][1] / MB
            log.info("--shard: of %.3g MB of state the processes hold %s MB", whole, parts)

    def _save(self, tensors: dict[str, Tensor]) -> dict[str, Any]:
        """Write tensors into a new folder; returns what `filled` needs to find them."""
        name = self._processes.tell(f"{layout.SHARDS}{token_hex(4)}")
        path, number = self._folder / name, self._processes.rank.number
        writer = FileSystemWriter(path, single_file_per_rank=True, sync_files=True)
        self._processes.save(tensors, writer)
        mine = [*path.glob(f"__{number}_*"), *([path / ".metadata"] if number == 0 else [])]
        digests = self._processes.everyones({file.name: _digest(file) for file in mine})
        if number == 0:
            sync_folder(path)
        return {"folder": name, "files": {k: v for found in digests for k, v in found.items()}}

    def _make(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        made: Tensor = zeros(*shape, dtype=dtype, device_mesh=self._mesh, placements=[Shard(0)])
        return made


def _whole(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype)


def filled(
    content: dict[str, Any], folder: Path, make: Make = _whole, check: bool = True
) -> dict[str, Any]:
    """Return a checkpoint with its divided tensors, read from a folder in this one; by default as
    tensors that are not divided.

    Raises Damaged if they are not as they were written.
    """
    record = content.get(FIELD)
    if not record:
        return content
    path = folder / record["folder"]
    for name, digest in record["files"].items() if check else ():
        if not (path / name).exists() or _digest(path / name) != digest:
            raise Damaged(f"{path.name}/{name} is damaged; give the same command again")
    targets: dict[str, Tensor] = {}
    put_back: dict[str, Any] = _put_back(content, make, targets)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*in a single process")  # which is meant
            load(targets, storage_reader=_Reader(path), no_dist=True)
    except CheckpointException as error:
        cause = next((each for each, _ in error.failures.values()), error)
        raise Damaged(f"{path.name} cannot be read ({first_line(cause)})") from error
    return put_back


def _taken_out(content: Any, found: dict[str, Tensor]) -> Any:
    """Nested values without their divided tensors, which are added to `found`."""
    if is_divided(content):
        name = str(len(found))
        found[name] = content
        return {MARK: name, "shape": tuple(content.shape), "dtype": content.dtype}
    if isinstance(content, dict):
        return {key: _taken_out(value, found) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return type(content)(_taken_out(value, found) for value in content)
    return content


def _put_back(content: Any, make: Make, targets: dict[str, Tensor]) -> Any:
    if isinstance(content, dict):
        if MARK in content:
            return targets.setdefault(content[MARK], make(content["shape"], content["dtype"]))
        return {key: _put_back(value, make, targets) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return type(content)(_put_back(value, make, targets) for value in content)
    return content


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
