"""The machine's counters, and a GPU's own by the real driver where there is one."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
from labjobs.tracking import costs
from labjobs.tracking.costs import Counters

MACHINE = {
    "system/cpu_utilization_percentage",
    "system/system_memory_usage_megabytes",
    "system/system_memory_usage_percentage",
}
MEMORY = {"system/gpu_0_memory_usage_megabytes": 3.0, "system/gpu_0_memory_usage_percentage": 25.0}
WHOLE = {
    "system/gpu_0_utilization_percentage": 50.0,
    "system/gpu_0_power_usage_watts": 70.0,
    "system/gpu_0_power_usage_percentage": 20.0,
}


class Driver:
    """NVML with one GPU, or a part of one (MIG), which has no power and no utilization."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self.NVMLError = RuntimeError

    def nvmlInit(self) -> None:
        """Begin."""

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        """The GPU, known by its whole name alone."""
        if uuid != self.uuid:
            raise self.NVMLError
        return uuid

    def nvmlDeviceGetMemoryInfo(self, gpu: str) -> SimpleNamespace:
        """Bytes in use, and in all."""
        return SimpleNamespace(used=3_000_000, total=12_000_000)

    def __getattr__(self, name: str) -> Any:
        def whole_gpus_only(gpu: str) -> Any:
            if gpu.startswith("MIG"):
                raise self.NVMLError
            milliwatts = 350_000 if "Limit" in name else 70_000
            return SimpleNamespace(gpu=50) if "Utilization" in name else milliwatts

        return whole_gpus_only


@pytest.mark.parametrize(
    ("uuid", "found"), [("GPU-1", MEMORY | WHOLE), ("MIG-1", MEMORY), ("GPU-2", {})]
)
def test_a_part_of_a_gpu_is_found_too(uuid, found, monkeypatch):
    monkeypatch.setattr(costs, "pynvml", Driver(uuid))
    (line,) = Counters("1").sample(0)
    assert {name: value for name, value in line["metrics"].items() if "gpu" in name} == found


@pytest.mark.skipif(not costs.STAT.exists(), reason="needs Linux")
def test_the_machines_cores_and_memory():
    machine = Counters()
    until = time.process_time() + 0.05
    while time.process_time() < until:
        """Use a core, for Linux counts hundredths of a second."""
    (line,) = machine.sample(0)
    assert line["metrics"].keys() >= MACHINE
    assert 0 < line["metrics"]["system/cpu_utilization_percentage"] <= 100
    assert 0 < line["metrics"]["system/system_memory_usage_percentage"] < 100
    assert machine.sample(0) == []  # not yet time for the next


def test_elsewhere_the_machine_has_none(monkeypatch, tmp_path):
    for name in ("STAT", "MEMORY"):
        monkeypatch.setattr(costs, name, tmp_path / "nowhere")
    assert Counters().sample(0) == []
