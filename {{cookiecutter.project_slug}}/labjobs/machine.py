"""The cores and the memory that a process may use, and what it has used.

Affinity limits the cores (taskset, Slurm), a control group both (containers, systemd). Sources:
docs.kernel.org/admin-guide/cgroup-v2.html, docs.kernel.org/admin-guide/cgroup-v1/memory.html,
docs.kernel.org/filesystems/proc.html,
man7.org/linux/man-pages/man5/proc_pid_stat.5.html.
"""

import ctypes
import gc
import os
import platform
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
OWN_GROUP = Path("/proc/self/cgroup")
MEMORY = Path("/proc/meminfo")
NO_GPU = ("", "-1", "NoDevFiles")  # CUDA_VISIBLE_DEVICES of CUDA and of old Slurm for none
QUOTA = "cpu.cfs_quota_us", "cpu.cfs_period_us"


def cores() -> int:
    """Return how many cores this process may use; a sweep divides them among its jobs at once."""
    affinity = hasattr(os, "sched_getaffinity")
    found = len(os.sched_getaffinity(0)) if affinity else os.cpu_count() or 1
    for quota, period in (*_limits("cpu", "cpu.max"), *_limits("cpu", *QUOTA)):
        found = min(found, quota // period) if quota > 0 else found  # -1 is no limit
    return max(1, found // int(os.environ.get("JOBS_AT_ONCE", 1)))


def memory() -> int:
    """Return how many bytes of memory this process may use, with all others in its group."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = *_limits("memory", "memory.max"), *_limits("memory", "memory.limit_in_bytes")
    return min([found, *(limit for (limit,) in limits)])


def available_memory() -> int:
    """Return about how many bytes of memory are available before the machine has to swap."""
    with suppress(OSError, StopIteration):  # Linux's number counts caches as free
        text = _text(MEMORY).splitlines()
        free = next(line for line in text if line.startswith("MemAvailable:"))
        return min(1024 * int(free.split()[1]), memory())
    pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")


def keep_imported() -> None:
    """Leave what has been imported out of garbage collections; not if Triton has been, since that
    prints at the end what it finds left."""
    if "triton" not in sys.modules:
        gc.freeze()


def end_with_parent() -> None:
    """From here on, this process is killed when its parent ends, on Linux: prctl(2),
    PR_SET_PDEATHSIG."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _limits(controller: str, *names: str) -> Iterator[list[int]]:
    """The numbers in files of this process's control group, and of the groups that it lies in."""
    with suppress(OSError):  # this system has no control groups
        for line in _text(OWN_GROUP).splitlines():
            number, controllers, own = line.split(":", 2)
            if number != "0" and controller not in controllers.split(","):
                continue
            # Version 1 has a tree for each controller; in a container the whole tree is its own.
            group = GROUPS / ("" if number == "0" else controller) / own.lstrip("/")
            for folder in (group, *group.parents):
                with suppress(OSError, ValueError):  # no limit there, or `max`
                    yield [int(word) for name in names for word in _text(folder / name).split()]


def _text(file: Path) -> str:
    return file.read_text("utf-8", "replace")  # a process may have any name


# What a process and its children have used, according to Linux's counters.

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")  # clock ticks per second, the unit of the kernel's times

Reading = dict[str, float]
"""`seconds` since the process started, and sums over it and its children: `cpu_seconds` and
`host_bytes` (the peak memory of each)."""


def peak_memory() -> int:
    """Return the most bytes of memory that this process has taken."""
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def of(process: int) -> tuple[str, Reading]:
    """Return a key that identifies a process, and what it has used.

    Children that belong to another session, such as a job's courier, are not counted. Raises
    OSError if there is no such process or no /proc.
    """
    root = _stat(process)
    used = _used(process, root)
    for child in _children(process):
        with suppress(OSError, LookupError):  # it has ended in the meantime
            stat = _stat(child)
            if stat[3] == root[3]:
                for name, amount in _used(child, stat).items():
                    used[name] = used.get(name, 0) + amount
    used["seconds"] = float(_text(PROC / "uptime").split()[0]) - int(root[19]) / TICKS
    return f"{platform.node()}:{process}:{root[19]}", used


def _stat(process: int) -> list[str]:
    """The fields of a process's `stat` from the third on; the name before may contain spaces."""
    return _text(PROC / str(process) / "stat").rpartition(")")[2].split()


def _used(process: int, stat: list[str]) -> Reading:
    """What a process has used, with the CPU time of its children that have ended."""
    lines = _text(PROC / str(process) / "status").splitlines()
    peak = (1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return {"cpu_seconds": sum(map(int, stat[11:15])) / TICKS, "host_bytes": next(peak, 0)}


def _children(process: int) -> Iterator[int]:
    """Yield the children of a process, and their children."""
    for path in (PROC / str(process) / "task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, _text(path).split()):
                yield child
                yield from _children(child)
