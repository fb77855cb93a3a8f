"""What an attempt has cost: time, memory and energy, over all processes that have trained it.

The courier of a trainer writes what that uses into `cost.json` every few seconds, and at its end.
The most memory that tensors took is known to the trainer alone, which writes it into the journal.
Costs are not results: nothing depends on them.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from labjobs import layout, machine
from labjobs.errors import JobError
from labjobs.files import write_record
from labjobs.job import journal
from labjobs.machine import Reading

COSTS: dict[str, tuple[str, float, Callable[[Iterable[float]], float]]] = {
    "gpu_hours": ("gpu_seconds", 3600.0, sum),
    "cpu_hours": ("cpu_seconds", 3600.0, sum),
    "energy_kwh": ("joules", 3.6e6, sum),
    "peak_device_memory_gb": ("device_bytes", 1e9, max),
    "peak_host_memory_gb": ("host_bytes", 1e9, max),
}
"""By metric: the reading of each process, the unit to divide it by, and how processes combine."""

NAMES = tuple(COSTS)

INTERVAL = 10.0
"""Seconds between two writes of cost.json."""


def totals(attempt: Path) -> dict[str, float]:
    """Return the cost of an attempt so far, by metric. What is unknown is left out, such as the
    energy of a GPU that does not count it."""
    start = journal.record_of(attempt, layout.SETTINGS).get("journal", {})
    processes = _seen(attempt, start.get("journal", ""))
    for line in _lines(attempt):
        if "cost" in line:
            used = dict(line["cost"])
            _merge(processes, used.pop("process"), used)
    cost = {}
    for name, (what, unit, combined) in COSTS.items():
        if known := [used[what] for used in processes.values() if what in used]:
            cost[name] = combined(known) / unit
    return cost


def as_lines(attempt: Path) -> list[dict[str, Any]]:
    """Return the totals as a line of the journal, under its last step; always the same line."""
    logged = [line for line in _lines(attempt) if "step" in line]
    cost = totals(attempt)
    if not logged or not cost:
        return []
    step = max(line["step"] for line in logged)
    return [{"time": logged[-1]["time"], "step": step, "metrics": cost}]


def keep(attempt: Path, journal_id: str, processes: dict[str, Reading]) -> None:
    """Write down what the processes that trained an attempt have used, as seen by couriers."""
    about = {"schema": 1, "id": attempt.parent.name, "journal": journal_id}
    write_record(attempt / layout.COST, {**about, "processes": processes})


def _seen(attempt: Path, journal_id: str) -> dict[str, Reading]:
    """What couriers have seen, by process; empty if it belongs to another journal."""
    found = journal.record_of(attempt, layout.COST)
    return dict(found["processes"]) if found and found["journal"] == journal_id else {}


def _lines(attempt: Path) -> list[dict[str, Any]]:
    with suppress(OSError, JobError):
        return journal.lines_of(attempt)
    return []


def _merge(processes: dict[str, Reading], process: str, used: Reading) -> None:
    """Update what is known about a process with what it has used by now."""
    before = processes.setdefault(process, {})
    for name, value in used.items():
        before[name] = max(value, before.get(name, 0.0))


class Meter:
    """What the trainer of an attempt uses, seen from its courier. Its methods raise nothing: the
    courier goes on even if a driver or a disk fails."""

    def __init__(self, folder: Path, trainer: int) -> None:
        self._folder, self._trainer = folder, trainer
        about = journal.record_of(folder, layout.SETTINGS)
        self._journal = str(about.get("journal", {}).get("journal", ""))
        self._processes = _seen(folder, self._journal)
        self._process = ""
        self._gpu: Gpu | None = None
        self._next_write = 0.0

    def look(self, gpu: str, ended: bool = False) -> None:
        """Read what the trainer has used, and its `gpu`, if its UUID is known by now; write it down
        if it is time for that or if the trainer has `ended`."""
        with suppress(Exception):
            with suppress(OSError):  # once it has ended, what was seen last counts
                process, used = machine.of(self._trainer)
                if self._process in ("", process):
                    self._process = process
                    _merge(self._processes, process, used)
            if not gpu or (self._gpu and self._gpu.uuid != gpu):
                self._gpu = None  # of an earlier attempt
            if gpu and not self._gpu:
                self._gpu = Gpu(gpu)
            if self._process and (ended or time.monotonic() >= self._next_write):
                self._next_write = time.monotonic() + INTERVAL
                known = self._processes[self._process]
                if self._gpu:
                    known["gpu_seconds"] = known["seconds"]
                if self._gpu and (joules := self._gpu.joules()) is not None:
                    known["joules"] = joules
                keep(self._folder, self._journal, self._processes)


class Gpu:
    """A GPU, or a part of one (MIG), as NVIDIA's driver sees it (docs.nvidia.com/deploy/nvml-api).
    What the driver does not report is left out."""

    def __init__(self, uuid: str) -> None:
        import pynvml  # here, so that only the courier of a job on a GPU waits for it

        self.uuid = uuid
        self._nvml, self._gpu = pynvml, None
        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
        for kind in ("GPU", "MIG"):  # torch's UUID does not tell a part of a GPU from a whole one
            with suppress(pynvml.NVMLError):
                self._gpu = pynvml.nvmlDeviceGetHandleByUUID(f"{kind}-{uuid}")
        self._begun = self._ask("nvmlDeviceGetTotalEnergyConsumption")

    def joules(self) -> float | None:
        """Return the energy that it has used since this was made, by all its users together."""
        counted = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        if counted is None or self._begun is None:
            return None
        return float(counted - self._begun) / 1000

    def _ask(self, function: str) -> Any:
        """What a function of NVML returns for it; None if the driver cannot say."""
        if self._gpu is not None:
            with suppress(self._nvml.NVMLError):
                return getattr(self._nvml, function)(self._gpu)
        return None
