"""Networks.

To add a network, write its class and a line in MODELS, which may pass settings on to it. It takes
tokens (B, T) and returns logits (B, T, K) of the tokens that follow.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from settings import Settings


@dataclass(frozen=True)
class Spec:
    """What a network needs to know about the data, as plain values. They are stored with each job,
    so that its network can be made again without the data."""

    context: int  # tokens that a network sees at once
    vocabulary: int


def make(settings: Settings, spec: Spec) -> nn.Module:
    """Return the network that the settings name, for tokens as they are stored."""
    return MODELS[settings.model](spec.context, spec.vocabulary)


def example_input(settings: Settings, spec: Spec, examples: int) -> Tensor:
    """Return random inputs of the network, as many as asked for; to export it (docs/export.md)."""
    return torch.randint(spec.vocabulary, (examples, spec.context))


class GPT(nn.Module):
    """GPT-2 (Radford et al. 2019), by default with its width and depth."""

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
        """Return logits (B, T, K) of tokens (B, T), T at most the context.

        The embedding is also the last layer.
        """
        embedded = self.tokens(tokens.long()) + self.positions[: tokens.shape[1]]
        mixed = self.layers(embedded)
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


MODELS: dict[str, Callable[[int, int], nn.Module]] = {
    "gpt-tiny": partial(GPT, width=32, layers=2, heads=2),
    "gpt-small": partial(GPT, width=64, layers=4, heads=4),
    "gpt2": GPT,
}
