"""`python jobs.py gpu`, on GPUs that are not there and on a machine without any."""

import json
import os

import pytest
from faults import silent
from gpus import Machine, needs_stand_in

NVIDIA_SMI = """#!/bin/sh
# A pretend GPU, whose use is in a file.
cd "$(dirname "$0")" || exit 1
case "$*" in
  "") echo "| NVIDIA-SMI 580.65.06   Driver Version: 580.65.06   CUDA Version: 13.0 |" ;;
  -L) echo "GPU 0: Pretend (UUID: GPU-0)" ;;
  *memory.used*) cat use ;;
esac
"""


@pytest.fixture
def lab(fresh, tmp_path):
    """A project on a machine with a pretend GPU, and what nvidia-smi says."""
    machine = Machine(tmp_path, gpus=1).host(fresh)
    machine.env["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    (tmp_path / "nvidia-smi").write_text(NVIDIA_SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    (tmp_path / "use").write_text("3, 0\n")
    return machine


@needs_stand_in
@pytest.mark.full
def test_a_gpu_that_works(lab):
    done = silent(lab.do("python", "jobs.py", "gpu"))
    assert {line[:5] for line in done.stdout.splitlines()} == {"ok   "}
    for part in (
        "driver: 580.65.06, for CUDA 13.0 at most\n",
        "GPU 0: H100 (a stand-in), compute capability 9.0, for which this torch has code; "
        "8.0 of 16.0 GiB are free\n",
        "formats: bf16, fp16, TF32 and fp32; --precision auto is bf16",
        "torch.compile: works; ",
        "CUDA graphs: work\n",
        "use: GPU-0 is free\n",
    ):
        assert f"ok   {part}" in done.stdout


@needs_stand_in
@pytest.mark.full
def test_what_is_wrong_with_a_gpu_is_a_line(lab, tmp_path):
    (tmp_path / "use").write_text("4096, 99\n")
    lab.env["STAND_IN_KIND"] = "T4"
    done = lab.do("python", "jobs.py", "gpu", "--json")
    assert done.returncode == 1, done
    lines = {line["name"]: line for line in json.loads(done.stdout)}
    (wrong,) = [line["found"] for line in lines.values() if not line["works"]]
    assert wrong == "GPU-0 is in use by another process (4096 MiB, busy 99% of the time)"
    assert lines["formats"]["found"].startswith("fp32 and fp16; bf16 is emulated")


@pytest.mark.parametrize(("shown", "why"), [("", " (CUDA_VISIBLE_DEVICES is '')"), (None, "")])
def test_a_machine_without_a_gpu_says_why_none_is_used(fresh, shown, why):
    fresh.env |= {} if shown is None else {"CUDA_VISIBLE_DEVICES": shown}
    done = fresh.do("python", "jobs.py", "gpu")
    assert done.returncode == 1, done
    driver, torch, gpu = done.stdout.splitlines()
    assert driver.startswith("not  driver: unknown, since nvidia-smi is not there or fails; ")
    assert torch.startswith("ok   torch: 2.")
    assert gpu.startswith("not  GPU: jobs run on cpu: torch ")
    assert ("says: Found no NVIDIA driver" in gpu or "is built without CUDA" in gpu) and why in gpu
