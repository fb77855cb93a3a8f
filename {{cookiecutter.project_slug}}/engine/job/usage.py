"""What a process and those that it has started have used of the machine, by Linux's own counters.

Sources: docs.kernel.org/filesystems/proc.html, man7.org/linux/man-pages/man5/proc_pid_stat.5.html.
"""

import os
import platform
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")
"""Units of the kernel's times, in a second."""

BEGUN = time.monotonic()

Reading = dict[str, float]
"""`seconds` since the process began, `cpu_seconds` of all of them together, `host_bytes`: the most
memory that each of them had, summed, and `read_bytes` and `written_bytes` of disks."""


def own() -> tuple[str, Reading]:
    """Return what tells this process from all others, and what it has used."""
    with suppress(OSError, ValueError, LookupError):
        return of(os.getpid())
    times = os.times()  # this system has no /proc
    unit = 1 if sys.platform == "darwin" else 1024
    most = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    used = {"seconds": time.monotonic() - BEGUN, "cpu_seconds": sum(times[:4]), "host_bytes": most}
    return f"{platform.node()}:{os.getpid()}:{BEGUN:.0f}", used


def of(process: int) -> tuple[str, Reading]:
    """Return what tells a process from all others, and what it has used.

    Processes of another session, such as a job's courier, are not counted among those that it has
    started. Raises OSError where there is no such process or no /proc.
    """
    root = _stat(process)
    used = {
        "seconds": float((PROC / "uptime").read_text().split()[0]) - int(root[19]) / TICKS,
        "cpu_seconds": _cpu_ticks(root) / TICKS,
        "host_bytes": _most_memory(process),
        **_disk(process),
    }
    for child in _children(process):
        with suppress(OSError, LookupError):  # it has ended meanwhile
            stat = _stat(child)
            if stat[3] == root[3]:
                used["cpu_seconds"] += _cpu_ticks(stat) / TICKS
                used["host_bytes"] += _most_memory(child)
                for name, count in _disk(child).items():
                    used[name] = used.get(name, 0) + count
    return f"{platform.node()}:{process}:{root[19]}", used


def _stat(process: int) -> list[str]:
    """The fields of a process's `stat` from the third one on: its name, before them, may have
    spaces."""
    return (PROC / str(process) / "stat").read_text().rpartition(")")[2].split()


def _cpu_ticks(stat: list[str]) -> int:
    """The time of a process on cores, with that of its children that have ended."""
    return sum(map(int, stat[11:15]))


def _most_memory(process: int) -> int:
    lines = (PROC / str(process) / "status").read_text().splitlines()
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


def _disk(process: int) -> Reading:
    """What went from and to disks; nothing where that is not ours to know."""
    with suppress(OSError, ValueError):
        lines = (line.split(": ") for line in (PROC / str(process) / "io").read_text().splitlines())
        counted = {name: int(count) for name, count in lines}
        return {"read_bytes": counted["read_bytes"], "written_bytes": counted["write_bytes"]}
    return {}


def _children(process: int) -> Iterator[int]:
    """The processes that one has started, and those that these have."""
    for path in (PROC / str(process) / "task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, path.read_text().split()):
                yield child
                yield from _children(child)
