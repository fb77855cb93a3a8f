"""The job of a trial: the student's own job, but with few steps and few examples.

Its settings are unchanged. It is shorter because of the engine: job.epochs() and job.steps() end
earlier, and job.batches() has fewer and smaller batches. An epoch's last batch has fewer examples
than the others, and evaluations fall within epochs.
"""

import threading
from collections.abc import Sequence, Sized
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar, cast

from torch.utils.data import Dataset, Subset

from labjobs.data.batches import Batches
from labjobs.data.order import Collate
from labjobs.data.streams import is_stream
from labjobs.job.folder import JobFolder
from labjobs.job.interruption import Paused
from labjobs.training.job import Job
from labjobs.training.length import Length
from labjobs.training.position import Position

S = TypeVar("S")

STEPS, EVERY = 10, 5
"""Steps of a trial, and steps from one evaluation to the next."""

EXAMPLES = 16
"""The largest number of examples in a batch."""

BATCHES = 3.5
"""Batches in an epoch."""


class Moment(NamedTuple):
    """A moment at which a trial is interrupted: between two steps, or in an evaluation."""

    step: int
    evaluating: bool = False


class ShortJob(Job[S]):
    """A short job, which is interrupted at the first of the given moments that it reaches."""

    def __init__(self, folder: JobFolder[S], stops: Sequence[Moment] = ()) -> None:
        super().__init__(folder)
        self._length = Length(SimpleNamespace(steps=STEPS))
        self._position = Position(SimpleNamespace(eval_every=str(EVERY)), self._length)
        self._stops = stops
        self.stopped: Moment | None = None

    def batches(  # type: ignore[override]  # one signature is enough here
        self,
        part: Dataset[Any] | None,
        batch_size: int,
        shuffle: bool = False,
        collate: Collate | None = None,
    ) -> Batches | None:
        """Return the batches that a dataset would have if it were small; a stream stays whole."""
        size = min(batch_size, EXAMPLES)
        if part is not None and not is_stream(part):
            part = few(part, int(BATCHES * size))
        return super().batches(part, size, shuffle, collate)

    def _first_state(self) -> dict[str, Any]:
        return {}  # the other job's last step is far beyond the end of this short one

    def _pause_if_due(self) -> None:
        if not self._position.evaluating:
            self._stop(Moment(self.step))

    def _check_evaluation(self) -> None:
        here = threading.current_thread() is threading.main_thread()  # not in the background
        if here and self._position.evaluating and not self._position.over:
            self._stop(Moment(self.step, evaluating=True))

    def _stop(self, now: Moment) -> None:
        if now in self._stops:
            self.stopped = now
            raise Paused("for a moment")


class Few(Subset[Any]):
    """Some examples of a dataset, obtained without reading all of it."""


def few(part: Dataset[Any], count: int) -> Few:
    """Return some examples of a dataset, from all over it, since it may be sorted."""
    all_of_them = len(cast(Sized, part))
    count = min(count, all_of_them)
    return Few(part, [number * all_of_them // count for number in range(count)])
