"""Batches of a stream, whose examples come one after another, without an index.

A stream is a torch IterableDataset. It may have

    state_dict(), load_state_dict(state)   to continue after the last example that it gave; without
                                           them, what a job has read is read again, and skipped
    set_epoch(number)                      to be told how many times it has been read to its end
    num_shards, shard(num_shards, index)   to be read in parts by several processes, as Hugging
                                           Face's streams have it

Parts take turns batch by batch, and their number does not depend on the machine: the batches are
the same with any number of processes.
"""

import copy
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

from labjobs.data.order import Collate
from labjobs.data.workers import Processes, Read, Readers
from labjobs.errors import JobError
from labjobs.job.terminal import log

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
            own = source if processes else copy.deepcopy(source)  # processes have a copy anyway
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
                    log.info(
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
