"""Published datasets, downloaded and read by torchvision; problems are reported in one line."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from labjobs.errors import JobError, SettingsError, first_line


def published(name: str, root: Path) -> tuple[TensorDataset, list[str], TensorDataset]:
    """Return the training examples, the classes' names and the test examples of a dataset.

    Examples are images (N, C, H, W), uint8, and labels (N,), int64, in memory. `name` is a class of
    torchvision.datasets with `train=` that keeps its images as one array, such as `MNIST`. Files
    that are not in `root` are fetched. Raises SettingsError if they are missing or damaged.
    """
    from torchvision import datasets  # slow to import, as is cifar, which needs it

    from labjobs.data import cifar

    kind = getattr(cifar, name, None) or getattr(datasets, name)
    with fetching(root):
        train, test = (kind(root, train=part, download=True) for part in (True, False))
        classes = list(train.classes)
        return _in_memory(train, len(classes)), classes, _in_memory(test, len(classes))


@contextmanager
def fetching(root: Path) -> Iterator[None]:
    """Raise SettingsError, in one line, for any error while torchvision downloads or reads a
    dataset in a folder."""
    try:
        yield
    except (SettingsError, JobError):
        raise
    except Exception as error:  # damaged files raise all kinds of errors
        raise SettingsError(
            f"--data-root: the dataset could not be downloaded to, or read from, {root} "
            f"({first_line(error)}); put its files there, or set --data-root to their folder"
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
