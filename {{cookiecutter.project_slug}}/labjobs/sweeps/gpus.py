"""Takes a GPU for a job, so that no other sweep, of any user, runs a job there.

The job inherits the locks, so they are held until the job itself ends, whatever happens to run.sh.
A process that does not use these locks is noticed by the memory that it uses on the GPU. Source:
man7.org/linux/man-pages/man2/flock.2.html.
"""

import fcntl
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from labjobs import locks
from labjobs.sweeps.slots import Slot, nvidia_smi

LOOK = 2.0
"""Seconds between two calls of nvidia-smi."""


class Gpu:
    """The GPU of a slot, or the CPU, which needs no lock. `shared` says whether other jobs share
    the GPU. `files` are the locks while it is held; `why` says why it is not available.
    """

    def __init__(self, slot: Slot, shared: bool) -> None:
        self.device = slot.device
        self.files: list[int] = []
        self.why = ""
        self._paths = [Path(f"{slot.lock}.0"), Path(f"{slot.lock}.{slot.place}")]
        self._lock, self._shared = slot.lock, shared
        self._next_look = 0.0

    @property
    def env(self) -> dict[str, str]:
        """The environment that makes a job use this GPU."""
        return {} if self.device == "cpu" else {"CUDA_VISIBLE_DEVICES": self.device}

    def take(self) -> bool:
        """Take it, if it is available; return whether it is held."""
        if self.device == "cpu" or self.files:
            return True
        if time.monotonic() < self._next_look:
            return False
        self.why = self._take()
        if self.why:
            self.release()
        return not self.why

    def release(self) -> None:
        """Release it; a job that has inherited the locks holds it until its end."""
        for file in self.files:
            os.close(file)
        self.files = []

    def used(self) -> str:
        """Return a message about other processes that use the GPU; empty if there are none, or if
        jobs share it."""
        if self._shared or self.device == "cpu":
            return ""
        if time.monotonic() >= self._next_look:
            self._set_next_look()
            self.why = self._used()
        return self.why

    def _take(self) -> str:
        """Take the locks; returns why that is not possible, or an empty text."""
        lost = f"has lost its lock {self._lock}; the next run.sh makes it again"
        kind = fcntl.LOCK_SH if self._shared else fcntl.LOCK_EX
        try:
            self.files = [locks.opened(path, os.O_RDONLY) for path in self._paths]
        except OSError:
            self._set_next_look()
            return lost
        _keep_young(self.files)
        gpu, place = self.files
        if not (_lock(place, fcntl.LOCK_EX) and _lock(gpu, kind)):
            return "is in use by a job of another sweep"
        if _lock(gpu, fcntl.LOCK_EX) and (used := self._used()):  # not by a job of a sweep
            self._set_next_look()
            return used
        return "" if _lock(gpu, kind) and self._are_in_place() else lost

    def _set_next_look(self) -> None:
        self._next_look = time.monotonic() + LOOK

    def _are_in_place(self) -> bool:
        """Whether the locked files are the ones that other sweeps would lock."""
        with suppress(OSError):
            return all(
                os.path.samestat(os.fstat(file), path.lstat())
                for file, path in zip(self.files, self._paths, strict=True)
            )
        return False

    def _used(self) -> str:
        """A message about how the GPU is used; empty if only a display may be using it."""
        query = "--query-gpu=memory.used,utilization.gpu"
        said = nvidia_smi(query, "--format=csv,noheader,nounits", f"--id={self.device}")
        numbers = said.strip().split(", ")
        if len(numbers) != 2 or not all(each.isdecimal() for each in numbers):
            return ""  # a part of a GPU has no such figures
        memory, percent = map(int, numbers)
        most, most_percent = (
            int(os.environ.get(name) or default)
            for name, default in (("GPU_BUSY_MIB", 1024), ("GPU_BUSY_PERCENT", 20))
        )
        if memory > most or (memory > 100 and percent > most_percent):
            usage = f"{memory} MiB and {percent} % of its time in use"
            return f"is in use by another process ({usage})"
        return ""


class Gpus:
    """The GPUs of several slots, for a job that needs all of them: all are held or none."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self._gpus = gpus
        self.device = ",".join(gpu.device for gpu in gpus)
        self.why = ""

    @property
    def files(self) -> list[int]:
        """The locks, while they are held."""
        return [file for gpu in self._gpus for file in gpu.files]

    @property
    def env(self) -> dict[str, str]:
        """The environment that makes a job use these GPUs."""
        return {"CUDA_VISIBLE_DEVICES": self.device}

    def take(self) -> bool:
        """Take them, if all are available; return whether they are held."""
        for gpu in self._gpus:
            if not gpu.take():
                self.why = gpu.why
                self.release()
                return False
        return True

    def release(self) -> None:
        """Release them; a job that has inherited the locks holds them until its end."""
        for gpu in self._gpus:
            gpu.release()

    def used(self) -> str:
        """Return a message about other processes that use one of them; empty if there are none."""
        return next((why for gpu in self._gpus if (why := gpu.used())), "")


def places(slots: Sequence[Slot], per_gpu: int, per_job: int) -> Sequence[Gpu | Gpus]:
    """Return the places, each for one job: as many GPUs as a job needs, or a part of a GPU, or the
    CPU."""
    each = [Gpu(slot, shared=per_gpu > 1) for slot in slots]
    if per_job == 1 or all(gpu.device == "cpu" for gpu in each):
        return each
    return [Gpus(each[k : k + per_job]) for k in range(0, len(each) - per_job + 1, per_job)]


def _lock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _keep_young(files: list[int]) -> None:
    """Read and touch the locks, because systems remove old files from temporary folders."""
    for file in files:
        os.read(file, 1)
        with suppress(PermissionError):  # another user's
            os.utime(file)
