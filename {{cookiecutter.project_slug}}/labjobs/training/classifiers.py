"""torchvision's classifiers fitted to the data, and networks that take images as they are stored.

torchvision's networks are made for 224×224 colour images of 1,000 classes. Here the first layer
gets the data's channels and the last its classes, and for small images (unless pretrained) the
stem no longer shrinks them at once: a 3×3 convolution of stride 1 and no pooling, as in the ResNets
for 32×32 images of He et al. 2016 (arxiv.org/abs/1512.03385, section 4.2).
"""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from labjobs.errors import JobError, SettingsError, did_you_mean, first_line

SMALL = 64  # images with sides up to this are small, in pixels

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and standard deviation of the images behind published weights
(docs.pytorch.org/vision/stable/models.html)."""


class Normalized(nn.Module):
    """A network that takes images as they are stored, uint8, and scales and normalizes them itself.

    This way, few bytes are sent to the device, and saved weights are complete. Images of another
    size are resized, and laid out channels last for a network that convolves.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, network: nn.Module, shape: Sequence[int], mean: Sequence[float], std: Sequence[float]
    ) -> None:
        super().__init__()
        self.frozen = False
        if len(mean) != shape[0]:
            raise SettingsError("--model: the network takes uint8 images (C, H, W)")
        convolves = any(isinstance(module, nn.Conv2d) for module in network.modules())
        self._format = torch.channels_last if convolves else torch.contiguous_format
        self._size = tuple(shape[1:])
        self.network = network.to(memory_format=self._format)
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))

    def train(self, mode: bool = True) -> Self:
        """Switch to training mode, except in frozen layers: their batch norms do not change."""
        super().train(mode)
        if self.frozen:
            last = _last_layer(self.network)
            for module in self.network.modules():
                module.training &= last in module.modules()
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Return what the network makes of uint8 images (B, C, H, W)."""
        pixels = images.to(torch.float32, memory_format=self._format) / 255
        if pixels.shape[-2:] != self._size:
            pixels = interpolate(pixels, self._size, mode="bilinear", antialias=True)
        output: Tensor = self.network((pixels - self.mean) / self.std)
        return output


def freeze_backbone(network: nn.Module) -> None:
    """Train only the last layer of a network. Everything before it stays in evaluation mode, so the
    statistics of batch norm do not change and nothing is dropped out.

    Raises SettingsError for a network that does not take images.
    """
    if not isinstance(network, Normalized):
        raise SettingsError("--freeze backbone: needs a network that takes images")
    trained = {*_last_layer(network.network).parameters()}
    for weight in network.network.parameters():
        weight.requires_grad_(weight in trained)
    network.frozen = True


def _last_layer(network: nn.Module) -> nn.Module:
    """The last module that has weights of its own."""
    return [each for each in network.modules() if [*each.parameters(recurse=False)]][-1]


def torchvision_classifier(
    name: str, spec: Any, pretrained: bool, others: Iterable[str]
) -> Normalized:
    """Return one of torchvision's classifiers, fitted to the data: logits (B, K) of uint8 images.

    `spec` is what is known of these: their `shape` (C, H, W), the `classes`, and the `mean` and the
    `std` of each channel, with pixels in [0, 1]. On the meta device the network gets no weights.

    Raises SettingsError if there is no such classifier (`others` are known as well, for the hint)
    or it cannot take images of that size, JobError if published weights cannot be had.
    """
    known = _models().list_models(module=_models())
    if name not in known:
        hint = did_you_mean(name, [*others, *known])
        hint = hint if hint.startswith("did") else f"known: {', '.join(others)} and torchvision's"
        raise SettingsError(f"--model {name}: no such model; {hint}")
    if not spec.mean:
        raise SettingsError(f"--model {name}: takes uint8 images (C, H, W), unlike this data")
    shape, classes = tuple(spec.shape), len(spec.classes)
    _check_size(name, shape, classes, pretrained)
    network, mean, std = _network(name, shape, classes, pretrained), spec.mean, spec.std
    if pretrained and spec.shape[0] == 3:
        mean, std = IMAGENET
    if pretrained and not next(network.parameters()).is_meta:
        _load_published(network, name)
    return Normalized(network, shape, mean, std)


def _models() -> Any:
    """Return torchvision.models. To import it takes as long as torch, and few networks need it."""
    import torchvision

    return torchvision.models


@cache  # many jobs of a grid have the same
def _check_size(name: str, shape: tuple[int, ...], classes: int, pretrained: bool) -> None:
    """Try a network on the meta device, where shapes are worked out but nothing is computed."""
    try:
        with torch.device("meta"):
            _network(name, shape, classes, pretrained).eval()(torch.zeros(2, *shape))
    except (RuntimeError, ValueError, AssertionError) as error:
        size = f"{shape[1]}×{shape[2]}"
        raise SettingsError(
            f"--model {name}: cannot take {size} images ({first_line(error)}); "
            "try another --image-size"
        ) from error


def _network(name: str, shape: tuple[int, ...], classes: int, pretrained: bool) -> nn.Module:
    """Return a network with new weights; if pretrained, in the published shape but for its ends."""
    channels, height, width = shape
    extra: dict[str, object] = {}
    if name in ("googlenet", "inception_v3"):
        published = pretrained and channels == 3  # which rescale their colours first
        extra = {"aux_logits": False, "init_weights": True, "transform_input": published}
    if name.startswith("vit_") and not pretrained:
        extra = {"image_size": height}
    network = _made(name, num_classes=classes, **extra)
    _fit_first(network, channels, keep_size=max(height, width) <= SMALL and not pretrained)
    return network


def _made(name: str, **options: object) -> nn.Module:
    """Return a network of torchvision's on the default device."""
    try:
        network: nn.Module = _models().get_model(name, **options)
    except NotImplementedError:  # RegNets work out their widths with tensors, not on meta
        with torch.device("cpu"):
            network = _models().get_model(name, **options).to("meta")
    return network


def _fit_first(network: nn.Module, channels: int, keep_size: bool) -> None:
    """Make the first convolution take images of so many channels and, if it overlaps (is not one of
    patches, as in ViT, Swin and ConvNeXt), keep their size."""
    name, old = _convolutions(network)[0]
    keep_size = keep_size and old.kernel_size[0] > old.stride[0] > 1
    if not keep_size and old.in_channels == channels:
        return
    shape = (3, 1, 1) if keep_size else (old.kernel_size, old.stride, old.padding)
    new = nn.Conv2d(channels, old.out_channels, *shape, bias=old.bias is not None)  # type: ignore
    network.set_submodule(name, new)
    pools = [name for name, layer in network.named_modules() if isinstance(layer, nn.MaxPool2d)]
    if keep_size and pools and pools[0] in ("maxpool", "maxpool1", "features.pool0"):
        network.set_submodule(pools[0], nn.Identity())


def _load_published(network: nn.Module, name: str) -> None:
    """Take over published weights, from torch's cache or fetched. The last layer stays new; the
    first is summed over colours if the data has another number of channels."""
    weights = _models().get_model_weights(name).DEFAULT
    try:
        weights.get_state_dict(weights_only=True, check_hash=True)  # refuses a file with code in it
        published = _models().get_model(name, weights=weights).state_dict()
    except Exception as error:  # no network, or any kind of damage to the file
        file = f"{torch.hub.get_dir()}/checkpoints/{weights.url.split('/')[-1]}"
        raise JobError(
            f"--pretrained: the weights of {name} cannot be fetched or read "
            f"({first_line(error)}); put them in {file}"
        ) from error
    first, layer = _convolutions(network)[0]
    grey = published[f"{first}.weight"].sum(1, keepdim=True) / layer.in_channels
    if layer.in_channels != published[f"{first}.weight"].shape[1]:
        published[f"{first}.weight"] = grey.expand_as(layer.weight)
    shapes = {key: value.shape for key, value in network.state_dict().items()}
    fitting = {key: value for key, value in published.items() if shapes.get(key) == value.shape}
    network.load_state_dict(fitting, strict=False)


def _convolutions(network: nn.Module) -> list[tuple[str, nn.Conv2d]]:
    return [(name, m) for name, m in network.named_modules() if isinstance(m, nn.Conv2d)]
