"""Networks, by name.

A network takes images (B, C, H, W), float, of zero mean and unit deviation by channel, and returns
logits (B, K). To add one, write its class and a line in MODELS, which may pass on settings. Any
torchvision classifier can be had by its name as well, fitted to the data
(engine/training/classifiers.py).
A language model takes tokens (B, T), and returns logits (B, T, K) of those that follow.
"""

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

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


class GPT(nn.Module):
    """GPT-2, with its 124 million weights unless told otherwise (Radford et al. 2019)."""

    def __init__(
        self, length: int, vocabulary: int, width: int = 768, layers: int = 12, heads: int = 12
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, T, K) of tokens (B, T); the first embedding is also the last layer."""
        mixed = self.layers(self.tokens(tokens) + self.positions)
        return linear(self.norm(mixed), self.tokens.weight)


class Layer(nn.Module):
    """Attention to the tokens before, then a perceptron; each adds to what it is given."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU("tanh"),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, width) of the same."""
        query, key, value = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in self.attention(self.norm(x)).chunk(3, dim=2)
        )
        attended = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        result: Tensor = x + self.perceptron(x)
        return result


MODELS: dict[str, Callable[[Shape, int, "Settings"], nn.Module]] = {
    "mlp": lambda shape, classes, settings: MLP(shape, classes),
    "convnet": lambda shape, classes, settings: ConvNet(shape, classes),
}

LANGUAGE_MODELS: dict[str, Callable[[int, int, "Settings"], nn.Module]] = {
    "gpt": lambda length, vocabulary, settings: GPT(length, vocabulary),
}
