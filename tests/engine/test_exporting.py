"""Exported programs: which dimensions may vary, and what counts as the same outputs."""

import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from labjobs.commands import export
from labjobs.errors import JobError
from torch import Tensor, nn


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        return self.weight * x if y is None else {"sum": x + y, "more": (x > y, self.weight * y)}


def batch(examples: int) -> Tensor:
    return torch.randn(examples, 3)


@pytest.mark.parametrize("made", [3, None, (), [torch.zeros(3)], {"x": 1}])
def test_inputs_that_are_no_tensors_are_refused(made):
    with pytest.raises(JobError, match="must return a tensor or a tuple of tensors"):
        export.make_inputs(lambda examples: made, 3)


def test_inputs_that_do_not_grow_are_refused():
    with pytest.raises(JobError, match="the number of examples that it is asked for"):
        export.dynamic_shapes(lambda examples: torch.zeros(3))


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("wanted", "found", "same"),
    [
        ([1.0, -4.0], [1.0, -4.0003], True),
        ([1.0, -4.0], [1.0, -3.999], False),
        ([NAN, 2.0, INF], [NAN, 2.0, INF], True),
        ([NAN, 2.0], [1.0, 2.0], False),
        ([0.0], [1e-9], False),
        ([100_000, 2], [100_001, 2], False),
        ([True], [False], False),
        ([1.0], [1.0, 1.0], False),
        ([1.0], [1], False),
        ([], [], True),
    ],
)
def test_what_counts_as_the_same_outputs(wanted, found, same):
    outputs = [[torch.zeros(1), torch.tensor(values)] for values in (wanted, found)]
    with nullcontext() if same else pytest.raises(JobError, match="gives other outputs"):
        export.check(lambda _: outputs[0], lambda _: outputs[1], batch)


def test_an_output_that_is_no_tensor_is_refused():
    with pytest.raises(JobError, match="returns Scaled; only tensors can be compared"):
        export.tensors((torch.zeros(1), Scaled()))
