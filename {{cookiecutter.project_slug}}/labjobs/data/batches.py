"""Batches on the device, in an order that depends on the seed and the epoch alone.

There are two loaders: `resident` keeps all examples on the device, as they are, and picks batches
by index; `workers` reads batches in processes beside training. Both give the same batches in the
same order. A batch has the nesting of an example (tuples, lists, dicts, dataclasses), with tensors
of one more dimension, or is what a function of the student's makes of a list of examples (collate).
A stream, whose examples have no index, comes in its own order.
"""

import errno
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures.thread import _threads_queues
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from copy import deepcopy
from functools import partial
from itertools import count, islice
from multiprocessing.queues import Queue
from typing import Any, cast
from weakref import WeakValueDictionary, finalize
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, Dataset, IterableDataset

from labjobs.data import trees
from labjobs.data.order import Collate, Order, Sampler, examples_at, tensors, underlying
from labjobs.devices import SideStream, free_memory, runs_ahead
from labjobs.distributed.ranks import ALONE, Rank
from labjobs.errors import JobError, SettingsError, first_line
from labjobs.job import terminal
from labjobs.machine import cores

RESIDENT_FRACTION = 0.25  # of the device's free memory, that `auto` lets a dataset take at most
MOST_WORKERS = 8  # more reading processes than this usually slow each other down at the disk
GATHERED = 2**22  # bytes of batches that are picked at once, which costs less than separately


class Batches:
    """The batches of a dataset, a subset or a stream, on the device.

    Several threads may iterate at once. `loader` is `resident` or `workers`; `order` says which
    examples make up which batch, and `len` how many batches an epoch has. A stream has neither.
    """

    _readers: "Readers | None" = None

    def __init__(self, order: Order | None, loader: str) -> None:
        self.order, self.loader = order, loader
        self.check: Callable[[], None] = lambda: None  # before each evaluation batch; may raise
        self.watch: Callable[[], AbstractContextManager[object]] = nullcontext  # for each pass
        self.step: Callable[[], int] = lambda: 0  # returns the optimizer steps that are done
        self.passes = 0  # of evaluations, that have begun
        # The group of each example (N,) of the whole dataset, if it was split by groups.
        self.groups: NDArray[np.int_] | None = None

    def __len__(self) -> int:
        if self.order is None:
            raise TypeError("the batches of a stream have no length")
        return len(self.order)

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        step, thread = self.step(), threading.current_thread()
        with self.watch():
            for batch in self.epoch(0, 0):
                if self.step() != step and thread is threading.main_thread():
                    line = "batches are read from step to step outside of job.steps(…)"
                    cure = "draw examples as `python jobs.py docs recipes` says"
                    raise JobError(f"{line}, and their place is not restored; {cure}")
                self.check()
                yield batch

    def epoch(self, number: int, done: int) -> Iterator[Any]:
        """Yield the batches of one epoch but the first `done`; 0 is for evaluation."""
        raise NotImplementedError

    def endless(self, epoch: int, batch: int, place: "Place") -> Iterator[tuple[Any, int]]:
        """Yield batches without end, with the number of examples in each, starting at a batch of an
        epoch, or at a place in a stream, which is updated."""
        assert self.order is not None  # a stream has an `endless` of its own
        for number in count(epoch):
            yield from zip(self.epoch(number, batch), self.order.sizes(number)[batch:], strict=True)
            batch = 0

    def close(self) -> None:
        """End the reading processes; no thread may still iterate."""
        if self._readers:
            self._readers.close()


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
        return Stream(dataset, batch_size, device, processes, collate or trees.stacked)
    dataset, indices = underlying(dataset)
    if not len(indices):
        raise SettingsError("--dataset: one of its parts has no examples")
    order = Order(indices, batch_size, seed, rank)
    if loader == "resident" or (loader == "auto" and not collate and _fits(dataset, device)):
        return Resident(dataset, order, device, processes)
    return Workers(dataset, order, device, processes, collate)


# All examples on the device.


class Resident(Batches):
    """Picks batches by index from data on the device: nothing is copied during training."""

    order: Order
    _examples: Any  # all of the dataset, as one batch on the device

    def __init__(
        self, dataset: Dataset[Any], order: Order, device: torch.device, processes: int
    ) -> None:
        super().__init__(order, "resident")
        self._device, self._dataset = device, dataset  # kept alive, since its address is its key
        key = id(dataset), device
        self._first = _RESIDENT.get(key)  # kept alive too, for those that come later
        if self._first is not None:
            whole = self._first._examples
        else:
            whole = trees.mapped(lambda leaf: leaf.to(device), _everything(dataset, processes))
            _RESIDENT[key] = self
        self._examples = whole
        self._leaves: list[Tensor] = trees.leaves(whole)
        self._bytes = max(1, sum(leaf[:1].nbytes for leaf in self._leaves))
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


_RESIDENT: WeakValueDictionary[tuple[int, torch.device], Resident] = WeakValueDictionary()
"""The first batches of a dataset on a device, while any are in use: all share one copy of it."""


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
    if (id(dataset), device) in _RESIDENT or (tensors(dataset) and device.type == "cpu"):
        return True
    example = examples_at(dataset, torch.tensor([0]))
    size = sum(leaf.nbytes for leaf in trees.leaves(example)) * len(cast(Sized, dataset))
    return bool(size <= RESIDENT_FRACTION * free_memory(device))


# Batches that processes read in the background.


class Read:
    """A batch as a DataLoader passes it on, with further information `about` it. Without this
    class, the DataLoader would turn the tuples in the batch into lists.
    """

    def __init__(self, batch: Any, about: Any = None) -> None:
        self.batch, self.about = batch, about

    def pin_memory(self) -> "Read":
        """Return the batch in pinned memory; the DataLoader asks for it."""
        return Read(trees.mapped(_pinned, self.batch), self.about)


def _pinned(leaf: Any) -> Any:
    return leaf.pin_memory() if hasattr(leaf, "pin_memory") else leaf


def _moved(leaf: Any, device: torch.device, ahead: bool) -> Any:
    return leaf.to(device, non_blocking=ahead) if isinstance(leaf, Tensor) else leaf


def _moved_otherwise(leaf: Any, device: torch.device) -> Any:
    """A value that is not a tensor but contains some, such as a PackedSequence, on the device. What
    is in it cannot be handed over to another stream, so the current stream copies it."""
    return leaf.to(device) if hasattr(leaf, "to") and not isinstance(leaf, Tensor) else leaf


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
            multiprocessing_context=_start_method() if processes else None,
            pin_memory=runs_ahead(device),
            worker_init_fn=_begin_to_read,
            generator=torch.Generator(),  # so that torch's own stream is left alone
        )
        self._loader: DataLoader[Read] | None = None
        self._read: Iterator[Read] = iter(())
        self.at: Any = None  # where in its data the next read is; None if not known

    def begin(self, keys: Iterable[Any]) -> None:
        """Read these keys from now on."""
        self._keys.all = keys
        if self._loader is None:
            self._loader = self._new()
        self._read = iter(self._loader)

    def next(self) -> Read:
        """Return what was read for the next key, with the batch on the device; a GPU copies it
        while it works on the previous batch."""
        with terminal.waiting() if self._count else nullcontext():
            read = next(self._read)
        device = self._device
        move = partial(_moved, device=device, ahead=runs_ahead(device))
        with self._copies:
            copied = trees.mapped(move, read.batch)
        self._copies.hand_over(trees.tensors(copied))
        return Read(trees.mapped(partial(_moved_otherwise, device=device), copied), read.about)

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


class _Keys:
    """The sampler of a DataLoader whose keys change."""

    all: Iterable[Any] = ()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.all)


def _start_method() -> str | None:
    """Return how to start reading processes: on Linux by a fork, unless the script has chosen to
    spawn. Python 3.14 has a fork server by default, whose processes take seconds to import torch,
    have data of their own in memory, and need a dataset that can be pickled."""
    chosen = multiprocessing.get_start_method(allow_none=True)
    return "fork" if sys.platform == "linux" and chosen != "spawn" else chosen


def _begin_to_read(_worker: int) -> None:
    """Ignore signals. Ctrl-C and Slurm's signals reach all processes of the job, but the job needs
    this one until the end of a step."""
    terminal.handle_signals(signal.SIG_IGN)
    Queue._on_queue_feeder_error = _unsent  # type: ignore[attr-defined]
    # If a pool's thread has forked this process, Python before 3.14 would have that wait for itself
    # at the end: github.com/python/cpython/issues/88110.
    _threads_queues.clear()  # type: ignore[attr-defined]


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
        line += "dataset have to return what can be pickled, such as tensors, numbers and strings"
    failed = ExceptionWrapper((JobError, JobError(line), None), "in a loader's process")
    with suppress(ValueError):  # closed: another process has failed, and nobody waits any more
        queue.put((sent[0], failed, *sent[2:]))


class Readers:
    """Processes that read a dataset: each of several threads at once has its own. They live until
    `close`, and start again when they are needed."""

    def __init__(self, new: Callable[[], Processes]) -> None:
        self._new = new
        self._all: list[Processes] = []
        self._idle: list[Processes] = []
        self.close = partial(_close, self._all)
        # Also at the end of Python, before multiprocessing kills them, which torch would report.
        finalize(self, self.close)

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


def _close(readers: list[Processes]) -> None:
    for reader in readers:
        reader.close()


class Workers(Batches):
    """Has batches of a dataset read by processes, and copies them to the device."""

    order: Order
    _readers: Readers

    def __init__(
        self,
        dataset: Dataset[Any],
        order: Order,
        device: torch.device,
        processes: int,
        collate: Collate | None,
    ) -> None:
        super().__init__(order, "workers")
        read = _Whole(dataset, collate)
        self._readers = Readers(lambda: Processes(read, device, processes))

    def epoch(self, number: int, done: int) -> Iterator[Any]:
        """Have the batches of an epoch read.

        Towards the end of a shuffled epoch, and in evaluations, the next one is read already.
        """
        with self._readers.one() as reader:
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


# Batches of a stream, whose examples come one after another, without an index: docs/recipes.md says
# what it may have; `num_shards` and `shard` are as in Hugging Face's streams. Its parts take turns
# batch by batch, and their number does not depend on the machine: the batches are the same with any
# number of processes.

OTHER_EXAMPLES = (
    "the stream gives other examples when it is read again, so the job does not continue as it "
    "would have without the interruption; give the stream a state_dict(), or random numbers that "
    "depend on the seed and the number that set_epoch() is given"
)

MOST_PARTS = 8  # parts that a stream is read in, if it has as many shards


def is_stream(dataset: Any) -> bool:
    """Return whether the examples of a dataset have no index."""
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")


class Place:
    """How far a job has trained on a stream: up to the last batch that the loop was given."""

    def __init__(self) -> None:
        self.batches = 0
        # The state of each part; None before its first batch. The process that reads the part has
        # pickled it, since tensors would come through shared memory, batch by batch.
        self.parts: list[bytes | None] = []

    def state_dict(self) -> dict[str, Any]:
        """Return the number of batches, and the state of each part."""
        parts = [part and pickle.loads(part) for part in self.parts]
        return {"batches": self.batches, "parts": parts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.batches = state["batches"]
        self.parts = [part and pickle.dumps(part) for part in state["parts"]]


class Stream(Batches):
    """Has batches of a stream read by processes, and copies them to the device."""

    _readers: Readers

    def __init__(
        self, source: Any, batch_size: int, device: torch.device, processes: int, collate: Collate
    ) -> None:
        super().__init__(None, "workers")
        self._parts = parts = min(getattr(source, "num_shards", 1), MOST_PARTS)
        # Batch by batch the processes take turns, and so do the parts, whose number is a multiple
        # of theirs: each part is read by the same process all the time.
        even = [n for n in range(1, min(parts, processes) + 1) if parts % n == 0]
        processes = max(even, default=0)

        def new() -> Processes:
            own = source if processes else deepcopy(source)  # processes have a copy anyway
            return Processes(_Parts(own, parts, batch_size, collate), device, processes)

        self._readers = Readers(new)

    def epoch(self, number: int = 0, done: int = 0) -> Iterator[Any]:
        """Yield the batches of one pass."""
        ended = set[int]()
        with self._readers.one() as reader:
            reader.begin(_turns(0, [None] * self._parts, endless=False))
            for turn in count():
                read = reader.next()
                if read.about:
                    yield read.batch
                    continue
                ended.add(turn % self._parts)
                if len(ended) == self._parts:
                    return

    def endless(self, epoch: int, batch: int, place: Place) -> Iterator[tuple[Any, int]]:
        """Yield batches from a place on, pass after pass, with the number of examples in each;
        `place` is updated. Raises JobError if it is not a place in such a stream."""
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
        with self._readers.one() as reader:
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
                examples, place.parts[place.batches % self._parts], other = read.about
                if other:
                    terminal.log.warning(OTHER_EXAMPLES)
                place.batches += 1
                yield read.batch, examples


# The parts of a stream, in a process that reads some of them.


Turn = tuple[int, tuple[bytes | None, bool] | None]
"""The number of a batch and, if it is the first of its part, how to open the part: its state, and
whether it is read without end."""


def _turns(begin: int, states: Sequence[bytes | None], endless: bool) -> Iterator[Turn]:
    for number in count(begin):
        first = number < begin + len(states)
        yield number, (states[number % len(states)], endless) if first else None


class _Parts(Dataset[Read]):
    """The parts of a stream; batch by batch they take turns."""

    def __init__(self, source: Any, parts: int, batch_size: int, collate: Collate) -> None:
        self._source, self._count = source, parts
        self._initial = pickle.dumps(source.state_dict()) if has_state(source) else None
        self._batch_size, self._collate = batch_size, collate
        self._open: dict[int, tuple[Any, dict[str, Any], bool, Iterator[Any]]] = {}

    def __getitem__(self, turn: Turn) -> Read:
        """Return the next batch of the part whose turn it is; about it, its number of examples, the
        state of the part after it if that is read without end, and whether the examples that were
        skipped before it are others than at first; nothing if the part has ended."""
        number, opening = turn
        index = number % self._count
        if opening:
            pickled, endless = opening
            state = pickle.loads(pickled) if pickled else {"passes": 0, "read": 0}
            source = self._part(index)
            self._open[index] = source, state, endless, _examples(source, state, endless)
        source, state, endless, examples = self._open[index]
        if not (batch := list(islice(examples, self._batch_size))):
            return Read(None)
        other = state.pop("other", False)
        if endless and has_state(source):
            state["source"] = source.state_dict()
        elif endless:
            state["last"] = _checksum(batch[-1])
        return Read(
            self._collate(batch), (len(batch), pickle.dumps(state) if endless else None, other)
        )

    def _part(self, index: int) -> Any:
        """A part before anything was read from it."""
        if self._count > 1:
            return self._source.shard(self._count, index)
        if self._initial:  # the previous pass may have been stopped early
            self._source.load_state_dict(pickle.loads(self._initial))
        return self._source


def _examples(source: Any, state: dict[str, Any], endless: bool) -> Iterator[Any]:
    """Yield the examples of a part from where its state is, which is updated."""
    skipped, within = state["read"], state.pop("source", None)
    while True:
        if hasattr(source, "set_epoch"):
            source.set_epoch(state["passes"])
        if within is not None:
            source.load_state_dict(within)
            skipped, within = 0, None
        examples = iter(source)
        if again := deque(islice(examples, skipped), maxlen=1):
            state["other"] = _checksum(again[0]) != state["last"]
        for example in examples:
            state["read"] += 1
            yield example
        if not endless:
            return
        if not state["read"]:
            raise JobError("the stream of training examples, or a part of it, is empty")
        state["passes"] += 1
        state["read"] = skipped = 0


def _checksum(example: Any) -> int:
    """A checksum of the numbers and texts in an example."""
    found = 0
    for leaf in trees.leaves(example):
        if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
            leaf = leaf.detach().cpu().reshape(-1).view(torch.uint8).numpy()
        if isinstance(leaf, np.ndarray) and not leaf.dtype.hasobject:
            found = crc32(np.ascontiguousarray(leaf).tobytes(), found)
        elif isinstance(leaf, int | float | str | bytes | np.generic):
            found = crc32(repr(leaf).encode(), found)
    return found


def has_state(source: Any) -> bool:
    """Return whether a stream can continue by itself."""
    return hasattr(source, "state_dict") and hasattr(source, "load_state_dict")
