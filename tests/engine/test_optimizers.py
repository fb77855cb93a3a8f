"""Muon, the schedules and the scaling of learning rates, against their definitions."""

import math
from copy import deepcopy

import optimizers
import pytest
import torch
from optimizers import SCHEDULES, Progress
from settings import Settings
from torch import nn


def at(name: str, done: float) -> float:
    """The factor of a schedule at a fraction of the job."""
    return SCHEDULES[name](Progress(done, 0))


def test_one_cycle_by_its_formula():
    low, end = 1 / 25, 1 / 250_000
    for done in (0.0, 0.1, 0.29):
        rising = (1 - math.cos(math.pi * done / 0.3)) / 2
        assert at("one-cycle", done) == pytest.approx(low + (1 - low) * rising)
    for done in (0.3, 0.5, 1.0):
        falling = (1 - math.cos(math.pi * (done - 0.3) / 0.7)) / 2
        assert at("one-cycle", done) == pytest.approx(1 + (end - 1) * falling)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("constant", (1, 1, 1, 1, 1)),
        ("linear", (1, 0.75, 0.5, 0.25, 0)),
        ("cosine", (1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2, 0)),
        ("exponential", (1, 10**-0.5, 0.1, 10**-1.5, 0.01)),
        ("step", (1, 1, 0.1, 0.01, 0.01)),
        ("wsd", (1, 1, 1, 1, 0)),
    ],
)
def test_schedules_by_their_formulas(name, values):
    for done, value in zip((0, 0.25, 0.5, 0.75, 1), values, strict=True):
        assert at(name, done) == pytest.approx(value, abs=1e-12)
    assert (at("wsd", 0.8), at("wsd", 0.9)) == (1, pytest.approx(1 - math.sqrt(0.5)))


@pytest.mark.parametrize(("name", "factor"), [("sgd", 4.0), ("adam", 2.0), ("muon", 2.0)])
def test_a_rate_for_another_batch_size(name, factor):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    settings = Settings(optimizer=name, batch_size=128, lr_for_batch=32, lr=1e-3)
    for group in optimizers.make(model, settings).param_groups:
        assert group["lr"] == pytest.approx(factor * 1e-3)


def plain_muon(weight: torch.Tensor, gradients: list[torch.Tensor], lr: float, decay: float):
    """Muon's definition, written down step by step for one matrix or kernel."""
    momentum = torch.zeros_like(weight)
    for gradient in gradients:
        momentum = 0.95 * momentum + 0.05 * gradient
        update = (0.05 * gradient + 0.95 * momentum).flatten(1)
        turned = update.shape[0] > update.shape[1]
        x = update.T if turned else update
        x = x / x.norm()
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        x = x.T if turned else x
        weight = weight * (1 - lr * decay)
        weight = weight - lr * 0.2 * max(x.shape) ** 0.5 * x.reshape(weight.shape)
    return weight


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3), nn.BatchNorm2d(6), nn.Linear(6, 4))
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


def trained(model: nn.Module, steps: int, optimizer: torch.optim.Optimizer) -> list[list]:
    """Take some steps with random gradients; return the gradients of each step."""
    torch.manual_seed(1)
    given = []
    for _ in range(steps):
        for weight in model.parameters():
            weight.grad = torch.randn_like(weight)
        given.append([weight.grad.clone() for weight in model.parameters()])
        optimizer.step()
    return given


def test_muon_by_its_definition_and_adamw_for_the_rest():
    model, settings = network(), Settings(optimizer="muon", lr=1e-2, weight_decay=0.1)
    before = deepcopy(model)
    given = trained(model, 3, optimizers.make(model, settings))
    rest = [weight for name, weight in before.named_parameters() if name not in HIDDEN]
    decays = [{"params": [w], "weight_decay": 0.1 * (w.ndim > 1)} for w in rest]
    reference = torch.optim.AdamW(decays, lr=1e-2)
    for gradients in given:
        for weight, gradient in zip(before.parameters(), gradients, strict=True):
            weight.grad = gradient
        reference.step()
    pairs = zip(model.named_parameters(), before.parameters(), strict=True)
    for index, ((name, mine), other) in enumerate(pairs):
        if name in HIDDEN:
            other = plain_muon(other, [each[index] for each in given], 1e-2, 0.1)
        assert torch.allclose(mine, other, atol=1e-6), name


HIDDEN = ("0.weight", "1.weight")


class Positions(nn.Module):
    """Attention over places whose positions are learned."""

    def __init__(self):
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(3, 4))
        self.attention = nn.MultiheadAttention(4, 2)
        self.head = nn.Linear(4, 5)


class Tied(nn.Module):
    """Blocks whose embedding is the head, too."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(5, 4)
        blocks = (nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)) for _ in range(2))
        self.layers = nn.Sequential(*blocks)


TAKEN = {
    "attention, and no learned positions": (
        Positions,
        lambda model: [model.attention.in_proj_weight, model.attention.out_proj.weight],
    ),
    "neither embeddings nor the last layer": (
        lambda: nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5)),
        lambda model: [model[1].weight],
    ),
    "the last block of a network whose head is its embedding": (
        Tied,
        lambda model: [weight for weight in model.layers.parameters() if weight.ndim == 2],
    ),
}
"""Networks, and those of their weights for which Muon is."""


@pytest.mark.parametrize(("make", "taken"), TAKEN.values(), ids=TAKEN)
def test_what_muon_takes(make, taken):
    model = make()
    optimizer = optimizers.make(model, Settings(optimizer="muon"))
    hidden = [id(w) for g in optimizer.param_groups if g["hidden"] for w in g["params"]]
    assert sorted(hidden) == sorted(map(id, taken(model)))
