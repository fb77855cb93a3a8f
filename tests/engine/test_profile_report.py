"""What the report of --profile advises, and how it counts."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from labjobs.training import profile_report
from labjobs.training.profile_report import Line, Reading, Watched, advice, report
from torch import Tensor, nn

CPU = Watched(
    steps=10,
    batch_size=64,
    device="cpu",
    precision="fp32",
    compiled=False,
    loader="workers",
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
    """Return what is to be changed, in order."""
    return [text for _, text in sorted(advice(seen), reverse=True)]


def taking(part: str) -> list[Line]:
    """Return lines half of whose time a part of a step takes."""
    return [Line("run.py:9", "", part, 2.0, 0.0)]


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
        (replace(CPU, lines=taking("evaluation")), ["--eval-every"]),
        (replace(CPU, lines=taking("logging and checkpoints")), ["--log-every"]),
        (replace(CPU, lines=taking("augmentation")), ["--augment none"]),
        (replace(CPU, compiling=["Graph break at run.py:3"]), ["torch.compile"]),
    ],
)
def test_what_to_change_first(seen, said):
    found = advised(seen)
    assert len(found) == len(said)
    assert all(words in text for words, text in zip(said, found, strict=True))


def squares(model: nn.Module, batch: Any, settings: Any) -> tuple[Tensor, dict[str, Any]]:
    """Return a loss of what a model makes of a batch of one kind or another."""
    x = batch["x"] if isinstance(batch, dict) else batch[0]
    return model(x).square().mean() * settings, {}


@pytest.mark.parametrize("batch", [{"x": torch.zeros(5, 3)}, (torch.zeros(5, 3), "name")])
def test_operations_of_a_linear_layer(batch):
    """2 for each weight and example forward, 4 backward but for the inputs' gradient."""
    model = nn.Sequential(nn.Linear(3, 7), nn.Linear(7, 2))
    forward = 2 * 5 * (3 * 7 + 7 * 2)
    assert profile_report.flops(squares, model, batch, 2.0) == 3 * forward - 2 * 5 * 3 * 7


def test_a_forward_function_that_looks_at_numbers_has_no_count():
    def looks(model: nn.Module, batch: Any, settings: Any) -> Any:
        return batch["x"].numpy().sum(), {}

    assert profile_report.flops(looks, nn.Linear(3, 1), {"x": torch.zeros(5, 3)}, None) is None
