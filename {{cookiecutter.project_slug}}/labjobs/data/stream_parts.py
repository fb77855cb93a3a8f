"""The parts of a stream, in a process that reads some of them."""

import pickle
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from torch.utils.data import Dataset

from labjobs.data.order import Collate
from labjobs.data.processes import Read
from labjobs.errors import JobError


class Opening(NamedTuple):
    """How to read a part: from its beginning or from a state, once or without end."""

    state: bytes | None
    endless: bool


class About(NamedTuple):
    """Information about a batch: its number of examples, and the state of its part after the
    batch."""

    examples: int
    state: bytes | None


def has_state(source: Any) -> bool:
    """Return whether a stream can continue where it was."""
    return hasattr(source, "state_dict") and hasattr(source, "load_state_dict")


class Parts(Dataset[Read]):
    """The parts of a stream; batch by batch they take turns."""

    def __init__(self, source: Any, parts: int, batch_size: int, collate: Collate) -> None:
        self._source, self._count = source, parts
        self._initial = pickle.dumps(source.state_dict()) if has_state(source) else None
        self._batch_size, self._collate = batch_size, collate
        self._open: dict[int, Part] = {}

    def __getitem__(self, turn: tuple[int, Opening | None]) -> Read:
        """Return the next batch of the part whose turn it is, or a batch without information if the
        part has ended. A turn has the batch's number and, to open the part, where to start."""
        number, opening = turn
        index = number % self._count
        if opening:
            self._open[index] = Part(self._part(index), opening)
        part = self._open[index]
        if examples := list(islice(part.examples, self._batch_size)):
            return Read(self._collate(examples), About(len(examples), part.state()))
        return Read(None)

    def _part(self, index: int) -> Any:
        """A part before anything was read from it."""
        if self._count > 1:
            return self._source.shard(self._count, index)
        if self._initial:  # the previous pass may have been stopped early
            self._source.load_state_dict(pickle.loads(self._initial))
        return self._source


class Part:
    """A part of a stream, with its `examples` from where it was opened."""

    def __init__(self, source: Any, opening: Opening) -> None:
        self._source, self._endless = source, opening.endless
        state = pickle.loads(opening.state) if opening.state else {}
        self._passes, self._read = state.get("passes", 0), state.get("read", 0)
        self.examples = self._all(state)

    def state(self) -> bytes | None:
        """Return the state after the last example, pickled; None if there is only one pass.

        It is pickled since tensors would go to the job through shared memory, batch by batch.
        """
        if not self._endless:
            return None
        state = {"passes": self._passes, "read": self._read}
        if has_state(self._source):
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
