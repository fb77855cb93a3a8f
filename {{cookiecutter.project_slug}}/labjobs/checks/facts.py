"""The short job of a trial, and what is known of it: lines of the student's code, values bit for
bit, and what the code carries from step to step.
"""

import ast
import inspect
import pickle
import random
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache, partial
from itertools import islice
from math import ceil
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset, IterableDataset, Subset

from labjobs.data import trees
from labjobs.data.batches import Batches, has_state, is_stream
from labjobs.data.order import Sampler
from labjobs.errors import JobError, SettingsError
from labjobs.evidence.canonical import short
from labjobs.job.folder import JobFolder
from labjobs.job.terminal import Paused
from labjobs.sources import Place, is_students, place
from labjobs.training.loop import Job
from labjobs.training.progress import Length, Part, Position


class Finding(NamedTuple):
    """What breaks a guarantee, in one line, and where in the student's code it does."""

    place: Place | None
    text: str


class Answer(NamedTuple):
    """The answer for one guarantee: fine if there are no findings, and nothing is unknown."""

    findings: tuple[Finding, ...] = ()
    unknown: str = ""  # why it cannot be known

    def lines(self, guarantee: str) -> Iterator[str]:
        """Yield the answer in lines: one for each finding, or just one."""
        for at, text in self.findings:
            yield f"{guarantee}: {at}: {text}" if at else f"{guarantee}: {text}"
        if not self.findings:
            yield f"{guarantee}: {f'unknown, {self.unknown}' if self.unknown else 'fine'}"


# Lines of the student's code: what runs, and what assigns a name.


def running() -> list[FrameType]:
    """Return the frames of the student's code that are running, the innermost first."""
    frames = (frame for frame, _ in traceback.walk_stack(sys._getframe()))
    return [frame for frame in frames if is_students(frame.f_code.co_filename)]


def line_of(frame: FrameType) -> Place:
    """Return the line that a frame is at."""
    return place(frame.f_code.co_filename, frame.f_lineno)


def here() -> Place | None:
    """Return the innermost line of the student's code that is running; None if none is."""
    frames = running()
    return line_of(frames[0]) if frames else None


def attribute_at(kind: type, name: str) -> Place | None:
    """Return where a class of the student's first assigns `self.<name>` or declares the field, or
    else begins; None for a class of a library or of the engine."""
    for base in filter(_file_of, kind.__mro__):
        with suppress(OSError):  # a class that no code defines
            return _assigned_at(base, name)
    return None


def _file_of(kind: type) -> str:
    return students_file(sys.modules.get(kind.__module__))


def students_file(module: object) -> str:
    """Return the file of a module of the student's; empty for others."""
    file = getattr(module, "__file__", None) or ""
    return file if file and is_students(file) else ""


def _assigned_at(scope: Any, name: str) -> Place:
    """Where a module, a class or a running function first assigns a variable, or an attribute, of
    this name; its own first line if nowhere, as for an argument."""
    file, tree, lines = _source(scope)
    found = (
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store)
        if name == (node.id if isinstance(node, ast.Name) else node.attr) and node.lineno in lines
    )
    return place(file, min(found, default=lines.start))


@cache
def _source(scope: Any) -> tuple[str, ast.Module, range]:
    """The file of a scope, all of its code, and the lines that are the scope's."""
    file, (lines, first) = inspect.getfile(scope), inspect.getsourcelines(scope)
    first = max(1, first)  # 0 for a module
    return file, ast.parse(Path(file).read_bytes()), range(first, first + len(lines))


# Nested values as short texts, which are equal where all bits are.


def digest(value: Any, but: Container[int] = ()) -> str:
    """Return the digest of the leaves of nested values, except tensors at some addresses."""
    leaves = trees.leaves(value)
    left = [leaf for leaf in leaves if not (isinstance(leaf, Tensor) and _address(leaf) in but)]
    return short(repr([*map(_of_leaf, left)]).encode())


def _of_leaf(leaf: Any) -> str:
    if isinstance(leaf, Tensor):
        data = leaf.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
        return short(f"{leaf.dtype} {tuple(leaf.shape)} ".encode() + data)
    if isinstance(leaf, tuple):  # torch's PackedSequence
        return digest([*leaf])
    try:
        return short(pickle.dumps(leaf))
    except (pickle.PicklingError, TypeError, AttributeError):
        return type(leaf).__name__


def tensors(tree: Any) -> list[Tensor]:
    """Return the tensors in nested values."""
    each = tree_leaves(trees.leaves(tree))  # torch's own do not enter dataclasses
    return [leaf for leaf in each if isinstance(leaf, Tensor)]


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


# What the student's code carries from step to step: variables that were there when the loop began,
# and have changed since. If such a variable was not passed to job.resume(), a continued job does
# not have its value.

GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
"""Generators of random numbers; their pickles hold their states."""

GLOBAL = (random._inst, np.random.mtrand._rand, torch.default_generator)
"""The generators whose states a job saves."""

PLAIN = (bool, int, float, complex, str, type(None), Tensor, np.ndarray, np.generic)

MOST = 1000  # values in a container that is looked at, at most

CHANGES = (
    "changes while training, but job.resume(…) was not given it",
    "is not restored; draw from torch's own random numbers",
    "changes while training and is not restored; keep it in an object with state_dict() and "
    "load_state_dict(), and give that to job.resume(…)",
)
"""What is said of an object with a state, a generator and a plain value; likely causes first."""


class _Variable(NamedTuple):
    """A variable, by its owner's id and its name there, and how to find where it is made."""

    key: tuple[int, str]
    name: str
    value: Any
    place: Callable[[], Place | None]


class Carried:
    """Looks for what changes, beside the parts that job.resume() was given and some datasets."""

    def __init__(self, parts: Mapping[str, Part], datasets: Iterable[Dataset[Any]]) -> None:
        self._parts, self._datasets = [*parts.values()], list(datasets)
        self._frames = running()
        self._before = self._states()
        self._changed: dict[Any, tuple[int, Finding]] = {}

    def look(self) -> None:
        """Record what has changed."""
        known, now = _within(self._parts), self._states()
        for key, name, value, made_at in self._variables():
            before = self._before.get(key)
            if not before or before == now[key] or id(value) in known:
                continue
            kind = 0 if _is_part(value) else 1 if isinstance(value, GENERATORS) else 2
            own = key if kind == 2 else (id(value), "")  # objects may have several names
            if own not in self._changed and (at := made_at()):
                self._changed[own] = kind, Finding(at, f"{name} {CHANGES[kind]}")

    @property
    def changes(self) -> list[tuple[int, Finding]]:
        """What has changed, by its kind: what has a `state_dict()` (0), then random numbers."""
        return sorted(self._changed.values(), key=lambda each: each[0])

    def _states(self) -> dict[tuple[int, str], str | None]:
        states = [part.state_dict() for part in self._parts]
        of_parts = {_address(each) for each in tensors(states)}
        return {found.key: _state(found.value, of_parts) for found in self._variables()}

    def _variables(self) -> Iterator[_Variable]:
        """The variables of the functions that run, of the student's modules and objects in them."""
        for frame in self._frames:
            if frame.f_code.co_name != "<module>":
                yield from _variables_in(frame, frame.f_locals)
        for module in [*sys.modules.values()]:
            if students_file(module):
                yield from _variables_in(module, vars(module))
        for dataset in self._datasets:
            yield from _attributes(type(dataset).__name__, dataset)


def _variables_in(scope: Any, values: Mapping[str, Any]) -> Iterator[_Variable]:
    for name, value in [*values.items()]:
        yield _Variable((id(scope), name), name, value, partial(_assigned_at, scope, name))
        yield from _attributes(name, value)


def _attributes(name: str, value: Any) -> Iterator[_Variable]:
    """The attributes of an object of a class of the student's."""
    if _file_of(type(value)) and hasattr(value, "__dict__"):
        for attribute, found in [*vars(value).items()]:
            at = partial(attribute_at, type(value), attribute)
            yield _Variable((id(value), attribute), f"{name}.{attribute}", found, at)


def _is_part(value: Any) -> bool:
    wanted = ("state_dict", "load_state_dict")
    return not isinstance(value, type) and all(callable(getattr(value, n, None)) for n in wanted)


def _state(value: Any, of_parts: Container[int]) -> str | None:
    """The state of what can be carried; None of anything else. Objects may hold tensors of parts,
    as a network within a model does: these do not count."""
    if _is_part(value):
        return digest(value.state_dict(), of_parts)
    carried = isinstance(value, GENERATORS) and not any(value is each for each in GLOBAL)
    return digest(value) if carried or _is_plain(value) else None


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple | set | deque):
        return len(value) <= MOST and all(map(_is_plain, value))
    return isinstance(value, PLAIN)


def _within(parts: Iterable[Part]) -> set[int]:
    """The ids of the objects that parts consist of."""
    found: set[int] = set()
    waiting: list[Any] = [*parts]
    while waiting and len(found) < 100_000:
        value = waiting.pop()
        if id(value) in found or isinstance(value, (type, *PLAIN)):
            continue
        found.add(id(value))
        if isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, list | tuple | set | deque):
            waiting += value
        else:
            waiting += getattr(value, "__dict__", {}).values()
    return found


# The short job.
#
# The student's settings are unchanged. Their job is shorter because of the engine: job.epochs() and
# job.steps() end earlier, and job.batches() has fewer and smaller batches. An epoch's last batch
# has fewer examples than the others, and evaluations fall within epochs.

STEPS, EVERY = 13, 5  # steps of a trial, and steps from one evaluation to the next
EXAMPLES, BATCHES = 16, 3.5  # at most, in a batch; batches in an epoch


class Moment(NamedTuple):
    """A moment at which a trial is interrupted: between two steps, or in an evaluation."""

    step: int
    evaluating: bool = False


class Few(Subset[Any]):
    """Some examples of a dataset. A class of its own: the loader then reads no others."""


class FewOfStream(IterableDataset[Any]):
    """A stream, without a state, that ends early: its second pass may be another."""

    def __init__(self, source: Any, count: int) -> None:
        self._source, self._count = source, count

    def __iter__(self) -> Iterator[Any]:
        return islice(self._source, self._count)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what copies and pickles ask for
            raise AttributeError(name)
        return getattr(self._source, name)

    def shard(self, number: int, index: int) -> "FewOfStream":
        """Return a part of it."""
        return FewOfStream(self._source.shard(number, index), ceil(self._count / number))


# What is recorded of a job.


class Kind(IntEnum):
    """Kinds of facts, in the order in which they occur in a step. START and STATE are the states of
    parts before and after training, BATCH is what job.steps() hands out."""

    START = 0
    BATCH = 1
    TRAINING = 2
    EVALUATION = 3
    STATE = 4
    RESULT = 5


class Fact(NamedTuple):
    """Something recorded about a trial under this name; facts are sorted in the order of a job."""

    step: int
    kind: Kind
    name: str


class Failure(NamedTuple):
    """Why a trial ended early, with a trace for a mistake, and where in the student's code."""

    error: SettingsError | JobError
    trace: str
    place: Place | None


NO_TRAINING = Answer(unknown="since job.resume(…) is not called")


@dataclass
class Outcome:
    """What came out of a trial, as its process sends it back. `stops` are the moments at which it
    was interrupted, `smaller` says whether batches were smaller than those of the job, `imported`
    are the student's files that were imported."""

    device: str = "cpu"
    facts: dict[Fact, str] = field(default_factory=dict)
    stops: tuple[Moment, ...] = ()
    spec: dict[str, Any] = field(default_factory=dict)
    resumed_at: Place | None = None
    smaller: bool = False
    imported: tuple[str, ...] = ()
    failure: Failure | None = None

    # What only a job that is looked at sees (watching.py).
    waits: Answer = NO_TRAINING
    gradients: Answer = NO_TRAINING
    measurements: Answer = NO_TRAINING
    forgotten: Answer = NO_TRAINING  # objects with a state that job.resume() was not given
    changes: tuple[Finding, ...] = ()  # all that is carried from step to step and not restored
    unstable: list[Finding] = field(default_factory=list)
    """Datasets whose examples are not the same when they are read again."""
    evaluations: list[tuple[bool, Place | None]] = field(default_factory=list)
    """Whether each drew from the global random numbers, and where."""

    changed_in_evaluation: list[Finding] = field(default_factory=list)
    in_background: bool = False
    clock: Place | None = None  # where a clock is first read


class ShortJob(Job[Any]):
    """A short job whose facts are noted, and which is interrupted at the first of the given moments
    that it reaches. If `smaller`, batches have at most EXAMPLES."""

    def __init__(self, folder: JobFolder[Any], stops: Sequence[Moment], smaller: bool) -> None:
        super().__init__(folder)
        self._most = EXAMPLES if smaller else sys.maxsize
        self._length = Length(SimpleNamespace(steps=STEPS))
        self._position = Position(SimpleNamespace(eval_every=str(EVERY)), self._length)
        self._stops = stops
        self.outcome = Outcome(self.device.type)

    def close(self) -> None:
        """Note what is known at the end."""
        super().close()
        self.outcome.spec = self._spec
        self.outcome.imported = tuple(filter(None, map(students_file, [*sys.modules.values()])))

    def batches(  # type: ignore[override]  # one signature is enough here
        self, part: Dataset[Any] | None, batch_size: int | Sampler, *args: Any, **kwargs: Any
    ) -> Batches | None:
        """Return the batches that a dataset would have if it were small; a stream with a state is
        whole."""
        if callable(batch_size):
            first: Sampler = lambda *given: batch_size(*given)[: ceil(BATCHES)]  # noqa: E731
            return super().batches(part, first, *args, **kwargs)
        size = min(batch_size, self._most)
        self.outcome.smaller |= size < batch_size
        if part is not None and is_stream(part):
            if not has_state(part):
                part = FewOfStream(part, int(BATCHES * size))
        elif part is not None:
            every = len(cast(Sized, part))
            count = min(int(BATCHES * size), every)
            # From all over the dataset, which may be sorted.
            part = Few(part, [number * every // count for number in range(count)])
        return super().batches(part, size, *args, **kwargs)

    def resume(self, **training: Part) -> None:
        """Note the state that training begins with."""
        self.outcome.resumed_at = here()
        super().resume(**training)
        if not self.step:
            self._note_states(0, Kind.START)

    def steps(self, *batches: Any, **examples: Any) -> Iterator[Any]:
        """Note each batch."""
        for batch in super().steps(*batches, **examples):
            self.outcome.facts[Fact(self.step + 1, Kind.BATCH, "batch")] = digest(batch)
            yield batch

    def end_training(self) -> None:
        """Note the state that training ends with."""
        if self._state and not self._position.over:
            self._note_states(STEPS, Kind.STATE)
        super().end_training()

    def _note_states(self, step: int, kind: Kind) -> None:
        for name, state in self._digests().items():
            self.outcome.facts[Fact(step, kind, name)] = state

    def _digests(self) -> dict[str, str]:
        return {name: digest(part.state_dict()) for name, part in self._parts.items()}

    def _first_state(self) -> dict[str, Any]:
        return {}  # the last step of the job of --init-from is far beyond the end of this one

    def _pause_if_due(self) -> None:
        if not self._position.evaluating:
            self._stop(Moment(self.step))

    def _begin_batch(self, batches: Batches) -> None:
        self._outputs.batch_of = batches
        in_background = threading.current_thread() is not threading.main_thread()
        if self._position.evaluating and not self._position.over and not in_background:
            self._stop(Moment(self.step, evaluating=True))

    def _stop(self, now: Moment) -> None:
        if now in self._stops:
            self.outcome.stops = (now,)
            raise Paused("for a moment")
