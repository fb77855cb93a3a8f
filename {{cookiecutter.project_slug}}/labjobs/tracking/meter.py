"""What the trainer uses, as measured by the courier: its processes, and the energy of its GPU.

This costs the trainer nothing. The measurements are kept in cost.json (labjobs.job.costs).
"""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pynvml

from labjobs.job import costs, lines, usage
from labjobs.tracking.counters import gpu_of

INTERVAL = 10.0
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
        self._journal = lines.record_of(folder, "settings.json").get("journal", {}).get("journal")
        self._processes = costs.kept(folder, self._journal)
        self._process, self._gpu = "", ""
        self._energy: Energy | None = None
        self._next, self._over = 0.0, False
        self._file = (folder / lines.FILE).open("rb")
        self._reader = lines.Reader(self._file)

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
                process, used = usage.of(self._trainer)
                if self._process in ("", process):
                    self._process = process
                    costs.merge(self._processes, process, used)
            if self._process and time.monotonic() >= self._next:
                self._next = time.monotonic() + INTERVAL
                self._look_at_gpu(self._processes[self._process])
                costs.keep(self._folder, self._journal, self._processes)

    def _look_at_gpu(self, used: usage.Reading) -> None:
        for line in self._reader.read():
            self._gpu = "" if "start" in line else line.get("tags", {}).get("gpu", self._gpu)
        if not self._gpu:
            return
        if self._energy is None:
            self._energy = Energy(self._gpu)
        used["gpu_seconds"] = used["seconds"]
        if (joules := self._energy.joules()) is not None:
            used["joules"] = joules
