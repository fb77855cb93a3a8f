"""Classifiers by name: the project's own networks, or torchvision's fitted to the data.

torchvision's networks are made for 224×224 colour images of 1,000 classes. Here the first layer
gets the data's channels and the last its classes, and for small images (unless pretrained) the
stem no longer shrinks them at once: a 3×3 convolution of stride 1 and no pooling, as in the ResNets
for 32×32 images of He et al. 2016 (arxiv.org/abs/1512.03385, section 4.2).
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torchvision
from torch import Tensor, nn
from torch.nn.functional import interpolate

from engine.cli.settings import JobSettings
from engine.data.splits import Source, Splits
from engine.errors import JobError, SettingsError, did_you_mean

Shape = tuple[int, int, int]  # channels, height, width
Networks = Mapping[str, Callable[[Shape, int, Any], nn.Module]]  # shape, classes, settings

SMALL = 64
"""Images with sides up to this are small, in pixels."""

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and deviation of the images behind published weights (docs.pytorch.org/vision/models)."""


class Classifier(nn.Module):
    """A network that takes images as they are stored, uint8, and scales and normalises them itself.

    So few bytes reach the device, and saved weights are complete. Images are laid out channels last
    for a network that convolves.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, network: nn.Module, size: tuple[int, int], mean: Tensor, std: Tensor
    ) -> None:
        super().__init__()
        convolves = any(isinstance(module, nn.Conv2d) for module in network.modules())
        self._format = torch.channels_last if convolves else torch.contiguous_format
        self._size = size
        self.network = network.to(memory_format=self._format)
        self.register_buffer("mean", mean.view(-1, 1, 1))
        self.register_buffer("std", std.view(-1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K) of uint8 images (B, C, H, W)."""
        pixels = images.to(torch.float32, memory_format=self._format) / 255
        if pixels.shape[-2:] != self._size:
            pixels = interpolate(pixels, self._size, mode="bilinear", antialias=True)
        logits: Tensor = self.network((pixels - self.mean) / self.std)
        return logits


def make(own: Networks, settings: JobSettings, source: Source, parts: Splits) -> Classifier:
    """The classifier that the settings name, with as many inputs and outputs as the data has.

    Raises SettingsError as `check` does, JobError if published weights cannot be had.
    """
    check(own, settings, source)
    network, shape = _network(own, settings, source), _shape(settings, source)
    mean, std = parts.mean, parts.std
    if settings.pretrained:
        _load_published(network, settings.model)
        if shape[0] == 3:
            mean, std = map(torch.tensor, IMAGENET)
    return Classifier(network, shape[1:], mean, std)


def check(own: Networks, settings: JobSettings, source: Source) -> None:
    """Raise SettingsError if there is no such classifier, or one of torchvision's cannot take such
    images. The project's own are not tried out: what is wrong with them their first batch tells."""
    name, shape = settings.model, _shape(settings, source)
    known = [*own, *torchvision.models.list_models(module=torchvision.models)]
    if name not in known:
        raise SettingsError(f"--model {name}: no such model; {_hint(name, own, known)}")
    if name in own:
        if settings.pretrained:
            raise SettingsError(f"--pretrained: no weights are published for this project's {name}")
        return
    try:
        _without_numbers(own, settings, source)(torch.zeros(2, *shape, device="meta"))
    except (RuntimeError, ValueError, AssertionError) as error:
        size, why = f"{shape[1]}×{shape[2]}", str(error).splitlines()[0]
        raise SettingsError(
            f"--model {name}: cannot take {size} images ({why}); try another --image-size"
        ) from error


def _shape(settings: JobSettings, source: Source) -> Shape:
    """(C, H, W) as the network sees images."""
    channels, height, width = source.shape
    size = settings.image_size
    return (channels, height, width) if isinstance(size, str) else (channels, size, size)


def _hint(name: str, own: Networks, known: list[str]) -> str:
    hint = did_you_mean(name, known)
    return hint if hint.startswith("did") else f"known: {', '.join(own)} and torchvision's"


def _without_numbers(own: Networks, settings: JobSettings, source: Source) -> nn.Module:
    """The network on the meta device, where shapes are worked out but nothing is computed."""
    try:
        with torch.device("meta"):
            return _network(own, settings, source).eval()
    except NotImplementedError:  # RegNets work out their widths with tensors
        return _network(own, settings, source).eval().to("meta")


def _network(own: Networks, settings: JobSettings, source: Source) -> nn.Module:
    """A network with new weights; in the published shape, but for its ends, if pretrained."""
    name, shape, classes = settings.model, _shape(settings, source), len(source.classes)
    if name in own:
        return own[name](shape, classes, settings)
    new = not settings.pretrained
    extra: dict[str, object] = {}
    if name in ("googlenet", "inception_v3"):
        published = not new and shape[0] == 3  # which rescale their colours first
        extra = {"aux_logits": False, "init_weights": True, "transform_input": published}
    if name.startswith("vit_") and new:
        extra = {"image_size": shape[1]}
    network: nn.Module = torchvision.models.get_model(name, num_classes=classes, **extra)
    _fit_first(network, shape[0], keep_size=max(shape[1:]) <= SMALL and new)
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
    weights = torchvision.models.get_model_weights(name).DEFAULT
    try:
        weights.get_state_dict(weights_only=True, check_hash=True)  # refuses a file with code in it
        published = torchvision.models.get_model(name, weights=weights).state_dict()
    except Exception as error:  # no network, or any kind of damage to the file
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        file = f"{torch.hub.get_dir()}/checkpoints/{weights.url.split('/')[-1]}"
        raise JobError(
            f"--pretrained: no weights of {name} can be had ({cause}); put them in {file}"
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
