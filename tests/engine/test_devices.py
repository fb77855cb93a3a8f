"""What --device accepts on a machine without a GPU, and for several processes."""

from contextlib import nullcontext

import pytest
import torch
from labjobs import devices
from labjobs.distributed.ranks import Rank
from labjobs.errors import SettingsError, cause

CPU = torch.device("cpu")
no_gpu = pytest.mark.skipif(torch.accelerator.is_available(), reason="needs a machine without")


@no_gpu
@pytest.mark.parametrize("name", ["auto", "cpu", "cpu:0"])
def test_without_a_gpu_it_is_the_cpu(name):
    assert devices.choose(name) == CPU


@no_gpu
@pytest.mark.parametrize(
    "name", ["cuda", "cuda:1", "mps", "xpu", "cpu:1", "meta", "", "gpu", "cuda:", "cuda:-1", "0"]
)
def test_any_other_device_is_refused_in_one_line(name):
    with pytest.raises(SettingsError, match=rf"^--device {name}: [^\n]+$"):
        devices.choose(name)


@no_gpu
def test_a_gpu_that_was_given_and_cannot_be_used_is_no_cpu(monkeypatch):
    for none in ("", "-1", "NoDevFiles"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", none)
        assert devices.choose("auto") == CPU
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1111")
    said = "^--device auto: CUDA_VISIBLE_DEVICES gives this job GPU GPU-1111, which torch cannot"
    with pytest.raises(SettingsError, match=said):
        devices.choose("auto")
    assert devices.choose("cpu") == CPU
    monkeypatch.setattr(torch.version, "cuda", None)
    line = r"is built without CUDA, pytorch.org/.* CUDA; --device"
    with pytest.raises(SettingsError, match=line):
        devices.choose("auto")


@pytest.mark.parametrize(
    ("capability", "built", "runs"),
    [
        ((7, 0), ["sm_75", "sm_80", "sm_90", "compute_90"], False),
        ((7, 5), ["sm_75", "sm_80"], True),
        ((8, 9), ["sm_75", "sm_80"], True),
        ((9, 0), ["sm_80", "sm_86"], False),
        ((12, 0), ["sm_80", "sm_90", "compute_90"], True),
        ((9, 4), ["gfx90a"], True),
    ],
)
def test_a_gpu_that_torch_has_no_code_for_is_refused(monkeypatch, capability, built, runs):
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Pretend")
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: built)
    monkeypatch.setattr(devices, "set_tf32", lambda on: None)
    monkeypatch.setattr(devices, "in_thread", lambda device: None)
    said = f"has no code for Pretend, of compute capability {'.'.join(map(str, capability))}, only"
    with nullcontext() if runs else pytest.raises(SettingsError, match=said):
        devices.use(gpu, deterministic=False)


# Several processes on a machine


@pytest.fixture
def two_gpus(monkeypatch):
    """torch finds two GPUs; `auto` is the first."""
    monkeypatch.setattr(devices, "choose", lambda name: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(devices, "tags", lambda device: {"gpu": "GPU-1"})


class Others:
    """The processes of a job, one of which looks at the GPUs of all."""

    def __init__(self, rank, *gpus):
        self.rank, self.gpus = rank, gpus

    def everyones(self, gpu):
        return [gpu, *self.gpus]


def test_each_process_takes_a_gpu_of_its_own(two_gpus, monkeypatch):
    found = [devices.choose_for("auto", Others(Rank(4 + local, 8, local))) for local in (0, 1)]
    assert found == [torch.device("cuda", 0), torch.device("cuda", 1)]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # Slurm shows it no other
    assert devices.choose_for("auto", Others(Rank(3, 4, 3))) == torch.device("cuda", 0)


def test_processes_without_a_gpu_of_their_own_are_refused(two_gpus):
    with pytest.raises(SettingsError, match="--device cuda:0: for several processes it must be"):
        devices.choose_for("cuda:0", Others(Rank(0, 4, 0)))
    with pytest.raises(SettingsError, match="each of the 3 processes needs a GPU of its own"):
        devices.choose_for("auto", Others(Rank(0, 4, 0), "GPU-2", "GPU-2"))


@pytest.mark.parametrize(
    "said",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "GET was unable to find an engine to execute this computation",
    ],
)
def test_a_gpu_without_memory_says_so_in_words_that_sweeps_know(said):
    assert cause(RuntimeError(said)).startswith("out of memory; try a smaller --batch-size (")
