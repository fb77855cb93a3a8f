"""Networks.

To add a network, write its class and a line in MODELS, which may pass settings on to it. It takes
images (B, C, H, W), float, with zero mean and unit standard deviation in each channel, or other
inputs as data.py gives them, and returns logits (B, K). Torchvision's classifiers are there by
their own names, fitted to the data.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor, nn

import kernels
from engine.errors import SettingsError
from engine.training.classifiers import Normalized, torchvision_classifier
from settings import Settings


@dataclass(frozen=True)
class Spec:
    """What a network needs to know about the data, as plain values. They are stored with each job,
    so that its network can be made again without the data."""

    shape: tuple[int, ...]  # of an input: (C, H, W) of an image
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # of each channel, with pixels in [0, 1]; empty without images
    std: tuple[float, ...]


def make(settings: Settings, spec: Spec) -> nn.Module:
    """Return the network that the settings name, fitted to the data.

    It takes images as they are stored, uint8, and scales and normalises them itself; other inputs
    reach it as they are. Raises SettingsError if there is no such network or it cannot take such
    data, JobError if published weights cannot be fetched.
    """
    name, size = settings.model, settings.image_size
    if isinstance(size, int):
        spec = replace(spec, shape=(spec.shape[0], size, size))
    if name not in MODELS:
        return torchvision_classifier(name, spec, settings.pretrained, MODELS)
    if settings.pretrained:
        raise SettingsError(f"--pretrained: no weights are published for this project's {name}")
    network = MODELS[name](settings, spec)
    return Normalized(network, spec.shape, spec.mean, spec.std) if spec.mean else network


class MLP(nn.Module):
    """A perceptron with two hidden layers of 256."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(prod(shape), 256),
            nn.ReLU(),
            nn.Linear(256, 256),
            nn.ReLU(),
            nn.Linear(256, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B, K) of images (B, C, H, W)."""
        logits: Tensor = self.layers(images)
        return logits


class ConvNet(nn.Module):
    """Three blocks of two 3×3 convolutions, at full, half and a quarter of the resolution."""

    def __init__(self, shape: tuple[int, ...], classes: int, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            block(shape[0], width),
            nn.MaxPool2d(2, ceil_mode=True),
            block(width, 2 * width),
            nn.MaxPool2d(2, ceil_mode=True),
            block(2 * width, 4 * width),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4 * width, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B, K) of images (B, C, H, W)."""
        logits: Tensor = self.layers(images)
        return logits


def block(inputs: int, outputs: int) -> nn.Sequential:
    """Two 3×3 convolutions with batch norm."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


class KernelMLP(nn.Module):
    """A perceptron with two hidden layers, whose activations and norms are custom kernels."""

    def __init__(self, shape: tuple[int, ...], classes: int, width: int = 256) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(prod(shape), width, bias=False),
            ReLUSquared(width),
            RMSNorm(width),
            nn.Linear(width, width, bias=False),
            ReLUSquared(width),
            RMSNorm(width),
            nn.Linear(width, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B, K) of images (B, C, H, W)."""
        logits: Tensor = self.layers(images)
        return logits


class ReLUSquared(nn.Module):
    """The square of a ReLU, after adding a bias (arxiv.org/abs/2109.08668)."""

    def __init__(self, features: int) -> None:
        super().__init__()
        kernels.prepare()
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        """Return activations (B, C) of x (B, C)."""
        return kernels.relu_squared(x, self.bias)


class RMSNorm(nn.Module):
    """Root mean square normalization (arxiv.org/abs/1910.07467)."""

    def __init__(self, features: int) -> None:
        super().__init__()
        kernels.prepare()
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized x (B, C)."""
        return kernels.rms_norm(x, self.weight)


MODELS: dict[str, Callable[[Settings, Spec], nn.Module]] = {
    "mlp": lambda settings, spec: MLP(spec.shape, len(spec.classes)),
    "kernel-mlp": lambda settings, spec: KernelMLP(spec.shape, len(spec.classes)),
    "convnet": lambda settings, spec: ConvNet(spec.shape, len(spec.classes)),
}
