"""The machine's counters, and a GPU's own by the real driver where there is one."""

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from labjobs import devices
from labjobs.tracking import costs
from labjobs.tracking.costs import Meter
from mlflow.system_metrics import metrics

NOWHERE = "00000000-0000-0000-0000-000000000000"


MACHINE = {
    "system/cpu_utilization_percentage",
    "system/system_memory_usage_megabytes",
    "system/system_memory_usage_percentage",
}
MEMORY = {
    "system/gpu_0_memory_usage_megabytes": 3.0,
    "system/gpu_0_memory_usage_percentage": 25.0,
}
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


@pytest.fixture
def meter(tmp_path: Path) -> Meter:
    """A meter of this process, with no attempt's folder."""
    return Meter(tmp_path / "nowhere", os.getpid())


def test_a_gpu_that_is_not_there_has_none(meter: Meter) -> None:
    meter.look(NOWHERE)
    (line,) = meter.sample(0)
    assert not {name for name in line["metrics"] if "gpu" in name}


@pytest.mark.parametrize(
    ("uuid", "found"), [("GPU-1", MEMORY | WHOLE), ("MIG-1", MEMORY), ("GPU-2", {})]
)
def test_a_part_of_a_gpu_is_found_too(
    uuid: str, found: dict[str, float], meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Driver(uuid))  # type: ignore[misc]
    meter.look("1")
    (line,) = meter.sample(0)
    assert {name: value for name, value in line["metrics"].items() if "gpu" in name} == found


@pytest.mark.skipif(not costs.STAT.exists(), reason="needs Linux")
def test_the_machines_cores_and_memory(meter: Meter) -> None:
    until = time.process_time() + 0.05
    while time.process_time() < until:
        """Use a core, for Linux counts hundredths of a second."""
    (line,) = meter.sample(0)
    assert line["metrics"].keys() >= MACHINE
    assert 0 < line["metrics"]["system/cpu_utilization_percentage"] <= 100
    assert 0 < line["metrics"]["system/system_memory_usage_percentage"] < 100
    assert meter.sample(0) == []  # not yet time for the next


def test_elsewhere_the_machine_has_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("STAT", "MEMORY"):
        monkeypatch.setattr(costs, name, tmp_path / "nowhere")
    assert Meter(tmp_path, os.getpid()).sample(0) == []


def test_the_names_are_those_of_mlflows_own_monitors() -> None:
    """Its tab for system metrics goes by them."""
    monitors = Path(metrics.__file__).parent
    text = "".join((monitors / f"{name}_monitor.py").read_text() for name in ("cpu", "gpu"))
    for name in {*MACHINE, *MEMORY, *WHOLE}:
        own = name.removeprefix(costs.PREFIX).replace("gpu_0", "gpu_{i}")
        assert f'"{own}"' in text


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_gpus_memory_power_and_utilization(meter: Meter) -> None:
    gpu = torch.device("cuda", 0)
    kept = torch.zeros(2**28, dtype=torch.uint8, device=gpu)
    meter.look(devices.tags(gpu)["gpu"])
    (line,) = meter.sample(0)
    assert line["metrics"].keys() >= MEMORY.keys() | WHOLE.keys()
    assert line["metrics"]["system/gpu_0_memory_usage_megabytes"] > kept.nbytes / 1e6
    assert meter.sample(0) == []  # not yet time for the next
