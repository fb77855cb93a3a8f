"""Policies.

To add one, write its class and a line in MODELS, which may pass settings on to it. It takes
observations (B, D), float, and returns logits of the actions (B, K) and values (B,): the discounted
return that it expects, times 1 - discount.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from settings import Settings


@dataclass(frozen=True)
class Spec:
    """What a policy needs to know about the environment, as plain values. They are stored with each
    job, so that its policy can be made again without the environment."""

    features: int  # of an observation
    actions: tuple[str, ...]


def make(settings: Settings, spec: Spec) -> nn.Module:
    """Return the policy that the settings name, fitted to the environment."""
    return MODELS[settings.model](settings, spec)


def example_input(settings: Settings, spec: Spec, examples: int) -> Tensor:
    """Return random inputs of the network, as many as asked for; for `jobs.py export-model`."""
    return torch.randn(examples, spec.features)


class ActorCritic(nn.Module):
    """Two perceptrons with two hidden layers each, one for the actions and one for the values.

    Hidden layers begin orthogonal, the actions nearly alike: Huang et al. 2022, "The 37
    implementation details of proximal policy optimization", ICLR blog track.
    """

    def __init__(self, features: int, actions: int, width: int) -> None:
        super().__init__()
        self.actor = perceptron(features, width, actions, gain=0.01)
        self.critic = perceptron(features, width, 1, gain=1.0)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (B, K) and values (B,) of observations (B, D)."""
        return self.actor(observations), self.critic(observations).squeeze(-1)


def perceptron(inputs: int, width: int, outputs: int, gain: float) -> nn.Sequential:
    """Return two hidden layers and a last one whose weights have this gain."""
    layers = [nn.Linear(inputs, width), nn.Linear(width, width), nn.Linear(width, outputs)]
    for layer, scale in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    first, second, last = layers
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), last)


MODELS: dict[str, Callable[[Settings, Spec], nn.Module]] = {
    "mlp": lambda settings, spec: ActorCritic(spec.features, len(spec.actions), 64),
    "wide-mlp": lambda settings, spec: ActorCritic(spec.features, len(spec.actions), 256),
}
