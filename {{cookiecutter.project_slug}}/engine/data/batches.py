"""Batches on the device, in an order that depends on the seed and the epoch alone.

There are two loaders: `resident` keeps all examples on the device, as they are, and picks batches
by index; `workers` reads batches in processes beside training. Both give the same batches in the
same order. A batch has the nesting of an example (tuples, lists, dicts, dataclasses), with tensors
of one more dimension.
"""

from collections.abc import Callable, Iterator, Sized
from contextlib import closing
from functools import partial
from typing import Any, cast

import torch
from torch.utils.data import Dataset, TensorDataset

from engine.data import trees
from engine.data.order import Order, fetch, whole
from engine.data.resident import Resident, is_stored, store
from engine.data.workers import Workers
from engine.errors import SettingsError
from engine.machine import cores
from engine.training.devices import free_memory

RESIDENT_FRACTION = 0.25
"""`auto` keeps a dataset on the device if it takes no more than this of its free memory."""

MOST_WORKERS = 8
"""More reading processes than this mostly get in each other's way at the disk."""


class Batches:
    """The batches of a dataset or a subset, on the device; `len` is their number in an epoch.

    Several threads may iterate at once. `loader` is `resident` or `workers`.
    """

    def __init__(self, order: Order, source: Resident | Workers, loader: str) -> None:
        self._order, self._source = order, source
        self.loader = loader
        self.check: Callable[[], None] = lambda: None
        """Called before each batch of an evaluation; may raise."""

    @property
    def examples(self) -> int:
        """Examples in an epoch."""
        return self._order.examples

    @property
    def batch_size(self) -> int:
        """Examples in a batch; the last of an epoch may have fewer."""
        return self._order.batch_size

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._source.epoch(0, 0):
            self.check()
            yield batch

    def from_position(self, epoch: int, batch: int) -> Iterator[tuple[Any, int]]:
        """Yield the batches of an epoch from one on, with the number of examples in each."""
        return zip(self._source.epoch(epoch, batch), self._order.sizes(batch), strict=True)

    def close(self) -> None:
        """End the reading processes; no thread may still iterate."""
        self._source.close()


def make(
    dataset: Dataset[Any],
    device: torch.device,
    batch_size: int,
    loader: str = "auto",
    workers: int | str = "auto",
    seed: int | None = None,
) -> Batches:
    """Return the batches of a dataset or a subset, shuffled if there is a seed.

    `loader` is `resident`, `workers`, or `auto` (by size); `workers` a number of processes or
    `auto` (by the job's cores). Raises SettingsError if there are no examples.
    """
    dataset, indices = whole(dataset)
    if not len(indices):
        raise SettingsError("--dataset: one of its parts has no examples")
    order = Order(indices, batch_size, seed)
    processes = workers if isinstance(workers, int) else _auto_workers()
    if loader == "resident" or (loader == "auto" and _fits(dataset, device)):
        stored = store(dataset, device, partial(_everything, dataset, processes))
        return Batches(order, Resident(stored, order, device), "resident")
    return Batches(order, Workers(dataset, order, device, processes), "workers")


def _auto_workers() -> int:
    return max(1, min(MOST_WORKERS, cores() - 1))


def _fits(dataset: Dataset[Any], device: torch.device) -> bool:
    if is_stored(dataset, device) or (type(dataset) is TensorDataset and device.type == "cpu"):
        return True
    example = fetch(dataset, torch.tensor([0]))
    size = sum(leaf.nbytes for leaf in trees.leaves(example)) * len(cast(Sized, dataset))
    return bool(size <= RESIDENT_FRACTION * free_memory(device))


def _everything(dataset: Dataset[Any], processes: int) -> Any:
    """Return all examples as one batch in the CPU's memory."""
    if type(dataset) is TensorDataset:
        return dataset.tensors
    order = Order(torch.arange(len(cast(Sized, dataset))), 256, None)
    with closing(Workers(dataset, order, torch.device("cpu"), processes)) as reading:
        batches = list(reading.epoch(0, 0))
    return trees.mapped(lambda *parts: torch.cat(parts), *batches)
