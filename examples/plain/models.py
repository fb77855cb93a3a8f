"""The network."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from settings import Settings


@dataclass(frozen=True)
class Spec:
    """What the network needs to know about the data, as plain values. They are stored with each
    job, so that its network can be made again without the data."""

    inputs: int  # numbers in an example
    classes: int


def make(settings: Settings, spec: Spec) -> nn.Module:
    """Return the network."""
    return MLP(spec.inputs, settings.width, spec.classes)


def example_input(settings: Settings, spec: Spec, examples: int) -> Tensor:
    """Return random inputs of the network, as many as asked for; `jobs.py export-model` exports it
    with them."""
    return torch.rand(examples, spec.inputs)


class MLP(nn.Module):
    """A perceptron with two hidden layers."""

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(inputs, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, outputs),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits (B, K) of inputs (B, F)."""
        logits: Tensor = self.layers(inputs)
        return logits
