"""Datasets, splits and augmentations.

To add a dataset, write a function such as `digits` and a line in DATASETS. Any torch Dataset will
do; a TensorDataset, which is in memory, is the fastest. An example is an image, uint8 (C, H, W),
and its label. Training uses only the images; labels are for the probes that judge the features. So
that labels can be found without reading images, other Datasets have them as `targets`, (N,).

To add an augmentation, write a function such as `shift` and a line in AUGMENTATIONS. It gets the
images of a whole batch, on the device, and is called twice, for two views of each image. Random
changes belong here, not in a Dataset, whose examples may be read only once. They are drawn from the
given generator, so that evaluation has the same views each time; None means torch's global
generator, for training.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn.functional import affine_grid, grid_sample
from torch.utils.data import Dataset, TensorDataset

from labjobs import (
    ImageFolder,
    SettingsError,
    channel_statistics,
    examples_at,
    fold,
    generator,
    published,
    remembered,
    split,
    underlying,
)
from models import Spec
from settings import FOLDS, Settings

Batch = tuple[Tensor, Tensor]  # images (B, C, H, W), uint8, and labels (B,)
Views = tuple[Tensor, Tensor]  # of the same images, both (B, C, H, W), uint8
Examples = Dataset[Any]  # (image, label), one by one

TEST_FRACTION = 0.2  # held out if a dataset has no test examples of its own

DRAWS = 10  # random choices of labelled training examples, with a probe for each


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
    labelled: "Draws"
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
    labelled = draws(train, settings.probe_labels, source.classes, settings.split_seed)
    return Splits(train, val, test, labelled, Spec(shape, tuple(source.classes), mean, std))


class Draws(Dataset[Batch]):
    """Random choices of labelled examples from which probes of the features learn; each is a
    batch."""

    def __init__(self, dataset: Examples, indices: Tensor) -> None:
        self._dataset, self._indices = dataset, indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, number: int) -> Batch:
        """Return the images (N, C, H, W) and the labels (N,) of a draw."""
        images, labels = examples_at(self._dataset, self._indices[number])
        return images, labels


@remembered
def draws(train: Examples, count: int, classes: Sequence[str], seed: int) -> Draws:
    """Return DRAWS random choices of training examples, each with `count` of every class.

    Raises SettingsError if a class has fewer.
    """
    dataset: Any
    dataset, indices = underlying(train)
    labels = dataset.tensors[1] if isinstance(dataset, TensorDataset) else dataset.targets
    labels, random, drawn = torch.as_tensor(labels)[indices], generator(seed, "draws"), []
    for number, name in enumerate(classes):
        alike = (labels == number).nonzero().squeeze(1)
        if len(alike) < count:
            found = f"the class {name} has {len(alike)} training images"
            raise SettingsError(f"--probe-labels {count}: {found}")
        orders = [torch.randperm(len(alike), generator=random) for _ in range(DRAWS)]
        drawn.append(torch.stack([alike[order[:count]] for order in orders]))
    return Draws(dataset, indices[torch.cat(drawn, 1)])


@cache  # many jobs of a grid read the same
def read(dataset: str, root: Path, size: int | str) -> Source:
    """Return the dataset with this name; `size` is the size of images in files, `auto` or in
    pixels."""
    return DATASETS[dataset](root, None if isinstance(size, str) else size)


def digits(_root: Path, _size: int | None) -> Source:
    """Return 1,797 handwritten digits, 8×8 in grey; they come with scikit-learn."""
    # The file behind load_digits(): importing that takes half as long as importing torch.
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = torch.from_numpy(np.loadtxt(str(file), delimiter=","))  # 64 pixels, 0 to 16, and a label
    images = (rows[:, :-1] * 255 / 16).round().to(torch.uint8).view(-1, 1, 8, 8)
    return Source(TensorDataset(images, rows[:, -1].long()), [str(digit) for digit in range(10)])


def mnist(root: Path, _size: int | None) -> Source:
    """Return 70,000 handwritten digits, 28×28 in grey."""
    return Source(*published("MNIST", root))


def fashion_mnist(root: Path, _size: int | None) -> Source:
    """Return 70,000 pictures of clothes, 28×28 in grey."""
    return Source(*published("FashionMNIST", root))


def cifar10(root: Path, _size: int | None) -> Source:
    """Return 60,000 photographs, 32×32 in colour, of 10 classes."""
    return Source(*published("CIFAR10", root))


def cifar100(root: Path, _size: int | None) -> Source:
    """Return 60,000 photographs, 32×32 in colour, of 100 classes."""
    return Source(*published("CIFAR100", root))


def image_folder(root: Path, size: int | None) -> Source:
    """Return your own images: `<root>/<class>/*.jpg`, or such folders in `<root>/train`,
    `<root>/val` and `<root>/test`. Without test, val is the test set, as ImageNet has it."""
    if not (root / "train").is_dir():
        images = ImageFolder(root, size)
        return Source(images, images.classes)
    train = ImageFolder(root / "train", size)
    test, val = (
        ImageFolder(root / part, size, train.classes) if (root / part).is_dir() else None
        for part in ("test", "val")
    )
    if test is None:
        test, val = val, None
    return Source(train, train.classes, test, val)


DATASETS: dict[str, Callable[[Path, int | None], Source]] = {
    "digits": digits,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "image-folder": image_folder,
}


def augmentation(settings: Settings) -> Callable[..., Views]:
    """Return a function that makes two views of each image in a batch, without its labels;
    optionally, it takes a random generator on the batch's device."""
    augment = AUGMENTATIONS[settings.augment]

    def views(batch: Batch, random: Generator | None = None) -> Views:
        """Return two views of each image in a batch."""
        images, _ = batch
        return augment(images, random), augment(images, random)

    return views


def none(images: Tensor, _random: Generator | None) -> Tensor:
    """Change nothing: both views are the same."""
    return images


def shift(images: Tensor, random: Generator | None) -> Tensor:
    """Move each image by up to an eighth of its height and width; pixels that come in are black."""
    right, down = (uniform(images, -0.25, 0.25, random) for _ in range(2))
    return warped(images, [[1, 0, right], [0, 1, down]])


def affine(images: Tensor, random: Generator | None) -> Tensor:
    """Rotate each image by up to 17°, scale it by up to a fifth, and move it as `shift` does."""
    angle, scale = uniform(images, -0.3, 0.3, random), uniform(images, 0.8, 1.2, random)
    right, down = (uniform(images, -0.25, 0.25, random) for _ in range(2))
    cos, sin = scale * angle.cos(), scale * angle.sin()
    return warped(images, [[cos, -sin, right], [sin, cos, down]])


def affine_noise_erase(images: Tensor, random: Generator | None) -> Tensor:
    """Do the same, change the contrast by up to 40%, add noise, and make a random rectangle of a
    third of each side black (Zhong et al. 2020, doi.org/10.1609/aaai.v34i07.7000)."""
    contrast = uniform(images, 0.6, 1.4, random).view(-1, 1, 1, 1)
    noise = torch.randn(images.shape, generator=random, device=images.device)
    images = pixels(contrast * affine(images, random) + 25 * noise)
    rows, columns = (a_third(images, side, random) for side in images.shape[2:])
    return images.masked_fill(rows[:, None, :, None] & columns[:, None, None, :], 0)


def crop_flip_colour(images: Tensor, random: Generator | None) -> Tensor:
    """Enlarge a random part of each image, a fifth of it or more, mirror half of them left to
    right, change brightness and colours, and make one in five grey: for photographs, much as Chen
    et al. 2020 do (arxiv.org/abs/2002.05709)."""
    side = uniform(images, 0.2, 1, random).sqrt()
    right, down = ((1 - side) * uniform(images, -1, 1, random) for _ in range(2))
    mirrored = uniform(images, -1, 1, random).sign() * side
    images = warped(images, [[mirrored, 0, right], [0, side, down]])
    gain = 0.6 + 0.8 * torch.rand(images.shape[:2], generator=random, device=images.device)
    coloured = gain[:, :, None, None] * images
    grey = uniform(images, 0, 1, random).view(-1, 1, 1, 1) < 0.2
    return pixels(torch.where(grey, coloured.mean(1, keepdim=True), coloured))


def uniform(images: Tensor, low: float, high: float, random: Generator | None) -> Tensor:
    """Return a random number for each image, (B,)."""
    return low + (high - low) * torch.rand(len(images), generator=random, device=images.device)


def warped(images: Tensor, rows: Sequence[Sequence[Tensor | float]]) -> Tensor:
    """Return images whose pixels come from the positions to which an affine map sends them.

    `rows` are the two rows of its matrix, for positions (x, y, 1) from -1 to 1 across the image;
    each entry is a number, or a number for each image, (B,).
    """
    ones = torch.ones(len(images), device=images.device)
    matrices = torch.stack([torch.stack([entry * ones for entry in row], 1) for row in rows], 1)
    grid = affine_grid(matrices, list(images.shape), align_corners=False)
    return pixels(grid_sample(images.float(), grid, align_corners=False))


def pixels(values: Tensor) -> Tensor:
    """Return values as pixels, uint8."""
    return values.round().clamp(0, 255).to(torch.uint8)


def a_third(images: Tensor, side: int, random: Generator | None) -> Tensor:
    """Return for each image which positions along a side are in a random third of it: (B, side)."""
    first = (uniform(images, 0, side - side // 3 + 1, random)).long().unsqueeze(1)
    places = torch.arange(side, device=images.device)
    return (places >= first) & (places < first + side // 3)


AUGMENTATIONS: dict[str, Callable[[Tensor, Generator | None], Tensor]] = {
    "none": none,
    "shift": shift,
    "affine": affine,
    "affine-noise-erase": affine_noise_erase,
    "crop-flip-colour": crop_flip_colour,
}
