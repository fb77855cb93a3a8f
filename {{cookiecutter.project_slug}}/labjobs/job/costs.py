"""What an attempt has cost: time, memory, disk and energy, over all processes that have trained it.

A trainer writes what it has used into the journal when it ends. Its courier writes the same into
`cost.json` every few seconds, in case the trainer is killed. Counters only rise, so the larger
of the two numbers counts. Costs are not results: nothing depends on them.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from labjobs.errors import JobError
from labjobs.files import write_record
from labjobs.job import lines
from labjobs.job.usage import Reading

FILE = "cost.json"

SUMS = {
    "gpu_hours": ("gpu_seconds", 3600.0),
    "cpu_hours": ("cpu_seconds", 3600.0),
    "energy_kwh": ("joules", 3.6e6),
    "disk_read_gb": ("read_bytes", 1e9),
    "disk_written_gb": ("written_bytes", 1e9),
}
"""Costs that add up over the processes, by metric: the reading and the unit to divide it by."""

PEAKS = {
    "peak_device_memory_gb": ("device_bytes", 1e9),
    "peak_host_memory_gb": ("host_bytes", 1e9),
}
"""Costs for which the process with the highest value counts."""

NAMES = (*SUMS, *PEAKS)


def keep(attempt: Path, journal: str, processes: dict[str, Reading]) -> None:
    """Write down what the processes that trained an attempt have used, as seen by couriers."""
    about = {"schema": 1, "id": attempt.parent.name, "journal": journal}
    write_record(attempt / FILE, {**about, "processes": processes})


def kept(attempt: Path, journal: str) -> dict[str, Reading]:
    """Return what couriers have seen, by process; empty if it belongs to another journal."""
    found = lines.record_of(attempt, FILE)
    return dict(found["processes"]) if found and found["journal"] == journal else {}


def totals(attempt: Path) -> dict[str, float]:
    """Return the cost of an attempt so far, by metric. What is unknown is left out, such as the
    energy of a GPU that does not count it."""
    start = lines.record_of(attempt, "settings.json").get("journal", {})
    found = kept(attempt, start.get("journal", ""))
    for line in _journal(attempt):
        if "cost" in line:
            own = dict(line["cost"])
            merge(found, own.pop("process"), own)
    cost = {}
    for name, (what, unit) in SUMS.items():
        if known := [each[what] for each in found.values() if what in each]:
            cost[name] = sum(known) / unit
    for name, (what, unit) in PEAKS.items():
        if known := [each[what] for each in found.values() if what in each]:
            cost[name] = max(known) / unit
    return cost


def merge(processes: dict[str, Reading], process: str, reading: Reading) -> None:
    """Update what is known about a process with what it has used by now."""
    before = processes.setdefault(process, {})
    for name, value in reading.items():
        before[name] = max(value, before.get(name, 0.0))


def as_lines(attempt: Path) -> list[dict[str, Any]]:
    """Return the totals as a line of the journal, under its last step; always the same line."""
    logged = [line for line in _journal(attempt) if "step" in line]
    cost = totals(attempt)
    if not logged or not cost:
        return []
    step = max(line["step"] for line in logged)
    return [{"time": logged[-1]["time"], "step": step, "metrics": cost}]


def _journal(attempt: Path) -> Iterable[dict[str, Any]]:
    with suppress(OSError, JobError), (attempt / lines.FILE).open("rb") as file:
        return lines.Reader(file).read()
    return []
