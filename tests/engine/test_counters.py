"""The GPU's own counters, by the real driver where there is one."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engine.tracking import counters
from engine.tracking.counters import Counters
from engine.training import devices

NOWHERE = "00000000-0000-0000-0000-000000000000"


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
        """Bytes in use."""
        return SimpleNamespace(used=3 * 2**20)

    def __getattr__(self, name: str) -> Any:
        def whole_gpus_only(gpu: str) -> Any:
            if gpu.startswith("MIG"):
                raise self.NVMLError
            return SimpleNamespace(gpu=50) if "Utilization" in name else 70_000

        return whole_gpus_only


def test_a_gpu_that_is_not_there_has_none() -> None:
    assert Counters(NOWHERE).sample(0) == []


@pytest.mark.parametrize(
    ("uuid", "found"),
    [
        ("GPU-1", {"gpu_memory_mib": 3, "gpu_power_watts": 70, "gpu_utilization": 50}),
        ("MIG-1", {"gpu_memory_mib": 3}),
        ("GPU-2", None),
    ],
)
def test_a_part_of_a_gpu_is_found_too(
    uuid: str, found: dict[str, float] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "pynvml", Driver(uuid))
    assert [line["metrics"] for line in Counters("1").sample(0)] == ([found] if found else [])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_gpus_memory_power_and_utilization() -> None:
    gpu = torch.device("cuda", 0)
    kept = torch.zeros(2**28, dtype=torch.uint8, device=gpu)
    (line,) = (of_gpu := Counters(devices.tags(gpu)["gpu"])).sample(0)
    assert set(line["metrics"]) == {"gpu_memory_mib", "gpu_power_watts", "gpu_utilization"}
    assert line["metrics"]["gpu_memory_mib"] > kept.nbytes / 2**20
    assert of_gpu.sample(0) == []  # not yet time for the next
