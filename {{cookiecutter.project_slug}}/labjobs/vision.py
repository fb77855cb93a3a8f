"""What is special to images: datasets from files, random changes to batches, and networks that take
images as they are stored.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Self, overload

import torch
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torch.utils.data import Dataset, TensorDataset

from labjobs.data import trees
from labjobs.data.order import examples_at, generator, underlying
from labjobs.data.splits import remembered
from labjobs.errors import JobError, SettingsError, did_you_mean, first_line

SIZE = 224  # default width and height of images from files, in pixels
STATISTICS_FROM = 500  # random images, for the mean and the standard deviation


class ImageFolder(Dataset[tuple[Tensor, int]]):
    """A dataset of (image, label) from one folder per class, `<root>/<class>/*.jpg`.

    Images are uint8 (3, size, size): scaled, then the middle square. `classes`, `samples` and
    `targets` are as in torchvision's class of that name, without hidden files and folders, which
    notebooks (.ipynb_checkpoints), archives (__MACOSX) and copying (._1.jpg) leave. Raises
    SettingsError if there are fewer than two classes, one without images, or other classes than
    expected; when an example is read, JobError for a file that is no 8-bit image.
    """

    def __init__(
        self, root: Path, size: int | None = None, classes: Sequence[str] | None = None
    ) -> None:
        if not root.is_dir():
            raise SettingsError(f"--data-root: there is no folder {root}")
        from torchvision.transforms import v2  # slow to import, and needed for files alone

        self._size = size or SIZE
        steps = [v2.Resize(self._size, antialias=True), v2.CenterCrop(self._size)]
        self._read = v2.Compose([_in_colour, v2.PILToTensor(), *steps])
        self.root = root
        folders = sorted(each.name for each in os.scandir(root) if each.is_dir())
        self.classes: list[str] = [*filter(_is_visible, folders)]
        if len(self.classes) < 2:
            found = ", ".join(self.classes) or "none"
            raise SettingsError(
                f"--data-root: {root} needs a folder of images per class, has {found}"
            )
        if classes is not None and self.classes != [*classes]:
            raise SettingsError(f"--data-root: {root} does not have the same classes as train")
        self.samples = [(p, n) for n, name in enumerate(self.classes) for p in _images(root / name)]
        self.targets = [label for _, label in self.samples]
        if empty := [name for n, name in enumerate(self.classes) if n not in {*self.targets}]:
            raise SettingsError(f"--data-root: no image in {root}/{empty[0]}")

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return an image (3, size, size) and its label."""
        file, label = self.samples[index]
        try:
            return self._read(file), label
        except Exception as error:  # damaged files raise all kinds of errors
            raise JobError(f"{file} cannot be read as an image: {first_line(error)}") from error


def _images(folder: Path) -> Iterator[str]:
    """Yield the images in a folder and in those within, in torchvision's order."""
    from torchvision.datasets.folder import IMG_EXTENSIONS

    for at, _, names in sorted(os.walk(folder, followlinks=True)):
        if all(map(_is_visible, Path(at).relative_to(folder).parts)):
            images = (name for name in sorted(names) if name.lower().endswith(IMG_EXTENSIONS))
            yield from (os.path.join(at, name) for name in images if _is_visible(name))


def _is_visible(name: str) -> bool:
    """No evidence holds hidden files either."""
    return not name.startswith(".") and name != "__MACOSX"


@remembered
def channel_statistics(
    dataset: Dataset[Any], seed: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and standard deviation of each channel, with pixels in [0, 1].

    They are computed from 500 random images, which are the first element of each example; empty if
    that is not a uint8 image (C, H, W).
    """
    dataset, indices = underlying(dataset)
    some = torch.randperm(len(indices), generator=generator(seed, "statistics"))[:STATISTICS_FROM]
    images = trees.leaves(examples_at(dataset, indices[some]))[0]
    if images.dtype != torch.uint8 or images.ndim != 4:
        return (), ()
    pixels = images.transpose(0, 1).flatten(1).double() / 255
    return tuple(pixels.mean(1).tolist()), tuple(pixels.std(1).clamp_min(1e-3).tolist())


def _in_colour(path: str) -> Image.Image:
    """Return an image in 8-bit colour, rotated as its metadata says. Raises ValueError for a grey
    image with more bits, which would become white."""
    with Image.open(path) as image:
        if image.mode.startswith(("I", "F")):
            raise ValueError("it has more than 8 bits a channel, which would be cut off")
        return ImageOps.exif_transpose(image).convert("RGB")


# Random changes to whole batches of images, drawn for each image. torchvision's transforms make one
# random choice for a whole batch. Random numbers come from torch's stream of the images' device,
# which the engine saves and restores with the job.


@overload
def random_shift(images: Tensor, /, *, mirror: bool = False) -> Tensor: ...
@overload
def random_shift(images: Tensor, /, *alike: Tensor, mirror: bool = False) -> tuple[Tensor, ...]: ...
def random_shift(
    images: Tensor, /, *alike: Tensor, mirror: bool = False
) -> Tensor | tuple[Tensor, ...]:
    """Return images (B, …, H, W), each shifted by up to an eighth of its height and width; with
    `mirror` also mirrored left to right with probability 1/2.

    What comes in at the edges is a reflection of the image. Images of any number format. Tensors
    of the same size given with them, such as masks (B, H, W), are changed alike, and all returned.
    """
    batch, height, width = len(images), *images.shape[-2:]
    device = images.device
    down = torch.randint(2 * (height // 8) + 1, (batch,), device=device)
    right = torch.randint(2 * (width // 8) + 1, (batch,), device=device)
    if mirror:
        mirrored = torch.rand(batch, device=device) < 0.5
        right = right.add(mirrored, alpha=2 * (width // 8) + 1)
    rows = _sources(height, width, device).index_select(0, down)
    columns = _sources(width, 1, device).index_select(0, right)
    sources = (rows[:, :, None] + columns[:, None, :]).view(batch, 1, height * width)
    changed = tuple(_picked(each, sources) for each in (images, *alike))
    return changed if alike else changed[0]


def _picked(images: Tensor, sources: Tensor) -> Tensor:
    """Return images (B, …, H, W) with the pixels taken from these places, (B, 1, H * W). This takes
    one pass over the images, which are large compared with everything else."""
    planes = images.reshape(len(images), -1, sources.shape[2])
    return planes.gather(2, sources.expand(planes.shape)).view(images.shape)


@cache
def _sources(side: int, apart: int, device: torch.device) -> Tensor:
    """Return the positions that the pixels along a side come from, (shifts, side), for each shift
    by up to an eighth; then the same mirrored. Neighbouring pixels are `apart` indices apart."""
    most = side // 8
    larger = torch.arange(-most, side + most, device=device).abs()
    shifted = torch.minimum(larger, 2 * (side - 1) - larger).unfold(0, side, 1)
    return apart * torch.cat([shifted, shifted.flip(1)])


def published(name: str, root: Path) -> tuple[TensorDataset, list[str], TensorDataset]:
    """Return the training examples, the classes' names and the test examples of a dataset.

    Examples are images (N, C, H, W), uint8, and labels (N,), int64, in memory. `name` is a class of
    torchvision.datasets with `train=` that keeps its images as one array, such as `MNIST`. Files
    that are not in `root` are fetched. Raises SettingsError if they are missing or damaged.
    """
    from torchvision import datasets  # slow to import

    kind = getattr(datasets, name)
    with fetching(root):
        train, test = (kind(root, train=part, download=True) for part in (True, False))
        return _in_memory(train), list(train.classes), _in_memory(test)


@contextmanager
def fetching(root: Path) -> Iterator[None]:
    """Raise SettingsError for any error while torchvision fetches or reads data in a folder."""
    try:
        yield
    except (SettingsError, JobError):
        raise
    except Exception as error:  # damaged files raise all kinds of errors
        raise SettingsError(
            f"--data-root: the dataset could not be downloaded to, or read from, {root} "
            f"({first_line(error)}); put its files there, or set --data-root to their folder"
        ) from error


def _in_memory(dataset: Any) -> TensorDataset:
    images = torch.as_tensor(dataset.data)
    images = images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2)
    return TensorDataset(images.contiguous(), torch.as_tensor(dataset.targets, dtype=torch.int64))


# Networks that take images as they are stored, such as torchvision's classifiers, fitted to the
# data.
#
# These are made for 224×224 colour images of 1,000 classes. Here the first layer gets the data's
# channels and the last its classes, and for small images (unless pretrained) the stem no longer
# shrinks them at once: a 3×3 convolution of stride 1 and no pooling, as in the ResNets for 32×32
# images of He et al. 2016 (arxiv.org/abs/1512.03385, section 4.2).

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
        every = f"known: {', '.join(others)} and torchvision's"
        hint = did_you_mean(name, [*others, *known], every)
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
    """Make the first convolution take images with this many channels; and keep their size, unless
    it divides them into patches, as in ViT, Swin and ConvNeXt."""
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
