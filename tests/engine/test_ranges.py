"""--nvtx: ranges on the time line of NVIDIA's profilers, on a recorder in their place."""

import pytest
import torch
from labjobs import devices
from labjobs.errors import SettingsError
from labjobs.training.probes import Ranges


def test_each_range_ends_before_the_next_begins(monkeypatch):
    marks: list[str] = []
    monkeypatch.setattr(devices, "begin_range", marks.append)
    monkeypatch.setattr(devices, "end_range", lambda: marks.append("end"))
    ranges = Ranges(torch.device("cuda", 0))
    steps = ranges.steps(iter([("a", 1), ("b", 1), ("c", 1)]), None)
    assert [next(steps), next(steps)] == [("a", 1), ("b", 1)]
    ranges.end_steps()
    assert next(steps) == ("c", 1)
    ranges.close()
    ranges.close()
    of_step = ["batch", "end", "step", "end"]
    assert marks == [*of_step, *of_step, "evaluation", "end", *of_step]


def test_it_needs_a_gpu_of_nvidias():
    with pytest.raises(SettingsError, match="--nvtx: needs a CUDA GPU"):
        Ranges(torch.device("cpu"))
