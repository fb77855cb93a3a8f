"""The number format of a job: what a GPU has, set once, the same to the end, and always said."""

from types import SimpleNamespace

import pytest
import torch
from attempts import At
from labjobs import devices
from labjobs.devices import Precision
from labjobs.distributed.ranks import Rank
from labjobs.errors import SettingsError
from labjobs.training import loop, probes
from toy import Loop

GPU = torch.device("cuda", 0)


@pytest.fixture
def gpu(monkeypatch):
    """A function that sets what torch says of a GPU: its capability."""

    def make(capability):
        devices.computes_in_bf16.cache_clear()
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Pretend")

    yield make
    devices.computes_in_bf16.cache_clear()


def test_a_format_that_an_older_gpu_only_emulates_is_refused(gpu):
    gpu((7, 5))
    for name in ("bf16", "tf32"):
        with pytest.raises(SettingsError, match=f"^--precision {name}: Pretend does not compute"):
            _ = Precision(name, GPU).name
    assert (Precision("auto", GPU).name, Precision("fp16", GPU).name) == ("fp32", "fp16")
    gpu((8, 0))
    assert [Precision(name, GPU).name for name in ("auto", "bf16", "tf32")] == [
        "bf16",
        "bf16",
        "tf32",
    ]


def flags():
    """Return torch's number formats for products and convolutions in 32 bits."""
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


@pytest.fixture
def flags_kept():
    """Restores them."""
    products, convolutions = flags()
    yield
    torch.set_float32_matmul_precision(products)
    torch.backends.cudnn.allow_tf32 = convolutions


def test_a_forward_pass_leaves_the_format_of_everything_else_alone(gpu, flags_kept):
    gpu((9, 0))
    for on, set_to in ((False, ("highest", False)), (True, ("high", True))):
        devices.set_tf32(on)
        for name in ("fp32", "bf16"):
            Precision(name, GPU).autocast()
            assert flags() == set_to


def test_the_first_line_names_device_and_format(toy):
    done = toy.run(epochs=1)
    assert done.said.splitlines()[0].endswith("seed=0 epochs=1 on cpu in fp32")
    said = toy.run("other", epochs=1, precision="bf16").said
    assert said.splitlines()[0].endswith(" on cpu in bf16")
    assert "computes in" not in said


class AtOnce(Loop):
    """A loop whose precision is not a setting."""

    def main(self, job):
        job.prepare(self.forward, "bf16")
        return super().main(job)


def test_a_format_that_the_first_line_could_not_know_is_said_too(toy):
    done = toy.run(loop=AtOnce(), epochs=1)
    assert "a function that was prepared computes in bf16" in done.said


def test_a_format_never_changes_in_the_middle_of_a_curve(toy, monkeypatch):
    """As `auto` would on an older GPU."""
    toy.run("job", epochs=2, precision="auto", stop=At("step", 9))
    name = property(lambda self: "bf16")
    monkeypatch.setattr(Precision, "name", name)
    done = toy.run("job", epochs=2, precision="auto")
    assert done.status == 1
    assert "it was begun in fp32, and on cpu it would go on in bf16; continue it on" in done.said
    monkeypatch.undo()
    assert toy.run("job", epochs=2, precision="auto").status == 0


def test_another_gpu_in_the_middle_of_a_curve_is_said(toy, monkeypatch):
    for name in ("A100", "H100"):
        monkeypatch.setattr(devices, "describe", lambda device, name=name: name)
        done = toy.run("job", epochs=2, stop=At("step", 9) if name == "A100" else None)
    line = "begun on A100 and continued on H100: the same bits cannot be expected"
    assert done.log.count(line) == 1


class OfTwo(Loop):
    """A loop that looks at the peak of two processes."""

    def main(self, job):
        alone = job._processes
        job._processes = SimpleNamespace(rank=Rank(0, 2, 0))
        job.prepare(self.forward, "fp32")
        self.peak = job._watch.peak
        job._processes = alone
        return super().main(job)


def test_the_peak_is_that_of_all_gpus_of_the_job(toy, monkeypatch):
    monkeypatch.setattr(loop.probes, "peak", lambda name, precision: 1e9)
    of_two = OfTwo()
    assert toy.run(loop=of_two, epochs=1).status == 0
    assert of_two.peak == 2e9


def test_the_peak_is_that_of_the_very_gpu():
    assert probes.peak("NVIDIA H100 NVL", "bf16") < probes.peak("NVIDIA H100 80GB HBM3", "bf16")
    assert probes.peak("NVIDIA L4", "bf16") < probes.peak("NVIDIA L40S", "bf16")
    assert probes.peak("NVIDIA A10", "bf16") < probes.peak("NVIDIA A100-SXM4-80GB", "bf16")
    assert probes.peak("NVIDIA A10G", "bf16") is None  # a smaller one
    assert probes.peak("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16") is None
    assert probes.peak("Tesla T4", "bf16") is None
