"""The places where jobs of a sweep run: GPUs, parts of GPUs (MIG), or the CPU.

A GPU's locks are files that all users of the machine share: one for the GPU and one for each job
that shares it. gpus.py takes the locks, and touches them so that they do not look old. Only the
user who made a lock can change the file; taking the lock only requires opening it.
"""

import errno
import os
import re
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from labjobs import locks, machine
from labjobs.errors import SettingsError

LOCKS = "/tmp/gpu-locks"
"""Where the locks are, unless GPU_LOCKS says otherwise. They are not in /dev/shm, where systemd
removes a user's files when the user logs out (RemoveIPC in logind.conf)."""

MEMORY = 2 * 2**30
"""Bytes for each job on the CPU: libraries and courier take one GB, the rest is for its data."""

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Slot(NamedTuple):
    """A worker's place. `device` is its CUDA_VISIBLE_DEVICES, or `cpu`; `lock` is `-` there."""

    device: str
    lock: str
    place: int


def on_gpus(gpus: str | None, per_gpu: int) -> list[Slot]:
    """Return the slots on the GPUs named, else on what CUDA_VISIBLE_DEVICES allows, else on all.

    Raises SettingsError for a GPU that does not exist.
    """
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if gpus is not None:
        devices = _uuids(gpus)
        if not devices:
            raise SettingsError(f"--gpus {gpus}: nvidia-smi does not list this GPU")
    else:
        devices = _listed() if allowed is None else re.findall(r"[^\s,]+", allowed)
    if devices == ["-1"]:  # CUDA's value for no GPU
        devices = []
    made = {device: _make_locks(device, per_gpu) for device in devices}
    places = range(1, per_gpu + 1)  # a job for each GPU first, then a second one
    return [Slot(device, made[device], k) for k in places for device in devices]


def on_cpu(count: int) -> list[Slot]:
    """Return this many slots on the CPU, for a machine without GPUs that nvidia-smi knows."""
    return [Slot("cpu", "-", k) for k in range(1, count + 1)]


def at_once(device: str, threads: int | str) -> int:
    """Return how many jobs, each with this many threads (or `auto`), run best on the CPU at once.

    One for each core: the threads of one small network wait for each other more than they compute,
    and much of a short job (imports, evaluation) uses only one thread, as benchmarks/sweeps.py
    measures. Only one job if its device is a GPU that nvidia-smi does not know.
    """
    if device != "cpu":
        return 1
    wanted = 1 if isinstance(threads, str) else threads
    return max(1, min(machine.cores() // wanted, machine.memory() // MEMORY))


def _listed() -> list[str]:
    """All GPUs, by UUID; a GPU that is split is replaced by its parts."""
    devices: list[str] = []
    for line in nvidia_smi("-L").splitlines():
        uuid = re.search(r"UUID: ([^)]+)", line)
        if uuid and line.startswith("GPU"):
            devices.append(uuid[1])
        elif uuid:
            if devices[-1].startswith("GPU"):
                devices.pop()
            devices.append(uuid[1])
    return devices


def _uuids(gpus: str) -> list[str]:
    return nvidia_smi("--query-gpu=uuid", "--format=csv,noheader", f"--id={gpus}").split()


def _make_locks(device: str, per_gpu: int) -> str:
    """The path with which the names of a GPU's locks begin; all users may take them. Raises
    SettingsError."""
    uuid = "".join(_uuids(device)[:1]) or device
    folder = Path(os.environ.get("GPU_LOCKS") or LOCKS).absolute()
    lock = folder / uuid.replace("/", "-")  # a part's name, in old drivers, has slashes
    before = os.umask(0)  # the modes below are for other users too, whatever the umask
    try:
        with _opened(folder) as place:
            for number in range(per_gpu + 1):
                _make(Path(f"{lock.name}.{number}"), place)
    except OSError as error:
        why = f"{folder / str(error.filename or '')}: {error.strerror}"
        another = "GPU_LOCKS can name another folder"
        raise SettingsError(f"no lock for GPU {device}: {why}; {another}") from error
    finally:
        os.umask(before)
    return str(lock)


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """A descriptor of the locks' folder, which is made if necessary. Raises OSError if another user
    could have put it there, or could replace a lock."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o1777)
    if folder.is_symlink():
        raise OSError(errno.ELOOP, "is a link, not a folder", str(folder))
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        about = os.fstat(place)
        mine = about.st_uid in (0, os.geteuid()) and not about.st_mode & OTHERS_WRITE
        if not (mine or about.st_mode & stat.S_ISVTX):
            text = "other users can replace files in it; chmod +t prevents that"
            raise OSError(errno.EPERM, text, str(folder))
        yield place
    finally:
        os.close(place)


def _make(name: Path, folder: int) -> None:
    """Make a lock that all users may open but only its owner may change; an existing lock is
    checked."""
    for flags in (os.O_CREAT | os.O_EXCL, 0):
        with suppress(FileExistsError):
            os.close(locks.opened(name, os.O_RDONLY | flags, 0o644, folder))
            return


def nvidia_smi(*words: str) -> str:
    """Return what nvidia-smi prints; empty if it fails or is not installed."""
    try:
        done = subprocess.run(["nvidia-smi", *words], capture_output=True, text=True)
    except OSError:
        return ""
    return "" if done.returncode else done.stdout
