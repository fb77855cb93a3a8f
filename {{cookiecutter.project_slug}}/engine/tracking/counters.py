"""A GPU's own counters, as the driver has them (nvidia-ml-py); read by the courier alone.

They are samples of the job's GPU, not of its training, so they are not in the journal: what cannot
be sent at once is dropped. Source: docs.nvidia.com/deploy/nvml-api.
"""

import math
import time
from contextlib import suppress
from typing import Any

import pynvml

from engine.job.journal import now

INTERVAL = 10.0
"""Seconds between two samples."""


class Counters:
    """The counters of one GPU, by its UUID; none if the driver knows no such GPU.

    A sample is utilization in per cent of the time, memory in MiB and power in watts, as far as the
    GPU has them: a part of one (MIG) has memory alone.
    """

    def __init__(self, uuid: str) -> None:
        self._next = math.inf
        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
        for kind in ("GPU", "MIG"):  # torch's UUID does not tell a part of a GPU from a whole one
            with suppress(pynvml.NVMLError):
                self._gpu = pynvml.nvmlDeviceGetHandleByUUID(f"{kind}-{uuid}")
                self._next = 0.0

    def sample(self, since: int) -> list[dict[str, Any]]:
        """A journal line with the counters, if it is time for one; its step is the seconds since a
        time in milliseconds."""
        if time.monotonic() < self._next:
            return []
        self._next = time.monotonic() + INTERVAL
        metrics: dict[str, float] = {}
        with suppress(pynvml.NVMLError):
            metrics["gpu_memory_mib"] = pynvml.nvmlDeviceGetMemoryInfo(self._gpu).used / 2**20
        with suppress(pynvml.NVMLError):
            metrics["gpu_power_watts"] = pynvml.nvmlDeviceGetPowerUsage(self._gpu) / 1000
        with suppress(pynvml.NVMLError):
            metrics["gpu_utilization"] = pynvml.nvmlDeviceGetUtilizationRates(self._gpu).gpu
        return [{"time": now(), "step": (now() - since) // 1000, "metrics": metrics}]
