"""What a trial did, step by step, so that two trials can be compared bit for bit."""

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from labjobs.checks.digests import digest
from labjobs.checks.places import here
from labjobs.checks.short import STEPS, Moment, ShortJob
from labjobs.data.batches import Batches
from labjobs.job import lines
from labjobs.job.folder import JobFolder
from labjobs.sources import Place
from labjobs.stateful import Part
from labjobs.training.parts import Count

S = TypeVar("S")


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
    with (attempt / lines.FILE).open("rb") as file:
        said = lines.Reader(file).read()
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
