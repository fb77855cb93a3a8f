"""Networks, by name.

A network takes images (B, C, H, W), float, of zero mean and unit deviation by channel, and returns
logits (B, K). To add one, write its class and a line in MODELS, which may pass on settings. Any
torchvision classifier can be had by its name as well, fitted to the data (engine/classifiers.py).
"""

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from run import Settings

Shape = tuple[int, int, int]  # channels, height, width


class MLP(nn.Module):
    """A perceptron with two hidden layers of 256."""

    def __init__(self, shape: Shape, classes: int) -> None:
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
        """Logits (B, K) of images (B, C, H, W)."""
        logits: Tensor = self.layers(images)
        return logits


class ConvNet(nn.Module):
    """Three blocks of two 3×3 convolutions, each block half as large and twice as deep."""

    def __init__(self, shape: Shape, classes: int, width: int = 32) -> None:
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
        """Logits (B, K) of images (B, C, H, W)."""
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


MODELS: dict[str, Callable[[Shape, int, "Settings"], nn.Module]] = {
    "mlp": lambda shape, classes, settings: MLP(shape, classes),
    "convnet": lambda shape, classes, settings: ConvNet(shape, classes),
}
