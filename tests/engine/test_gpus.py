"""The GPUs of a job that needs several: all are held, or none."""

import pytest
from labjobs.commands import gpu
from labjobs.sweeps import gpus
from labjobs.sweeps.gpus import Gpu


@pytest.fixture
def locks(tmp_path):
    made = {f"GPU-{name}": str(tmp_path / name) for name in "abcde"}
    for lock in made.values():
        for number in (0, 1):
            (tmp_path / f"{lock}.{number}").touch()
    return made


def test_several_gpus_are_held_together_or_not_at_all(locks):
    a, b, c, d, e = locks.items()
    first, second = Gpu(dict([a, b])), Gpu(dict([c, d]))
    assert first.take() and second.take()
    assert first.env == {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}
    assert len(first.files) == 4
    third = Gpu(dict([e, b]))
    assert not third.take() and third.why == "is in use by a job of another sweep"
    assert third.files == []
    first.release()
    assert third.take()


def test_nvidia_smi_that_hangs_does_not_stop_a_sweep(tmp_path, monkeypatch, capfd):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(gpus, "HANGS", 0.5)
    assert gpus.nvidia_smi("-L") == ""
    said = capfd.readouterr().err
    assert said == "nvidia-smi -L: no answer within 0.5 s; a GPU may be broken\n"


@pytest.mark.parametrize("none", ["", "-1", "NoDevFiles"])
def test_a_sweep_that_is_given_no_gpu_has_none(monkeypatch, none):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", none)
    assert gpus.on_gpus(None) == []


@pytest.mark.parametrize(
    ("torch", "said"),
    [
        ("import time; time.sleep(60)", "no answer within 1 s after what stands above"),
        (
            "raise OSError('libcudart is missing')",
            "torch ended with status 1: OSError: libcudart is",
        ),
    ],
)
def test_a_torch_that_hangs_or_fails_is_a_line(tmp_path, monkeypatch, torch, said):
    (tmp_path / "torch.py").write_text(torch)
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    for name in ("PATH", "PYTHONPATH"):
        monkeypatch.setenv(name, str(tmp_path), prepend=":")
    monkeypatch.setattr(gpus, "HANGS", 0.5)
    monkeypatch.setattr(gpu, "SECONDS", 1 if "sleep" in torch else 60)
    driver, of_torch = gpu.found()
    assert driver.found.startswith("unknown, since nvidia-smi is not there or fails; ")
    assert of_torch.found.startswith(said) and not of_torch.works
