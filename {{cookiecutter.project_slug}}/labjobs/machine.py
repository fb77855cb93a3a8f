"""The cores and the memory that this process may use, which can be less than the machine has.

Affinity limits the cores (taskset, Slurm), a control group both (containers, systemd).
Source: docs.kernel.org/admin-guide/cgroup-v2.html.
"""

import os
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
