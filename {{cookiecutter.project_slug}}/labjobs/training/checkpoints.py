"""Checkpoints on disk: a whole file or none, sealed, with nothing but data in it.

A checkpoint is what `torch.save` writes, and `torch.load` opens it. It is a zip archive; its
comment, at the file's end, is the seal: the SHA-256 of all before it. torch checks no checksum of
its own, so without a seal a flipped bit would be a changed weight.
"""

import hashlib
import os
import pickle
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labjobs import devices
from labjobs.distributed.collectives import gathered, is_divided
from labjobs.errors import Diverged, JobError
from labjobs.files import shown, sync_folder
from labjobs.job.journal import Damaged

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
        """Return a copy of a part of the content."""
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

    Raises Damaged for a file that is not whole or of another job, JobError for one that holds code.
    """
    _check_seal(path)
    content = _opened(path, map_location=device)
    if content.get("id", own := path.parent.parent.name) != own:
        raise Damaged(f"{path.name} is of another job")
    return content


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
        self._tasks: deque[Future[None]] = deque()

    def check(self) -> None:
        """Raise what a write raised."""
        while self._tasks and self._tasks[0].done():
            self._tasks.popleft().result()

    def act(self, task: Callable[[], None]) -> Future[None]:
        """Queue something to be done after what is being written."""
        self._tasks.append(self._thread.submit(task))
        return self._tasks[-1]

    def write(
        self,
        path: Path,
        content: dict[str, Any],
        models: Mapping[str, Mapping[str, Any]],
        previous: Path | None = None,
    ) -> Future[None]:
        """Have a checkpoint written; see `checkpoints.save`.

        If the weights of one of the `models` in it are not finite, nothing is written, and the next
        call raises Diverged.
        """
        self.check()
        self._waiting[path] = content, models, previous
        return self.act(partial(self._write_newest, path))

    def close(self) -> None:
        """Return once everything is written. Raises what a write raised."""
        self._thread.shutdown()
        self.check()

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


def _finite(weight: Any) -> bool:
    """By NumPy: torch would start threads for it beside those that train, and GNU's OpenMP lets all
    threads wait in a slower way once they are more than the cores (GOMP_SPINCOUNT)."""
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        return True
    return bool(np.isfinite(weight.float().numpy(force=True)).all())
