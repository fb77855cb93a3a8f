"""Takes a GPU for a job, so that no other sweep, of any user, runs a job there.

The job inherits the locks, so they are held until the job itself ends, whatever happens to run.sh.
A process that does not use these locks is noticed by the memory that it uses on the GPU. Source:
man7.org/linux/man-pages/man2/flock.2.html.
"""

import errno
import fcntl
import os
import re
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from labjobs import locks, machine
from labjobs.errors import SettingsError
from labjobs.files import PROJECT

# The places where jobs of a sweep run: GPUs, parts of GPUs (MIG), or the CPU.
#
# A GPU's locks are files that all users of the machine share: one for the GPU and one for each job
# that shares it. gpus.py takes the locks, and touches them so that they do not look old. Only the
# user who made a lock can change the file; taking the lock only requires opening it.

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


# Starts a job of several processes, each with its own GPU, and becomes the first of them.
#
#     python -m labjobs.sweeps.gpus 2 run.py --lr 1e-3
#
# So signals reach process 0, which also determines the exit status; the other processes end when it
# does. The environment variables are those that torchrun would set.

HOST = "127.0.0.1"


def main(count: int, words: list[str]) -> None:
    """Start the processes; does not return."""
    command = [sys.executable, *words]
    common = {"MASTER_ADDR": HOST, "MASTER_PORT": str(_free_port())}
    common |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(count))
    os.chdir(PROJECT)
    for number in reversed(range(count)):
        env = os.environ | common | {"RANK": str(number), "LOCAL_RANK": str(number)}
        if number == 0:
            os.execve(command[0], command, env)
        subprocess.Popen(command, env=env, close_fds=False)  # they hold the GPUs' locks too


def _free_port() -> int:
    with socket.socket() as made:
        made.bind((HOST, 0))
        return int(made.getsockname()[1])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
