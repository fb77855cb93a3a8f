"""What an attempt has cost: time, memory, disk and energy, over all processes that have trained it.

A trainer writes what it has used into the journal when it ends. Its courier writes the same into
`cost.json` every few seconds, in case the trainer is killed. Counters only rise, so the larger
of the two numbers counts. Costs are not results: nothing depends on them.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from labjobs import layout, machine
from labjobs.errors import JobError
from labjobs.files import write_record
from labjobs.job import journal
from labjobs.job.journal import now
from labjobs.machine import Reading

COSTS: dict[str, tuple[str, float, Callable[[Iterable[float]], float]]] = {
    "gpu_hours": ("gpu_seconds", 3600.0, sum),
    "cpu_hours": ("cpu_seconds", 3600.0, sum),
    "energy_kwh": ("joules", 3.6e6, sum),
    "disk_read_gb": ("read_bytes", 1e9, sum),
    "disk_written_gb": ("written_bytes", 1e9, sum),
    "peak_device_memory_gb": ("device_bytes", 1e9, max),
    "peak_host_memory_gb": ("host_bytes", 1e9, max),
}
"""By metric: the reading of each process, the unit to divide it by, and how processes combine."""

NAMES = tuple(COSTS)

INTERVAL = 10.0
"""Seconds between two samples of the machine, and between two writes of cost.json."""


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
    with suppress(OSError, JobError), (attempt / layout.JOURNAL).open("rb") as file:
        return journal.Reader(file).read()
    return []


def _merge(processes: dict[str, Reading], process: str, used: Reading) -> None:
    """Update what is known about a process with what it has used by now."""
    before = processes.setdefault(process, {})
    for name, value in used.items():
        before[name] = max(value, before.get(name, 0.0))


# What a courier measures: the trainer's processes, its GPU, and the machine.
#
# The machine's counters are samples, not results, so they are not in the journal: those that cannot
# be sent immediately are dropped. Their names are those of MLflow's tab "System metrics"
# (mlflow.org/docs, system metrics). MLflow's own monitor would list all GPUs of the machine for
# each job, and stops for good at the first failed call. `gpu_0` is always the job's own GPU.

PREFIX = "system/"
"""Prefix of the names."""

MEGABYTE = 1e6

STAT, MEMORY = Path("/proc/stat"), Path("/proc/meminfo")
"""Linux's counters (docs.kernel.org/filesystems/proc.html); elsewhere, the machine is not
sampled."""


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
        self._times = _core_times()
        self._next_write, self._next_sample = 0.0, 0.0

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

    def sample(self, since: int) -> list[dict[str, Any]]:
        """Return a journal line with the counters of the machine and of the job's GPU, if it is
        time for one; its step is the seconds since a time in milliseconds."""
        if time.monotonic() < self._next_sample:
            return []
        self._next_sample = time.monotonic() + INTERVAL
        with suppress(Exception):
            found = dict(self._cores()) | dict(_memory())
            found |= dict(self._gpu.counters()) if self._gpu else {}
            metrics = {f"{PREFIX}{name}": round(value, 1) for name, value in found.items()}
            step = (now() - since) // 1000
            return [{"time": now(), "step": step, "metrics": metrics}] if metrics else []
        return []

    def _cores(self) -> Iterator[tuple[str, float]]:
        """How busy the machine's cores have been since the last sample."""
        before, self._times = self._times, _core_times()
        passed = [new - old for new, old in zip(self._times, before, strict=True)]
        if sum(passed):
            idle = sum(passed[3:5])  # idle, and waiting for a disk
            yield "cpu_utilization_percentage", 100 * (1 - idle / sum(passed))


def _core_times() -> list[int]:
    """How long the machine's cores have been in each state; empty if that is not known."""
    with suppress(OSError, ValueError):
        return [int(word) for word in STAT.read_text().split("\n")[0].split()[1:9]]
    return []


def _memory() -> Iterator[tuple[str, float]]:
    with suppress(OSError, ValueError, LookupError):
        lines = (line.split() for line in MEMORY.read_text().splitlines())
        kibibytes = {words[0]: int(words[1]) for words in lines}
        total = kibibytes["MemTotal:"]
        used = total - kibibytes["MemAvailable:"]
        yield "system_memory_usage_megabytes", used * 1024 / MEGABYTE
        yield "system_memory_usage_percentage", 100 * used / total


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
        self._summed, self._at = 0.0, time.monotonic()

    def joules(self) -> float | None:
        """Return the energy that it has used since this was made, by all its users together."""
        counted = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        if counted is not None and self._begun is not None:
            return float(counted - self._begun) / 1000
        # GPUs before Volta: the power now, times the seconds since the last call.
        milliwatts = self._ask("nvmlDeviceGetPowerUsage")
        if milliwatts is None:
            return None
        before, self._at = self._at, time.monotonic()
        self._summed += milliwatts / 1000 * (self._at - before)
        return self._summed

    def counters(self) -> Iterator[tuple[str, float]]:
        """Yield its memory, utilization and power; a part of a GPU has only memory."""
        if memory := self._ask("nvmlDeviceGetMemoryInfo"):
            yield "gpu_0_memory_usage_megabytes", memory.used / MEGABYTE
            yield "gpu_0_memory_usage_percentage", 100 * memory.used / memory.total
        if utilization := self._ask("nvmlDeviceGetUtilizationRates"):
            yield "gpu_0_utilization_percentage", utilization.gpu
        if (milliwatts := self._ask("nvmlDeviceGetPowerUsage")) is not None:
            yield "gpu_0_power_usage_watts", milliwatts / 1000
            if limit := self._ask("nvmlDeviceGetEnforcedPowerLimit"):
                yield "gpu_0_power_usage_percentage", 100 * milliwatts / limit

    def _ask(self, function: str) -> Any:
        """What a function of NVML returns for it; None if the driver cannot say."""
        if self._gpu is not None:
            with suppress(self._nvml.NVMLError):
                return getattr(self._nvml, function)(self._gpu)
        return None
