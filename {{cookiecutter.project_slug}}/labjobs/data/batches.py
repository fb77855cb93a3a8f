"""Batches on the device, in an order that depends on the seed and the epoch alone.

There are two loaders: `resident` keeps all examples on the device, as they are, and picks batches
by index; `workers` reads batches in processes beside training. Both give the same batches in the
same order. A batch has the nesting of an example (tuples, lists, dicts, dataclasses), with tensors
of one more dimension, or is what a function of the student's makes of a list of examples (collate).
A stream, whose examples have no index, comes in its own order.
"""

from collections.abc import Callable, Iterator, Sized
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from itertools import count
from typing import Any, cast
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.utils.data import Dataset

from labjobs.data import trees
from labjobs.data.order import Collate, Order, Sampler, examples_at, tensors, underlying
from labjobs.data.workers import Place, Stream, Workers, is_stream
from labjobs.devices import free_memory, runs_ahead
from labjobs.distributed.ranks import ALONE, Rank
from labjobs.errors import JobError, SettingsError
from labjobs.machine import cores

RESIDENT_FRACTION = 0.25  # of the device's free memory, that `auto` lets a dataset take at most
MOST_WORKERS = 8  # more reading processes than this usually slow each other down at the disk
GATHERED = 2**22  # bytes of batches that are picked at once, which costs less than separately


class Batches:
    """The batches of a dataset, a subset or a stream, on the device; `len` is their number in an
    epoch, except for a stream.

    Several threads may iterate at once. `loader` is `resident` or `workers`, and `order` says which
    examples make up which batch; None for a stream.
    """

    def __init__(self, source: "Resident | Workers | Stream", loader: str) -> None:
        self._source = source
        self.order = None if isinstance(source, Stream) else source.order
        self.loader = loader
        self.check: Callable[[], None] = lambda: None
        """Called before each batch of an evaluation; may raise."""
        self.watch: Callable[[], AbstractContextManager[object]] = nullcontext
        """Makes a context for each pass of an evaluation."""

    @property
    def steps_per_epoch(self) -> int | None:
        """Batches in an epoch; None for a stream."""
        return None if self.order is None else len(self.order)

    def __len__(self) -> int:
        if self.order is None:
            raise TypeError("the batches of a stream have no length")
        return len(self.order)

    def __iter__(self) -> Iterator[Any]:
        source = self._source
        with self.watch():
            for batch in source.once() if isinstance(source, Stream) else source.epoch(0, 0):
                self.check()
                yield batch

    def endless(self, epoch: int, batch: int, place: Place) -> Iterator[tuple[Any, int]]:
        """Yield batches without end, with the number of examples in each, starting at a batch of an
        epoch, or at a place in a stream, which is updated."""
        if isinstance(self._source, Stream):
            yield from self._source.endless(place)
        for number in count(epoch):
            yield from self.from_position(number, batch)
            batch = 0

    def from_position(self, epoch: int, batch: int) -> Iterator[tuple[Any, int]]:
        """Yield the batches of an epoch, starting at one of them, with the number of examples in
        each."""
        source = self._source
        assert not isinstance(source, Stream)
        return zip(source.epoch(epoch, batch), source.order.sizes(epoch)[batch:], strict=True)

    def close(self) -> None:
        """End the reading processes; no thread may still iterate."""
        if not isinstance(self._source, Resident):
            self._source.close()


def make(
    dataset: Dataset[Any],
    device: torch.device,
    batch_size: int | Sampler,
    loader: str = "auto",
    workers: int | str = "auto",
    seed: int | None = None,
    collate: Collate | None = None,
    rank: Rank = ALONE,
) -> Batches:
    """Return the batches of a dataset, a subset or a stream, shuffled if there is a seed; in a job
    with several processes, the slices of the process with this rank.

    `loader` is `resident`, `workers`, or `auto` (by size); `workers` a number of processes or
    `auto` (by the job's cores). Raises SettingsError if there are no examples, or for `resident` if
    they cannot be stacked on the device, JobError for a stream that should be shuffled.
    """
    processes = workers if isinstance(workers, int) else max(1, min(MOST_WORKERS, cores() - 1))
    if loader == "resident" and (collate or is_stream(dataset)):
        raise SettingsError("--loader resident: not for a stream or with collate; use workers")
    if is_stream(dataset):
        if rank.size > 1:
            raise SettingsError("a stream cannot be divided among several processes; use one")
        if seed is not None or not isinstance(batch_size, int):
            raise JobError(
                "job.batches(…, shuffle=True): a stream comes in its own order; leave shuffle out, "
                "give a number as the batch size, and shuffle in its __iter__"
            )
        stream = Stream(dataset, batch_size, device, processes, collate or trees.stacked)
        return Batches(stream, "workers")
    dataset, indices = underlying(dataset)
    if not len(indices):
        raise SettingsError("--dataset: one of its parts has no examples")
    order = Order(indices, batch_size, seed, rank)
    if loader == "resident" or (loader == "auto" and not collate and _fits(dataset, device)):
        stored = _stored(dataset, device, processes)
        return Batches(Resident(stored, order, device), "resident")
    return Batches(Workers(dataset, order, device, processes, collate), "workers")


class Resident:
    """Picks batches by index from data on the device: nothing is copied during training."""

    def __init__(self, stored: "_Stored", order: Order, device: torch.device) -> None:
        self.order, self._device = order, device
        self._stored = stored  # kept alive
        self._leaves: list[Tensor] = trees.leaves(stored.examples)
        self._bytes = max(1, sum(leaf[:1].nbytes for leaf in self._leaves))
        whole = stored.examples
        flat = type(whole) is tuple and all(isinstance(each, Tensor) for each in whole)
        self._filled = tuple if flat else partial(trees.filled, whole)

    def epoch(self, number: int, done: int) -> Iterator[Any]:
        """Yield the batches of one epoch but the first `done`."""
        indices = self.order.epoch(number).to(self._device, non_blocking=runs_ahead(self._device))
        sizes = self.order.own_sizes(number)
        begin = sum(sizes[:done])
        together = max(1, GATHERED // (self._bytes * max(sizes, default=1)))
        for first in range(done, len(sizes), together):
            now = sizes[first : first + together]
            several = indices[begin : begin + sum(now)]
            picked = [leaf.index_select(0, several).split(now) for leaf in self._leaves]
            yield from map(self._filled, zip(*picked, strict=True))
            begin += sum(now)


class _Stored:
    """All examples of a dataset, as one batch on the device."""

    def __init__(self, dataset: Dataset[Any], everything: Any, device: torch.device) -> None:
        self.dataset = dataset  # kept alive, because it is identified by its address
        self.examples = trees.mapped(lambda leaf: leaf.to(device), everything)


_STORED: WeakValueDictionary[tuple[int, torch.device], _Stored] = WeakValueDictionary()
"""The data by dataset and device, while batches of it are in use: all subsets share one copy."""


def _stored(dataset: Dataset[Any], device: torch.device, processes: int) -> _Stored:
    key = id(dataset), device
    stored = _STORED.get(key)
    if stored is None:
        stored = _STORED[key] = _Stored(dataset, _everything(dataset, processes), device)
    return stored


def _everything(dataset: Dataset[Any], processes: int) -> Any:
    """Return all examples as one batch in the CPU's memory."""
    if made_of := tensors(dataset):
        return made_of
    order = Order(torch.arange(len(cast(Sized, dataset))), 256, None)
    with closing(Workers(dataset, order, torch.device("cpu"), processes, None)) as reading:
        batches = list(reading.epoch(0, 0))
    return trees.mapped(lambda *parts: torch.cat(parts), *batches)


def _fits(dataset: Dataset[Any], device: torch.device) -> bool:
    """Whether a dataset is on the device already, or small enough for it."""
    if (id(dataset), device) in _STORED or (tensors(dataset) and device.type == "cpu"):
        return True
    example = examples_at(dataset, torch.tensor([0]))
    size = sum(leaf.nbytes for leaf in trees.leaves(example)) * len(cast(Sized, dataset))
    return bool(size <= RESIDENT_FRACTION * free_memory(device))
