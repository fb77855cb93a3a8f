"""Batches onto the device, in an order that depends on the seed and the epoch alone.

`Resident` keeps all examples on the device, as they are, and picks batches by index: nothing is
copied while training. `Workers` reads batches in processes beside training and copies them from
pinned memory, on a stream of their own, without making the host wait. Both give the same batches in
the same order: images (B, C, H, W), uint8, and labels (B,), int64; or tokens (B, T) and those that
follow.
"""

import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sized
from functools import cache, partial
from itertools import count, islice
from multiprocessing import parent_process
from types import TracebackType
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, Subset, TensorDataset

from engine.data.splits import fetch
from engine.training.devices import cpu_cores, free_memory
from engine.training.seeding import generator

RESIDENT_SHARE = 0.25
"""`auto` keeps examples on the device if they take no more than this share of its free memory."""

GATHERED = 2**22
"""Bytes of the batches that are picked at once from what lies on the device: small ones cost less
together than each by itself."""

MOST_WORKERS = 8
"""More reading processes than this mostly get in each other's way at the disk."""


class Order:
    """Which examples make up which batch, epoch by epoch; `examples` is how many an epoch has.

    With a seed, each epoch is shuffled in its own way; without, the order is the subset's. A last
    batch of one example is left out while shuffling: batch norm cannot take it.
    """

    def __init__(self, subset: Subset[Any], batch_size: int, seed: int | None) -> None:
        self._indices = torch.as_tensor(subset.indices)
        self._seed = seed
        self.batch_size = batch_size
        self.examples = len(self._indices)
        if seed is not None and self.examples > batch_size and self.examples % batch_size == 1:
            self.examples -= 1

    def __len__(self) -> int:
        return -(-self.examples // self.batch_size)

    @property
    def shuffled(self) -> bool:
        """Whether each epoch has an order of its own."""
        return self._seed is not None

    def epoch(self, number: int) -> Tensor:
        """Indices (N,) into the dataset; consecutive runs of `batch_size` are the batches."""
        if self._seed is None:
            return self._indices
        shuffle = torch.randperm(
            len(self._indices), generator=generator(self._seed, "order", number)
        )
        return self._indices[shuffle[: self.examples]]


class Batches(ABC):
    """The batches of a subset, epoch by epoch: inputs and labels, as the datasets have them."""

    def __init__(self, order: Order, device: torch.device) -> None:
        self._order, self._device = order, device

    @property
    def examples(self) -> int:
        """Examples in an epoch."""
        return self._order.examples

    def __len__(self) -> int:
        return len(self._order)

    @abstractmethod
    def epoch(self, number: int = 0, done: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of one epoch, on the device, but for the first so many."""


class Resident(Batches):
    """Batches of a dataset that lies on the device, whole."""

    def __init__(self, dataset: Dataset[Any], order: Order, device: torch.device) -> None:
        super().__init__(order, device)
        self._inputs, self._labels = _on_device(dataset, device)
        batch = order.batch_size * max(1, self._inputs[:1].nbytes)
        self._at_once = order.batch_size * max(1, GATHERED // batch)

    def epoch(self, number: int = 0, done: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of one epoch, picked by index."""
        cuda, size = self._device.type == "cuda", self._order.batch_size
        indices = self._order.epoch(number).to(self._device, non_blocking=cuda)
        for first in range(done * size, len(indices), self._at_once):
            several = indices[first : first + self._at_once]
            inputs = self._inputs.index_select(0, several)
            labels = self._labels.index_select(0, several)
            yield from zip(inputs.split(size), labels.split(size), strict=True)


class Workers(Batches):
    """Batches read by processes that live as long as this object."""

    def __init__(
        self, dataset: Dataset[Any], order: Order, device: torch.device, workers: int
    ) -> None:
        super().__init__(order, device)
        self._new = partial(_Reader, dataset, order, device, workers)
        self._idle: list[_Reader] = []
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None

    def epoch(self, number: int = 0, done: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of one epoch, copied from pinned memory."""
        try:
            reader = self._idle.pop()
        except IndexError:  # also if another thread was faster
            reader = self._new()
        for inputs, labels in reader.epoch(number, done):
            yield self._to_device(inputs, labels)
        self._idle.append(reader)

    def _to_device(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The same on the device. To a GPU they are copied while it works on the batch before."""
        if not self._copies:
            return inputs.to(self._device), labels.to(self._device)
        with torch.cuda.stream(self._copies):
            inputs = inputs.to(self._device, non_blocking=True)
            labels = labels.to(self._device, non_blocking=True)
        work = torch.cuda.current_stream()
        work.wait_stream(self._copies)
        inputs.record_stream(work)
        labels.record_stream(work)
        return inputs, labels


def make(
    subset: Subset[Any],
    device: torch.device,
    batch_size: int,
    kind: str = "auto",
    workers: int | str = "auto",
    seed: int | None = None,
) -> Batches:
    """The batches of a subset, shuffled if there is a seed: `resident`, by `workers`, or `auto`."""
    order = Order(subset, batch_size, seed)
    if kind == "resident" or (kind == "auto" and _fits(subset.dataset, device)):
        return Resident(subset.dataset, order, device)
    count = workers if isinstance(workers, int) else _auto_workers()
    return Workers(subset.dataset, order, device, count)


class _Reader:
    """The processes that read a dataset. While a shuffled epoch is worked on to its end, and the
    model evaluated, they read on into the next."""

    def __init__(
        self, dataset: Dataset[Any], order: Order, device: torch.device, workers: int
    ) -> None:
        self._sampler = _Sampler(order)
        self._loader = DataLoader(
            _Whole(dataset),
            batch_size=None,
            sampler=self._sampler,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=device.type == "cuda",
            worker_init_fn=_begin_to_read,
            generator=torch.Generator(),  # so that torch's own stream is left alone
        )
        self._order = order
        self._at: tuple[int, int] | None = None

    def epoch(self, number: int, done: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of one epoch but for the first so many."""
        if self._at != (number, done):
            self._sampler.begin = number, done
            self._iterator = iter(self._loader)
        self._at = None
        yield from islice(self._iterator, len(self._order) - done)
        self._at = (number + 1, 0) if self._order.shuffled else None


class _Sampler(Sampler[Any]):
    """Hands a DataLoader one array of indices a batch; of a shuffled order without end.

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


class _Whole(Dataset[tuple[Tensor, Tensor]]):
    """A dataset asked for whole batches."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self._dataset = dataset

    def __getitem__(self, indices: Any) -> tuple[Tensor, Tensor]:
        return fetch(self._dataset, torch.from_numpy(indices))


def _begin_to_read(_worker: int) -> None:
    """Ctrl-C reaches every process of a job; those of its loaders end when the job ends them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.excepthook = _say_what_went_wrong


def _say_what_went_wrong(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print an error, unless the job was killed: then it is that a pipe to the job has broken."""
    job = parent_process()
    assert job
    until = time.monotonic() + 1.0  # its pipes break a moment before it is dead
    while os.getppid() == job.pid:
        if time.monotonic() > until:
            sys.__excepthook__(kind, error, trace)
            return
        time.sleep(0.01)


def _auto_workers() -> int:
    return max(1, min(MOST_WORKERS, cpu_cores() - 1))


@cache
def _fits(dataset: Dataset[Any], device: torch.device) -> bool:
    """Asked once for all subsets of a dataset, before it takes any memory."""
    if isinstance(dataset, TensorDataset) and device.type == "cpu":
        return True  # it lies there already
    one = sum(part.nbytes for part in fetch(dataset, torch.tensor([0])))
    return one * len(cast(Sized, dataset)) <= RESIDENT_SHARE * free_memory(device)


@cache
def _on_device(dataset: Dataset[Any], device: torch.device) -> tuple[Tensor, Tensor]:
    """All inputs and labels of a dataset, kept once for all its subsets."""
    if isinstance(dataset, TensorDataset):
        inputs, labels = dataset.tensors
    else:
        everything = Order(Subset(dataset, range(len(cast(Sized, dataset)))), 256, None)
        read = Workers(dataset, everything, torch.device("cpu"), _auto_workers())
        inputs, labels = (torch.cat(parts) for parts in zip(*read.epoch(), strict=True))
    return inputs.to(device), labels.to(device)
