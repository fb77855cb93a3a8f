"""Networks.

To add a network, write its class and a line in MODELS, which may pass settings on to it. It takes
images (B, C, H, W), float, with zero mean and unit standard deviation in each channel, and returns
features (B, F). Torchvision's classifiers are there by their own names; their last layer gives the
features.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor, nn

from labjobs import Normalized, torchvision_classifier
from settings import Settings


@dataclass(frozen=True)
class Spec:
    """What a network needs to know about the data, as plain values. They are stored with each job,
    so that its network can be made again without the data."""

    shape: tuple[int, ...]  # (C, H, W) of an image
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # of each channel, with pixels in [0, 1]
    std: tuple[float, ...]


def make(settings: Settings, spec: Spec) -> "Contrastive":
    """Return the network that the settings name, fitted to the data.

    Raises SettingsError if there is no such network or it cannot take such images.
    """
    name, size = settings.model, settings.image_size
    if isinstance(size, int):
        spec = replace(spec, shape=(spec.shape[0], size, size))
    if name in MODELS:
        network = Normalized(MODELS[name](settings, spec), spec.shape, spec.mean, spec.std)
    else:
        outputs = replace(spec, classes=tuple(map(str, range(settings.features))))
        network = torchvision_classifier(name, outputs, False, MODELS)
    return Contrastive(network, settings.features, settings.projections)


def example_input(settings: Settings, spec: Spec, examples: int) -> Tensor:
    """Return random inputs of the network, as many as asked for; for `jobs.py export-model`."""
    return torch.randint(256, (examples, *spec.shape), dtype=torch.uint8)


class Contrastive(nn.Module):
    """A network, with the head that projects its features for the loss (Chen et al. 2020,
    arxiv.org/abs/2002.05709); the features, which come before the head, are what is used after
    training.

    Images are taken as they are stored, uint8 (B, C, H, W), and scaled and normalized here.
    """

    def __init__(self, network: nn.Module, features: int, projections: int) -> None:
        super().__init__()
        self.features = network
        self.head = nn.Sequential(
            nn.Linear(features, features, bias=False),
            nn.BatchNorm1d(features),
            nn.ReLU(),
            nn.Linear(features, projections),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return projections (B, P); `features(images)` are the features (B, F)."""
        projections: Tensor = self.head(self.features(images))
        return projections


class MLP(nn.Module):
    """A perceptron with two hidden layers of 256."""

    def __init__(self, shape: tuple[int, ...], features: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(prod(shape), 256),
            nn.ReLU(),
            nn.Linear(256, 256),
            nn.ReLU(),
            nn.Linear(256, features),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return features (B, F) of images (B, C, H, W)."""
        features: Tensor = self.layers(images)
        return features


class ConvNet(nn.Module):
    """Three blocks of two 3×3 convolutions, at full, half and a quarter of the resolution."""

    def __init__(self, shape: tuple[int, ...], features: int, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            block(shape[0], width),
            nn.MaxPool2d(2, ceil_mode=True),
            block(width, 2 * width),
            nn.MaxPool2d(2, ceil_mode=True),
            block(2 * width, features),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return features (B, F) of images (B, C, H, W)."""
        features: Tensor = self.layers(images)
        return features


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


MODELS: dict[str, Callable[[Settings, Spec], nn.Module]] = {
    "mlp": lambda settings, spec: MLP(spec.shape, settings.features),
    "convnet": lambda settings, spec: ConvNet(spec.shape, settings.features),
}
