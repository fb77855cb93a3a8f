"""Networks.

To add a network, write its class and a line in MODELS, which may pass settings on to it. It takes
images (B, C, H, W), float, with zero mean and unit standard deviation in each channel, and returns
logits (B, K, H, W).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, max_pool2d

from labjobs import Normalized
from settings import Settings


@dataclass(frozen=True)
class Spec:
    """What a network needs to know about the data, as plain values. They are stored with each job,
    so that its network can be made again without the data."""

    shape: tuple[int, ...]  # (C, H, W) of an image
    classes: tuple[str, ...]  # of a pixel
    mean: tuple[float, ...]  # of each channel, with pixels in [0, 1]
    std: tuple[float, ...]


def make(settings: Settings, spec: Spec) -> "Segmenter":
    """Return the network that the settings name, fitted to the data."""
    return Segmenter(MODELS[settings.model](settings, spec), spec)


def example_input(settings: Settings, spec: Spec, examples: int) -> Tensor:
    """Return random inputs of the network, as many as asked for; for `jobs.py export-model`."""
    return torch.randint(256, (examples, *spec.shape), dtype=torch.uint8)


class Segmenter(Normalized):
    """A network that takes images as they are stored, uint8, scales and normalizes them itself, and
    returns logits (B, K, H, W); `classes` are the names of the K classes."""

    def __init__(self, network: nn.Module, spec: Spec) -> None:
        super().__init__(network, spec.shape, spec.mean, spec.std)
        self.classes = spec.classes


class UNet(nn.Module):
    """A small U-Net, down to a quarter of the resolution (Ronneberger et al. 2015,
    arxiv.org/abs/1505.04597)."""

    def __init__(self, channels: int, classes: int, width: int = 16) -> None:
        super().__init__()
        self.down = nn.ModuleList([block(channels, width), block(width, 2 * width)])
        self.bottom = block(2 * width, 4 * width)
        self.up = nn.ModuleList([block(6 * width, 2 * width), block(3 * width, width)])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B, K, H, W) of images (B, C, H, W), of any size."""
        x, skipped = images, []
        for layers in self.down:
            skipped.append(layers(x))
            x = max_pool2d(skipped[-1], 2, ceil_mode=True)
        x = self.bottom(x)
        for layers in self.up:
            skip = skipped.pop()
            x = layers(torch.cat([interpolate(x, skip.shape[-2:]), skip], 1))
        logits: Tensor = self.head(x)
        return logits


class FCN(nn.Sequential):
    """Six 3×3 convolutions at full resolution; a pixel's logits depend on 13×13 pixels."""

    def __init__(self, channels: int, classes: int, width: int = 16) -> None:
        super().__init__(
            block(channels, width),
            block(width, width),
            block(width, width),
            nn.Conv2d(width, classes, 1),
        )


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
    "unet": lambda settings, spec: UNet(spec.shape[0], len(spec.classes)),
    "fcn": lambda settings, spec: FCN(spec.shape[0], len(spec.classes)),
}
