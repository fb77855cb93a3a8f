"""Does evaluation leave the model and the random numbers of training alone, and is it repeatable?

While the job of a trial evaluates, the global random numbers differ from those in the undisturbed
trial. So a result that depends on them, as with dropout, differs too.
"""

from collections.abc import Mapping
from types import FrameType
from typing import Any, NamedTuple

from labjobs.checks import places
from labjobs.checks.digests import digest, digests
from labjobs.checks.operations import Operations, address, draws, storages, written
from labjobs.sources import Place
from labjobs.stateful import Part
from labjobs.training.seeding import GlobalStreams

OTHER_SEED = 2**31 - 1


class Lines(NamedTuple):
    """A line that evaluates, and the line in the evaluation that does something; often the same
    line."""

    outer: Place
    inner: Place

    @property
    def within(self) -> str:
        """The inner line in words, if it is a different one."""
        return f" (in {self.inner})" if self.inner != self.outer else ""


class Seen(NamedTuple):
    """What was seen of one evaluation that read batches."""

    reads: Place
    changed: tuple[str, ...]
    """The parts of the state that it changed, such as `model.layers.1.running_mean`."""
    changes: Lines | None
    drew: bool
    """Whether the global random numbers were used."""
    draws: Lines | None


class _Event(NamedTuple):
    lines: Lines
    frames: list[FrameType]


class Evaluation:
    """One evaluation, from now until its `end`, that is called from a frame of the student's.

    A function that this calls evaluates if it reads batches. Other things that it does, such as
    updating an average of weights, are ignored.
    """

    def __init__(self, parts: Mapping[str, Part], random: GlobalStreams, device: Any) -> None:
        self._parts, self._random = parts, random
        self._base = next(iter(places.running()), None)
        self._before = self._states()
        self._storages = storages(parts.values())
        self._training = random.state_dict()
        GlobalStreams(OTHER_SEED, device)
        self._others = digest(random.state_dict())
        self._writes: list[_Event] = []
        self._draws: list[_Event] = []
        self._evaluates: list[FrameType] = []
        self._reads: Place | None = None
        self._watch = Operations(self._done)
        self._watch.__enter__()  # type: ignore[no-untyped-call]

    def read(self) -> None:
        """A batch is about to be read."""
        event = self._event()
        self._reads = self._reads or event.lines.outer
        self._evaluates += event.frames

    def draw(self) -> None:
        """Python's or NumPy's global random numbers are drawn from."""
        self._draws.append(self._event())

    def end(self) -> Seen | None:
        """Let training have its random numbers again; returns what was seen, if batches were
        read."""
        self._watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        drew = digest(self._random.state_dict()) != self._others
        self._random.load_state_dict(self._training)
        if not self._reads:
            return None
        after = self._states()
        changed = tuple(name for name in after if after[name] != self._before.get(name))
        writes, drawn = self._of_evaluation(self._writes), self._of_evaluation(self._draws)
        if self._writes and not writes:
            changed = ()  # by the loop itself
        return Seen(self._reads, changed, writes, drew and bool(drawn or not self._draws), drawn)

    def _states(self) -> dict[str, str]:
        return digests({name: part.state_dict() for name, part in self._parts.items()})

    def _done(self, func: Any, args: Any, kwargs: dict[str, Any], _result: Any) -> None:
        if draws(func, kwargs):
            self._draws.append(self._event())
        if any(address(tensor) in self._storages for tensor in written(func, args)):
            self._writes.append(self._event())

    def _event(self) -> _Event:
        running = places.running()
        below = running[: running.index(self._base)] if self._base in running else running
        frames = below or running[:1]
        return _Event(Lines(places.of(frames[-1]), places.of(running[0])), below)

    def _of_evaluation(self, events: list[_Event]) -> Lines | None:
        """The first event in a function that evaluates, or in the loop if that reads batches."""
        inline = not self._evaluates
        for event in events:
            if inline or any(frame in self._evaluates for frame in event.frames):
                return event.lines
        return None
