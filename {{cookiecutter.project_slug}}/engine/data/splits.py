"""Training, validation and test examples.

A dataset is any torch Dataset of (image, label): image uint8 (C, H, W), label an int; or of tokens
and those that follow, (T,) each, int64. A TensorDataset of images (N, C, H, W) and labels (N,), or
of tokens (N, T) twice, is the fast case. Subsets share it uncopied.
"""

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from engine.errors import SettingsError
from engine.training.seeding import generator

TEST_FRACTION = 0.2
"""Share of the examples held out for the test where a dataset has no test set of its own."""

STATISTICS_FROM = 500
"""Training examples, drawn by the split seed, from which mean and deviation are taken."""


@dataclass(frozen=True)
class Source:
    """What a dataset function in data.py returns. Where it has no test or validation examples of
    its own, some of the training examples are held out. The classes of tokens are the vocabulary.

    Raises SettingsError for examples in memory that are neither images, uint8 (N, C, H, W), nor
    tokens, int64 (N, T), or labels beyond the classes.
    """

    train: Dataset[Any]
    test: Dataset[Any] | None
    classes: Sequence[str]
    val: Dataset[Any] | None = None

    def __post_init__(self) -> None:
        for part in (self.train, self.val, self.test):
            if isinstance(part, TensorDataset):
                self._check(*part.tensors)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """(C, H, W) of an image, (T,) of tokens."""
        return fetch(self.train, torch.tensor([0]))[0].shape[1:]

    @property
    def tokens(self) -> bool:
        """Whether the examples are tokens, not images."""
        return len(self.shape) == 1

    def _check(self, inputs: Tensor, labels: Tensor) -> None:
        if (inputs.dtype, inputs.ndim) not in ((torch.uint8, 4), (torch.int64, 2)):
            found = f"{inputs.dtype} {tuple(inputs.shape)}"
            wanted = "images must be uint8 (N, C, H, W), tokens int64 (N, T)"
            raise SettingsError(f"--dataset: {wanted}, not {found}")
        if len(labels) and (labels.min() < 0 or labels.max() >= len(self.classes)):
            raise SettingsError(f"--dataset: a label is not one of its {len(self.classes)} classes")


@dataclass(frozen=True)
class Splits:
    """The three parts; `mean` and `std` of the training images, by channel, in [0, 1], of tokens
    none."""

    train: Subset[Any]
    val: Subset[Any]
    test: Subset[Any]
    mean: Tensor
    std: Tensor


def split(source: Source, val_fraction: float, seed: int) -> Splits:
    """Hold out the test and the validation examples that the dataset does not have apart.

    Raises SettingsError if a part would be empty.
    """
    order = torch.randperm(len(_all(source.train)), generator=generator(seed, "split"))
    test = 0 if source.test is not None else round(TEST_FRACTION * len(order))
    val = 0 if source.val is not None else round(val_fraction * (len(order) - test))
    held_test, held_val, rest = torch.split(order, [test, val, len(order) - test - val])
    parts = (
        _own_or(None, source.train, rest),
        _own_or(source.val, source.train, held_val),
        _own_or(source.test, source.train, held_test),
    )
    if not all(map(len, parts)):
        raise SettingsError(
            f"--val-fraction {val_fraction}: too few examples ({len(order)}) for it"
        )
    if source.tokens:
        return Splits(*parts, torch.empty(0), torch.empty(0))
    return Splits(*parts, *_statistics(source.train, rest[:STATISTICS_FROM]))


def _own_or(own: Dataset[Any] | None, train: Dataset[Any], held_out: Tensor) -> Subset[Any]:
    return Subset(train, sorted(held_out.tolist())) if own is None else Subset(own, _all(own))


def _all(dataset: Dataset[Any]) -> range:
    return range(len(cast(Sized, dataset)))


def _statistics(dataset: Dataset[Any], indices: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation (C,) of some images, in [0, 1]."""
    images, _ = fetch(dataset, indices)
    pixels = images.transpose(0, 1).flatten(1).double() / 255
    return pixels.mean(1).float(), pixels.std(1).clamp_min(1e-3).float()


def fetch(dataset: Dataset[Any], indices: Tensor) -> tuple[Tensor, Tensor]:
    """The images (B, C, H, W), uint8, and labels (B,), int64, at indices (B,); or the tokens (B, T)
    and those that follow."""
    if isinstance(dataset, TensorDataset):
        inputs, labels = dataset[indices]
        return inputs, labels
    inputs, labels = zip(*(dataset[i] for i in indices.tolist()), strict=True)
    return torch.stack(inputs), torch.stack([torch.as_tensor(label) for label in labels])
