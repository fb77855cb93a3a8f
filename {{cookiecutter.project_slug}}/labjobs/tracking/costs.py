"""What an attempt has cost: time, memory and energy, over all processes that have trained it.

The courier of a trainer writes what that uses into `sent.json` every few seconds, and at its end.
The most memory that tensors took is known to the trainer alone, which writes it into the journal.
Costs are not results: nothing depends on them.
"""

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from labjobs import layout, machine
from labjobs.errors import JobError
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

INTERVAL = 10.0  # seconds between two writes


def totals(attempt: Path) -> dict[str, float]:
    """Return the cost of an attempt so far, by metric. What is unknown is left out."""
    readings = [*seen(attempt).values()]
    readings += [line["cost"] for line in _lines(attempt) if "cost" in line]
    cost = {}
    for name, (what, unit, combined) in COSTS.items():
        if known := [used[what] for used in readings if used.get(what)]:
            cost[name] = combined(known) / unit
    return cost


def as_lines(attempt: Path) -> list[dict[str, Any]]:
    """Return the totals as a line of the journal, under its last step; always the same line."""
    lines, cost = [line for line in _lines(attempt) if "time" in line], totals(attempt)
    if not lines or not cost:
        return []
    steps = [line for line in lines if "step" in line]  # none, of a job that failed before
    step = max((line["step"] for line in steps), default=0)
    return [{"time": (steps or lines)[-1]["time"], "step": step, "metrics": cost}]


def seen(attempt: Path) -> dict[str, Reading]:
    """Return what couriers have seen, by process; empty if it belongs to another journal. A
    published attempt has it in outcome.json."""
    records = (journal.record_of(attempt, name) for name in (layout.SENT, layout.OUTCOME))
    own = (each for each in records if each.get("journal") == journal.id_of(attempt))
    return next((dict(each["processes"]) for each in own if "processes" in each), {})


def _lines(attempt: Path) -> list[dict[str, Any]]:
    with suppress(OSError, JobError):
        return journal.lines_of(attempt)
    return []


def of_this_process() -> Reading:
    """Return what this process has used, on all GPUs that a sweep has given it, without energy."""
    with suppress(OSError):  # no /proc
        used = machine.of(os.getpid())[1]
        devices = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        return used | {"gpu_seconds": used["seconds"] * sum(map(bool, devices))}
    return {}


class Meter:
    """What the trainer of an attempt uses, seen from its courier."""

    def __init__(self, attempt: Path, trainer: int) -> None:
        self._attempt, self._trainer = attempt, trainer
        self._journal, self._processes = journal.id_of(attempt), seen(attempt)
        self._process = ""
        self._joules_before = 0.0
        self._next_write = 0.0

    def look(self, gpu: str, processes: int, ended: bool = False) -> None:
        """Read what the trainer has used, and its `gpu`, if its UUID is known by now; each of the
        job's `processes` has one. Write it down if it is time for that or if the trainer has
        `ended`."""
        with suppress(OSError, LookupError):  # it has ended: what was seen last counts
            process, used = machine.of(self._trainer)
            if self._process in ("", process):
                self._process = process
                if gpu:
                    counted = joules(gpu)
                    self._joules_before = self._joules_before or counted
                    used["gpu_seconds"] = used["seconds"] * processes
                    used["joules"] = counted - self._joules_before
                before = self._processes.setdefault(process, {})  # also of children that have ended
                before |= {name: max(value, before.get(name, 0)) for name, value in used.items()}
        due = ended or time.monotonic() >= self._next_write
        if self._process and self._journal and due:
            self._next_write = time.monotonic() + INTERVAL
            journal.note_sent(self._attempt, self._journal, processes=self._processes)


def joules(uuid: str) -> float:
    """Return the energy that a GPU has ever used, by all its users together, as its driver counts
    it (docs.nvidia.com/deploy/nvml-api); 0 if it does not, as for a part of a GPU (MIG)."""
    import pynvml  # here, so that only the courier of a job on a GPU waits for it

    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)) / 1000
    return 0.0
