"""Exported programs: which dimensions may vary, and what counts as the same outputs."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from labjobs.commands import exported_program
from labjobs.errors import JobError
from torch import Tensor, nn
from torch.export import Dim


class Scaled(nn.Module):
    """Multiplies by a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        return self.weight * x if y is None else {"sum": x + y, "more": (x > y, self.weight * y)}


class IfPositive(Scaled):
    """Looks at values."""

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x if x.sum() > 0 else x


class Counted(Scaled):
    """Has the number of examples as a number, in one of two ways."""

    def __init__(self, by_len: bool) -> None:
        super().__init__()
        self.by_len = by_len

    def forward(self, x: Tensor) -> Tensor:
        count = len(x) if self.by_len else x.shape[0]
        return self.weight * x.new_zeros(count, 3).index_add(0, torch.arange(count), x)


class Drawn(Scaled):
    """Draws random numbers in evaluation mode too."""

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x + torch.rand_like(x)


def batch(examples: int) -> Tensor:
    return torch.randn(examples, 3)


def saved(model: nn.Module, example: exported_program.Make, folder: Path) -> float:
    """How far the outputs of a network are from those of the program that is made of it."""
    exported_program.save(exported_program.traced(model, example), folder / "model.pt2")
    call = exported_program.opened(folder / "model.pt2")
    return exported_program.difference(
        lambda given: model(*given.args, **given.kwargs), call, example, "model.pt2"
    )


def test_dimensions_that_grow_with_the_examples_may_have_any_size() -> None:
    shapes = exported_program.dynamic_shapes(
        lambda n: (torch.zeros(n, 3), torch.zeros(2, 5 * n), batch(7))
    )
    assert shapes == [{0: Dim.DYNAMIC}, {1: Dim.DYNAMIC}, {}]


@pytest.mark.parametrize("made", [3, None, (), [torch.zeros(3)], {"x": 1}])
def test_inputs_that_are_no_tensors_are_refused(made: Any) -> None:
    with pytest.raises(JobError, match="must return a tensor, a tuple or a dict"):
        exported_program.make_inputs(lambda examples: made, 3)


def test_inputs_that_do_not_grow_are_refused() -> None:
    with pytest.raises(JobError, match="the number of examples that it is asked for"):
        exported_program.dynamic_shapes(lambda examples: torch.zeros(3))


def test_inputs_are_the_same_each_time_and_leave_random_numbers_alone() -> None:
    state = torch.random.get_rng_state()
    one, other = (exported_program.make_inputs(batch, 5).tensors[0] for _ in range(2))
    assert torch.equal(one, other)
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize(
    "example",
    [batch, lambda n: (batch(n), batch(n)), lambda n: {"x": batch(n), "y": batch(n)}],
    ids=["tensor", "tuple", "dict"],
)
def test_a_program_gives_the_outputs_of_its_network(
    example: exported_program.Make, tmp_path: Path
) -> None:
    assert saved(Scaled(), example, tmp_path) == 0


@pytest.mark.parametrize("network", [IfPositive(), Counted(by_len=True)], ids=["if", "len"])
def test_code_that_looks_at_values_or_fixes_a_size_is_refused_in_one_line(
    network: nn.Module,
) -> None:
    with pytest.raises(JobError, match=r"torch\.export cannot follow the network") as refused:
        exported_program.traced(network, batch)
    assert len(str(refused.value).splitlines()) == 1
    assert str(refused.value).endswith("`python jobs.py docs export` shows what to write instead")


def test_a_number_of_examples_comes_from_the_shape(tmp_path: Path) -> None:
    assert saved(Counted(by_len=False), batch, tmp_path) == 0


def test_random_outputs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"model.pt2 gives other outputs .* for 1 example:"):
        saved(Drawn(), batch, tmp_path)


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("wanted", "found", "apart"),
    [
        ([1.0, -4.0], [1.0, -4.0], 0.0),
        ([1.0, -4.0], [1.0, -3.0], 0.25),
        ([NAN, 2.0, INF], [NAN, 2.0, INF], 0.0),
        ([NAN, 2.0], [1.0, 2.0], INF),
        ([1.0, 2.0], [1.0, NAN], INF),
        ([0.0], [1e-9], INF),
        ([1, 2], [1, 2], 0.0),
        ([1, 2], [1, 3], INF),
        ([True], [False], INF),
        ([1.0], [1.0, 1.0], INF),
        ([1.0], [1], INF),
        ([], [], 0.0),
    ],
)
def test_difference_of_outputs(wanted: list[Any], found: list[Any], apart: float) -> None:
    outputs = [[torch.zeros(1), torch.tensor(values)] for values in (wanted, found)]
    measured = exported_program.difference
    if apart > exported_program.TOLERANCE:
        with pytest.raises(JobError, match="gives other outputs"):
            measured(lambda _: outputs[0], lambda _: outputs[1], batch, "it")
        assert exported_program._apart(*outputs) == apart
    else:
        assert measured(lambda _: outputs[0], lambda _: outputs[1], batch, "it") == apart


def test_an_output_that_is_no_tensor_is_refused() -> None:
    with pytest.raises(JobError, match="returns Scaled; only tensors can be compared"):
        exported_program.tensors((torch.zeros(1), Scaled()))
