"""The GPU's own counters, by the real driver where there is one."""

import pytest
import torch

from engine.tracking.counters import Counters
from engine.training import devices


def test_a_gpu_that_is_not_there_has_none():
    assert Counters("GPU-00000000-0000-0000-0000-000000000000").sample(0) == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_gpus_memory_power_and_utilisation():
    gpu = torch.device("cuda", 0)
    kept = torch.zeros(2**28, dtype=torch.uint8, device=gpu)
    (line,) = (counters := Counters(devices.tags(gpu)["gpu"])).sample(0)
    assert set(line["metrics"]) == {"gpu_memory_mib", "gpu_power_watts", "gpu_utilization"}
    assert line["metrics"]["gpu_memory_mib"] > kept.nbytes / 2**20
    assert counters.sample(0) == []  # not yet time for the next
