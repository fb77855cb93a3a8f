"""Networks.

To add a network, write its class and a line in MODELS, which may pass settings on to it. It takes
images (B, C, H, W), float, with zero mean and unit standard deviation in each channel, or other
inputs as data.py gives them, and returns logits (B, K). Torchvision's classifiers are there by
their own names, fitted to the data.

To add an initialization, write a function such as `orthogonal` and a line in INITIALIZATIONS. It is
also called for networks without weights (on the meta device), to check a job before it starts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor, nn

from labjobs import (
    Normalized,
    SettingsError,
    freeze_backbone,
    recompute_blocks,
    torchvision_classifier,
)
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


def make(settings: Settings, spec: Spec) -> nn.Module:
    """Return the network that the settings name, fitted to the data.

    It takes images as they are stored, uint8, and scales and normalizes them itself; other inputs
    reach it as they are. Raises SettingsError if there is no such network or it cannot take such
    data, JobError if published weights cannot be fetched.
    """
    size = settings.image_size
    if isinstance(size, int):
        spec = replace(spec, shape=(spec.shape[0], size, size))
    if settings.test_time_flip and not spec.mean:
        raise SettingsError("--test-time-flip: the data has no images")
    network = named(settings, spec)
    with torch.no_grad():
        INITIALIZATIONS[settings.init](network, spec)
    if settings.freeze == "backbone":
        freeze_backbone(network)
    if settings.recompute and not recompute_blocks(network):
        raise SettingsError(f"--recompute: {settings.model} has no blocks")
    if settings.batch_size == 1 and spec.mean:
        check_norms(network, spec)
    return network


def example_input(settings: Settings, spec: Spec, examples: int) -> Tensor:
    """Return random inputs of the network, as many as asked for; for `jobs.py export-model`."""
    size = settings.image_size
    shape = (spec.shape[0], size, size) if isinstance(size, int) else spec.shape
    if spec.mean:
        return torch.randint(256, (examples, *shape), dtype=torch.uint8)
    return torch.randn(examples, *shape)


def check_norms(network: nn.Module, spec: Spec) -> None:
    """On the meta device, raise SettingsError if a batch norm cannot normalize a single image."""
    if next(network.parameters()).is_meta:
        try:
            network(torch.zeros(1, *spec.shape, dtype=torch.uint8))
        except ValueError as error:
            raise SettingsError("--batch-size 1: batch norm needs at least 2 examples") from error


def named(settings: Settings, spec: Spec) -> nn.Module:
    """Return the network that --model names, from here or from torchvision."""
    name = settings.model
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


def separable_block(inputs: int, outputs: int) -> nn.Sequential:
    """Two depthwise separable convolutions: 3×3 within each channel, then 1×1 across channels.

    An eighth to a ninth of the weights of `block`. Howard et al. 2017, arxiv.org/abs/1704.04861.
    """
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [
            nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False),
            nn.Conv2d(channels, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers)


def squeeze_block(inputs: int, outputs: int) -> nn.Sequential:
    """`block`, then squeeze-and-excitation: each channel is scaled by a function of all channels.

    Hu et al. 2018, arxiv.org/abs/1709.01507.
    """
    from torchvision.ops import SqueezeExcitation  # slow to import, and rarely needed

    return nn.Sequential(block(inputs, outputs), SqueezeExcitation(outputs, outputs // 8))


class ConvNet(nn.Module):
    """Three blocks of two 3×3 convolutions, at full, half and a quarter of the resolution."""

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        width: int = 32,
        block: Callable[[int, int], nn.Module] = block,
    ) -> None:
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


MODELS: dict[str, Callable[[Settings, Spec], nn.Module]] = {
    "mlp": lambda settings, spec: MLP(spec.shape, len(spec.classes)),
    "convnet": lambda settings, spec: ConvNet(spec.shape, len(spec.classes)),
    "convnet-separable": lambda settings, spec: ConvNet(
        spec.shape, len(spec.classes), block=separable_block
    ),
    "convnet-se": lambda settings, spec: ConvNet(
        spec.shape, len(spec.classes), block=squeeze_block
    ),
}


def as_torch_does(network: nn.Module, spec: Spec) -> None:
    """Leave the weights as torch draws them: uniformly, with a sixth of `kaiming`'s variance."""


def kaiming(network: nn.Module, spec: Spec) -> None:
    """Draw weights so that ReLUs keep the variance. He et al. 2015, arxiv.org/abs/1502.01852."""
    for layer in layers(network):
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")


def orthogonal(network: nn.Module, spec: Spec) -> None:
    """Draw orthogonal matrices, scaled for ReLUs. Saxe et al. 2014, arxiv.org/abs/1312.6120."""
    for layer in layers(network):
        weight = torch.empty(layer.weight.shape, device=layer.weight.device)  # contiguous
        layer.weight.copy_(nn.init.orthogonal_(weight, nn.init.calculate_gain("relu")))


def dirac(network: nn.Module, spec: Spec) -> None:
    """Make the first filters of each convolution copy one input channel each. Zagoruyko & Komodakis
    2017, arxiv.org/abs/1706.00388. Filters beyond the number of inputs stay as torch draws them."""
    for layer in layers(network):
        if isinstance(layer, nn.Conv2d) and layer.groups == 1:
            nn.init.dirac_(layer.weight[: layer.in_channels])


def class_prior(network: nn.Module, spec: Spec) -> None:
    """Set the last bias to the logarithms of the classes' frequencies, so that the first steps are
    not spent on learning them. Karpathy 2019, karpathy.github.io/2019/04/25/recipe."""
    last = layers(network)[-1]
    if last.bias is None or len(last.bias) != len(spec.counts):
        raise SettingsError("--init class-prior: the last layer does not have one bias per class")
    frequencies = torch.tensor(spec.counts).clamp_min(1) / sum(spec.counts)
    last.bias.copy_(frequencies.log())


def layers(network: nn.Module) -> list[nn.Linear | nn.Conv2d]:
    """Return the linear and convolutional layers, in order."""
    return [each for each in network.modules() if isinstance(each, nn.Linear | nn.Conv2d)]


INITIALIZATIONS: dict[str, Callable[[nn.Module, Spec], None]] = {
    "default": as_torch_does,
    "kaiming": kaiming,
    "orthogonal": orthogonal,
    "dirac": dirac,
    "class-prior": class_prior,
}
