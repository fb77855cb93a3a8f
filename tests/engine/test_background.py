"""Functions in the background: results as of synchronous calls, in order, some calls later."""

import pytest
import torch
from labjobs.training.compilation import Background
from torch import nn
from toy import Loop

CPU = torch.device("cpu")


def weight(model):
    """What there is to evaluate."""
    return model.weight.item()


def train(model, background, epochs, function=weight):
    """Return (epoch, epoch asked, result) as they come; an epoch's weight is its number."""
    found = []
    for epoch in epochs:
        nn.init.constant_(model.weight, epoch)
        results = background.results(function, model, {"step": epoch}, epoch == 5)
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


def test_results_come_a_call_later_and_the_last_at_once(model, background):
    found = train(model, background, range(1, 6))
    pairs = [(2, 1), (3, 2), (4, 3), (5, 4), (5, 5)]
    assert found == [(epoch, asked, asked) for epoch, asked in pairs]


def test_what_was_under_way_is_done_again(model, background):
    before = train(model, background, (1, 2, 3))
    again = Background(CPU, check=lambda: None)
    again.load_state_dict(background.state_dict())
    after = train(nn.Linear(1, 1, bias=False), again, (4, 5))
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
