"""Jobs on a real GPU, by their commands: `bash test.sh --gpu`."""

import re

import pytest
import torch
from faults import Project, same, succeeded, wait_until
from planted import MISTAKES
from sweeps import write_grid

pytestmark = pytest.mark.gpu

SHORT = ("--epochs", "3")
EXACT = ("--model", "convnet", "--augment", "crop-flip", "--ema", "0.9", "--deterministic")
EXACT += ("--schedule", "constant")  # its last.pt stays, to be compared


def gpu_of(project: Project, job: str) -> str:
    """The device that a job says it ran on."""
    (shown,) = re.findall(r'"device": "(.*?)"', (project.folder(job) / "metrics.jsonl").read_text())
    return str(shown)


@pytest.mark.parametrize("device", [(), ("--device", "cuda"), ("--device", "cuda:0")])
def test_a_job_starts_on_the_gpu(project, device):
    job = project.finish(*SHORT, *device, "--note", " ".join(device))
    assert gpu_of(project, job) == torch.cuda.get_device_name(0)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
@pytest.mark.parametrize("loader", ["resident", "workers"])
def test_a_job_learns_in_each_format_and_with_each_loader(project, precision, loader):
    job = project.finish(*SHORT, "--precision", precision, "--loader", loader)
    (_, first), *_, (_, last) = project.stored(job)["val_loss"]
    assert last < 0.7 * first


@pytest.mark.parametrize("model", ["convnet", "resnet18"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_job_learns_with_everything_on(project, model, optimizer):
    flags = ("--model", model, "--optimizer", optimizer, "--augment", "crop", "--ema", "0.9")
    job = project.finish(*SHORT, *flags, "--clip-norm", "1", "--compile", "on")
    (_, first), *_, (_, last) = project.stored(job)["val_loss"]
    assert last < first


def test_equal_bits_again_and_after_an_interruption(project, tmp_path):
    whole, again, stopped = (project.copy(tmp_path / name) for name in ("a", "b", "c"))
    flags = (*SHORT, *EXACT)
    job = whole.finish(*flags)
    again.finish(*flags)
    assert stopped.run(*flags, "--pause-after", "30").returncode == 0
    stopped.finish(*flags)
    for other in (again, stopped):
        assert same(other.tensors(job), whole.tensors(job))
        assert other.stored(job) == whole.stored(job)


def test_a_step_that_waits_is_found_and_no_other(project, tmp_path):
    checked = project.run("--check")
    assert "waits for the device: fine" in checked.stdout, checked
    planted = project.copy(tmp_path / "planted")
    mistake = next(each for each in MISTAKES.values() if each.guarantee == "waits for the device")
    mistake.edit.make(planted)
    line = f"waits for the device: {mistake.file}:{mistake.line(planted.root)}: "
    assert line in planted.run("--check").stdout


def test_the_profile_says_what_the_gpu_did(project):
    job = project.finish(*SHORT, "--profile", "10", "--force")
    report = (project.folder(job) / "profile.txt").read_text()
    assert "the GPU is busy" in report
    assert (project.folder(job) / "memory.pickle").exists()


def test_two_jobs_share_the_gpu(project, tmp_path):
    swept = project.copy(tmp_path / "swept")
    write_grid(swept.root, *(f"{' '.join(SHORT)} --seed {seed}" for seed in range(2)))
    done = succeeded(swept.do("bash", "run.sh", "--gpus", "0", "--per-gpu", "2"))
    assert done.stdout.splitlines()[-1] == "2 of 2 jobs finished, 2 of them now"


def test_a_job_that_is_killed_leaves_the_gpu_to_the_next(project, tmp_path):
    other = project.copy(tmp_path / "project")
    process = other.start("--epochs", "300", "--compile", "off", "--checkpoint-minutes", "0.001")
    wait_until(lambda: any(other.root.glob("runs/*/*/last.pt")))
    process.kill()
    process.wait()
    other.finish(*SHORT)
