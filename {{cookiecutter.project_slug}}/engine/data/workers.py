"""Batches read by processes beside training, and copied to the device."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from itertools import count
from multiprocessing import parent_process
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from weakref import finalize

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from engine.data import trees
from engine.data.order import Order, fetch
from engine.job import interruption, reads
from engine.job.places import Places
from engine.training.devices import SideStream, in_thread, runs_ahead

T = TypeVar("T")


class Workers:
    """Has batches read by processes that live until `close`, and copies them to the device.

    Each of several threads that iterate at once has processes of its own.
    """

    def __init__(
        self, dataset: Dataset[Any], order: Order, device: torch.device, processes: int
    ) -> None:
        self._new = partial(_Reader, dataset, order, device, processes)
        self._readers: list[_Reader] = []
        self._idle: list[_Reader] = []
        # Also at the end of Python, before multiprocessing kills them, which torch would report.
        finalize(self, _close, self._readers)

    def epoch(self, number: int, done: int) -> Iterator[Any]:
        """Yield the batches of one epoch but the first `done`."""
        try:
            reader = self._idle.pop()
        except IndexError:  # also if another thread was faster
            reader = self._new()
            self._readers.append(reader)
        try:
            yield from reader.epoch(number, done)
        finally:
            self._idle.append(reader)

    def close(self) -> None:
        """End the processes; they start again when they are needed."""
        _close(self._readers)


def _close(readers: list["_Reader"]) -> None:
    for reader in readers:
        reader.close()


class _Reader:
    """The processes that read a dataset for one thread. While a shuffled epoch is worked on to its
    end, and the model evaluated, they read on into the next."""

    def __init__(
        self, dataset: Dataset[Any], order: Order, device: torch.device, processes: int
    ) -> None:
        self._order, self._sampler = order, _Sampler(order)
        self._device, self._copies = device, SideStream(device)
        self._new = partial(
            DataLoader,
            _Whole(dataset),
            batch_size=None,
            sampler=self._sampler,
            collate_fn=_as_read,
            num_workers=processes,
            persistent_workers=processes > 0,
            pin_memory=runs_ahead(device),
            worker_init_fn=partial(_begin_to_read, reads.of_job()),
            generator=torch.Generator(),  # so that torch's own stream is left alone
        )
        self._loader: DataLoader[_Read] | None = None
        self._read: Iterator[_Read] = iter(())
        self._at: tuple[int, int] | None = None

    def epoch(self, number: int, done: int) -> Iterator[Any]:
        """Yield the batches of one epoch but the first `done`, on the device."""
        if self._at != (number, done):
            self._sampler.begin = number, done
            self._start()
        self._at = None
        for _ in range(done, len(self._order)):
            yield self._to_device(next(self._read).batch)
        self._at = (number + 1, 0) if self._order.shuffled else None

    def close(self) -> None:
        """End the processes.

        Without being told, torch does so when nothing refers to its iterator any more; the
        traceback of an error may do so until multiprocessing kills the processes.
        """
        if end := getattr(self._read, "_shutdown_workers", None):
            end()
            for process in self._read._workers:  # type: ignore[attr-defined]
                process.kill()  # if it is stuck; the others have ended
                process.join(1)
        self._loader, self._read, self._at = None, iter(()), None

    def _start(self) -> None:
        """Begin to read; processes are started in the main thread or in a new one.

        In a forked process the thread that forked is the main one. When the process ends,
        concurrent.futures waits for the threads of its pools; if the main thread is one of them,
        that is an error, and torch says in the job that a process failed.
        """
        if threading.current_thread() is threading.main_thread():
            self._read = self._restarted()
        else:
            started: Future[Iterator[_Read]] = Future()
            threading.Thread(target=_keep_result, args=(started, self._restarted)).start()
            self._read = started.result()

    def _restarted(self) -> Iterator["_Read"]:
        in_thread(self._device)
        if self._loader is None:
            self._loader = self._new()
        return iter(self._loader)

    def _to_device(self, batch: Any) -> Any:
        """Return the batch on the device; a GPU copies it while it works on the one before."""
        device, ahead = self._device, runs_ahead(self._device)
        with self._copies:
            copied = trees.mapped(lambda leaf: leaf.to(device, non_blocking=ahead), batch)
        self._copies.hand_over(trees.leaves(copied))
        return copied


def _keep_result(future: Future[T], function: Callable[[], T]) -> None:
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)


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


def _begin_to_read(job: tuple[Path, Places] | None, _worker: int) -> None:
    """Note what is read, for the job, and leave signals to it. Ctrl-C and Slurm's reach all its
    processes, but it needs this one until it has come to the end of a step."""
    reads.join(job)
    interruption.handle(signal.SIG_IGN)
    sys.excepthook = _say_what_went_wrong


def _say_what_went_wrong(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print an error, unless the job was killed: then it is that a pipe to the job has broken.

    Such errors come from the thread of multiprocessing that hands over shared memory.
    """
    job = parent_process()
    assert job
    until = time.monotonic() + 1.0  # its pipes break a moment before it is dead
    while os.getppid() == job.pid:
        if time.monotonic() > until:
            sys.__excepthook__(kind, error, trace)
            return
        time.sleep(0.01)
