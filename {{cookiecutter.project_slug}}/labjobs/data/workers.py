"""Batches of a dataset, read by processes in the background."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler

from labjobs.data.order import Collate, Order, fetch
from labjobs.data.processes import Processes, Read, Readers


class Workers:
    """Has batches read by processes that live until `close`, and copies them to the device.

    Each of several threads that iterate at once has processes of its own.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        order: Order,
        device: torch.device,
        processes: int,
        collate: Collate | None,
    ) -> None:
        self.order = order
        read = _Whole(dataset, collate)
        self._readers = Readers(lambda: _Reader(read, order, device, processes))

    def epoch(self, number: int, done: int) -> Iterator[Any]:
        """Yield the batches of one epoch but the first `done`."""
        with self._readers.one() as reader:
            yield from reader.epoch(number, done)

    def close(self) -> None:
        """End the processes; they start again when they are needed."""
        self._readers.close()


class _Reader:
    """The processes that read a dataset for one thread. Towards the end of a shuffled epoch, and
    while the model is evaluated, they already read the next epoch."""

    def __init__(
        self, dataset: Dataset[Read], order: Order, device: torch.device, processes: int
    ) -> None:
        self._order, self._sampler = order, _Sampler(order)
        self._processes = Processes(dataset, self._sampler, device, processes)
        self._at: tuple[int, int] | None = None

    def epoch(self, number: int, done: int) -> Iterator[Any]:
        """Yield the batches of one epoch but the first `done`, on the device."""
        if self._at != (number, done):
            self._sampler.begin = number, done
            self._processes.begin()
        self._at = None
        for _ in range(done, len(self._order)):
            yield self._processes.next().batch
        self._at = (number + 1, 0) if self._order.shuffled else None

    def close(self) -> None:
        """End the processes."""
        self._processes.close()
        self._at = None


class _Sampler(Sampler[Any]):
    """Gives a DataLoader one array of indices per batch; for a shuffled order, without end.

    A tensor would go to the reading process through shared memory, which that process would ask for
    in vain, with a trace, if the job was killed meanwhile.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self.begin = 0, 0

    def __iter__(self) -> Iterator[Any]:
        first, done = self.begin
        size = self._order.batch_size
        for number in count(first) if self._order.shuffled else [first]:
            indices = self._order.epoch(number).numpy()
            yield from (indices[i : i + size] for i in range(done * size, len(indices), size))
            done = 0


class _Whole(Dataset[Read]):
    """A dataset that returns whole batches."""

    def __init__(self, dataset: Dataset[Any], collate: Collate | None) -> None:
        self._dataset, self._collate = dataset, collate

    def __getitem__(self, indices: Any) -> Read:
        return Read(fetch(self._dataset, torch.from_numpy(indices), self._collate))
