"""The job of a trial that is looked at while it runs."""

import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.data import Dataset
from torch.utils.weak import WeakIdKeyDictionary

from labjobs.checks import places
from labjobs.checks.facts import ShortJob
from labjobs.checks.operations import (
    FINE,
    GENERATORS,
    GLOBAL,
    Answer,
    Draws,
    Finding,
    Operations,
    address,
    digest,
    digests,
    draws,
    leaves,
    some,
    storages,
    tensors,
    weights,
    written,
)
from labjobs.checks.places import text_at
from labjobs.data import trees
from labjobs.data.batches import Batches
from labjobs.data.order import Collate, examples_at, underlying
from labjobs.data.streams import is_stream
from labjobs.devices import GlobalStreams
from labjobs.job.folder import JobFolder
from labjobs.sources import Place, is_students
from labjobs.training.optim import Count
from labjobs.training.progress import Part

# Does each parameter of the models that are trained get a gradient, and change?

UNUSED = "no gradient, though requires_grad is set; unused, or detached?"
UNTRAINED = "a gradient, but no change; does the optimizer have it?"


class _Parameter(NamedTuple):
    """A parameter, and where the student's code makes the layer that it is in."""

    name: str
    tensor: nn.Parameter
    place: Place | None
    before: str


class Gradients:
    """The gradients of the parameters of those parts that are modules, from now on."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        self._otherwise = places.here()
        self._all = [
            _Parameter(f"{name}.{path}", tensor, made_at(part, path), digest(tensor))
            for name, part in parts.items()
            if isinstance(part, nn.Module)
            for path, tensor in part.named_parameters()
        ]
        self._largest: dict[int, list[Tensor]] = {}
        for each in self._all:
            if each.tensor.requires_grad:
                each.tensor.register_post_accumulate_grad_hook(self._got)

    def answer(self) -> Answer:
        """Return which parameters do not take part in training."""
        if not self._largest:
            return Answer(unknown="since no loss.backward() was seen")
        trained = [each for each in self._all if each.tensor.requires_grad]
        unused = [each for each in trained if id(each.tensor) not in self._largest]
        got = [each for each in trained if any(map(bool, self._largest.get(id(each.tensor), ())))]
        same = [each for each in got if digest(each.tensor) == each.before]
        untrained = (
            same if len(same) < len(got) else []
        )  # otherwise, the learning rate is still too low
        found = (*self._by_place(unused, UNUSED), *self._by_place(untrained, UNTRAINED))
        frozen = [each for each in self._all if not each.tensor.requires_grad]
        if found or not frozen:
            return Answer(found) if found else FINE
        names = some([each.name for each in frozen])
        return Answer(unknown=f"whether {names} should be frozen ({frozen[0].place})")

    def _got(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        largest = parameter.grad.detach().abs().max()
        self._largest.setdefault(id(parameter), []).append(largest)

    def _by_place(self, parameters: Iterable[_Parameter], what: str) -> list[Finding]:
        """A finding for each line, since a layer has several parameters."""
        found: dict[Place | None, list[str]] = {}
        for each in parameters:
            found.setdefault(each.place or self._otherwise, []).append(each.name)
        return [Finding(place, f"{some(names)}: {what}") for place, names in found.items()]


def made_at(module: nn.Module, path: str) -> Place | None:
    """Return where the student's code creates the object at a path such as
    `network.layers.0.weight`: the innermost attribute of a class of the student's; None if there is
    none."""
    found = None
    for name in path.split("."):
        found = places.of_attribute(type(module), name) or found
        module = getattr(module, name)
    return found


# Do measurements have as many values as a batch has examples, tokens or pixels?
#
# A prediction (B, 1) minus a target (B,) has the shape (B, B); its mean is not the error of the
# predictions.

aten = torch.ops.aten

DIFFERENCES = {
    aten.huber_loss.default,
    aten.mse_loss.default,
    aten.smooth_l1_loss.default,
    aten.sub.Tensor,
}
"""Operations on a prediction and its target."""


class Measurements:
    """The numbers of values that training steps measure, and differences of unlike shapes."""

    def __init__(self) -> None:
        self._counts: defaultdict[str, dict[int, int]] = defaultdict(dict)
        self._logged: dict[str, Place | None] = {}
        self._unlike: dict[Place, str] = {}

    @contextmanager
    def step(self) -> Iterator[None]:
        """Look at a training step."""
        with Operations(self._done):
            yield

    def log(self, measured: Mapping[str, Any], examples: int) -> None:
        """Record what was measured on a number of examples."""
        for name, value in measured.items():
            if found := tensors(value):
                self._counts[name][examples] = found[0].numel()
                self._logged[name] = places.here()

    def answer(self) -> Answer:
        """Return which measurements have too many values, or the differences that cause them."""
        if self._unlike:
            return Answer(tuple(Finding(*each) for each in self._unlike.items()))
        if not self._counts:
            return Answer(unknown="since nothing is given to job.log(…)")
        squares = {name: counts for name, counts in self._counts.items() if _grows(counts)}
        return Answer(tuple(self._finding(name, counts) for name, counts in squares.items()))

    def _finding(self, name: str, counts: Mapping[int, int]) -> Finding:
        examples, values = max(counts.items())
        text = f"{name} has {values} values for {examples} examples, as if each met all others"
        return Finding(self._logged[name], text)

    def _done(self, func: Any, args: Any, _kwargs: dict[str, Any], result: Any) -> None:
        if func not in DIFFERENCES or len(found := tensors(args[:2])) != 2:
            return
        one, other = found
        place = places.here()
        expanded = func is not aten.sub.Tensor  # as torch's losses do with what they are given
        shapes = [_own_shape(each) if expanded else tuple(each.shape) for each in found]
        if place and one.requires_grad != other.requires_grad and _crossed(shapes):
            text = f"{shapes[0]} minus {shapes[1]} is {tuple(result.shape)}; give both one shape"
            self._unlike.setdefault(place, text)


def _grows(counts: Mapping[int, int]) -> bool:
    """Whether values grow with the square of the examples, in batches of several sizes."""
    rates = {values / examples**2 for examples, values in counts.items() if examples > 1}
    return len({each for each in counts if each > 1}) > 1 and len(rates) == 1 and min(rates) >= 1


def _crossed(shapes: list[tuple[int, ...]]) -> bool:
    """Whether one shape is a column, and the other a row with the same number of elements."""
    match sorted(shapes, key=len):
        case [(row,), (column, 1)]:
            return row == column and row > 1
    return False


def _own_shape(tensor: Tensor) -> tuple[int, ...]:
    """The shape that a tensor had before it was expanded."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    own = [1 if stride == 0 else size for size, stride in pairs]
    return tuple(own[1:] if own[:1] == [1] else own)


# Do training steps wait for the device, where the student's code reads a tensor's value?
#
# On a GPU, the host then waits. On a CPU, nothing waits, but the same lines are found: a tensor
# counts as being on the device if it was made from a batch, from weights, or with `device=`.

READS = {
    "item": ".item()",
    "tolist": ".tolist()",
    "numpy": ".numpy()",
    "cpu": ".cpu()",
    "to": '.to("cpu")',
    "__array__": "making a NumPy array of a tensor",
    "__bool__": "asking whether a tensor is true",
    "__contains__": "looking for a value in a tensor",
    "__float__": "float() of a tensor",
    "__format__": "formatting a tensor",
    "__index__": "a tensor as an index",
    "__int__": "int() of a tensor",
    "__repr__": "printing a tensor",
}
"""What reads a tensor's value, by the name of the function that torch calls for it."""

BY_VALUE = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""Tags of operations whose result, or its shape, the host has to know."""

DECLARED = "# waits"
"""The comment on a line that is meant to wait, as where an agent acts on what it has computed."""

LOGGED = "job.log(…) takes tensors and does not wait"


class Waits:
    """The lines of the student's code that read a tensor in a training step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marked = WeakIdKeyDictionary()
        self._found: dict[Place, str] = {}
        self._ignored = False

    def mark(self, tree: Any) -> None:
        """Treat the tensors in nested values as being on the device."""
        for tensor in tensors(tree):
            self._marked[tensor] = True

    @contextmanager
    def step(self, batch: Any) -> Iterator[None]:
        """Look at what is done with a batch."""
        self.mark(batch)
        with Operations(self._done), _Calls(self):
            yield

    def answer(self) -> Answer:
        """Return the lines that were found, except those whose comment says that they wait."""
        found = {
            place: what for place, what in self._found.items() if DECLARED not in text_at(place)
        }
        said = ((place, f"{what} waits for the device; {LOGGED}") for place, what in found.items())
        return Answer(tuple(Finding(place, text) for place, text in said))

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of torch for the student; some read a tensor on a CPU by no operation."""
        name = getattr(func, "__name__", "")
        reads = name in READS and (name != "to" or "cpu" in (*args[1:], kwargs.get("device")))
        if reads and self._on_device(args[:1]) and not kwargs.get("non_blocking"):
            self._note(READS[name])
        self._ignored = name == "one_hot" and len(args) + len(kwargs) > 1  # checked on CPUs alone
        result = func(*args, **kwargs)
        self._ignored = False
        if reads and isinstance(result, Tensor):
            return self._on_host(result)
        if isinstance(kwargs.get("device"), torch.device):
            self.mark(result)
        return result

    def _done(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        if not self._on_device((args, kwargs)):
            return
        self.mark(result)
        to_host = any(each.device.type != self._device.type for each in tensors(result))
        if (to_host and not kwargs.get("non_blocking")) or _by_value(func, args, kwargs):
            what = func.overloadpacket.__name__
            self._note(READS["item"] if what == "_local_scalar_dense" else what)

    def _on_device(self, tree: Any) -> bool:
        return any(
            each in self._marked if self._device.type == "cpu" else each.device == self._device
            for each in tensors(tree)
        )

    def _on_host(self, copy: Tensor) -> Tensor:
        """Return a copy that a GPU's host would have; on a CPU, it is the tensor itself."""
        other = copy.view_as(copy)
        self._marked.pop(other, None)
        return other

    def _note(self, what: str) -> None:
        place = places.here()
        if place and not self._ignored:
            self._found.setdefault(place, what)


class _Calls(TorchFunctionMode):
    """Hands over each call of torch's functions that the student's code makes.

    Source: docs.pytorch.org/docs/stable/notes/extending.html (`__torch_function__`).
    """

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self._waits = waits

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call the function."""
        return self._waits.called(func, args, kwargs or {})


def _by_value(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether the host has to know a value to go on after an operation."""
    if func is aten.index.Tensor:
        return any(index.dtype in (torch.bool, torch.uint8) for index in tensors(args[1]))
    if func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is not None:
        return False
    return bool(BY_VALUE & set(func.tags))


# Does evaluation leave the model and the random numbers of training alone, and is it repeatable?
#
# While the job of a trial evaluates, the global random numbers differ from those in the undisturbed
# trial. So a result that depends on them, as with dropout, differs too.

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


class SeenInEvaluation(NamedTuple):
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

    def end(self) -> SeenInEvaluation | None:
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
        return SeenInEvaluation(
            self._reads, changed, writes, drew and bool(drawn or not self._draws), drawn
        )

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


# What the student's code carries from step to step: variables that were there when the loop began,
# and have changed since. If such a variable was not passed to job.resume(), a continued job does
# not have its value.

PLAIN = (bool, int, float, complex, str, type(None), Tensor, np.ndarray, np.generic)

MOST = 1000
"""Values in a container that is looked at, at most."""


class Change(NamedTuple):
    """A variable that has changed, where it is made, and whether it has a `state_dict()` or is a
    generator of random numbers."""

    name: str
    place: Place
    is_part: bool
    is_generator: bool

    @property
    def text(self) -> str:
        """What is wrong with the variable, if it is part of the state."""
        if self.is_generator:
            return f"{self.name} is not restored; draw from torch's own random numbers"
        if self.is_part:
            return f"{self.name} changes while training, but job.resume(…) was not given it"
        return (
            f"{self.name} changes while training and is not restored; keep it in an object with "
            "state_dict() and load_state_dict(), and give that to job.resume(…)"
        )


class _Variable(NamedTuple):
    name: str
    value: Any
    place: Callable[[], Place | None]


class Carried:
    """Looks for what changes, beside the parts that job.resume() was given and some datasets."""

    def __init__(self, parts: Mapping[str, Part], datasets: Iterable[Dataset[Any]]) -> None:
        self._parts, self._datasets = parts, list(datasets)
        self._frames = places.running()
        self._before = {key: _state(found.value) for key, found in self._variables()}
        self._changes: dict[tuple[int, str], Change] = {}

    def look(self) -> None:
        """Record what has changed."""
        known, addresses = _within(self._parts.values()), storages(self._parts.values())
        for key, (name, value, place) in self._variables():
            before, now = self._before.get(key), _state(value)
            is_part, is_generator = _is_part(value), bool(_reads_state(value))
            own = (id(value), "") if is_part or is_generator else key  # it may have several names
            if not before or before == now or id(value) in known or own in self._changes:
                continue
            if is_part and _lies_at(addresses, value, before):
                continue
            if at := place():
                self._changes[own] = Change(name, at, is_part, is_generator)

    def changes(self) -> tuple[Change, ...]:
        """Return what has changed: first what has a `state_dict()`, then random numbers."""
        return tuple(
            sorted(
                self._changes.values(), key=lambda each: (not each.is_part, not each.is_generator)
            )
        )

    def forgotten(self) -> Answer:
        """Return which objects with a `state_dict()` have changed."""
        parts = (each for each in self.changes() if each.is_part)
        return Answer(tuple(Finding(each.place, each.text) for each in parts))

    def _variables(self) -> Iterator[tuple[tuple[int, str], _Variable]]:
        """The variables of the functions that run, of the student's modules, and of the student's
        objects in them, by their owner and name."""
        for frame in self._frames:
            if frame.f_code.co_name != "<module>":
                for name, value in frame.f_locals.items():
                    place = partial(places.of_local, frame, name)
                    yield (id(frame), name), _Variable(name, value, place)
                    yield from _attributes(name, value)
        for module in [*sys.modules.values()]:
            file = getattr(module, "__file__", None)
            if file and is_students(file):
                for name, value in [*vars(module).items()]:
                    found = _Variable(name, value, partial(places.of_global, file, name))
                    yield (id(module), name), found
                    yield from _attributes(name, value)
        for dataset in self._datasets:
            yield from _attributes(type(dataset).__name__, dataset)


def _attributes(name: str, value: Any) -> Iterator[tuple[tuple[int, str], _Variable]]:
    """The attributes of an object of a class of the student's."""
    file = getattr(sys.modules.get(type(value).__module__), "__file__", None)
    if file and is_students(file) and hasattr(value, "__dict__"):
        for attribute, found in [*vars(value).items()]:
            place = partial(places.of_attribute, type(value), attribute)
            yield (id(value), attribute), _Variable(f"{name}.{attribute}", found, place)


def _is_part(value: Any) -> bool:
    wanted = ("state_dict", "load_state_dict")
    return not isinstance(value, type) and all(callable(getattr(value, n, None)) for n in wanted)


def _reads_state(value: Any) -> Callable[[Any], Any] | None:
    if any(value is each for each in GLOBAL):
        return None
    return next((read for kind, read in GENERATORS.items() if isinstance(value, kind)), None)


def _state(value: Any) -> dict[str, str] | None:
    """The state of what can be carried; None of anything else."""
    if read := _reads_state(value):
        return {"": digest(read(value))}
    if _is_part(value):
        return digests(value.state_dict())
    return {"": digest(value)} if _is_plain(value) else None


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple | set | deque):
        return len(value) <= MOST and all(map(_is_plain, value))
    return isinstance(value, PLAIN)


def _lies_at(addresses: set[int], part: Any, before: Mapping[str, str]) -> bool:
    """Whether all that has changed of a part is a tensor at one of these addresses."""
    state = part.state_dict()
    now = digests(state)
    changed = [leaf for path, leaf in leaves(state).items() if now[path] != before.get(path)]
    return all(isinstance(leaf, Tensor) and address(leaf) in addresses for leaf in changed)


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


S = TypeVar("S")

REREAD = 8
"""Examples of a dataset that are read twice."""

UNSTABLE = "an example is not the same when it is read again; an augmentation may be random"

NO_TRAINING = Answer(unknown="since job.resume(…) is not called")


class Seen(NamedTuple):
    """What was seen of a job."""

    waits: Answer
    gradients: Answer
    measurements: Answer
    evaluations: tuple[SeenInEvaluation, ...]
    in_background: bool
    unstable: tuple[Finding, ...]
    """Datasets whose examples are not the same when they are read again."""
    forgotten: Answer
    changes: tuple[Change, ...]
    unpredictable: tuple[Place, ...]
    clocks: tuple[Place, ...]


class Watched(ShortJob[S]):
    """A job that is looked at."""

    def __init__(self, folder: JobFolder[S]) -> None:
        super().__init__(folder)
        self._named: Mapping[str, Part] = {}
        self._draws = Draws(self._drawn)
        self._waits = Waits(self.device)
        self._measurements = Measurements()
        self._gradients: Gradients | None = None
        self._carried: Carried | None = None
        self._evaluation: Evaluation | None = None
        self._evaluations: list[SeenInEvaluation] = []
        self._in_background = False
        self._datasets: list[Dataset[Any]] = []
        self._unstable: dict[Finding, None] = {}
        self._examples = 0

    def seen(self) -> Seen:
        """Return what was seen."""
        return Seen(
            waits=self._waits.answer() if self._gradients else NO_TRAINING,
            gradients=self._gradients.answer() if self._gradients else NO_TRAINING,
            measurements=self._measurements.answer(),
            evaluations=tuple(self._evaluations),
            in_background=self._in_background,
            unstable=tuple(self._unstable),
            forgotten=self._carried.forgotten() if self._carried else NO_TRAINING,
            changes=self._carried.changes() if self._carried else (),
            unpredictable=tuple(self._draws.unpredictable),
            clocks=tuple(self._draws.clocks),
        )

    def start(self) -> None:
        """Begin to look at the student's code."""
        super().start()
        self._draws.__enter__()

    def close(self) -> None:
        """Look no more."""
        self._draws.__exit__()
        super().close()

    def batches(  # type: ignore[override]
        self,
        part: Dataset[Any] | None,
        batch_size: int,
        shuffle: bool = False,
        collate: Collate | None = None,
    ) -> Batches | None:
        """Read some examples twice."""
        if part is not None and not is_stream(part):
            self._read_twice(*underlying(part))
        return super().batches(part, batch_size, shuffle, collate)

    def resume(self, **training: Part) -> None:
        """Note the parts that the student passes to job.resume()."""
        super().resume(**training)
        self._named = training
        self._waits.mark(weights(training.values()))
        self._gradients = Gradients(training)

    def epochs(self) -> Iterator[int]:
        """Note the variables that exist when the loop begins."""
        self._carried = Carried(self._named, self._datasets)
        yield from super().epochs()

    def steps(
        self, batches: Batches | None = None, *, examples: int = 0, **units: float
    ) -> Iterator[Any]:
        """Look at what is done with each batch."""
        self._end_evaluation()
        for batch in super().steps(batches, examples=examples, **units):
            self._examples = examples or trees.rows(batch) or 0
            with self._waits.step(batch), self._measurements.step():
                yield batch

    def parts(self, batch: Any, elements: Count | None = None) -> Iterator[tuple[Any, Tensor]]:
        """Record how many examples a part has."""
        for part, fraction in super().parts(batch, elements):
            self._examples = trees.rows(part) or 0
            yield part, fraction

    def log(self, measured: Mapping[str, Any] | None = None, **more: Any) -> None:
        """Look at what is measured."""
        self._measurements.log({**(measured or {}), **more}, self._examples)
        super().log(measured, **more)

    def log_epoch(self, metrics: Mapping[str, float]) -> None:
        """End an evaluation."""
        self._end_evaluation()
        super().log_epoch(metrics)

    def load_best(self, **models: nn.Module) -> None:
        """Begin the evaluation on test data."""
        super().load_best(**models)
        self._begin_evaluation()

    def finish(self, results: Mapping[str, float]) -> dict[str, float]:
        """End the evaluation on test data."""
        self._end_evaluation()
        return super().finish(results)

    def in_background(
        self, function: Callable[[nn.Module], Any], model: nn.Module, at_once: int = 1
    ) -> Iterator[tuple[Any, nn.Module]]:
        """Ignore evaluations in other threads."""
        self._end_evaluation()
        self._in_background = True
        yield from super().in_background(function, model, at_once)

    def _end_steps(self) -> None:
        super()._end_steps()
        if self._carried:
            self._carried.look()
        self._begin_evaluation()

    def _read_twice(self, dataset: Dataset[Any], indices: Tensor) -> None:
        self._datasets.append(dataset)
        once, again = (digest(examples_at(dataset, indices[:REREAD], list)) for _ in range(2))
        if once != again:
            place = places.of_method(type(dataset), "__getitem__") or places.here()
            self._unstable[Finding(place, UNSTABLE)] = None  # one line for all parts

    def _begin_evaluation(self) -> None:
        self._end_evaluation()
        self._evaluation = Evaluation(self._named, self._random, self.device)

    def _end_evaluation(self) -> None:
        evaluation, self._evaluation = self._evaluation, None
        if evaluation and (seen := evaluation.end()):
            self._evaluations.append(seen)

    def _check_evaluation(self) -> None:
        super()._check_evaluation()
        if self._evaluation and not self._in_background:
            self._evaluation.read()

    def _drawn(self) -> None:
        if self._evaluation:
            self._evaluation.draw()
