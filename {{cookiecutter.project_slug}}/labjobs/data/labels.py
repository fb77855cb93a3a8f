"""Labels of datasets, without reading their examples."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from labjobs.data.order import whole


def class_counts(dataset: Dataset[Any], classes: int) -> tuple[int, ...]:
    """Return how many examples of each class a dataset, or a subset of one, has; empty if its
    labels are not known.

    They are the last tensor of a TensorDataset, or `targets` as in torchvision's datasets.
    """
    dataset, indices = whole(dataset)
    labels: Tensor | None = None
    if isinstance(dataset, TensorDataset):
        labels = dataset.tensors[-1]
    elif hasattr(dataset, "targets"):
        labels = torch.as_tensor(dataset.targets)
    if labels is None or labels.ndim != 1 or labels.is_floating_point():
        return ()
    return tuple(torch.bincount(labels[indices].long(), minlength=classes).tolist())
