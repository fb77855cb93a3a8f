"""Functions in the background: results as of synchronous calls, in order, some calls later."""

import threading

import pytest
import torch
from labjobs.training.background import Background
from torch import nn
from toy import Loop

CPU = torch.device("cpu")


def weight(model):
    """What there is to evaluate."""
    return model.weight.item()


def train(model, background, epochs, function=weight, at_once=1):
    """Return (epoch, epoch asked, result) as they come; an epoch's weight is its number."""
    found = []
    for epoch in epochs:
        nn.init.constant_(model.weight, epoch)
        results = background.results(function, model, {"step": epoch}, epoch == 5, at_once)
        for at, result, weights in results:
            assert weight(weights) == at["step"]
            found.append((epoch, at["step"], result))
    return found


@pytest.fixture
def model():
    return nn.Linear(1, 1, bias=False)


@pytest.fixture
def background():
    background = Background(CPU, check=lambda: None)
    yield background
    background.close()


@pytest.mark.parametrize(
    ("at_once", "pairs"),
    [
        (1, [(2, 1), (3, 2), (4, 3), (5, 4), (5, 5)]),
        (3, [(4, 1), (5, 2), (5, 3), (5, 4), (5, 5)]),
        (9, [(5, 1), (5, 2), (5, 3), (5, 4), (5, 5)]),
    ],
)
def test_results_come_in_order_and_as_many_calls_later(model, background, at_once, pairs):
    found = train(model, background, range(1, 6), at_once=at_once)
    assert found == [(epoch, asked, asked) for epoch, asked in pairs]


def test_several_at_once_and_the_slowest_first(model, background):
    """The first call ends only when the second has."""
    second = threading.Event()

    def function(model):
        if weight(model) == 1:
            assert second.wait(60)
        if weight(model) == 2:
            second.set()
        return weight(model)

    found = train(model, background, range(1, 6), function, at_once=2)
    assert [asked for _, asked, _ in found] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("at_once", [1, 2, 4])
def test_what_was_under_way_is_done_again(model, background, at_once):
    before = train(model, background, (1, 2, 3), at_once=2)
    again = Background(CPU, check=lambda: None)
    again.load_state_dict(background.state_dict())
    after = train(nn.Linear(1, 1, bias=False), again, (4, 5), at_once=at_once)
    again.close()
    assert [result for *_, result in before + after] == [1, 2, 3, 4, 5]


class Fails(Loop):
    """An evaluation that fails in its thread."""

    def evaluate(self, *others):
        raise ValueError("no such class")


def test_a_failed_evaluation_fails_the_job_in_one_line(toy):
    done = toy.run(loop=Fails(), background=True)
    assert done.status == 1
    assert "failed: ValueError: no such class (full trace: " in done.said.splitlines()[-1]
