"""What the report of --profile advises, and how it counts."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from engine.profiling import flops
from engine.profiling.report import Line, Reading, Watched, advice, report
from engine.training.compilation import Compiled

CPU = Watched(
    steps=10,
    batch_size=64,
    device="cpu",
    precision="fp32",
    compiled=False,
    loader="workers",
    beside=False,
    plain=2.0,
    examples=600,
    waiting=0.0,
    seconds=4.0,
    lines=[Line("run.py:1", "logits = model(images)", "forward", 3.0, 0.0)],
    reads=[],
    compiling=[],
    memory={"weights": 2**20},
)
GPU = replace(CPU, device="a GPU", busy=1.0, precision="bf16", compiled=True)


def advised(seen: Watched) -> list[str]:
    """What is to be changed, in order."""
    return [one.text for one in sorted(advice(seen), reverse=True)]


@pytest.mark.parametrize("seen", [CPU, GPU])
def test_a_job_that_computes_all_the_time_is_advised_nothing(seen):
    assert advised(seen) == []
    assert "nothing stands out: the time goes into computing" in report(seen)


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (replace(CPU, waiting=0.5), ["--workers"]),
        (replace(CPU, waiting=0.5, loader="resident"), ["--batch-size"]),
        (replace(GPU, busy=0.4), ["--batch-size larger"]),
        (replace(GPU, busy=0.4, compiled=False), ["--compile on, or --batch-size larger"]),
        (replace(GPU, busy=0.4, waiting=0.6), ["--workers"]),  # it waits for data, not the host
        (replace(GPU, precision="fp32"), ["--precision bf16"]),
        (replace(GPU, precision="fp32", busy=0.3, waiting=0.7), ["--workers", "--precision"]),
        (replace(GPU, copying=0.2), ["--loader resident"]),
        (replace(CPU, reads=[Reading("run.py:7", "item", 10, 0.4)]), ["run.py:7 reads a tensor"]),
        (replace(CPU, reads=[Reading("run.py:7", "item", 1, 0.4)]), []),  # once an epoch
        (replace(CPU, lines=[Line("run.py:9", "", "evaluation", 2.0, 0.0)]), ["--eval-beside"]),
        (
            replace(CPU, beside=True, lines=[Line("run.py:9", "", "evaluation", 2.0, 0.0)]),
            ["evaluation: --val-fraction smaller"],
        ),
        (replace(CPU, compiling=["Graph break at run.py:3"]), ["torch.compile"]),
    ],
)
def test_what_to_change_first(seen, said):
    found = advised(seen)
    assert len(found) == len(said)
    assert all(words in text for words, text in zip(said, found, strict=True))


def test_speed_is_that_of_the_steps_when_nobody_looked():
    text = report(replace(GPU, flops=6_400, peak=40e3))
    assert "200 ms a step, 300 examples a second in bf16" in text
    assert "75.0% of this GPU's peak (MFU)" in text  # 6,400 of 64 examples, 300 a second
    assert "2.0 times as long while it was watched" in text


@pytest.mark.parametrize("wrap", [lambda model: model, lambda model: Compiled(model, 5)])
def test_operations_of_a_linear_layer(wrap):
    """2 for each weight and example forward, 4 backward but for the inputs' gradient."""
    model = wrap(nn.Sequential(nn.Linear(3, 7), nn.Linear(7, 2)))
    forward = 2 * 5 * (3 * 7 + 7 * 2)
    assert flops.of_step(model, torch.zeros(5, 3)) == 3 * forward - 2 * 5 * 3 * 7


def test_a_network_that_looks_at_its_numbers_has_no_count():
    class Looks(nn.Module):
        def forward(self, x):
            return x.numpy().sum()

    assert flops.of_step(Looks(), torch.zeros(5, 3)) is None
