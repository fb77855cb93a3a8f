"""The examples, and their split into those to train, validate and test on.

load() may return any torch Datasets; a TensorDataset, which is in memory, is the fastest. An
example may be a tuple, a dict or a dataclass of tensors and numbers; forward() in run.py gets
batches of them. For examples of different lengths and for streams see `python jobs.py docs
recipes`.
"""

from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from labjobs import split
from models import Spec
from settings import Settings

Batch = tuple[Tensor, Tensor]  # pixels (B, 64), float, and labels (B,)
Examples = Dataset[Any]  # (pixels, label), one by one

TEST_FRACTION = 0.2


@dataclass(frozen=True)
class Splits:
    """What a job is trained, validated and tested on, and what its network needs to know about the
    data."""

    train: Examples
    val: Examples
    test: Examples
    spec: Spec


def load(settings: Settings, data_root: Path) -> Splits:
    """Return the splits of the data. Files below --data-root are read from `data_root`."""
    pixels, labels = digits()
    rest, test = split(TensorDataset(pixels, labels), TEST_FRACTION, settings.split_seed)
    train, val = split(rest, settings.val_fraction, settings.split_seed)
    return Splits(train, val, test, Spec(inputs=pixels.shape[1], classes=10))


def digits() -> tuple[Tensor, Tensor]:
    """Return 1,797 handwritten digits, 8×8 in grey, from 0 to 1, and what they are.

    They come with scikit-learn.
    """
    # The file behind load_digits(): importing that takes half as long as importing torch.
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = torch.from_numpy(np.loadtxt(str(file), delimiter=","))  # 64 pixels, 0 to 16, and a label
    return rows[:, :-1].float() / 16, rows[:, -1].long()
