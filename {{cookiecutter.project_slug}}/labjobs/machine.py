"""The cores and the memory that this process may use, which can be less than the machine has.

Affinity limits the cores (taskset, Slurm), a control group both (containers, systemd).
Source: docs.kernel.org/admin-guide/cgroup-v2.html.
"""

import os
import platform
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
OWN_GROUP = Path("/proc/self/cgroup")
MEMORY = Path("/proc/meminfo")


def cores() -> int:
    """Return how many cores this process may use; a sweep divides them among its jobs at once."""
    affinity = hasattr(os, "sched_getaffinity")
    found = len(os.sched_getaffinity(0)) if affinity else os.cpu_count() or 1
    for quota, period in _limits("cpu.max"):
        found = min(found, quota // period)
    return max(1, found // int(os.environ.get("JOBS_AT_ONCE", 1)))


def memory() -> int:
    """Return how many bytes of memory this process may use, with all others in its group."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([found, *(limit for (limit,) in _limits("memory.max"))])


def available_memory() -> int:
    """Return about how many bytes of memory are available before the machine has to swap."""
    with suppress(OSError, StopIteration):  # Linux's number counts caches as free
        text = MEMORY.read_text().splitlines()
        free = next(line for line in text if line.startswith("MemAvailable:"))
        return min(1024 * int(free.split()[1]), memory())
    pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")


def _limits(name: str) -> Iterator[list[int]]:
    """The numbers in a file of this process's control group, and of the groups that it lies in."""
    with suppress(OSError):  # this system has no control groups
        lines = OWN_GROUP.read_text().splitlines()
        for own in (line.removeprefix("0::/") for line in lines if line.startswith("0::/")):
            group = GROUPS / own
            for folder in (group, *group.parents):
                with suppress(OSError, ValueError):  # no limit there, or `max`
                    yield [int(word) for word in (folder / name).read_text().split()]


# What a process and its children have used, according to Linux's counters.
#
# Sources: docs.kernel.org/filesystems/proc.html,
# man7.org/linux/man-pages/man5/proc_pid_stat.5.html.

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")
"""Clock ticks per second, the unit of the kernel's times."""

BEGUN = time.monotonic()

Reading = dict[str, float]
"""`seconds` since the process started, and sums over it and its children: `cpu_seconds`,
`host_bytes` (the peak memory of each) and `read_bytes` and `written_bytes` of disks."""


def own() -> tuple[str, Reading]:
    """Return a key that identifies this process, and what it has used."""
    with suppress(OSError, ValueError, LookupError):
        return of(os.getpid())
    times = os.times()  # this system has no /proc
    used = {"seconds": time.monotonic() - BEGUN, "cpu_seconds": sum(times[:4])}
    used["host_bytes"] = peak_memory()
    return f"{platform.node()}:{os.getpid()}:{BEGUN:.0f}", used


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
    used = {
        "seconds": float((PROC / "uptime").read_text().split()[0]) - int(root[19]) / TICKS,
        "cpu_seconds": _cpu_ticks(root) / TICKS,
        "host_bytes": _most_memory(process),
        **_disk(process),
    }
    for child in _children(process):
        with suppress(OSError, LookupError):  # it has ended in the meantime
            stat = _stat(child)
            if stat[3] == root[3]:
                used["cpu_seconds"] += _cpu_ticks(stat) / TICKS
                used["host_bytes"] += _most_memory(child)
                for name, count in _disk(child).items():
                    used[name] = used.get(name, 0) + count
    return f"{platform.node()}:{process}:{root[19]}", used


def _stat(process: int) -> list[str]:
    """The fields of a process's `stat` from the third one on; the name before them may contain
    spaces."""
    return (PROC / str(process) / "stat").read_text().rpartition(")")[2].split()


def _cpu_ticks(stat: list[str]) -> int:
    """The CPU time of a process and of its children that have ended."""
    return sum(map(int, stat[11:15]))


def _most_memory(process: int) -> int:
    lines = (PROC / str(process) / "status").read_text().splitlines()
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


def _disk(process: int) -> Reading:
    """The bytes read from and written to disks; empty if we may not read the counters."""
    with suppress(OSError, ValueError):
        lines = (line.split(": ") for line in (PROC / str(process) / "io").read_text().splitlines())
        counted = {name: int(count) for name, count in lines}
        return {"read_bytes": counted["read_bytes"], "written_bytes": counted["write_bytes"]}
    return {}


def _children(process: int) -> Iterator[int]:
    """Yield the children of a process, and their children."""
    for path in (PROC / str(process) / "task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, path.read_text().split()):
                yield child
                yield from _children(child)
