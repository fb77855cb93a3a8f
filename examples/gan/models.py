"""Networks.

To add a pair of networks, write their classes and a line in MODELS, which may pass settings on to
them. A generator takes noise (B, Z), normally distributed, and returns images (B, C, H, W) with
pixels in [0, 1]. A discriminator takes images with zero mean and unit standard deviation in each
channel, and returns logits (B, 1): the larger, the more real they look.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor, nn

from labjobs import Normalized, SettingsError
from settings import Settings


@dataclass(frozen=True)
class Spec:
    """What a network needs to know about the data, as plain values. They are stored with each job,
    so that its network can be made again without the data."""

    shape: tuple[int, ...]  # of an input: (C, H, W) of an image
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # of each channel, with pixels in [0, 1]; empty without images
    std: tuple[float, ...]
    counts: tuple[int, ...] = ()  # training examples in each class; empty if unknown


def make(settings: Settings, spec: Spec) -> "GAN":
    """Return the generator and the discriminator that the settings name, fitted to the data.

    Both have images as they are stored, with pixels from 0 to 255. Raises SettingsError if the data
    has none.
    """
    size = settings.image_size
    if len(spec.shape) != 3:
        raise SettingsError(f"--dataset {settings.dataset}: has no images")
    if isinstance(size, int):
        spec = replace(spec, shape=(spec.shape[0], size, size))
    return GAN(*MODELS[settings.model](settings, spec), settings.latent, spec)


def example_input(settings: Settings, spec: Spec, examples: int) -> Tensor:
    """Return noise for the generator, as much as asked for; for `jobs.py export-model`."""
    return torch.randn(examples, settings.latent)


class Generator(nn.Module):
    """A network that makes images out of noise."""

    def __init__(self, network: nn.Module, latent: int) -> None:
        super().__init__()
        self.network, self.latent = network, latent

    def forward(self, noise: Tensor) -> Tensor:
        """Return images (B, C, H, W), float, of noise (B, Z)."""
        images: Tensor = self.network(noise)
        return 255 * images.float()

    def draw(self, count: int, random: torch.Generator | None = None) -> Tensor:
        """Return so many images (B, C, H, W), float; the noise is drawn from `random`, by default
        from torch's own random numbers."""
        device = next(self.parameters()).device
        images: Tensor = self(torch.randn(count, self.latent, generator=random, device=device))
        return images


class GAN(nn.Module):
    """A generator of images, and a discriminator that tells them from real ones."""

    def __init__(
        self, generator: nn.Module, discriminator: nn.Module, latent: int, spec: Spec
    ) -> None:
        super().__init__()
        self.generator = Generator(generator, latent)
        self.discriminator = Normalized(discriminator, spec.shape, spec.mean, spec.std)


class MLPGenerator(nn.Sequential):
    """A perceptron with two hidden layers of 128."""

    def __init__(self, latent: int, shape: tuple[int, ...]) -> None:
        super().__init__(
            nn.Linear(latent, 128),
            nn.BatchNorm1d(128),
            nn.ReLU(),
            nn.Linear(128, 128),
            nn.BatchNorm1d(128),
            nn.ReLU(),
            nn.Linear(128, prod(shape)),
            nn.Sigmoid(),
            nn.Unflatten(1, shape),
        )


class MLPDiscriminator(nn.Sequential):
    """A perceptron with two hidden layers of 128."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(
            nn.Flatten(),
            nn.Linear(prod(shape), 128),
            nn.LeakyReLU(0.2),
            nn.Linear(128, 128),
            nn.LeakyReLU(0.2),
            nn.Linear(128, 1),
        )


class ConvGenerator(nn.Sequential):
    """A small DCGAN (Radford et al. 2016, arxiv.org/abs/1511.06434), from half of the side up."""

    def __init__(self, latent: int, shape: tuple[int, ...], width: int = 16) -> None:
        channels, *side = shape
        half = [-(-length // 2) for length in side]
        super().__init__(
            nn.Linear(latent, 2 * width * prod(half)),
            nn.Unflatten(1, (2 * width, *half)),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.Upsample(tuple(side)),
            nn.Conv2d(2 * width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, channels, 3, padding=1),
            nn.Sigmoid(),
        )


class ConvDiscriminator(nn.Sequential):
    """The same in reverse, down to half of the side."""

    def __init__(self, shape: tuple[int, ...], width: int = 16) -> None:
        channels, *side = shape
        half = [-(-length // 2) for length in side]
        super().__init__(
            nn.Conv2d(channels, width, 3, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(2 * width * prod(half), 1),
        )


MODELS: dict[str, Callable[[Settings, Spec], tuple[nn.Module, nn.Module]]] = {
    "mlp": lambda settings, spec: (
        MLPGenerator(settings.latent, spec.shape),
        MLPDiscriminator(spec.shape),
    ),
    "convnet": lambda settings, spec: (
        ConvGenerator(settings.latent, spec.shape),
        ConvDiscriminator(spec.shape),
    ),
}
