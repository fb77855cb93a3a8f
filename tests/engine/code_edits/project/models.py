"""Networks.

To add a network, write its class and a line in MODELS, which may pass settings on to it. It takes
images (B, C, H, W), float, with zero mean and unit standard deviation in each channel, and returns
logits (B, K). A language model takes tokens (B, T) and returns logits (B, T, K) of the tokens that
follow. Torchvision's classifiers are there by their own names, fitted to the data.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from labjobs.errors import SettingsError
from labjobs.training.classifiers import Normalized, torchvision_classifier
from settings import Settings


@dataclass(frozen=True)
class Spec:
    """What a network needs to know about the data, as plain values. They are stored with each job,
    so that its network can be made again without the data."""

    shape: tuple[int, ...]  # (C, H, W) of an image, (T,) of tokens
    classes: tuple[str, ...]  # for tokens, the vocabulary
    mean: tuple[float, ...]  # of each channel, with pixels in [0, 1]
    std: tuple[float, ...]


def make(settings: Settings, spec: Spec) -> nn.Module:
    """Return the network that the settings name, fitted to the data.

    It takes images as they are stored, uint8, and scales and normalises them itself. Raises
    SettingsError if there is no such network or it cannot take such data, JobError if published
    weights cannot be fetched.
    """
    name, size = settings.model, settings.image_size
    reads = "tokens" if name in LANGUAGE_MODELS else "images"
    has = "tokens" if len(spec.shape) == 1 else "images"
    if reads != has:
        raise SettingsError(f"--model {name}: reads {reads}, but {settings.dataset} has {has}")
    if isinstance(size, int):
        spec = replace(spec, shape=(spec.shape[0], size, size))
    if name not in MODELS:
        return torchvision_classifier(name, spec, settings.pretrained, MODELS)
    if settings.pretrained:
        raise SettingsError(f"--pretrained: no weights are published for this project's {name}")
    network = MODELS[name](settings, spec)
    return Normalized(network, spec.shape, spec.mean, spec.std) if has == "images" else network


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


class GPT(nn.Module):
    """GPT-2, by default with its 124 million weights (Radford et al. 2019)."""

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
        """Return logits (B, T, K) of tokens (B, T); the embedding is also the last layer."""
        mixed = self.layers(self.tokens(tokens) + self.positions)
        return linear(self.norm(mixed), self.tokens.weight)


class Layer(nn.Module):
    """Causal self-attention, then a perceptron, each with a residual connection."""

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
        """Return (B, T, width) of (B, T, width)."""
        query, key, value = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in self.attention(self.norm(x)).chunk(3, dim=2)
        )
        attended = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        result: Tensor = x + self.perceptron(x)
        return result


MODELS: dict[str, Callable[[Settings, Spec], nn.Module]] = {
    "mlp": lambda settings, spec: MLP(spec.shape, len(spec.classes)),
    "convnet": lambda settings, spec: ConvNet(spec.shape, len(spec.classes)),
    "gpt": lambda settings, spec: GPT(spec.shape[0], len(spec.classes)),
}

LANGUAGE_MODELS = ("gpt",)  # these read tokens, all others images
