"""What a trial did, step by step, so that two trials can be compared bit for bit."""

import threading
from collections.abc import Iterator, Mapping, Sequence, Sized
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar, cast

from torch import Tensor
from torch.utils.data import Dataset, Subset

from labjobs import layout
from labjobs.checks.operations import digest
from labjobs.checks.places import here
from labjobs.data.batches import Batches
from labjobs.data.order import Collate
from labjobs.data.streams import is_stream
from labjobs.job import journal
from labjobs.job.folder import JobFolder
from labjobs.job.terminal import Paused
from labjobs.sources import Place
from labjobs.training.loop import Job
from labjobs.training.optim import Count
from labjobs.training.progress import Length, Part, Position

# The job of a trial: the student's own job, but with few steps and few examples.
#
# Its settings are unchanged. It is shorter because of the engine: job.epochs() and job.steps() end
# earlier, and job.batches() has fewer and smaller batches. An epoch's last batch has fewer examples
# than the others, and evaluations fall within epochs.

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


class Kind(IntEnum):
    """Kinds of facts, in the order in which they occur in a step."""

    START = 0
    """The state of a part before training."""
    BATCH = 1
    """The batch that job.steps() hands out."""
    PART = 2
    """The batch that job.parts() is given, after augmentation."""
    TRAINING = 3
    EVALUATION = 4
    STATE = 5
    """The state of a part after training."""
    RESULT = 6


class Fact(NamedTuple):
    """Something recorded about a trial under this name; facts are sorted in the order of a job."""

    step: int
    kind: Kind
    name: str


Facts = Mapping[Fact, str]


class Recorded(ShortJob[S]):
    """A job whose `facts` are noted."""

    def __init__(self, folder: JobFolder[S], stops: Sequence[Moment] = ()) -> None:
        super().__init__(folder, stops)
        self.facts: dict[Fact, str] = {}
        self._named: Mapping[str, Part] = {}
        self.resumed_at: Place | None = None

    @property
    def spec(self) -> dict[str, Any]:
        """The argument of job.save_spec()."""
        return self._spec

    def resume(self, **training: Part) -> None:
        """Note the state that training begins with."""
        self.resumed_at = here()
        super().resume(**training)
        self._named = training
        if not self.step:
            self._note_states(0, Kind.START)

    def steps(
        self, batches: Batches | None = None, *, examples: int = 0, **units: float
    ) -> Iterator[Any]:
        """Note each batch."""
        for batch in super().steps(batches, examples=examples, **units):
            self.facts[Fact(self.step + 1, Kind.BATCH, "batch")] = digest(batch)
            yield batch

    def parts(self, batch: Any, elements: Count | None = None) -> Iterator[tuple[Any, Tensor]]:
        """Note the batch that is to be split."""
        self.facts[Fact(self.step + 1, Kind.PART, "batch")] = digest(batch)
        return super().parts(batch, elements)

    def end_training(self) -> None:
        """Note the state that training ends with."""
        if self._state and not self._position.over:
            self._note_states(STEPS, Kind.STATE)
        super().end_training()

    def _note_states(self, step: int, kind: Kind) -> None:
        for name, part in self._named.items():
            self.facts[Fact(step, kind, name)] = digest(part.state_dict())


def measured(attempt: Path, declared: Mapping[str, Any]) -> dict[Fact, str]:
    """Return what the journal of an attempt has of declared metrics, and the learning rate."""
    with (attempt / layout.JOURNAL).open("rb") as file:
        said = journal.Reader(file).read()
    found = {}
    for line in said:
        for name, value in line.get("metrics", {}).items():
            part, _, metric = name.removeprefix("best_").partition("_")
            if metric in declared or name == "lr":
                found[_fact(line["step"], name, part)] = repr(value)
    return found


def _fact(step: int, name: str, part: str) -> Fact:
    if part == "test" or name.startswith("best_"):
        return Fact(STEPS, Kind.RESULT, name)
    return Fact(step, Kind.EVALUATION if part == "val" else Kind.TRAINING, name)


def first_difference(one: Facts, other: Facts) -> Fact | None:
    """Return the first fact that is not the same in two trials; None if all are."""
    differ = [fact for fact in {**one, **other} if one.get(fact) != other.get(fact)]
    return min(differ, default=None)


def difference(fact: Fact, one: Facts, other: Facts) -> str:
    """Return in words how a fact differs."""
    match fact.kind:
        case Kind.START:
            return f"the initial state of {fact.name} is not the same"
        case Kind.BATCH:
            return f"the batch of step {fact.step} is not the same"
        case Kind.PART:
            return f"the batch of step {fact.step} is not the same after augmentation"
        case Kind.STATE:
            return f"{fact.name} is not the same at the end"
    was, now = one.get(fact, "missing"), other.get(fact, "missing")
    at = "" if fact.kind == Kind.RESULT else f" at step {fact.step}"
    return f"{fact.name}{at} was {was} and is now {now}"
