"""Counters of the machine: its cores and memory, and the job's GPU according to its driver.

Only the courier reads them. They are samples of the machine, not of training, so they are not in
the journal: samples that cannot be sent immediately are dropped. The names are those of MLflow's
tab "System metrics" (mlflow.org/docs, system metrics). MLflow's own monitor would list all GPUs of
the machine for each job, and stops permanently at the first failed call. `gpu_0` is always the
job's own GPU. Sources: docs.nvidia.com/deploy/nvml-api, docs.kernel.org/filesystems/proc.html.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pynvml

from labjobs.job.journal import now

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
