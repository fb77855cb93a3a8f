"""Datasets, splits and augmentations.

To add a dataset, write a function such as `scenes` and a line in DATASETS. Any torch Dataset will
do; a TensorDataset, which is in memory, is the fastest. An example is an image, uint8 (C, H, W),
and its mask, uint8 (H, W): the class of each pixel, or 255 for none.

To add an augmentation, write a function such as `crop_flip` and a line in AUGMENTATIONS. It gets
whole training batches, on the device, and changes images and masks alike. Random changes belong
here, not in a Dataset, whose examples may be read only once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distribution
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import Dataset, TensorDataset

from labjobs import (
    JobError,
    SettingsError,
    channel_statistics,
    fetching,
    first_line,
    fold,
    generator,
    random_shift,
    split,
)
from models import Spec
from settings import FOLDS, Settings

Batch = tuple[Tensor, Tensor]  # images (B, C, H, W) and masks (B, H, W), uint8
Examples = Dataset[Any]  # (image, mask), one by one

TEST_FRACTION = 0.2  # held out if a dataset has no test examples of its own

IGNORED = 255  # the number of pixels without a class, as in Pascal VOC
SIZE = 224  # default width and height of images from files, in pixels

VOC = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair"),
    *("cow", "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa"),
    *("train", "tvmonitor"),
)
"""The classes of Pascal VOC, by their numbers."""

TRIMAP = (IGNORED, 1, 0, IGNORED)
"""What 1, 2 and 3 stand for in the masks of Oxford-IIIT Pet: pet, background, the edge between."""


class MaskedImages(Dataset[tuple[Tensor, Tensor]]):
    """A dataset of (image, mask) from files: those of the images, and those of their masks.

    Images are uint8 (3, size, size), masks uint8 (size, size): scaled, then the middle square.
    `classes` are the classes of the numbers from 0 on in the mask files; IGNORED is no class. When
    an example is read, JobError is raised for files that are not an image and its mask.
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

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return an image (3, size, size) and its mask (size, size)."""
        try:
            return self._read(index)
        except Exception as error:  # damaged files raise all kinds of errors
            files = f"{self.images[index]} and its mask {self.masks[index]}"
            raise JobError(f"{files} cannot be read: {first_line(error)}") from error

    def _read(self, index: int) -> tuple[Tensor, Tensor]:
        from torchvision.transforms.v2 import InterpolationMode, functional  # slow to import

        # Not rotated as the camera says, because masks belong to the pixels as they are stored.
        with Image.open(self.images[index]) as image:
            pixels = functional.pil_to_tensor(image.convert("RGB"))
        with Image.open(self.masks[index]) as mask:
            if mask.mode not in ("1", "L", "P"):  # one number a pixel, of 8 bits at most
                raise ValueError(f"the mask has colours ({mask.mode}), not a class in each pixel")
            classes = self._class_of[torch.from_numpy(np.array(mask, dtype=np.int64))][None]
        if classes.shape[1:] != pixels.shape[1:]:
            raise ValueError("they do not have the same size")
        if (classes < 0).any():
            raise ValueError("the mask has a number that is not the number of a class")
        side, square = [self._size], [self._size, self._size]
        pixels = functional.resize(pixels, side, antialias=True)
        # The nearest pixel, because there are no classes in between.
        classes = functional.resize(classes.to(torch.uint8), side, InterpolationMode.NEAREST_EXACT)
        return functional.center_crop(pixels, square), functional.center_crop(classes, square)[0]


@dataclass(frozen=True)
class Source:
    """A dataset with its splits; those that are None can be held out of `train`."""

    train: Examples
    classes: Sequence[str]
    test: Examples | None = None
    val: Examples | None = None


@dataclass(frozen=True)
class Splits:
    """What a job is trained, validated and tested on, and what its network needs to know about the
    data."""

    train: Examples
    val: Examples | None
    test: Examples | None
    spec: Spec


def load(settings: Settings, data_root: Path) -> Splits:
    """Return the splits of the dataset that the settings name.

    Raises SettingsError if the dataset is missing, damaged or too small, JobError for a damaged
    image.
    """
    source = read(settings.dataset, data_root.expanduser(), settings.image_size)
    train, val, test = source.train, source.val, source.test
    if test is None:
        train, test = split(train, TEST_FRACTION, settings.split_seed)
    if settings.fold:
        if val is not None:
            raise SettingsError(f"--fold: {settings.dataset} has validation examples of its own")
        train, val = fold(train, settings.fold, FOLDS, settings.split_seed)
    elif val is None and settings.val_fraction:
        train, val = split(train, settings.val_fraction, settings.split_seed)
    if val is None and settings.monitor != "none":
        raise SettingsError("--val-fraction 0: without validation examples, add --monitor none")
    shape = tuple(train[0][0].shape)
    mean, std = channel_statistics(train, settings.split_seed)
    return Splits(train, val, test, Spec(shape, tuple(source.classes), mean, std))


@cache  # many jobs of a grid read the same
def read(dataset: str, root: Path, size: int | str) -> Source:
    """Return the dataset with this name; `size` is the size of images in files, `auto` or in
    pixels."""
    return DATASETS[dataset](root, None if isinstance(size, str) else size)


def scenes(_root: Path, size: int | None) -> Source:
    """Return 599 scenes, 24×24 in grey, with three of scikit-learn's handwritten digits in each.

    A digit is in one scene only, so no two splits share one. It may cover others, and its faint
    edge has no class. The background is uneven, and noise is added everywhere. Raises SettingsError
    for another size.
    """
    if size is not None:
        raise SettingsError(f"--image-size {size}: the scenes are 24×24 pixels; leave it out")
    # The file behind load_digits(): importing that takes half as long as importing torch.
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = torch.from_numpy(np.loadtxt(str(file), delimiter=",")).float()
    random = generator(0, "scenes")
    rows = rows[torch.randperm(1797, generator=random)].view(599, 3, 65)  # 64 pixels and a label
    corners = torch.randint(24 - 8 + 1, (599, 3, 2), generator=random).tolist()
    brightness = 0.6 + 0.4 * torch.rand(599, 3, generator=random)
    images = interpolate(0.4 * torch.rand(599, 1, 4, 4, generator=random), 24, mode="bicubic")
    masks = torch.zeros(599, 24, 24)
    for scene, number in product(range(599), range(3)):
        top, left = corners[scene][number]
        place = slice(top, top + 8), slice(left, left + 8)
        image, mask = images[scene, 0][place], masks[scene][place]
        ink, digit = rows[scene, number, :-1].view(8, 8) / 16, rows[scene, number, -1]
        image.lerp_(brightness[scene, number], ink)
        mask[ink >= 0.25] = IGNORED
        mask[ink >= 0.5] = 1 + digit
    images += 0.05 * torch.randn(images.shape, generator=random)
    pixels = (255 * images.clamp(0, 1)).round().to(torch.uint8)
    classes = ["background", *map(str, range(10))]
    return Source(TensorDataset(pixels, masks.to(torch.uint8)), classes)


def voc(root: Path, size: int | None) -> Source:
    """Return Pascal VOC 2012: 1,464 photographs to train on and 1,449 to test on, with 20 classes
    of objects (Everingham et al. 2010, doi.org/10.1007/s11263-009-0275-4)."""
    from torchvision.datasets import VOCSegmentation  # slow to import

    def part(name: str) -> MaskedImages:
        """Return the images and masks of one of the dataset's own lists."""
        missing = not (root / "VOCdevkit" / "VOC2012").is_dir()  # it would be unpacked again
        found = VOCSegmentation(root, image_set=name, download=missing)
        images, masks = ([Path(file) for file in each] for each in (found.images, found.masks))
        return MaskedImages(images, masks, range(len(VOC)), size)

    with fetching(root):
        return Source(part("train"), VOC, test=part("val"))


def pets(root: Path, size: int | None) -> Source:
    """Return Oxford-IIIT Pet: 3,680 photographs of cats and dogs to train on and 3,669 to test on,
    with two classes, pet and background (Parkhi et al. 2012, doi.org/10.1109/CVPR.2012.6248092)."""
    from torchvision.datasets import OxfordIIITPet  # slow to import

    folder = root / "oxford-iiit-pet"

    def part(name: str) -> MaskedImages:
        """Return the images and masks of one of the dataset's own lists."""
        OxfordIIITPet(root, split=name, download=True)
        lines = (folder / "annotations" / f"{name}.txt").read_text("utf-8").splitlines()
        names = [line.split()[0] for line in lines]
        images = [folder / "images" / f"{name}.jpg" for name in names]
        masks = [folder / "annotations" / "trimaps" / f"{name}.png" for name in names]
        return MaskedImages(images, masks, TRIMAP, size)

    with fetching(root):
        return Source(part("trainval"), ("background", "pet"), test=part("test"))


def mask_folder(root: Path, size: int | None) -> Source:
    """Return your own images: `<root>/images/*`, `<root>/masks/*.png` of the same names, and the
    classes by their numbers in the masks, a line each in `<root>/classes.txt`."""
    listed = root / "classes.txt"
    if not listed.is_file():
        raise SettingsError(f"--data-root: {listed} not found; write a class's name in each line")
    images, masks = (
        {path.stem: path for path in sorted((root / part).glob("[!.]*"))}
        for part in ("images", "masks")
    )
    if not images:
        raise SettingsError(f"--data-root: there are no images in {root / 'images'}")
    for name in sorted({*images} ^ {*masks}):
        lacks = "mask" if name in images else "image"
        raise SettingsError(f"--data-root: there is no {lacks} {name} in {root / lacks}s")
    classes = listed.read_text("utf-8").splitlines()
    files = [images[name] for name in images], [masks[name] for name in images]
    return Source(MaskedImages(*files, range(len(classes)), size), classes)


DATASETS: dict[str, Callable[[Path, int | None], Source]] = {
    "scenes": scenes,
    "voc": voc,
    "pets": pets,
    "mask-folder": mask_folder,
}


def labelled(batch: Batch) -> Tensor:
    """Return the number of pixels of a batch that have a class (), at least 1."""
    return (batch[1] != IGNORED).sum().clamp_min(1)


def augmentation(settings: Settings) -> Callable[[Batch], Batch]:
    """Return the random changes that the settings name, for training batches on any device."""
    return AUGMENTATIONS[settings.augment]


def none(batch: Batch) -> Batch:
    """Change nothing."""
    return batch


def crop(batch: Batch) -> Batch:
    """Shift each image by up to an eighth of its side."""
    images, masks = random_shift(*batch)
    return images, masks


def crop_flip(batch: Batch) -> Batch:
    """Shift each image, and mirror it left to right with probability 1/2."""
    images, masks = random_shift(*batch, mirror=True)
    return images, masks


AUGMENTATIONS: dict[str, Callable[[Batch], Batch]] = {
    "none": none,
    "crop": crop,
    "crop-flip": crop_flip,
}
