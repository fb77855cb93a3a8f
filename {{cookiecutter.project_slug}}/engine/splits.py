"""Training, validation and test examples.

A dataset is any torch Dataset of (image, label): image uint8 (C, H, W), label an int. A
TensorDataset of images (N, C, H, W) and labels (N,) is the fast case. Subsets share it uncopied.
"""

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from engine.seeding import generator
from engine.settings import SettingsError

TEST_FRACTION = 0.2
"""Share of the examples held out for the test where a dataset has no test set of its own."""

STATISTICS_FROM = 500
"""Training examples, drawn by the split seed, from which mean and deviation are taken."""


@dataclass(frozen=True)
class Source:
    """What a dataset function in data.py returns; `test` None: it has no test set of its own.

    Raises SettingsError for labels beyond the classes.
    """

    train: Dataset[Any]
    test: Dataset[Any] | None
    classes: Sequence[str]

    def __post_init__(self) -> None:
        for part in (self.train, self.test):
            if isinstance(part, TensorDataset) and not self._known(part.tensors[1]):
                raise SettingsError(
                    f"--dataset: a label is not one of its {len(self.classes)} classes"
                )

    def _known(self, labels: Tensor) -> bool:
        return not len(labels) or bool(labels.min() >= 0 and labels.max() < len(self.classes))


@dataclass(frozen=True)
class Splits:
    """The three parts; `mean` and `std` of the training images, by channel, in [0, 1]."""

    train: Subset[Any]
    val: Subset[Any]
    test: Subset[Any]
    classes: Sequence[str]
    mean: Tensor
    std: Tensor


def image_shape(source: Source) -> tuple[int, int, int]:
    """(C, H, W) of a dataset's images."""
    channels, height, width = fetch(source.train, torch.tensor([0]))[0].shape[1:]
    return channels, height, width


def split(source: Source, val_fraction: float, seed: int) -> Splits:
    """Hold out validation examples and, where the dataset has no test set, test examples first.

    Raises SettingsError if a part would be empty.
    """
    order = torch.randperm(len(cast(Sized, source.train)), generator=generator(seed, "split"))
    held = 0 if source.test else round(TEST_FRACTION * len(order))
    val = round(val_fraction * (len(order) - held))
    parts = torch.split(order, [held, val, len(order) - held - val])
    test = Subset(
        source.test or source.train, _all(source.test) if source.test else _rows(parts[0])
    )
    if not (len(test) and val and len(parts[2])):
        raise SettingsError(
            f"--val-fraction {val_fraction}: too few examples ({len(order)}) for it"
        )
    train = Subset(source.train, _rows(parts[2]))
    images, _ = fetch(train.dataset, parts[2][:STATISTICS_FROM])
    pixels = images.transpose(0, 1).flatten(1).double() / 255
    mean, std = pixels.mean(1).float(), pixels.std(1).clamp_min(1e-3).float()
    return Splits(train, Subset(source.train, _rows(parts[1])), test, source.classes, mean, std)


def fetch(dataset: Dataset[Any], indices: Tensor) -> tuple[Tensor, Tensor]:
    """The images (B, C, H, W), uint8, and labels (B,), int64, at indices (B,)."""
    if isinstance(dataset, TensorDataset):
        images, labels = dataset[indices]
        return images, labels
    pairs = [dataset[i] for i in indices.tolist()]
    return torch.stack([image for image, _ in pairs]), torch.tensor([label for _, label in pairs])


def _rows(indices: Tensor) -> list[int]:
    return sorted(indices.tolist())


def _all(dataset: Dataset[Any]) -> range:
    return range(len(cast(Sized, dataset)))
