"""Images in folders, and the mean and standard deviation of images."""

import re
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import Dataset

from labjobs.data import trees
from labjobs.data.decoded import Decoded
from labjobs.data.order import fetch, whole
from labjobs.data.remembering import remembered
from labjobs.data.seeds import generator
from labjobs.errors import JobError, SettingsError, first_line
from labjobs.job.contents import of_text

SIZE = 224
"""Default width and height of images from files, in pixels."""

STATISTICS_FROM = 500
"""Number of images, drawn at random, from which mean and standard deviation are computed."""


class ImageFolder(Dataset[tuple[Tensor, int]]):
    """A dataset of (image, label) from one folder per class, `<root>/<class>/*.jpg`.

    Images are uint8 (3, size, size): scaled, then the middle square. `classes`, `samples` and
    `targets` are as in torchvision's class of that name. Raises SettingsError if there
    are fewer than two classes, one without images, or other classes than expected; when an example
    is read, JobError for a file that is no 8-bit image.
    """

    def __init__(
        self, root: Path, size: int | None = None, classes: Sequence[str] | None = None
    ) -> None:
        if not root.is_dir():
            raise SettingsError(f"--data-root: there is no folder {root}")
        from torchvision import datasets  # slow to import, and needed for files alone
        from torchvision.transforms import v2

        self._size = size or SIZE
        steps = [v2.Resize(self._size, antialias=True), v2.CenterCrop(self._size)]
        self._read = v2.Compose([in_colour, v2.PILToTensor(), *steps])
        try:
            found = datasets.ImageFolder(root)
        except FileNotFoundError as error:
            wanted = "wanted: one folder of images per class"
            raise SettingsError(f"--data-root: {first_line(error)}; {wanted}") from error
        self.root = root
        self.classes: list[str] = found.classes
        self.samples: list[tuple[str, int]] = found.samples
        self.targets: list[int] = found.targets
        if len(self.classes) < 2:
            raise SettingsError(f"--data-root: {root} has only one class, {self.classes[0]}")
        if classes is not None and self.classes != classes:
            raise SettingsError(f"--data-root: {root} does not have the same classes as train")
        files = [(file,) for file, _ in self.samples]
        self._decoded = Decoded(files, 3 * self._size**2, f"{decoders()} {self._size}")

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return an image (3, size, size) and its label."""
        file, label = self.samples[index]
        try:
            pixels = self._decoded.get(index, lambda: self._read(file).flatten())
        except Exception as error:  # damaged files raise all kinds of errors
            raise JobError(f"{file} cannot be read as an image: {first_line(error)}") from error
        return pixels.view(3, self._size, self._size), label


@remembered
def channel_statistics(
    dataset: Dataset[Any], seed: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and standard deviation of each channel, with pixels in [0, 1].

    They are computed from 500 random images, which are the first element of each example; empty if
    that is not a uint8 image (C, H, W).
    """
    dataset, indices = whole(dataset)
    some = torch.randperm(len(indices), generator=generator(seed, "statistics"))[:STATISTICS_FROM]
    images = trees.leaves(fetch(dataset, indices[some]))[0]
    if images.dtype != torch.uint8 or images.ndim != 4:
        return (), ()
    pixels = images.transpose(0, 1).flatten(1).double() / 255
    return tuple(pixels.mean(1).tolist()), tuple(pixels.std(1).clamp_min(1e-3).tolist())


@cache
def decoders() -> str:
    """Return what decoded pixels depend on in addition to the files: this code and its
    libraries."""
    versions = [f"{name} {version(name)}" for name in ("pillow", "torch", "torchvision")]
    code = [Path(__file__).with_name(name).read_text() for name in ("images.py", "masks.py")]
    return " ".join([*versions, *map(of_text, code)])


def in_colour(path: str | Path, upright: bool = True) -> Image.Image:
    """Return an image in 8-bit colour; with `upright`, rotated as its metadata says. Raises
    ValueError for an image with more bits.
    """
    with Image.open(path) as image:
        if image.mode.startswith(("I", "F")) or any(map(_cut_off, image.tile)):
            raise ValueError("it has more than 8 bits a channel, which would be cut off")
        return (ImageOps.exif_transpose(image) if upright else image).convert("RGB")


def _cut_off(tile: Any) -> bool:
    """Return whether Pillow would cut the pixels of a colour image to 8 bits as it reads them."""
    raw, *more = tile.args if isinstance(tile.args, tuple) else (tile.args,)
    if tile.codec_name.startswith("ppm"):
        return bool(more and more[0] > 255)  # the largest value of a pixel
    return bool(re.search(";16[BLN]", str(raw)))
