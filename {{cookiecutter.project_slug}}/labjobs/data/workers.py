"""Batches of a dataset or of a stream, read by processes in the background."""

import errno
import os
import pickle
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from functools import partial
from itertools import count, islice
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np
import torch
from torch import Tensor
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, Dataset, IterableDataset

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


# Batches of a stream, whose examples come one after another, without an index.
#
# A stream is a torch IterableDataset. It may have
#
#     state_dict(), load_state_dict(state)  to continue after the last example that it gave; without
#                                           them, what a job has read is read again, and skipped
#     set_epoch(number)                     to be told how many times it has been read to its end
#     num_shards, shard(num_shards, index)  to be read in parts by several processes, as Hugging
#                                           Face's streams have it
#
# Parts take turns batch by batch, and their number does not depend on the machine: the batches are
# the same with any number of processes.

MOST_PARTS = 8  # parts that a stream is read in, if it has as many shards

States = Sequence[bytes | None]
"""The state of each part, pickled by the process that reads it; None before its first batch.

They are pickled since tensors would go to the job through shared memory, batch by batch.
"""


def is_stream(dataset: Any) -> bool:
    """Return whether the examples of a dataset have no index."""
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")


class Place:
    """How far a job has trained on a stream: up to the last batch that the loop was given."""

    def __init__(self) -> None:
        self.batches = 0
        self.parts: list[bytes | None] = []  # the state of each part

    def state_dict(self) -> dict[str, Any]:
        """Return the number of batches, and the state of each part."""
        parts = [part and pickle.loads(part) for part in self.parts]
        return {"batches": self.batches, "parts": parts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.batches = state["batches"]
        self.parts = [part and pickle.dumps(part) for part in state["parts"]]


class Stream(Readers):
    """Has batches of a stream read by processes, and copies them to the device."""

    def __init__(
        self, source: Any, batch_size: int, device: torch.device, processes: int, collate: Collate
    ) -> None:
        self._parts = parts = min(getattr(source, "num_shards", 1), MOST_PARTS)
        # Batch by batch the processes take turns, and so do the parts, whose number is a multiple
        # of theirs: each part is read by the same process all the time.
        even = [n for n in range(1, min(parts, processes) + 1) if parts % n == 0]
        processes = max(even, default=0)

        def new() -> Processes:
            own = source if processes else deepcopy(source)  # processes have a copy anyway
            return Processes(_Parts(own, parts, batch_size, collate), device, processes)

        super().__init__(new)

    def once(self) -> Iterator[Any]:
        """Yield the batches of one pass, on the device."""
        ended = set[int]()
        with self.one() as reader:
            reader.begin(_turns(0, [None] * self._parts, endless=False))
            for number in count():
                read = reader.next()
                if read.about:
                    yield read.batch
                    continue
                ended.add(number % self._parts)
                if len(ended) == self._parts:
                    return

    def endless(self, place: Place) -> Iterator[tuple[Any, int]]:
        """Yield batches from a place on, pass after pass, with the number of examples in each;
        `place` is updated. Raises JobError if it is a place in another stream, or not in a
        stream."""
        states = place.parts or [None] * self._parts
        if len(states) != self._parts:
            raise JobError(
                f"the stream of training examples has {self._parts} parts, but it had "
                f"{len(states)} when the job was interrupted; --force starts over"
            )
        place.parts = [*states]
        known = [pickle.loads(state) for state in states if state]
        skipped = sum(state["read"] for state in known if "source" not in state)
        began = time.monotonic()
        with self.one() as reader:
            reader.begin(_turns(place.batches, states, endless=True))
            for number in count(1):
                read = reader.next()
                if skipped and number == self._parts:  # every part has been opened
                    seconds = time.monotonic() - began
                    terminal.log.info(
                        f"{skipped:,} examples were read again and skipped in {seconds:.1f} s: "
                        "the stream has no state_dict()"
                    )
                # What was read ahead does not count: the place is that of this batch.
                examples, place.parts[place.batches % self._parts] = read.about
                place.batches += 1
                yield read.batch, examples


# The parts of a stream, in a process that reads some of them.


Turn = tuple[int, tuple[bytes | None, bool] | None]
"""The number of a batch and, if it is the first of its part, how to open the part: its state, and
whether it is read without end."""


def _turns(begin: int, states: States, endless: bool) -> Iterator[Turn]:
    for number in count(begin):
        first = number < begin + len(states)
        yield number, (states[number % len(states)], endless) if first else None


class _Parts(Dataset[Read]):
    """The parts of a stream; batch by batch they take turns."""

    def __init__(self, source: Any, parts: int, batch_size: int, collate: Collate) -> None:
        self._source, self._count = source, parts
        self._initial = pickle.dumps(source.state_dict()) if _has_state(source) else None
        self._batch_size, self._collate = batch_size, collate
        self._open: dict[int, _Part] = {}

    def __getitem__(self, turn: Turn) -> Read:
        """Return the next batch of the part whose turn it is, about which are its number of
        examples and the state of the part after it; about nothing if the part has ended."""
        number, opening = turn
        index = number % self._count
        if opening:
            self._open[index] = _Part(self._part(index), *opening)
        part = self._open[index]
        if examples := list(islice(part.examples, self._batch_size)):
            return Read(self._collate(examples), (len(examples), part.state()))
        return Read(None)

    def _part(self, index: int) -> Any:
        """A part before anything was read from it."""
        if self._count > 1:
            return self._source.shard(self._count, index)
        if self._initial:  # the previous pass may have been stopped early
            self._source.load_state_dict(pickle.loads(self._initial))
        return self._source


class _Part:
    """A part of a stream, with its `examples` from where it was opened."""

    def __init__(self, source: Any, pickled: bytes | None, endless: bool) -> None:
        self._source, self._endless = source, endless
        state = pickle.loads(pickled) if pickled else {}
        self._passes, self._read = state.get("passes", 0), state.get("read", 0)
        self.examples = self._all(state)

    def state(self) -> bytes | None:
        """Return the state after the last example; None if there is only one pass."""
        if not self._endless:
            return None
        state = {"passes": self._passes, "read": self._read}
        if _has_state(self._source):
            state["source"] = self._source.state_dict()
        return pickle.dumps(state)

    def _all(self, state: dict[str, Any]) -> Iterator[Any]:
        skipped = self._read
        self._begin_pass()
        if "source" in state:
            self._source.load_state_dict(state["source"])
            skipped = 0
        while True:
            for example in islice(self._source, skipped, None):
                self._read += 1
                yield example
            if not self._endless:
                return
            if not self._read:
                raise JobError("the stream of training examples, or a part of it, is empty")
            self._passes, self._read, skipped = self._passes + 1, 0, 0
            self._begin_pass()

    def _begin_pass(self) -> None:
        if hasattr(self._source, "set_epoch"):
            self._source.set_epoch(self._passes)


def _has_state(source: Any) -> bool:
    return hasattr(source, "state_dict") and hasattr(source, "load_state_dict")
