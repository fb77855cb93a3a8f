"""Datasets, by name.

A dataset is a function of a folder and of an image size in pixels (None: its own). It returns its
training examples, its test examples (None: some will be held out) and its classes' names. Images
are uint8 (C, H, W); those in memory are scaled on the device, so the size is for those read one by
one. To add a dataset, write its function and a line in DATASETS.
"""

from collections.abc import Callable
from functools import cache
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import torch
from torchvision import datasets

from engine.data.images import CIFAR10, CIFAR100, ImageFolder, in_memory, reading
from engine.data.splits import Source
from engine.errors import SettingsError, did_you_mean


def digits(_root: Path, _size: int | None) -> Source:
    """1,797 handwritten digits, 8×8 in grey; they come with scikit-learn."""
    # What load_digits reads; to import it takes half as long as to import torch.
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = torch.from_numpy(np.loadtxt(str(file), delimiter=","))  # 64 pixels, 0 to 16, and a label
    images = (rows[:, :-1] * 255 / 16).round().to(torch.uint8).view(-1, 1, 8, 8)
    return Source(in_memory(images, rows[:, -1]), None, [str(digit) for digit in range(10)])


def mnist(root: Path, _size: int | None, kind: type[datasets.MNIST] = datasets.MNIST) -> Source:
    """70,000 handwritten digits, 28×28 in grey."""
    with reading(root):
        train, test = (kind(root, train=part, download=True) for part in (True, False))
        return Source(
            in_memory(train.data.unsqueeze(1), train.targets),
            in_memory(test.data.unsqueeze(1), test.targets),
            train.classes,
        )


def fashion_mnist(root: Path, size: int | None) -> Source:
    """70,000 pictures of clothes, 28×28 in grey."""
    return mnist(root, size, datasets.FashionMNIST)


def cifar10(root: Path, _size: int | None, kind: type[CIFAR10] = CIFAR10) -> Source:
    """60,000 photographs, 32×32 in colour."""
    with reading(root):
        train, test = kind(root, train=True), kind(root, train=False)
        return Source(
            in_memory(torch.from_numpy(train.data).permute(0, 3, 1, 2), train.targets),
            in_memory(torch.from_numpy(test.data).permute(0, 3, 1, 2), test.targets),
            train.classes,
        )


def cifar100(root: Path, size: int | None) -> Source:
    """60,000 photographs, 32×32 in colour, of 100 classes."""
    return cifar10(root, size, CIFAR100)


def image_folder(root: Path, size: int | None) -> Source:
    """Your own images: `<root>/<class>/*.jpg`, or such folders in `<root>/train`, `<root>/val` and
    `<root>/test`. Without test, val is the test set, as ImageNet has it."""
    if not (root / "train").is_dir():
        images = ImageFolder(root, size or 224)
        return Source(images, None, images.classes)
    train = ImageFolder(root / "train", size or 224)
    apart = [part for part in ("val", "test") if (root / part).is_dir()]
    held_out = {part: ImageFolder(root / part, size or 224) for part in apart}
    for part, images in held_out.items():
        if images.classes != train.classes:
            raise SettingsError(f"--data-root: {root / part} has other classes than train")
    val, test = held_out.get("val"), held_out.get("test")
    if test is None:
        val, test = None, val
    return Source(train, test, train.classes, val)


def random_tokens(_root: Path, _size: int | None) -> Source:
    """2,000 sequences of 1,024 random tokens out of 50,304, as many as GPT-2 has in whole tiles of
    a GPU: to measure speed on, since there is nothing to learn."""
    random = torch.Generator().manual_seed(0)
    tokens = torch.randint(50_304, (2_000, 1_025), generator=random)
    return Source(in_memory(tokens[:, :-1], tokens[:, 1:]), None, [*map(str, range(50_304))])


DATASETS: dict[str, Callable[[Path, int | None], Source]] = {
    "digits": digits,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "image-folder": image_folder,
    "random-tokens": random_tokens,
}


@cache
def load(name: str, root: Path, size: int | str) -> Source:
    """The dataset of a name; images read one by one are scaled to a size, unless that is `auto`.

    Raises SettingsError if it is unknown, missing or damaged.
    """
    if name not in DATASETS:
        raise SettingsError(f"--dataset {name}: no such dataset; {did_you_mean(name, DATASETS)}")
    return DATASETS[name](root.expanduser(), size if isinstance(size, int) else None)
