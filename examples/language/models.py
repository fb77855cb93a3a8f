"""Networks.

To add a network, write its class and a line in MODELS, which may pass settings on to it. It takes
tokens (B, T) and a function of the features and the matrix of the last layer, and returns that
function's value: by default logits (B, T, K) of the tokens that follow.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from settings import Settings

Head = Callable[[Tensor, Tensor], Any]
"""What is made of features (B, T, width) and the last layer's matrix (K, width)."""


@dataclass(frozen=True)
class Spec:
    """What a network needs to know about the data, as plain values. They are stored with each job,
    so that its network can be made again without the data."""

    context: int  # tokens that a network sees at once
    vocabulary: int
    tokenizer: str = ""  # the content of its tokenizer.json; empty: tokens are bytes


def make(settings: Settings, spec: Spec) -> nn.Module:
    """Return the network that the settings name."""
    return MODELS[settings.model](spec.context, spec.vocabulary)


def example_input(settings: Settings, spec: Spec, examples: int) -> Tensor:
    """Return random inputs of the network, as many as asked for; for `jobs.py export-model`."""
    return torch.randint(spec.vocabulary, (examples, spec.context))


class GPT(nn.Module):
    """GPT-2 (Radford et al. 2019), by default with its width and depth: 124,439,808 weights with
    its context of 1,024 and its vocabulary of 50,257.

    Weights begin as GPT-2's do: with a standard deviation of 0.02, in the layers that add to the
    residual stream of 0.02 / √(2 · layers), and biases at zero. Weight decay is for all matrices,
    embeddings included (optimizers.groups). Source: section 2.3 of the paper;
    github.com/karpathy/nanoGPT, model.py.
    """

    def __init__(
        self, length: int, vocabulary: int, width: int = 768, layers: int = 12, heads: int = 12
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                adds = name.endswith(Layer.ADDING)
                nn.init.normal_(module.weight, std=0.02 / math.sqrt(2 * layers if adds else 1))
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor, head: Head = linear) -> Any:
        """Return the head's value for the features of tokens (B, T), with T at most the context.

        The embedding is also the last layer.
        """
        embedded = self.tokens(tokens.long()) + self.positions[: tokens.shape[1]]
        return head(self.norm(self.layers(embedded)), self.tokens.weight)

    @property
    def flops(self) -> float:
        """Floating-point operations of training on a window of T tokens: for each token 6 for each
        weight but the positions', and 12 · layers · width · T in attention.

        Source: Chowdhery et al. 2022, arxiv.org/abs/2204.02311, appendix B.
        """
        length, width = self.positions.shape
        weights = sum(p.numel() for p in self.parameters()) - self.positions.numel()
        return length * (6.0 * weights + 12.0 * len(self.layers) * width * length)


class Layer(nn.Module):
    """Causal self-attention, then a perceptron, each with a residual connection."""

    ADDING = (".out", ".perceptron.3")
    """Endings of the names of the layers that add to the residual stream."""

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
