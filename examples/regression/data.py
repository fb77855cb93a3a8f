"""Datasets, splits and augmentations.

To add a dataset, write a function such as `diabetes` and a line in DATASETS. Any torch Dataset will
do; a TensorDataset, which is in memory, is the fastest. An example may be a tuple, a dict or a
dataclass of tensors and numbers; forward() in run.py gets batches of them. load() here expects
pairs of an input and a label, and images as uint8 (C, H, W): change it with the examples. For
examples of different lengths and for streams see `python jobs.py docs recipes`.

To add an augmentation, write a function such as `none` and a line in AUGMENTATIONS. It gets whole
training batches, on the device. Random changes belong here, not in a Dataset, whose examples may be
read only once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from labjobs import SettingsError, examples_at, fold, split, underlying
from models import Spec
from settings import FOLDS, Settings

Batch = tuple[Tensor, Tensor]  # features (B, F) and targets (B,), float
Examples = Dataset[Any]  # (features, target), one by one

TEST_FRACTION = 0.2  # held out if a dataset has no test examples of its own


@dataclass(frozen=True)
class Source:
    """A dataset with its splits; those that are None can be held out of `train`."""

    train: Examples
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

    Raises SettingsError if the dataset is missing, damaged or too small.
    """
    source = read(settings.dataset, data_root.expanduser())
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
    features, targets = examples_at(*underlying(train))
    mean, std = tuple(features.mean(0).tolist()), tuple(features.std(0).tolist())
    target = targets.mean().item(), targets.std().item()
    return Splits(train, val, test, Spec(mean, std, target))


@cache  # many jobs of a grid read the same
def read(dataset: str, root: Path) -> Source:
    """Return the dataset of a name."""
    return DATASETS[dataset](root)


def diabetes(_root: Path) -> Source:
    """Return 442 patients with diabetes; they come with scikit-learn.

    Features are age, sex, body mass index, blood pressure and six blood serum measurements; the
    target is how far the disease had progressed a year later, from 25 to 346 (Efron et al. 2004,
    arxiv.org/abs/math/0406456).
    """
    # The files behind load_diabetes(): importing that takes half as long as importing torch.
    folder = distribution("scikit-learn").locate_file("sklearn/datasets/data")
    files = f"{folder}/diabetes_data_raw.csv.gz", f"{folder}/diabetes_target.csv.gz"
    return Source(TensorDataset(*(torch.from_numpy(np.loadtxt(file)).float() for file in files)))


DATASETS: dict[str, Callable[[Path], Source]] = {
    "diabetes": diabetes,
}


def augmentation(settings: Settings) -> Callable[[Batch], Batch]:
    """Return the random changes that the settings name, for training batches on any device."""
    return AUGMENTATIONS[settings.augment]


def none(batch: Batch) -> Batch:
    """Change nothing."""
    return batch


AUGMENTATIONS: dict[str, Callable[[Batch], Batch]] = {
    "none": none,
}
