"""Networks.

To add a network, write its class and a line in MODELS, which may pass settings on to it. It takes
features (B, F) and returns predictions (B, 1), both with zero mean and unit standard deviation.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from settings import Settings


@dataclass(frozen=True)
class Spec:
    """What a network needs to know about the data, as plain values. They are stored with each job,
    so that its network can be made again without the data."""

    mean: tuple[float, ...]  # of each feature
    std: tuple[float, ...]
    target: tuple[float, float]  # its mean and standard deviation


def make(settings: Settings, spec: Spec) -> nn.Module:
    """Return the network that the settings name, fitted to the data.

    It takes features as they are stored, and predicts in the unit of the target.
    """
    return Standardized(MODELS[settings.model](settings, spec), spec)


def example_input(settings: Settings, spec: Spec, examples: int) -> Tensor:
    """Return random inputs of the network, as many as asked for; for `jobs.py export-model`."""
    return torch.randn(examples, len(spec.mean)) * torch.tensor(spec.std) + torch.tensor(spec.mean)


class Standardized(nn.Module):
    """A network that takes features and predicts targets in their own units."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, spec: Spec) -> None:
        super().__init__()
        self.network = network
        self.target_mean, self.target_std = spec.target
        self.register_buffer("mean", torch.tensor(spec.mean))
        self.register_buffer("std", torch.tensor(spec.std).clamp_min(1e-6))

    def forward(self, features: Tensor) -> Tensor:
        """Return predictions (B,) of features (B, F)."""
        scaled: Tensor = self.network((features - self.mean) / self.std)
        return scaled.flatten().float() * self.target_std + self.target_mean


class MLP(nn.Module):
    """A perceptron with two hidden layers of 64."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(features, 64),
            nn.ReLU(),
            nn.Linear(64, 64),
            nn.ReLU(),
            nn.Linear(64, 1),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Return predictions (B, 1) of features (B, F), both standardized."""
        predictions: Tensor = self.layers(features)
        return predictions


MODELS: dict[str, Callable[[Settings, Spec], nn.Module]] = {
    "mlp": lambda settings, spec: MLP(len(spec.mean)),
    "linear": lambda settings, spec: nn.Linear(len(spec.mean), 1),
}
