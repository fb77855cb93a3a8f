"""Which examples of a dataset make up which batch."""

from collections.abc import Callable, Iterator, Sized
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from engine.data import trees
from engine.data.seeds import generator

Collate = Callable[[list[Any]], Any]
"""From examples to a batch of them, as torch's DataLoader takes it."""


class Order:
    """Which examples make up which batch, epoch by epoch; `examples` is how many an epoch has.

    With a seed, each epoch is shuffled in its own way; without, the order is the dataset's. A last
    batch of one example is left out while shuffling: batch norm cannot take it.
    """

    def __init__(self, indices: Tensor, batch_size: int, seed: int | None) -> None:
        self._indices, self._seed = indices, seed
        self.batch_size = batch_size
        self.examples = len(indices)
        if self.shuffled and self.examples > batch_size and self.examples % batch_size == 1:
            self.examples -= 1

    def __len__(self) -> int:
        return -(-self.examples // self.batch_size)

    @property
    def shuffled(self) -> bool:
        """Whether each epoch has an order of its own."""
        return self._seed is not None

    def epoch(self, number: int) -> Tensor:
        """Return indices (N,) into the dataset; runs of `batch_size` are the batches."""
        if self._seed is None:
            return self._indices
        random = generator(self._seed, "order", number)
        shuffle = torch.randperm(len(self._indices), generator=random)
        return self._indices[shuffle[: self.examples]]

    def sizes(self, done: int) -> Iterator[int]:
        """Yield the number of examples in each batch of an epoch but the first `done`."""
        for first in range(done * self.batch_size, self.examples, self.batch_size):
            yield min(self.batch_size, self.examples - first)


def whole(dataset: Dataset[Any]) -> tuple[Dataset[Any], Tensor]:
    """Return the dataset that a subset (of a subset) is of, and the indices (N,) into it."""
    indices = torch.arange(len(cast(Sized, dataset)))
    while type(dataset) is Subset:  # a class derived from it may change the examples
        indices = torch.as_tensor(dataset.indices)[indices]
        dataset = dataset.dataset
    return dataset, indices


def tensors(dataset: Dataset[Any]) -> tuple[Tensor, ...] | None:
    """Return the tensors whose rows are a dataset's examples; None if it is not made of such."""
    if not isinstance(dataset, TensorDataset):
        return None
    as_they_are = type(dataset).__getitem__ is TensorDataset.__getitem__
    return dataset.tensors if as_they_are else None


def fetch(dataset: Dataset[Any], indices: Tensor, collate: Collate | None = None) -> Any:
    """Return the batch of the examples at indices (B,), by default stacked.

    A dataset that has `__getitems__`, for a list of indices, is asked for all of them at once.
    """
    if tensors(dataset) and not collate:
        return dataset[indices]
    several, at = getattr(dataset, "__getitems__", None), indices.tolist()
    return (collate or trees.stacked)(several(at) if several else [dataset[i] for i in at])
