"""Images, each with a mask that has the class of every pixel."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from labjobs.cli.metrics import is_name
from labjobs.data.decoded import Decoded
from labjobs.data.images import SIZE, decoders, in_colour
from labjobs.errors import JobError, SettingsError, first_line

IGNORED = 255
"""The number of pixels without a class in a mask, as in Pascal VOC: they are ignored in training
and evaluation."""

NUMBERS = ("1", "L", "P")
"""Pillow's modes of images with a single number a pixel, of 8 bits at most."""


class MaskedImages(Dataset[tuple[Tensor, Tensor]]):
    """A dataset of (image, mask) from files: those of the images, and those of their masks.

    Images are uint8 (3, size, size), masks uint8 (size, size): scaled, then the middle square.
    `classes` are the classes of the numbers from 0 on in the mask files, or IGNORED for numbers
    without a class; 255 always means no class. When an example is read, JobError is raised for
    files that are no 8-bit image and its mask.
    """

    def __init__(
        self,
        images: Sequence[Path],
        masks: Sequence[Path],
        classes: Sequence[int],
        size: int | None = None,
    ) -> None:
        self.images, self.masks = images, masks
        self._size = size or SIZE
        self._class_of = torch.full((256,), -1)
        self._class_of[: len(classes)] = torch.tensor(classes)
        self._class_of[IGNORED] = IGNORED
        files = [(str(image), str(mask)) for image, mask in zip(images, masks, strict=True)]
        about = f"{decoders()} {[*classes]} {self._size}"
        self._decoded = Decoded(files, 4 * self._size**2, about)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return an image (3, size, size) and its mask (size, size)."""
        try:
            decoded = self._decoded.get(index, lambda: self._read(index))
        except Exception as error:  # damaged files raise all kinds of errors
            files = f"{self.images[index]} and its mask {self.masks[index]}"
            raise JobError(f"{files} cannot be read: {first_line(error)}") from error
        planes = decoded.view(4, self._size, self._size)
        return planes[:3], planes[3]

    def _read(self, index: int) -> Tensor:
        """The channels of an image and its mask, one after another (4 * size * size,), uint8."""
        from torchvision.transforms.v2 import InterpolationMode, functional  # slow to import

        # Not rotated as the camera says, because masks belong to the pixels as they are stored.
        pixels = functional.pil_to_tensor(in_colour(self.images[index], upright=False))
        classes = self._class_of[_numbers(self.masks[index])][None]
        if classes.shape[1:] != pixels.shape[1:]:
            raise ValueError("they do not have the same size")
        if (classes < 0).any():
            raise ValueError("the mask has a number that is not the number of a class")
        side, square = [self._size], [self._size, self._size]
        pixels = functional.resize(pixels, side, antialias=True)
        # The nearest pixel, because there are no classes in between.
        classes = functional.resize(classes.to(torch.uint8), side, InterpolationMode.NEAREST_EXACT)
        planes: Tensor = functional.center_crop(torch.cat([pixels, classes]), square)
        return planes.flatten()


def read_folder(root: Path, size: int | None = None) -> tuple[MaskedImages, list[str]]:
    """Return the images in `<root>/images` with their masks, `<root>/masks/<the same name>.png`,
    and the names of the classes, a line each in `<root>/classes.txt`.

    A pixel of a mask is the number of a line, from 0, or 255 for no class. Raises SettingsError for
    what is missing.
    """
    listed, images, masks = root / "classes.txt", _files(root / "images"), _files(root / "masks")
    if not listed.is_file():
        raise SettingsError(f"--data-root: {listed} not found; write a class's name in each line")
    if not images:
        raise SettingsError(f"--data-root: there are no images in {root / 'images'}")
    for name in sorted({*images} ^ {*masks}):
        lacks = "mask" if name in images else "image"
        raise SettingsError(f"--data-root: there is no {lacks} {name} in {root / lacks}s")
    classes = listed.read_text().splitlines()
    for name in classes:
        if not is_name(name):  # there are metrics of each class
            wanted = "letters, digits, '_', '-' and '.'"
            raise SettingsError(f"--data-root: {listed}: a class's name is {wanted}, not {name!r}")
    if len(classes) > IGNORED:
        raise SettingsError(f"--data-root: {listed} has more than {IGNORED} classes")
    files = [*images.values()], [*masks.values()]
    return MaskedImages(*files, range(len(classes)), size), classes


def _files(folder: Path) -> dict[str, Path]:
    """Return the files in a folder by their names without suffix, in order, without hidden
    files."""
    found = sorted(folder.glob("[!.]*"), key=lambda path: path.stem)
    return {path.stem: path for path in found}


def _numbers(mask: Path) -> Tensor:
    """Return the pixels of a mask (H, W), int64."""
    with Image.open(mask) as image:
        if image.mode not in NUMBERS:
            raise ValueError(f"the mask has colours ({image.mode}), not a class in each pixel")
        return torch.from_numpy(np.array(image, dtype=np.int64))
