"""Datasets, splits and augmentations.

To add a dataset, write a function such as `digits` and a line in DATASETS. Any torch Dataset will
do; a TensorDataset, which is in memory, is the fastest. An example may be a tuple, a dict or a
dataclass of tensors and numbers; forward() in run.py gets batches of them. load() here expects
pairs of an input and a label, and images as uint8 (C, H, W): change it with the examples. For
examples of different lengths and for streams see `python jobs.py docs recipes`.

To add an augmentation, write a function such as `crop_flip` and a line in AUGMENTATIONS. It gets
whole training batches, on the device. Random changes belong here, not in a Dataset, whose examples
may be read only once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from labjobs import (
    ImageFolder,
    Job,
    SettingsError,
    channel_statistics,
    class_counts,
    fold,
    published,
    random_shift,
    split,
)
from models import Spec
from settings import FOLDS, Settings

Batch = tuple[Tensor, Tensor]  # images (B, C, H, W), uint8, and labels (B,)
Examples = Dataset[Any]  # (image, label), one by one

TEST_FRACTION = 0.2  # held out if a dataset has no test examples of its own


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
    if not mean and (settings.augment != "none" or settings.image_size != "auto"):
        raise SettingsError(f"--augment, --image-size: --dataset {settings.dataset} has no images")
    counts = class_counts(train, len(source.classes))
    return Splits(train, val, test, Spec(shape, tuple(source.classes), mean, std, counts))


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


def augmentation(settings: Settings, job: Job[Settings] | None = None) -> Callable[[Batch], Batch]:
    """Return the random changes that the settings name, for training batches on any device.

    Augmentations that alternate between epochs ask the job which pass over the data this is.
    """
    if settings.augment == "alternating-flip" and job:
        return lambda batch: alternating_flip(batch, job.epoch)
    return AUGMENTATIONS[settings.augment]


def none(batch: Batch) -> Batch:
    """Change nothing."""
    return batch


def crop(batch: Batch) -> Batch:
    """Shift each image by up to an eighth of its side."""
    images, labels = batch
    return random_shift(images), labels


def crop_flip(batch: Batch) -> Batch:
    """Shift each image, and mirror it left to right with probability 1/2."""
    images, labels = batch
    return random_shift(images, mirror=True), labels


def alternating_flip(batch: Batch, epoch: int = 0) -> Batch:
    """Shift each image, and mirror it in every other pass over the data.

    Two passes thus show each image both ways. About half of the images are mirrored in the first
    pass: those whose pixels have an odd sum. Source: Jordan 2024, arxiv.org/abs/2404.00498.
    """
    images, labels = batch
    mirrored = (images.flatten(1).sum(1) + epoch) % 2 == 1
    shifted = random_shift(images)
    return torch.where(mirrored.view(-1, 1, 1, 1), shifted.flip(3), shifted), labels


AUGMENTATIONS: dict[str, Callable[[Batch], Batch]] = {
    "none": none,
    "crop": crop,
    "crop-flip": crop_flip,
    "alternating-flip": alternating_flip,
}
