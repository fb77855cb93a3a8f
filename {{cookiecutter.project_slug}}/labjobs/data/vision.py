"""Images from files, published datasets, and random changes to batches of images."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, overload

import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from labjobs.data import trees
from labjobs.data.order import examples_at, generator, underlying
from labjobs.data.splits import remembered
from labjobs.errors import JobError, SettingsError, first_line

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
        if classes is not None and self.classes != classes:
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
    """Raise SettingsError, in one line, for any error while torchvision downloads or reads a
    dataset in a folder."""
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
