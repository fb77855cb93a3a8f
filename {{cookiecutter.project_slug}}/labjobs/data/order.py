"""Which examples of a dataset make up which batch."""

import hashlib
from collections.abc import Callable, Iterator, Sized
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from labjobs.data import trees
from labjobs.distributed.ranks import ALONE, Rank
from labjobs.errors import SettingsError

Collate = Callable[[list[Any]], Any]
"""Makes a batch from examples, like the collate_fn of torch's DataLoader."""


def generator(seed: int, *use: str | int) -> torch.Generator:
    """Return a generator on the CPU for one use of a seed: `generator(seed, "order", epoch)`.

    Streams for different uses are independent; the same use always gives the same stream.
    """
    words = "/".join(map(str, (seed, *use)))
    number = int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big")
    return torch.Generator().manual_seed(number >> 1)


class Order:
    """Which examples make up which batch, epoch by epoch; `examples` is how many an epoch has.

    With a seed, each epoch is shuffled in its own way; without, the order is the dataset's. When
    shuffling, a last batch with a single example is left out, because batch norm cannot handle it.

    Of several processes, each takes a slice of consecutive examples of each batch. In training, a
    process without an example of an epoch's small last batch gets one that it must not count, so
    that all have the same number of batches; in evaluation, it has one batch less. Raises
    SettingsError if there are more processes than examples in a batch.
    """

    def __init__(
        self, indices: Tensor, batch_size: int, seed: int | None, rank: Rank = ALONE
    ) -> None:
        if batch_size < rank.size:
            raise SettingsError(
                f"job.batches(…, {batch_size}): fewer examples than {rank.size} processes; use one"
            )
        self._indices, self._seed = indices, seed
        self._rank, self._whole_batch = rank, batch_size
        self.batch_size = len(slice_of(batch_size, rank))
        self.shuffled = seed is not None
        self.examples = len(indices)
        if self.shuffled and self.examples > batch_size and self.examples % batch_size == 1:
            self.examples -= 1

    def __len__(self) -> int:
        return -(-len(self.positions) // self.batch_size)

    def epoch(self, number: int) -> Tensor:
        """Return this process's indices (N,) into the dataset; runs of `batch_size` are its batches
        or its slices of them."""
        indices = self._indices
        if self._seed is not None:
            random = generator(self._seed, "order", number)
            indices = indices[torch.randperm(len(indices), generator=random)[: self.examples]]
        return indices if self._rank.size == 1 else indices[self.positions]

    def sizes(self, done: int) -> Iterator[int]:
        """Yield the number of examples that all processes together have of each batch of an epoch
        but the first `done`."""
        for first in range(done * self._whole_batch, self.examples, self._whole_batch):
            yield min(self._whole_batch, self.examples - first)

    @cached_property
    def positions(self) -> Tensor:
        """The positions of this process's examples in the order of all processes (N,)."""
        whole_batches, last = divmod(self.examples, self._whole_batch)
        firsts = self._whole_batch * torch.arange(whole_batches)
        of_each = torch.tensor(slice_of(self._whole_batch, self._rank))
        of_last = slice_of(last, self._rank)
        if last and self.shuffled and not of_last:
            of_last = range(1)
        rest = self.examples - last + torch.tensor(of_last, dtype=torch.int64)
        return torch.cat([(firsts[:, None] + of_each).flatten(), rest])


def slice_of(size: int, rank: Rank) -> range:
    """Return which of a batch's examples a process takes; the first processes may take one more."""
    each, more = divmod(size, rank.size)
    first = rank.number * each + min(rank.number, more)
    return range(first, first + each + (rank.number < more))


def underlying(dataset: Dataset[Any]) -> tuple[Dataset[Any], Tensor]:
    """Return the dataset that a subset (or a subset of a subset) belongs to, and the indices (N,)
    into it."""
    indices = torch.arange(len(cast(Sized, dataset)))
    while type(dataset) is Subset:  # a subclass may change the examples
        indices = torch.as_tensor(dataset.indices)[indices]
        dataset = dataset.dataset
    return dataset, indices


def tensors(dataset: Dataset[Any]) -> tuple[Tensor, ...] | None:
    """Return the tensors whose rows are a dataset's examples; None if it is not made of such
    tensors."""
    if not isinstance(dataset, TensorDataset):
        return None
    as_they_are = type(dataset).__getitem__ is TensorDataset.__getitem__
    return dataset.tensors if as_they_are else None


def examples_at(dataset: Dataset[Any], indices: Tensor, collate: Collate | None = None) -> Any:
    """Return the batch of the examples at indices (B,), by default stacked. If the dataset has
    `__getitems__`, which takes a list of indices, it is called once for all of them.
    """
    if tensors(dataset) and not collate:
        return dataset[indices]
    several, at = getattr(dataset, "__getitems__", None), indices.tolist()
    return (collate or trees.stacked)(several(at) if several else [dataset[i] for i in at])


def class_counts(dataset: Dataset[Any], classes: int) -> tuple[int, ...]:
    """Return how many examples of each class a dataset, or a subset of one, has; empty if its
    labels are not known.

    They are the last tensor of a TensorDataset, or `targets` as in torchvision's datasets.
    """
    dataset, indices = underlying(dataset)
    labels: Tensor | None = None
    if isinstance(dataset, TensorDataset):
        labels = dataset.tensors[-1]
    elif hasattr(dataset, "targets"):
        labels = torch.as_tensor(dataset.targets)
    if labels is None or labels.ndim != 1 or labels.is_floating_point():
        return ()
    return tuple(torch.bincount(labels[indices].long(), minlength=classes).tolist())
