"""Published datasets, as torchvision fetches and reads them, with one clear line for what is wrong.

The files of CIFAR are pickles, which can run code when they are opened. They are searched for it
first, so that any files in the format can be taken, not only the ones whose checksums torchvision
knows.
"""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset
from torchvision import datasets

from engine.errors import JobError, SettingsError, first_line

ARRAYS = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("_codecs", "encode"),
}
"""All that a pickled array calls, in files of numpy 1 and 2."""


class CIFAR10(datasets.CIFAR10):  # type: ignore[misc]
    """torchvision's dataset, read from any files in the format that hold no code."""

    train_list: list[list[Any]]
    test_list: list[list[Any]]
    meta: dict[str, Any]

    def __init__(self, root: Path, train: bool, download: bool) -> None:
        self.train_list, self.test_list = _unchecked(self.train_list), _unchecked(self.test_list)
        self.meta = {**self.meta, "md5": None}
        names = [name for name, _ in [*self.train_list, *self.test_list]]
        for name in [*names, self.meta["filename"]]:
            _refuse_code(root / self.base_folder / name)
        super().__init__(root, train, download=download)


class CIFAR100(CIFAR10, datasets.CIFAR100):  # type: ignore[misc]
    """The same for 100 classes."""


SAFE = {"CIFAR10": CIFAR10, "CIFAR100": CIFAR100}


def published(name: str, root: Path) -> tuple[TensorDataset, list[str], TensorDataset]:
    """Return the training examples, the classes' names and the test examples of a dataset.

    Examples are images (N, C, H, W), uint8, and labels (N,), int64, in memory. `name` is a class of
    torchvision.datasets with `train=` that keeps its images as one array, such as `MNIST`. Files
    that are not in `root` are fetched. Raises SettingsError if they are missing or damaged.
    """
    kind = SAFE.get(name) or getattr(datasets, name)
    try:
        train, test = (kind(root, train=part, download=True) for part in (True, False))
        classes = list(train.classes)
        return _in_memory(train, len(classes)), classes, _in_memory(test, len(classes))
    except (SettingsError, JobError):
        raise
    except Exception as error:  # there is no end to what a damaged file makes its reader raise
        raise SettingsError(
            f"--data-root: the dataset could not be fetched into, or read from, {root} "
            f"({first_line(error)}); put its files there, or name their folder"
        ) from error


def _in_memory(dataset: Any, classes: int) -> TensorDataset:
    labels = _labels(dataset.targets)
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise SettingsError(f"--dataset: a label is not one of its {classes} classes")
    images = torch.as_tensor(dataset.data)
    images = images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2)
    return TensorDataset(images.contiguous(), labels)


def _labels(labels: Sequence[int] | Tensor) -> Tensor:
    return torch.as_tensor(labels, dtype=torch.int64)


class _DataOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in ARRAYS:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it would call {module}.{name}")


def _refuse_code(file: Path) -> None:
    """Raise SettingsError if a pickle does more than make arrays and plain values.

    Source: docs.python.org/3/library/pickle.html#restricting-globals.
    """
    try:
        with file.open("rb") as pickled:
            _DataOnly(pickled, encoding="latin1").load()
    except FileNotFoundError:
        return
    except (pickle.UnpicklingError, EOFError) as error:
        raise SettingsError(f"--data-root: {file} is not plain data ({error}); refused") from error


def _unchecked(files: list[list[str]]) -> list[Any]:
    return [[name, None] for name, _ in files]
