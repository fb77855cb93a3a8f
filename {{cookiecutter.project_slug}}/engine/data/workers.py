"""Batches read by processes beside training, and copied to the device."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from itertools import count, islice
from multiprocessing import parent_process
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from engine.data import trees
from engine.data.order import Order, fetch
from engine.training.devices import SideStream, runs_ahead


class Workers:
    """Has batches read by processes that live until `close`, and copies them to the device.

    Each thread that iterates has processes of its own.
    """

    def __init__(
        self, dataset: Dataset[Any], order: Order, device: torch.device, processes: int
    ) -> None:
        self._about = dataset, order, device, processes
        self._readers: list[_Reader] = []
        self._idle: list[_Reader] = []

    def epoch(self, number: int, done: int) -> Iterator[Any]:
        """Yield the batches of one epoch but the first `done`, copied from pinned memory."""
        try:
            reader = self._idle.pop()
        except IndexError:  # also if another thread was faster
            reader = _Reader(*self._about)
            self._readers.append(reader)
        try:
            yield from reader.epoch(number, done)
        finally:
            self._idle.append(reader)

    def close(self) -> None:
        """End the processes."""
        while self._readers:
            self._readers.pop().close()


class _Reader:
    """The processes that read a dataset for one thread. While a shuffled epoch is worked on to its
    end, and the model evaluated, they read on into the next."""

    def __init__(
        self, dataset: Dataset[Any], order: Order, device: torch.device, processes: int
    ) -> None:
        self._order, self._sampler = order, _Sampler(order)
        self._device, self._copies = device, SideStream(device)
        self._loader = DataLoader(
            _Whole(dataset),
            batch_size=None,
            sampler=self._sampler,
            collate_fn=_as_read,
            num_workers=processes,
            persistent_workers=processes > 0,
            pin_memory=runs_ahead(device),
            worker_init_fn=_begin_to_read,
            generator=torch.Generator(),  # so that torch's own stream is left alone
        )
        self._read: Iterator[_Read] = iter(())
        self._at: tuple[int, int] | None = None

    def epoch(self, number: int, done: int) -> Iterator[Any]:
        """Yield the batches of one epoch but the first `done`, on the device."""
        if self._at != (number, done):
            self._sampler.begin = number, done
            self._start()
        self._at = None
        for read in islice(self._read, len(self._order) - done):
            yield self._to_device(read.batch)
        self._at = (number + 1, 0) if self._order.shuffled else None

    def _to_device(self, batch: Any) -> Any:
        """Return the batch on the device; a GPU copies it while it works on the one before."""
        with self._copies:
            copied = trees.mapped(lambda leaf: leaf.to(self._device, non_blocking=True), batch)
        self._copies.hand_over(trees.leaves(copied))
        return copied

    def close(self) -> None:
        """End the processes: a DataLoader does so when nothing refers to it any more."""
        self._read = iter(())
        del self._loader

    def _start(self) -> None:
        """Begin to read, in a thread that ends at once.

        In a forked process the thread that forked is the main one. When the process ends,
        concurrent.futures joins the threads of its pools; if the main thread is one of them, that
        is an error, and the DataLoader takes the process for one that failed.
        """

        def start() -> None:
            self._read = iter(self._loader)

        if threading.current_thread() is threading.main_thread():
            start()
        else:
            thread = threading.Thread(target=start)
            thread.start()
            thread.join()


class _Read:
    """A batch as the DataLoader hands it on. As it is, it would make lists of tuples."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def pin_memory(self) -> "_Read":
        """Return the batch in pinned memory; the DataLoader asks for it."""
        return _Read(trees.mapped(Tensor.pin_memory, self.batch))


def _as_read(batch: Any) -> Any:
    return batch


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


class _Whole(Dataset[_Read]):
    """A dataset asked for whole batches."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self._dataset = dataset

    def __getitem__(self, indices: Any) -> _Read:
        return _Read(fetch(self._dataset, torch.from_numpy(indices)))


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
