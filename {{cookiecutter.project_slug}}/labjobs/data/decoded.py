"""Examples decoded from files, kept on disk: decoding a photograph takes longer than copying it.

A cache is one file in the project's `.cache/images`, or in the folder that IMAGE_CACHE names, which
should be on a local disk. It has a row of bytes for each example and, before the rows, a hash of
each. All jobs of the machine read and fill it.

A row is used if its hash is that of its bytes and of the sizes and times of the files that it was
decoded from. Otherwise, for example if a job was killed while it was writing the row, the example
is decoded again. Nothing is mapped into memory: a mapped page that the disk cannot supply kills the
process.
"""

import os
import shutil
import struct
import sys
import weakref
import zlib
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor

from labjobs.errors import SettingsError
from labjobs.job.contents import of_text
from labjobs.job.terminal import log
from labjobs.paths import PROJECT

HASH = 8
"""Bytes of a row's hash."""

GIB = 64.0
"""Largest size of all caches together, unless IMAGE_CACHE_GIB says otherwise."""


class Decoded:
    """The decoded form of each example: `size` bytes, made from its files. `about` names everything
    else that the bytes depend on, such as the size of images.
    """

    def __init__(self, files: Sequence[Sequence[str]], size: int, about: str) -> None:
        self._files, self._size, self._about = files, size, about

    def get(self, index: int, decode: Callable[[], Tensor]) -> Tensor:
        """Return the bytes (size,) of an example, uint8, from the cache or else decoded."""
        cache, files = self._cache, self._files[index]
        if cache is None or not cache.has_room_for(index):
            return decode()
        known = [os.stat(file) for file in files]
        about = repr([(each.st_size, each.st_ctime_ns) for each in known]).encode()
        found = cache.read(index, about)
        if found is None:
            decoded = decode()
            cache.write(index, decoded.numpy().tobytes(), about)
            return decoded
        for file in files:  # they are the job's data, as if they had been opened
            sys.audit("open", file, "rb", os.O_RDONLY)
        return torch.frombuffer(found, dtype=torch.uint8)

    @cached_property
    def _cache(self) -> "_Cache | None":
        name = of_text("\n".join(["\0".join(each) for each in self._files] + [self._about]))
        return _opened(_folder() / name, len(self._files), self._size)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_cache"}


class _Cache:
    """An open cache of rows of one size."""

    def __init__(self, file: int, size: int) -> None:
        self._file, self._size = file, size
        self._rows = os.fstat(file).st_size // (HASH + size)
        self._writable = True
        weakref.finalize(self, os.close, file)

    def has_room_for(self, index: int) -> bool:
        """Return whether there is a place for a row."""
        return index < self._rows

    def read(self, index: int, about: bytes) -> bytearray | None:
        """Return a row; None if it is missing, incomplete or made from something else."""
        row, wanted = bytearray(self._size), bytearray(HASH)
        try:
            os.preadv(self._file, [wanted], index * HASH)
            if any(wanted):
                os.preadv(self._file, [row], self._place(index))
        except OSError:
            return None
        return row if wanted == _hash(row, about) else None

    def write(self, index: int, row: bytes, about: bytes) -> None:
        """Write a row. If that fails, as on a full disk, nothing more is written."""
        if not self._writable:
            return
        try:
            os.pwrite(self._file, row, self._place(index))
            os.pwrite(self._file, _hash(row, about), index * HASH)
        except OSError as error:
            self._writable = False
            log.warning("decoded images are not kept from now on: %s", error.strerror)

    def _place(self, index: int) -> int:
        return self._rows * HASH + index * self._size


def _folder() -> Path:
    return Path(os.environ.get("IMAGE_CACHE") or PROJECT / ".cache" / "images")


def _opened(path: Path, rows: int, size: int) -> _Cache | None:
    """Open a cache, or make a new one; return None if caches are off or cannot be written."""
    limit = _limit()
    if not limit:
        return None
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            _make(path, rows, size, limit)
        os.utime(path)  # when it was last used
        return _Cache(os.open(path, os.O_RDWR), size)
    except OSError as error:
        log.info("decoded images are not kept: %s", error)
        return None


def _make(path: Path, rows: int, size: int, limit: int) -> None:
    """Make an empty cache; if necessary, remove the least recently used ones.

    It takes no space until it is filled. If another process makes it too, the last one stays.
    """
    row = HASH + size
    others = sorted(path.parent.iterdir(), key=lambda other: other.stat().st_mtime)
    taken = {other: other.stat().st_blocks * 512 for other in others}
    while others and sum(taken.values()) + rows * row > limit:
        taken.pop(others[0])
        others.pop(0).unlink(missing_ok=True)
    free = shutil.disk_usage(path.parent).free // 2
    fitting = min(rows, (limit - sum(taken.values())) // row, free // row)
    if fitting < rows:
        kept = "only %d of %d decoded images fit into %s; IMAGE_CACHE_GIB sets its size"
        log.info(kept, fitting, rows, path.parent)
    part = path.with_name(f"{path.name}.{uuid4().hex}")
    with part.open("xb") as file:
        file.truncate(fitting * row)
    part.replace(path)


def _limit() -> int:
    """Return the bytes of all caches together at most."""
    text = os.environ.get("IMAGE_CACHE_GIB", str(GIB))
    try:
        return int(float(text) * 2**30)
    except ValueError as error:
        raise SettingsError(f"IMAGE_CACHE_GIB={text}: must be a number, 0 for no cache") from error


def _hash(row: bytes | bytearray, about: bytes) -> bytes:
    of_files = zlib.crc32(about)
    return struct.pack("<II", of_files, zlib.crc32(row, of_files))
