"""Batches of a dataset, read by processes in the background."""

import errno
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import count
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np
import torch
from torch import Tensor
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, Dataset

from labjobs.data import trees
from labjobs.data.order import Collate, Order, examples_at
from labjobs.devices import SideStream, in_thread, runs_ahead
from labjobs.errors import JobError, first_line
from labjobs.job import data_evidence, terminal
from labjobs.job.data_evidence import Places


class Read:
    """A batch as a DataLoader passes it on, with further information `about` it. Without this
    class, the DataLoader would turn the tuples in the batch into lists.
    """

    def __init__(self, batch: Any, about: Any = None) -> None:
        self.batch, self.about = batch, about

    def pin_memory(self) -> "Read":
        """Return the batch in pinned memory; the DataLoader asks for it."""
        return Read(trees.mapped(_pinned, self.batch), self.about)


class Processes:
    """Processes that read `dataset[key]` for one key after another, until `close`; without any,
    this one does."""

    def __init__(self, dataset: Dataset[Read], device: torch.device, processes: int) -> None:
        self._device, self._copies = device, SideStream(device)
        self._keys, self._count = _Keys(), processes
        self._new = partial(
            DataLoader,
            dataset,
            batch_size=None,
            sampler=self._keys,
            collate_fn=_as_read,
            num_workers=processes,
            persistent_workers=processes > 0,
            pin_memory=runs_ahead(device),
            worker_init_fn=partial(_begin_to_read, data_evidence.of_job()),
            generator=torch.Generator(),  # so that torch's own stream is left alone
        )
        self._loader: DataLoader[Read] | None = None
        self._read: Iterator[Read] = iter(())
        self.at: Any = None  # where in its data the next read is; None if not known

    def begin(self, keys: Iterable[Any]) -> None:
        """Read these keys from now on.

        Processes are started in the main thread or in a new one. In a forked process the thread
        that forked is the main one. When the process ends, concurrent.futures waits for the threads
        of its pools; if the main thread is one of them, that is an error, and torch says in the job
        that a process failed.
        """
        self._keys.all = keys
        if threading.current_thread() is threading.main_thread():
            self._read = self._restarted()
        else:
            started: Future[Iterator[Read]] = Future()
            threading.Thread(target=_keep_result, args=(started, self._restarted)).start()
            self._read = started.result()

    def next(self) -> Read:
        """Return what was read for the next key, with the batch on the device; a GPU copies it
        while it works on the previous batch."""
        with terminal.waiting() if self._count else nullcontext():
            read = next(self._read)
        ahead = runs_ahead(self._device)
        with self._copies:
            move = partial(_moved, device=self._device, ahead=ahead)
            copied = trees.mapped(move, read.batch)
        self._copies.hand_over(leaf for leaf in trees.leaves(copied) if isinstance(leaf, Tensor))
        others = partial(_moved_otherwise, device=self._device)
        return Read(trees.mapped(others, copied), read.about)

    def close(self) -> None:
        """End the processes.

        Without being told, torch does so when nothing refers to its iterator any more; the
        traceback of an error may do so until multiprocessing kills the processes.
        """
        if end := getattr(self._read, "_shutdown_workers", None):
            end()
            for process in self._read._workers:  # type: ignore[attr-defined]
                process.kill()  # if it hangs; the others have ended
                process.join(1)
        self._loader, self._read, self.at = None, iter(()), None

    def _restarted(self) -> Iterator[Read]:
        in_thread(self._device)
        if self._loader is None:
            self._loader = self._new()
        return iter(self._loader)


class _Keys:
    """The sampler of a DataLoader whose keys change."""

    all: Iterable[Any] = ()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.all)


def _keep_result(future: Future[Iterator[Read]], function: Callable[[], Iterator[Read]]) -> None:
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)


def _as_read(read: Any) -> Any:
    return read


def _pinned(leaf: Any) -> Any:
    return leaf.pin_memory() if hasattr(leaf, "pin_memory") else leaf


def _moved(leaf: Any, device: torch.device, ahead: bool) -> Any:
    """A tensor on the device; anything else as it is."""
    return leaf.to(device, non_blocking=ahead) if isinstance(leaf, Tensor) else leaf


def _moved_otherwise(leaf: Any, device: torch.device) -> Any:
    """A value that is not a tensor but contains some, such as a PackedSequence, on the device;
    texts and the like unchanged. Its contents cannot be handed over to another stream, so the
    current stream copies it."""
    return leaf.to(device) if hasattr(leaf, "to") and not isinstance(leaf, Tensor) else leaf


def _begin_to_read(job: tuple[Path, Places] | None, _worker: int) -> None:
    """Record what is read, for the job, and ignore signals. Ctrl-C and Slurm's signals reach all
    processes of the job, but the job needs this one until the end of a step."""
    data_evidence.join(job)
    terminal.handle_signals(signal.SIG_IGN)
    Queue._on_queue_feeder_error = _unsent  # type: ignore[attr-defined]


def _unsent(queue: "Queue[Any]", error: BaseException, sent: tuple[Any, ...]) -> None:
    """Send an error in place of a batch that could not be sent. Python's own thread for it only
    prints a trace, and the job would wait for the batch for ever."""
    said = first_line(error)
    if "AF_UNIX" in said:
        line = f"the path of temporary files is too long for a socket: {tempfile.gettempdir()}"
        line += "; set TMPDIR to a shorter one, such as /tmp"
    elif "shared memory" in said or os.strerror(errno.ENOSPC) in said:
        line = "/dev/shm is too small for a batch; enlarge it (docker run --ipc=host or "
        line += "--shm-size=8g), or give a smaller --batch-size or fewer --workers"
    else:
        line = f"a batch cannot be passed from a loader's process ({said}); collate and the "
        line += "dataset have to return what can be pickled, such as tensors, numbers and texts"
    failed = ExceptionWrapper((JobError, JobError(line), None), "in a loader's process")
    queue.put((sent[0], failed, *sent[2:]))


class Readers:
    """Processes that read a dataset: each of several threads at once has its own. They live until
    `close`, and start again when they are needed."""

    def __init__(self, new: Callable[[], Processes]) -> None:
        self._new = new
        self._all: list[Processes] = []
        self._idle: list[Processes] = []
        # Also at the end of Python, before multiprocessing kills them, which torch would report.
        finalize(self, _close, self._all)

    @contextmanager
    def one(self) -> Iterator[Processes]:
        """Processes that no other thread uses in the meantime."""
        try:
            reader = self._idle.pop()
        except IndexError:  # also if another thread was faster
            reader = self._new()
            self._all.append(reader)
        try:
            yield reader
        finally:
            self._idle.append(reader)

    def close(self) -> None:
        """End the processes."""
        _close(self._all)


def _close(readers: list[Processes]) -> None:
    for reader in readers:
        reader.close()


class Workers(Readers):
    """Has batches of a dataset read by processes, and copies them to the device."""

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
        super().__init__(lambda: Processes(read, device, processes))

    def epoch(self, number: int, done: int) -> Iterator[Any]:
        """Yield the batches of one epoch but the first `done`.

        Towards the end of a shuffled epoch, and while the model is evaluated, the processes already
        read the next epoch.
        """
        with self.one() as reader:
            if reader.at != (number, done):
                reader.begin(self._indices(number, done))
            reader.at = None  # until the epoch has been read to its end
            for _ in self.order.own_sizes(number)[done:]:
                yield reader.next().batch
            reader.at = (number + 1, 0) if self.order.shuffled else None

    def _indices(self, first: int, done: int) -> Iterator[Any]:
        """Yield one array of indices per batch; for a shuffled order, without end.

        A tensor would go to the reading process through shared memory, which that process would ask
        for in vain, with a trace, if the job was killed meanwhile.
        """
        for number in count(first) if self.order.shuffled else [first]:
            ends = np.cumsum(self.order.own_sizes(number))
            yield from np.split(self.order.epoch(number).numpy(), ends[:-1])[done:]
            done = 0


class _Whole(Dataset[Read]):
    """A dataset that returns whole batches."""

    def __init__(self, dataset: Dataset[Any], collate: Collate | None) -> None:
        self._dataset, self._collate = dataset, collate

    def __getitem__(self, indices: Any) -> Read:
        return Read(examples_at(self._dataset, torch.from_numpy(indices), self._collate))
