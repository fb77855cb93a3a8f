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

import pynvml

from labjobs import layout, machine
from labjobs.errors import JobError
from labjobs.files import write_record
from labjobs.job import journal
from labjobs.job import journal as lines
from labjobs.job.journal import now
from labjobs.machine import Reading

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
    write_record(attempt / layout.COST, {**about, "processes": processes})


def kept(attempt: Path, journal: str) -> dict[str, Reading]:
    """Return what couriers have seen, by process; empty if it belongs to another journal."""
    found = lines.record_of(attempt, layout.COST)
    return dict(found["processes"]) if found and found["journal"] == journal else {}


def totals(attempt: Path) -> dict[str, float]:
    """Return the cost of an attempt so far, by metric. What is unknown is left out, such as the
    energy of a GPU that does not count it."""
    start = lines.record_of(attempt, layout.SETTINGS).get("journal", {})
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
    with suppress(OSError, JobError), (attempt / layout.JOURNAL).open("rb") as file:
        return lines.Reader(file).read()
    return []


# Counters of the machine: its cores and memory, and the job's GPU according to its driver.
#
# Only the courier reads them. They are samples of the machine, not of training, so they are not in
# the journal: samples that cannot be sent immediately are dropped. The names are those of MLflow's
# tab "System metrics" (mlflow.org/docs, system metrics). MLflow's own monitor would list all GPUs
# of the machine for each job, and stops permanently at the first failed call. `gpu_0` is always the
# job's own GPU. Sources: docs.nvidia.com/deploy/nvml-api, docs.kernel.org/filesystems/proc.html.

INTERVAL = 10.0
"""Seconds between two samples."""

PREFIX = "system/"
"""Prefix of the names."""

MEGABYTE = 1e6

STAT, MEMORY = Path("/proc/stat"), Path("/proc/meminfo")
"""Linux's counters; on other systems, the machine is not sampled."""


class Counters:
    """The counters of the machine and, by its UUID, of one GPU, if the driver knows it.

    A sample is utilization in per cent of the time, memory in megabytes and in per cent, power in
    watts and in per cent of its limit, if these counters exist: a part of a GPU (MIG) has only
    memory.
    """

    def __init__(self, uuid: str = "") -> None:
        self.uuid = uuid
        self._next, self._gpu, self._times = 0.0, gpu_of(uuid), _times()

    def sample(self, since: int) -> list[dict[str, Any]]:
        """Return a journal line with the counters, if it is time for one; its step is the seconds
        since a time in milliseconds."""
        if time.monotonic() < self._next:
            return []
        self._next = time.monotonic() + INTERVAL
        found = dict(self._cores()) | dict(_memory()) | dict(_of_gpu(self._gpu))
        metrics = {f"{PREFIX}{name}": round(value, 1) for name, value in found.items()}
        if not metrics:
            return []
        return [{"time": now(), "step": (now() - since) // 1000, "metrics": metrics}]

    def _cores(self) -> Iterator[tuple[str, float]]:
        """How busy the machine's cores have been since the last sample."""
        before, self._times = self._times, _times()
        passed = [new - old for new, old in zip(self._times, before, strict=True)]
        if sum(passed):
            idle = sum(passed[3:5])  # idle, and waiting for a disk
            yield "cpu_utilization_percentage", 100 * (1 - idle / sum(passed))


def gpu_of(uuid: str) -> Any:
    """Return NVML's handle of a GPU or of a part of one; None if the driver knows neither."""
    found = None
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
    for kind in ("GPU", "MIG"):  # torch's UUID does not tell a part of a GPU from a whole one
        with suppress(pynvml.NVMLError):
            found = pynvml.nvmlDeviceGetHandleByUUID(f"{kind}-{uuid}")
    return found


def _times() -> list[int]:
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


def _of_gpu(gpu: Any) -> Iterator[tuple[str, float]]:
    if gpu is None:
        return
    with suppress(pynvml.NVMLError):
        memory = pynvml.nvmlDeviceGetMemoryInfo(gpu)
        yield "gpu_0_memory_usage_megabytes", memory.used / MEGABYTE
        yield "gpu_0_memory_usage_percentage", 100 * memory.used / memory.total
    with suppress(pynvml.NVMLError):
        yield "gpu_0_utilization_percentage", pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu
    with suppress(pynvml.NVMLError):
        watts = pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000
        yield "gpu_0_power_usage_watts", watts
        limit = pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000
        yield "gpu_0_power_usage_percentage", 100 * watts / limit


# What the trainer uses, as measured by the courier: its processes, and the energy of its GPU.
#
# This costs the trainer nothing. The measurements are kept in cost.json (labjobs.tracking.costs).

"""Seconds between two measurements of the GPU, after which they are written down."""


class Energy:
    """The energy that a GPU has used since this was made, by all its users together.

    NVML counts it on GPUs since Volta (docs.nvidia.com/deploy/nvml-api,
    nvmlDeviceGetTotalEnergyConsumption). On older ones it is the sum over the calls of the power
    then, times the seconds since the call before.
    """

    def __init__(self, uuid: str) -> None:
        self._gpu = gpu_of(uuid)
        self._begun = self._counted()
        self._summed, self._at = 0.0, time.monotonic()

    def joules(self) -> float | None:
        """Return the energy so far; None if the driver does not report it."""
        counted = self._counted()
        if counted is not None and self._begun is not None:
            return counted - self._begun
        if self._gpu is None:
            return None
        with suppress(pynvml.NVMLError):
            watts = pynvml.nvmlDeviceGetPowerUsage(self._gpu) / 1000
            now = time.monotonic()
            self._summed += watts * (now - self._at)
            self._at = now
            return self._summed
        return None

    def _counted(self) -> float | None:
        if self._gpu is None:
            return None
        with suppress(pynvml.NVMLError):
            return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._gpu) / 1000)
        return None


class Meter:
    """What the trainer of an attempt uses, seen from its courier."""

    def __init__(self, folder: Path, trainer: int) -> None:
        self._folder, self._trainer = folder, trainer
        self._journal = journal.record_of(folder, layout.SETTINGS).get("journal", {}).get("journal")
        self._processes = kept(folder, self._journal)
        self._process, self._gpu = "", ""
        self._energy: Energy | None = None
        self._next, self._over = 0.0, False
        self._file = (folder / layout.JOURNAL).open("rb")
        self._reader = journal.Reader(self._file)

    def beside(self, has_ended: Callable[[float], bool]) -> Callable[[float], bool]:
        """Return a wait for the trainer's end that also looks at what the trainer uses."""

        def wait(seconds: float) -> bool:
            """Return whether the trainer has ended within these seconds."""
            self._look()
            ended = has_ended(seconds)
            if ended and not self._over:
                self._over, self._next = True, 0.0
                self._look()
            return ended

        return wait

    def _look(self) -> None:
        with suppress(Exception):  # the courier continues, even if a driver or a disk fails
            with suppress(OSError):  # once it has ended, what was seen last counts
                process, used = machine.of(self._trainer)
                if self._process in ("", process):
                    self._process = process
                    merge(self._processes, process, used)
            if self._process and time.monotonic() >= self._next:
                self._next = time.monotonic() + INTERVAL
                self._look_at_gpu(self._processes[self._process])
                keep(self._folder, self._journal, self._processes)

    def _look_at_gpu(self, used: machine.Reading) -> None:
        for line in self._reader.read():
            self._gpu = "" if "start" in line else line.get("tags", {}).get("gpu", self._gpu)
        if not self._gpu:
            return
        if self._energy is None:
            self._energy = Energy(self._gpu)
        used["gpu_seconds"] = used["seconds"]
        if (joules := self._energy.joules()) is not None:
            used["joules"] = joules
