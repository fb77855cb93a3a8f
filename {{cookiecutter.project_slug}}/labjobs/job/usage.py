"""What a process and its children have used, according to Linux's counters.

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
    unit = 1 if sys.platform == "darwin" else 1024
    most = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    used = {"seconds": time.monotonic() - BEGUN, "cpu_seconds": sum(times[:4]), "host_bytes": most}
    return f"{platform.node()}:{os.getpid()}:{BEGUN:.0f}", used


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
