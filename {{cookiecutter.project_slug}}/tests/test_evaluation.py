"""Evaluation beside training: the results are those of evaluation in line, in order."""

import threading

import pytest
import torch
from torch import nn

from engine.training.evaluation import Evaluations


def evaluations(judge, at_once):
    """Evaluations of a model of one weight."""
    model = nn.Linear(1, 1, bias=False)
    return model, Evaluations(model, judge, lambda model: model, at_once)


def weight(model):
    """What there is to evaluate."""
    return {"val_loss": model.weight.item()}


def train(model, evaluated, epochs):
    """The results as they come; in each epoch the weight becomes the epoch's number."""
    results = []
    for epoch in epochs:
        nn.init.constant_(model.weight, epoch)
        for then, weights, metrics in evaluated.after(epoch, {"known": epoch}, epoch == 5):
            assert weight(weights) == {"val_loss": then}
            results.append((epoch, then, metrics))
    return results


def expected(pairs):
    return [(epoch, then, {"val_loss": then, "known": then}) for epoch, then in pairs]


@pytest.mark.parametrize(
    ("at_once", "pairs"),
    [
        (0, [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]),
        (1, [(2, 1), (3, 2), (4, 3), (5, 4), (5, 5)]),
        (3, [(4, 1), (5, 2), (5, 3), (5, 4), (5, 5)]),
        (9, [(5, 1), (5, 2), (5, 3), (5, 4), (5, 5)]),
    ],
)
def test_results_come_in_order_and_as_many_epochs_later(at_once, pairs):
    model, evaluated = evaluations(weight, at_once)
    assert train(model, evaluated, range(1, 6)) == expected(pairs)


def test_several_at_once_and_the_slowest_first():
    """The first evaluation ends only when the second has."""
    second = threading.Event()

    def judge(model):
        if model.weight.item() == 1:
            assert second.wait(60)
        if model.weight.item() == 2:
            second.set()
        return weight(model)

    model, evaluated = evaluations(judge, at_once=2)
    pairs = [(3, 1), (4, 2), (5, 3), (5, 4), (5, 5)]
    assert train(model, evaluated, range(1, 6)) == expected(pairs)


@pytest.mark.parametrize("at_once", [0, 1, 2, 4])
def test_what_was_under_way_goes_on(at_once):
    model, evaluated = evaluations(weight, at_once=2)
    before = train(model, evaluated, (1, 2, 3))
    state = evaluated.state_dict()
    model, again = evaluations(weight, at_once)
    again.load_state_dict(state)
    after = train(model, again, (4, 5))
    assert [then for _, then, _ in before + after] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("at_once", [0, 2])
def test_an_error_is_raised_in_training(at_once):
    def judge(model):
        raise RuntimeError(f"at {model.weight.item():.0f}")

    model, evaluated = evaluations(judge, at_once)
    with pytest.raises(RuntimeError, match="at 1"):
        train(model, evaluated, range(1, 6))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_on_streams_of_their_own_the_weights_are_those_of_their_epoch():
    model, evaluated = evaluations(weight, at_once=2)
    streams = set()

    def judge(model):
        streams.add(torch.cuda.current_stream())
        return weight(model)

    evaluated = Evaluations(model.cuda(), judge, lambda model: model, 2)
    pairs = [(3, 1), (4, 2), (5, 3), (5, 4), (5, 5)]
    assert train(model, evaluated, range(1, 6)) == expected(pairs)
    assert len(streams) == 2 and torch.cuda.default_stream() not in streams
