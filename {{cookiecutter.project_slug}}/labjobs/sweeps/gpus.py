"""Where a sweep's jobs run: on GPUs, on parts of GPUs (MIG), or on the CPU.

A GPU's locks are files that all users of the machine share: one for the GPU and one for each job
that shares it. A job inherits the locks of its GPU, so no other sweep, of any user, runs a job
there until the job itself ends, whatever happens to run.sh. A process that does not use the locks
is noticed by the memory that it uses. Source: man7.org/linux/man-pages/man2/flock.2.html.
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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import starmap
from pathlib import Path

from labjobs import locks, machine
from labjobs.errors import SettingsError
from labjobs.files import PROJECT
from labjobs.job.terminal import counted
from labjobs.sweeps.clusters import ask
from labjobs.sweeps.options import from_environment

LOCKS = "/tmp/gpu-locks"
"""Where the locks are, unless GPU_LOCKS says otherwise. They are not in /dev/shm, where systemd
removes a user's files when the user logs out (RemoveIPC in logind.conf)."""

MEMORY = 2 * 2**30  # bytes for each job on the CPU: half of them for libraries and courier
LOOK = 2.0  # seconds between two looks at a GPU that is in use, or at a job that runs elsewhere
HANGS = 20  # seconds after which nvidia-smi will not answer any more
BUSY = 20  # percent of its time for which a display may use a GPU


class Gpu:
    """A place for one job: a GPU, or a part of it, or several GPUs, or else the CPU, which needs no
    locks. `locks` says, for each CUDA device, how the paths of its locks begin; `number` is the
    place on a GPU that jobs share. `files` are the locks while they are held; `why` it is not
    available."""

    def __init__(self, locks: Mapping[str, str], number: int = 1, shared: bool = False) -> None:
        self.device = ",".join(locks) or "cpu"
        self.env = {"CUDA_VISIBLE_DEVICES": self.device} if locks else {}
        self.files: list[int] = []
        self.why = ""
        self._locks, self._number = locks, number
        self._kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        self._next_look = 0.0

    def take(self) -> bool:
        """Take all of it, if it is available; return whether it is held."""
        if time.monotonic() < self._next_look:
            return False
        self.why = next(filter(None, starmap(self._take, self._locks.items())), "")
        if self.why:
            self.release()
        return not self.why

    def release(self) -> None:
        """Release it; a job that has inherited the locks holds it until its end."""
        for file in self.files:
            os.close(file)
        self.files = []

    def _take(self, device: str, lock: str) -> str:
        """Take a GPU's locks; returns why that is not possible, or an empty text."""
        paths = [Path(f"{lock}.0"), Path(f"{lock}.{self._number}")]
        why = f"has lost its lock {lock}; the next run.sh makes it again"
        with suppress(OSError):
            for path in paths:
                self.files.append(file := locks.opened(path, os.O_RDONLY))
                os.read(file, 1)  # and touched, since systems remove old temporary files
                with suppress(PermissionError):  # another user's
                    os.utime(file)
            gpu, place = self.files[-2:]
            if not (_lock(place, fcntl.LOCK_EX) and _lock(gpu, self._kind)):
                return "is in use by a job of another sweep"
            alone = _lock(gpu, fcntl.LOCK_EX)
            if used := usage(device) if alone else "":
                why = used
            elif _lock(gpu, self._kind) and all(  # those that other sweeps would take
                os.path.samestat(os.fstat(file), path.lstat())
                for file, path in zip((gpu, place), paths, strict=True)
            ):
                return ""
        self._next_look = time.monotonic() + LOOK
        return why


def on_gpus(gpus: str | None, per_gpu: int = 1, per_job: int = 1) -> list[Gpu]:
    """Return the places on the GPUs that are `named`. Raises SettingsError for a GPU that does not
    exist, and if a job needs more than there are."""
    devices = named(gpus)
    if 0 < len(devices) < per_job:
        only = f"only {counted(len(devices), 'GPU')} can be used"
        raise SettingsError(f"--gpus-per-job {per_job}: {only}")
    locks = [(device, _make_locks(device, per_gpu)) for device in devices]
    ends = range(per_job, len(locks) + 1, per_job)
    several = [dict(locks[end - per_job : end]) for end in ends]
    numbers = range(1, per_gpu + 1)  # a job for each GPU first, then a second one
    return [Gpu(each, number, per_gpu > 1) for number in numbers for each in several]


def named(gpus: str | None) -> list[str]:
    """Return the GPUs named, else what CUDA_VISIBLE_DEVICES allows, else all. Raises SettingsError
    for one that does not exist."""
    if gpus is not None:
        if devices := _uuids(gpus):
            return devices
        raise SettingsError(f"--gpus {gpus}: nvidia-smi does not list this GPU")
    if (allowed := os.environ.get("CUDA_VISIBLE_DEVICES")) is None:
        return _listed()
    return [each for each in re.findall(r"[^\s,]+", allowed) if each not in machine.NO_GPU]


def places(
    gpus: str | None, per_gpu: int | None, per_job: int, threads: Iterable[int | str]
) -> list[Gpu]:
    """Return the places on this machine where jobs run: its GPUs, or else parts of its CPU, for
    jobs with these numbers of threads, or `auto`. Raises as `on_gpus`."""
    if found := on_gpus(gpus, per_gpu or 1, per_job):
        return found
    # One for each core: the threads of one small network wait for each other more than they
    # compute, and much of a short job uses only one thread, as benchmarks/sweeps.py measures.
    wanted = max(1 if isinstance(each, str) else each for each in threads)
    most = min(machine.cores() // wanted, machine.memory() // MEMORY)
    return [Gpu({}) for _ in range(per_gpu or max(1, most // per_job))]


def _listed() -> list[str]:
    """All GPUs, by UUID; a GPU that is split is replaced by its parts."""
    devices: list[str] = []
    for line in nvidia_smi("-L").splitlines():
        if uuid := re.search(r"UUID: ([^)]+)", line):
            if not line.startswith("GPU") and devices[-1].startswith("GPU"):
                devices.pop()
            devices.append(uuid[1])
    return devices


def _uuids(gpus: str) -> list[str]:
    return nvidia_smi("--query-gpu=uuid", "--format=csv,noheader", f"--id={gpus}").split()


def _make_locks(device: str, per_gpu: int) -> str:
    """The path with which a GPU's locks begin; all users may take them. Raises SettingsError."""
    uuid = "".join(_uuids(device)[:1]) or device
    folder = Path(os.environ.get("GPU_LOCKS") or LOCKS).absolute()
    lock = folder / uuid.replace("/", "-")  # a part's name, in old drivers, has slashes
    before = os.umask(0)  # the modes below are for other users too, whatever the umask
    try:
        with _opened(folder) as place:
            for name in (Path(f"{lock.name}.{number}") for number in range(per_gpu + 1)):
                try:  # all users may open it, only its owner may change it
                    file = locks.opened(name, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o644, place)
                except FileExistsError:
                    file = locks.opened(name, os.O_RDONLY, folder=place)
                os.close(file)
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
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        about = os.fstat(place)
        mine = about.st_uid in (0, os.geteuid()) and not about.st_mode & 0o022
        if not (mine or about.st_mode & stat.S_ISVTX):
            text = "other users can replace files in it; chmod +t prevents that"
            raise OSError(errno.EPERM, text, str(folder))
        yield place
    finally:
        os.close(place)


def nvidia_smi(*words: str) -> str:
    """Return what nvidia-smi prints; empty if it fails or is not installed, or hangs, as it does
    once a GPU has fallen off the bus. Then a line says so, and TERM ends the sweep in time."""
    try:
        with suppress(OSError, SettingsError):
            return ask("nvidia-smi", *words, timeout=HANGS)
    except subprocess.TimeoutExpired:
        line = f"nvidia-smi {' '.join(words)}: no answer within {HANGS} s; a GPU may be broken"
        print(line, file=sys.stderr, flush=True)
    return ""


def usage(device: str) -> str:
    """A message about how other processes use a GPU; empty if only a display may be using it."""
    query = "--query-gpu=memory.used,utilization.gpu"
    said = nvidia_smi(query, "--format=csv,noheader,nounits", f"--id={device}")
    numbers = said.strip().split(", ")
    if len(numbers) != 2 or not all(each.isdecimal() for each in numbers):
        return ""  # a part of a GPU has no such figures
    memory, percent = map(int, numbers)
    most = from_environment("GPU_BUSY_MIB", 1024)
    if memory > most or (memory > 100 and percent > BUSY):
        usage = f"{memory} MiB, busy {percent}% of the time"
        return f"is in use by another process ({usage})"
    return ""


def _lock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


# Starts a job of several processes, each with its own GPU, and becomes the first of them.
#
#     python -m labjobs.sweeps.gpus 2 run.py --lr 1e-3
#
# So signals reach process 0, which also determines the exit status; the other processes end when it
# does. The environment variables are those that torchrun would set.


def main(count: int, words: list[str]) -> None:
    """Start the processes; does not return."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host, port = free.getsockname()
    command = [sys.executable, *words]
    common = {"MASTER_ADDR": host, "MASTER_PORT": str(port)}
    common |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(count))
    os.chdir(PROJECT)
    for number in reversed(range(count)):
        env = os.environ | common | {"RANK": str(number), "LOCAL_RANK": str(number)}
        if number == 0:
            os.execve(command[0], command, env)
        subprocess.Popen(command, env=env, close_fds=False)  # they hold the GPUs' locks too


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
