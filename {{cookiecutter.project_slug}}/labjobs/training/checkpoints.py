"""Checkpoints on disk: a whole file or none, sealed, with nothing but data in it.

A checkpoint is what `torch.save` writes, and `torch.load` opens it. It is a zip archive; its
comment, at the file's end, is the seal: the SHA-256 of all before it. torch checks no checksum of
its own, so without a seal a flipped bit would be a changed weight.
"""

import hashlib
import os
import pickle
import shutil
from collections.abc import Callable, Mapping
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labjobs import devices, layout
from labjobs.distributed.collectives import Processes, gathered, is_divided, own
from labjobs.errors import Diverged, JobError, cause
from labjobs.files import shown, sync_folder
from labjobs.job.journal import Damaged
from labjobs.job.terminal import log

MARK = b"sha256:"
SEAL = len(MARK) + 64
"""Bytes of a seal."""

PLAIN = (str, bytes, bool, int, float, complex, type(None), torch.dtype, torch.device)
"""What torch.load reads with `weights_only`, besides tensors and containers of all these."""


def on_host(content: Any) -> Any:
    """Return a copy of nested values with every tensor in the host's memory, where any machine can
    open it, so that training can go on while it is written. NumPy's numbers become Python's.

    A device that runs ahead copies all tensors into pinned memory, and is waited for once. Tensors
    that are divided among processes are whole in process 0, and empty in the others.
    """
    ahead: set[torch.device] = set()

    def copied(content: Any) -> Any:
        if isinstance(content, dict):
            return {key: copied(value) for key, value in content.items()}
        if isinstance(content, list | tuple | set):
            return type(content)(copied(value) for value in content)
        if not isinstance(content, Tensor):
            return content.item() if isinstance(content, np.generic) else content
        if is_divided(content):
            content = gathered(content)
        non_blocking = devices.runs_ahead(content.device)  # torch then pins the memory
        if non_blocking:
            ahead.add(content.device)
        return content.detach().to("cpu", copy=True, non_blocking=non_blocking)

    copy = copied(content)
    for device in ahead:
        devices.wait_for_stream(device)
    return copy


def check_plain(content: Any) -> None:
    """Raise TypeError if nested values hold what could be written, but not be read again."""
    if isinstance(content, dict):
        check_plain([*content.keys(), *content.values()])
    elif type(content) in (list, tuple, set, torch.Size):
        for value in content:
            check_plain(value)
    elif type(content) not in PLAIN and not isinstance(content, Tensor | np.generic):
        raise TypeError(f"a {type(content).__name__}")


def save(path: Path, content: dict[str, Any], previous: Path | None = None) -> None:
    """Write tensors and plain values: beside the file, onto the disk, then renamed over it.

    The file that was there is kept under the name `previous`. Raises OSError, and leaves what was
    there, if it cannot be written.
    """
    beside = path.with_suffix(".part")
    try:
        _write(beside, content)
        if previous and path.exists():
            path.replace(previous)
        beside.replace(path)
        sync_folder(path.parent)
    except BaseException as error:
        beside.unlink(missing_ok=True)
        if isinstance(error.__context__, OSError):  # torch hides it behind an error of its own
            raise error.__context__ from None
        raise


def load(path: Path, device: torch.device) -> dict[str, Any]:
    """Read what `save` wrote.

    Raises Damaged for a file that is not whole, and JobError for one that holds code.
    """
    _check_seal(path)
    return _opened(path, map_location=device)


def mapped(path: Path) -> dict[str, Any]:
    """Return what `load` returns, on the CPU; but a tensor is read when it is used. The file is not
    checked. Raises JobError for one that holds code."""
    return _opened(path, map_location="cpu", mmap=True)


def _opened(path: Path, **how: Any) -> dict[str, Any]:
    try:
        content: dict[str, Any] = torch.load(path, weights_only=True, **how)
    except pickle.UnpicklingError as error:
        raise JobError(
            f"{shown(path)} holds more than plain data and was not opened: delete it"
        ) from error
    return content


def _write(path: Path, content: dict[str, Any]) -> None:
    path.unlink(missing_ok=True)  # what a killed process left
    with path.open("x+b") as file:
        torch.save(content, file)
        file.seek(-2, os.SEEK_END)  # an archive ends with the length of its comment
        file.write(SEAL.to_bytes(2, "little"))
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.write(MARK + digest.encode())
        file.flush()
        os.fsync(file.fileno())


def _check_seal(path: Path) -> None:
    left = path.stat().st_size - SEAL
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            digest.update(block)
            left -= len(block)
        if file.read() != MARK + digest.hexdigest().encode():
            raise Damaged(f"{path.name} is damaged; give the same command again")


# A thread that writes checkpoints while training goes on.


class Writer:
    """Writes checkpoints in order; of those that wait for one file, only the newest."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._waiting: dict[Path, tuple[Any, ...]] = {}
        self._tasks: list[Future[None]] = []

    @property
    def idle(self) -> bool:
        """Whether everything is written. Raises what a write raised."""
        self._raise_failures()
        return not self._tasks

    def act(self, task: Callable[[], None]) -> None:
        """Queue something to be done after what is being written."""
        self._tasks.append(self._thread.submit(task))

    def write(
        self,
        path: Path,
        content: dict[str, Any],
        models: Mapping[str, Mapping[str, Any]],
        previous: Path | None = None,
    ) -> None:
        """Have a checkpoint written; see `checkpoints.save`.

        If the weights of one of the `models` in it are not finite, nothing is written, and the next
        call raises Diverged.
        """
        self._raise_failures()
        self._waiting[path] = content, models, previous
        self.act(partial(self._write_newest, path))

    def wait(self) -> None:
        """Return once everything so far is written. Raises what a write raised."""
        futures.wait(self._tasks)
        self._raise_failures()

    def close(self) -> None:
        """Return once everything is written. Raises what a write raised."""
        self._thread.shutdown()
        self._raise_failures()

    def _write_newest(self, path: Path) -> None:
        if path not in self._waiting:
            return
        content, models, previous = self._waiting.pop(path)
        for model, weights in models.items():
            if bad := [name for name, weight in weights.items() if not _finite(weight)]:
                raise Diverged(
                    f"weights of {model} are no longer finite ({bad[0]}); lower the learning rate"
                )
        save(path, content, previous)

    def _raise_failures(self) -> None:
        done = [task for task in self._tasks if task.done()]
        self._tasks = [task for task in self._tasks if not task.done()]
        for task in done:
            task.result()


def _finite(weight: Any) -> bool:
    """By NumPy: torch would start threads for it beside those that train, and GNU's OpenMP lets all
    threads wait in a slower way once they are more than the cores (GOMP_SPINCOUNT)."""
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        return True
    return bool(np.isfinite(weight.float().numpy(force=True)).all())


# The divided tensors of a checkpoint (--shard): each process writes its parts of them into a file
# of its own, in a folder `shards.…`. `last.pt` names the folder, and is written when that is whole;
# so a checkpoint is whole or absent, as ever. Any number of processes can read the parts.

FIELD = "shards"
"""The field of a checkpoint that says where its divided tensors are."""

PART = "job.shard"
"""What stands in the place of a divided tensor: its number."""

MB = 1e6


class Shards:
    """The divided tensors of a job's checkpoints, in folders in the attempt's `folder`."""

    def __init__(self, folder: Path, processes: Processes, mesh: Any) -> None:
        self._folder, self._processes, self._mesh = folder, processes, mesh
        self._kept: list[str] = []
        """The folders of the last checkpoints."""
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
        found: dict[str, Any] = {}
        plain = _taken_out(parts, found)
        mine = on_host({name: own(each) for name, each in found.items()})
        self._held = sum(e.nbytes for e in mine.values()), sum(e.nbytes for e in found.values())
        name, rank = self._processes.tell(f"{layout.SHARDS}{token_hex(4)}"), self._processes.rank
        failure = ""
        try:
            (self._folder / name).mkdir(exist_ok=True)
            save(_shard(self._folder / name, rank.number), mine)
        except OSError as error:
            failure = cause(error)
        if failure := next(filter(None, self._processes.everyones(failure)), ""):
            raise OSError(f"a checkpoint could not be written: {failure}")
        self._kept = [*self._kept[-1:], name]
        return {"parts": plain, FIELD: {"folder": name, "files": rank.size}}

    def read(self, content: dict[str, Any], check: bool) -> dict[str, Any]:
        """Return a checkpoint with its divided tensors, divided again. Raises Damaged if they are
        not as they were written, as far as that is to be checked."""
        if FIELD in content:
            self._kept = [content[FIELD]["folder"]]
        return filled(content, self._folder, self._divided, check)

    def clean(self, last: int = 2) -> None:
        """Remove the folders of all checkpoints but the last ones."""
        for path in self._folder.glob(f"{layout.SHARDS}*"):
            if path.name not in self._kept[-last:]:
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

    def _divided(self, whole: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor, Shard  # slow

        rank, mesh = self._processes.rank, self._mesh
        rows = -(-len(whole) // rank.size)  # as torch divides weights
        mine = whole[rank.number * rows :][:rows].to(mesh.device_type, copy=True)
        made: Tensor = DTensor.from_local(
            mine, mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride()
        )
        return made


def filled(
    content: dict[str, Any],
    folder: Path,
    divided: Callable[[Tensor], Tensor] | None = None,
    check: bool = True,
) -> dict[str, Any]:
    """Return a checkpoint with its divided tensors, read from a folder in this one: whole, or as a
    function divides them. Raises Damaged if they are not as they were written."""
    if FIELD not in content:
        return content
    record = content[FIELD]
    paths = [_shard(folder / record["folder"], number) for number in range(record["files"])]
    for path in paths:
        if not path.exists():
            raise Damaged(f"{path.parent.name}/{path.name} is missing")
        if check:
            _check_seal(path)
    parts = [mapped(path) for path in paths]

    def put_back(content: Any) -> Any:
        if isinstance(content, dict) and PART in content:
            whole = torch.cat([part[content[PART]] for part in parts])
            return divided(whole) if divided else whole
        if isinstance(content, dict):
            return {key: put_back(value) for key, value in content.items()}
        if isinstance(content, list | tuple):
            return type(content)(put_back(value) for value in content)
        return content

    made: dict[str, Any] = put_back(content)
    return made


def _shard(folder: Path, number: int) -> Path:
    return folder / f"{number}.pt"


def _taken_out(content: Any, found: dict[str, Any]) -> Any:
    """Nested values without their divided tensors, which are added to `found`."""
    if is_divided(content):
        found[name := str(len(found))] = content
        return {PART: name}
    if isinstance(content, dict):
        return {key: _taken_out(value, found) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return type(content)(_taken_out(value, found) for value in content)
    return content
