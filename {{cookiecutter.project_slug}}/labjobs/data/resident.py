"""Batches picked by index from a dataset of which all examples are on the device."""

from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.utils.data import Dataset

from labjobs.data import trees
from labjobs.data.order import Order
from labjobs.training.devices import runs_ahead

GATHERED = 2**22
"""Bytes of the batches that are picked at once: several small batches cost less together than
separately."""


class Stored:
    """All examples of a dataset, as one batch on the device."""

    def __init__(self, dataset: Dataset[Any], everything: Any, device: torch.device) -> None:
        self.dataset = dataset  # kept alive, because it is identified by its address
        self.examples = trees.mapped(lambda leaf: leaf.to(device), everything)


_STORED: WeakValueDictionary[tuple[int, torch.device], Stored] = WeakValueDictionary()
"""The data by dataset and device, as long as batches of it are in use: all subsets share one
copy."""


def is_stored(dataset: Dataset[Any], device: torch.device) -> bool:
    """Return whether a dataset is on the device already."""
    return (id(dataset), device) in _STORED


def store(dataset: Dataset[Any], device: torch.device, read: Callable[[], Any]) -> Stored:
    """Return the dataset on the device; `read` gives all its examples as one batch."""
    key = id(dataset), device
    stored = _STORED.get(key)
    if stored is None:
        stored = _STORED[key] = Stored(dataset, read(), device)
    return stored


class Resident:
    """Picks batches by index from data on the device: nothing is copied during training."""

    def __init__(self, stored: Stored, order: Order, device: torch.device) -> None:
        self.order, self._device = order, device
        self._stored = stored  # kept alive
        leaves = trees.leaves(stored.examples)
        batch = order.batch_size * sum(leaf[:1].nbytes for leaf in leaves)
        self._at_once = order.batch_size * max(1, GATHERED // max(1, batch))
        self._leaves: list[Tensor] = leaves
        self._filled = trees.filler(stored.examples)

    def epoch(self, number: int, done: int) -> Iterator[Any]:
        """Yield the batches of one epoch but the first `done`."""
        size = self.order.batch_size
        indices = self.order.epoch(number).to(self._device, non_blocking=runs_ahead(self._device))
        for first in range(done * size, len(indices), self._at_once):
            several = indices[first : first + self._at_once]
            picked = [leaf.index_select(0, several).split(size) for leaf in self._leaves]
            yield from map(self._filled, zip(*picked, strict=True))

    def close(self) -> None:
        """Do nothing: there are no processes to end."""
