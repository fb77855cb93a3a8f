"""Which examples of a dataset make up which batch."""

import hashlib
from collections.abc import Callable, Sequence, Sized
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from labjobs.data import trees
from labjobs.distributed.ranks import ALONE, Rank
from labjobs.errors import JobError, SettingsError

Collate = Callable[[list[Any]], Any]  # from a list of examples to a batch, as torch's collate_fn

Sampler = Callable[[int, int, torch.Generator], Sequence[Tensor | Sequence[int]]]
"""From the number of examples, the number of epochs that are done and random numbers to the places
of each batch's examples, like the batch_sampler of torch's DataLoader."""


def generator(seed: int, *use: str | int) -> torch.Generator:
    """Return a generator on the CPU for one use of a seed: `generator(seed, "order", epoch)`.

    Streams for different uses are independent; the same use always gives the same stream.
    """
    words = "/".join(map(str, (seed, *use)))
    number = int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big")
    return torch.Generator().manual_seed(number >> 1)


class Order:
    """Which examples make up which batch, epoch by epoch, from 1; number 0 is for evaluation.

    With a seed, each epoch is shuffled in its own way; without, the order is the dataset's. When
    shuffling, a last batch with a single example is left out, because batch norm cannot handle it.
    In place of a batch size, a function may choose (`chosen`): then epochs may differ in length.

    Of several processes, each takes a slice of consecutive examples of each batch. In training, a
    process without an example of an epoch's small last batch gets one that it must not count, so
    that all have the same number of batches; in evaluation, it has one batch less. Raises
    SettingsError if there are more processes than examples in a batch.
    """

    def __init__(
        self, indices: Tensor, batch_size: int | Sampler, seed: int | None, rank: Rank = ALONE
    ) -> None:
        if isinstance(batch_size, int) and batch_size < rank.size:
            raise SettingsError(
                f"job.batches(…, {batch_size}): fewer examples than {rank.size} processes; use one"
            )
        self._indices, self._batch_size = indices, batch_size
        self._seed, self._rank = seed, rank
        self.chosen, self.shuffled = callable(batch_size), seed is not None
        self._last: tuple[int, Sequence[Tensor]] = -1, []  # the last epoch and its batches

    def __len__(self) -> int:
        return len(self.own_sizes(0))

    def sizes(self, number: int) -> list[int]:
        """Return how many examples each batch of an epoch has, in all processes together."""
        return [*map(Tensor.numel, self._batches(number))]

    def own_sizes(self, number: int) -> list[int]:
        """Return how many examples this process has of each batch of an epoch."""
        return [*map(Tensor.numel, self._mine(self._batches(number)))]

    def epoch(self, number: int) -> Tensor:
        """Return this process's indices (N,) into the dataset, batch by batch."""
        return self._indices[torch.cat([self._indices[:0], *self._mine(self._batches(number))])]

    @cached_property
    def positions(self) -> Tensor:
        """The places of this process's examples among those of all (N,), in evaluation."""
        sizes = self.sizes(0)
        return torch.cat([self._indices[:0], *self._mine(torch.arange(sum(sizes)).split(sizes))])

    def _mine(self, batches: Sequence[Tensor]) -> Sequence[Tensor]:
        """This process's slices of batches."""
        if self._rank.size == 1:
            return batches
        slices = (each[slice_of(len(each), self._rank)] for each in batches)
        filled = (s if len(s) else b[: self.shuffled] for s, b in zip(slices, batches, strict=True))
        return [*filter(len, filled)]

    def _batches(self, number: int) -> Sequence[Tensor]:
        """The places of the examples of each batch of an epoch."""
        if (last := self._last)[0] == number:
            return last[1]
        random, count = generator(self._seed or 0, "order", number), len(self._indices)
        if isinstance(self._batch_size, int):
            batches = self._in_turn(self._batch_size, count, random)
        else:
            chosen = self._batch_size(count, max(0, number - 1), random)
            batches = [torch.as_tensor(each) for each in chosen]
            self._check(batches, count)
        self._last = number, batches
        return batches

    def _in_turn(self, size: int, count: int, random: torch.Generator) -> Sequence[Tensor]:
        places = torch.randperm(count, generator=random) if self.shuffled else torch.arange(count)
        if self.shuffled and count > size and count % size == 1:
            places = places[:-1]
        return places.split(size) if count else ()

    def _check(self, batches: Sequence[Tensor], count: int) -> None:
        least = self._rank.size
        enough = min(map(len, batches), default=0) >= least
        if not enough or torch.cat([*batches]).min() < 0 or torch.cat([*batches]).max() >= count:
            raise JobError(
                f"job.batches: each of the batches that a function chooses needs at least {least} "
                f"examples, as places from 0 to {count - 1}"
            )


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
    """Return the tensors whose rows are a dataset's examples; None if it is not made of such."""
    if not isinstance(dataset, TensorDataset):
        return None
    return dataset.tensors if type(dataset).__getitem__ is TensorDataset.__getitem__ else None


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
