"""A job that is looked at while it runs: how its steps read and measure tensors, what gets
gradients, and what evaluation changes.
"""

import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import FrameType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import Dataset
from torch.utils.weak import WeakIdKeyDictionary

from labjobs.checks import facts
from labjobs.checks.facts import (
    GENERATORS,
    GLOBAL,
    Answer,
    Carried,
    Finding,
    ShortJob,
    address,
    addresses,
    digest,
    digests,
    here,
    line_of,
    some,
    tensors,
)
from labjobs.data import trees
from labjobs.data.batches import Batches
from labjobs.data.order import examples_at, underlying
from labjobs.devices import GlobalStreams
from labjobs.job.folder import JobFolder
from labjobs.sources import Place, is_students
from labjobs.training.optim import Count
from labjobs.training.progress import Part

S = TypeVar("S")
T = TypeVar("T")


# Operations of torch, observed as they run, including those in the backward pass and in libraries.


class Operations(TorchDispatchMode):
    """Within its context, tells listeners of each operation, its arguments and its result.

    Source: docs.pytorch.org/docs/stable/notes/extending.html (`__torch_dispatch__`).
    """

    def __init__(self, *listeners: Callable[[Any, Any, dict[str, Any], Any], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._listeners = listeners

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Do the operation."""
        result = func(*args, **(kwargs or {}))
        for listener in self._listeners:
            listener(func, args, kwargs or {}, result)
        return result


# Does each parameter of the models that are trained get a gradient, and change?

UNUSED = "no gradient, though requires_grad is set; unused, or detached?"
UNTRAINED = "a gradient, but no change; does the optimizer have it?"


class _Parameter(NamedTuple):
    name: str
    tensor: nn.Parameter
    place: Place | None
    before: str


class Gradients:
    """The gradients of the parameters of those parts that are modules, from now on."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        self._all = [
            _Parameter(f"{name}.{path}", tensor, _made_at(part, path) or here(), digest(tensor))
            for name, part in parts.items()
            if isinstance(part, nn.Module)
            for path, tensor in part.named_parameters()
        ]
        self._largest: dict[int, list[Tensor]] = {}
        for each in self._all:
            if each.tensor.requires_grad:
                each.tensor.register_post_accumulate_grad_hook(self._note)

    def _note(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        largest = parameter.grad.detach().abs().max()
        self._largest.setdefault(id(parameter), []).append(largest)

    def answer(self) -> Answer:
        """Return which parameters do not take part in training."""
        if not self._largest:
            return Answer(unknown="since no loss.backward() was seen")
        trained = [each for each in self._all if each.tensor.requires_grad]
        unused = [each for each in trained if id(each.tensor) not in self._largest]
        moved = [each for each in trained if any(map(bool, self._largest.get(id(each.tensor), ())))]
        same = [each for each in moved if digest(each.tensor) == each.before]
        if len(same) == len(moved):  # the learning rate is still too low
            same = []
        found = (*_by_place(unused, UNUSED), *_by_place(same, UNTRAINED))
        frozen = [each for each in self._all if not each.tensor.requires_grad]
        if found or not frozen:
            return Answer(found)
        names = some([each.name for each in frozen])
        return Answer(unknown=f"whether {names} should be frozen ({frozen[0].place})")


def _by_place(parameters: Iterable[_Parameter], what: str) -> list[Finding]:
    """A finding for each line, since a layer has several parameters."""
    found = defaultdict(list)
    for each in parameters:
        found[each.place].append(each.name)
    return [Finding(place, f"{some(names)}: {what}") for place, names in found.items()]


def _made_at(module: nn.Module, path: str) -> Place | None:
    """Where the student's code creates the object at a path such as `network.layers.0.weight`: the
    innermost attribute of a class of the student's."""
    found = None
    for name in path.split("."):
        found = facts.attribute_at(type(module), name) or found
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
        self._unlike: dict[Place, Finding] = {}

    def log(self, measured: Mapping[str, Any], examples: int) -> None:
        """Record what was measured on a number of examples."""
        for name, value in measured.items():
            if found := tensors(value):
                self._counts[name][examples] = found[0].numel()
                self._logged[name] = here()

    def done(self, func: Any, args: Any, _kwargs: dict[str, Any], result: Any) -> None:
        """Record a difference of unlike shapes."""
        if func not in DIFFERENCES or len(found := tensors(args[:2])) != 2:
            return
        shapes = [tuple(each.shape) for each in found]
        if func is not aten.sub.Tensor:  # torch's losses expand what they are given
            shapes = [_own_shape(each) for each in found]
        if not _crossed(shapes) or found[0].requires_grad == found[1].requires_grad:
            return
        if place := here():
            text = f"{shapes[0]} minus {shapes[1]} is {tuple(result.shape)}; give both one shape"
            self._unlike.setdefault(place, Finding(place, text))

    def answer(self) -> Answer:
        """Return which measurements have too many values, or the differences that cause them."""
        if self._unlike:
            return Answer(tuple(self._unlike.values()))
        if not self._counts:
            return Answer(unknown="since nothing is given to job.log(…)")
        found = []
        for name, counts in self._counts.items():
            # Values grow with the square of the examples, in batches of several sizes.
            rates = [values / examples**2 for examples, values in counts.items() if examples > 1]
            if len(rates) > 1 and len({*rates}) == 1 and rates[0] >= 1:
                examples, values = max(counts.items())
                text = f"{name} has {values} values for {examples} examples, as if each met all"
                found.append(Finding(self._logged[name], f"{text} others"))
        return Answer(tuple(found))


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


class Waits(TorchFunctionMode):
    """The lines of the student's code that read a tensor of the device, within its context.

    Source: docs.pytorch.org/docs/stable/notes/extending.html (`__torch_function__`).
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._marked = WeakIdKeyDictionary()
        self._found: dict[Place, str] = {}
        self._ignored = False

    def mark(self, tree: Any) -> None:
        """Treat the tensors in nested values as being on the device."""
        for tensor in tensors(tree):
            self._marked[tensor] = True

    def answer(self) -> Answer:
        """Return the lines that were found, except those whose comment says that they wait."""
        found = [
            Finding(place, f"{what} waits for the device; {LOGGED}")
            for place, what in self._found.items()
            if DECLARED not in facts.text_at(place)
        ]
        return Answer(tuple(found))

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch for the student; some read a tensor on a CPU by no operation."""
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        reads = name in READS and (name != "to" or "cpu" in (*args[1:], kwargs.get("device")))
        if reads and self._on_device(args[:1]) and not kwargs.get("non_blocking"):
            self._note(READS[name])
        self._ignored = name == "one_hot" and len(args) + len(kwargs) > 1  # checked on CPUs alone
        result = func(*args, **kwargs)
        self._ignored = False
        if reads and isinstance(result, Tensor):
            copy = result.view_as(result)  # what a GPU's host would have; on a CPU, the same tensor
            self._marked.pop(copy, None)
            return copy
        if isinstance(kwargs.get("device"), torch.device):
            self.mark(result)
        return result

    def done(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """Record an operation that makes the host wait."""
        if not self._on_device((args, kwargs)):
            return
        self.mark(result)
        to_host = any(each.device.type != self._device.type for each in tensors(result))
        if (to_host and not kwargs.get("non_blocking")) or _by_value(func, args, kwargs):
            what = func.overloadpacket.__name__
            self._note(READS["item"] if what == "_local_scalar_dense" else what)

    def _on_device(self, tree: Any) -> bool:
        if self._device.type == "cpu":
            return any(each in self._marked for each in tensors(tree))
        return any(each.device == self._device for each in tensors(tree))

    def _note(self, what: str) -> None:
        place = here()
        if place and not self._ignored:
            self._found.setdefault(place, what)


def _by_value(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the host has to know a value to go on after an operation."""
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


class SeenInEvaluation(NamedTuple):
    """What was seen of one evaluation that read batches."""

    reads: Place
    changes: Finding | None
    """What it changes of the state."""
    drew: bool
    """Whether the global random numbers were used."""
    draws: Finding | None
    """Where they were."""


class _Event(NamedTuple):
    """The line that evaluates, and the line in the evaluation that does something; often the same
    line. The student's frames from one to the other."""

    outer: Place
    inner: Place
    frames: list[FrameType]


class Evaluation:
    """One evaluation, from now until its `end`, that is called from a frame of the student's.

    A function that this calls evaluates if it reads batches. Other things that it does, such as
    updating an average of weights, are ignored.
    """

    def __init__(self, parts: Mapping[str, Part], random: GlobalStreams, device: Any) -> None:
        self._parts, self._random = parts, random
        self._base = next(iter(facts.running()), None)
        self._before = self._states()
        self._addresses = addresses(parts.values())
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
        self._reads = self._reads or event.outer
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
        writes, drawn = self._of_evaluation(self._writes), self._of_evaluation(self._draws)
        by_loop = self._writes and not writes
        changed = [name for name, now in self._states().items() if now != self._before.get(name)]
        changes = draws = None
        if changed and not by_loop:
            text = f"evaluation changes {some(changed)}; is the model in training mode?"
            changes = Finding(writes.outer if writes else self._reads, text)
        if drawn:
            within = f" (in {drawn.inner})" if drawn.inner != drawn.outer else ""
            draws = Finding(drawn.outer, f": random numbers are drawn{within}")
        drew = drew and bool(drawn or not self._draws)
        return SeenInEvaluation(self._reads, changes, drew, draws)

    def _states(self) -> dict[str, str]:
        return digests({name: part.state_dict() for name, part in self._parts.items()})

    def _done(self, func: Any, args: Any, kwargs: dict[str, Any], _result: Any) -> None:
        if torch.Tag.nondeterministic_seeded in func.tags and kwargs.get("generator") is None:
            self._draws.append(self._event())
        schema = zip(func._schema.arguments, args, strict=False)
        written = [tensor for about, arg in schema if about.is_write for tensor in tensors(arg)]
        if any(address(tensor) in self._addresses for tensor in written):
            self._writes.append(self._event())

    def _event(self) -> _Event:
        running = facts.running()
        below = running[: running.index(self._base)] if self._base in running else running
        outer = below[-1] if below else running[0]
        return _Event(line_of(outer), line_of(running[0]), below)

    def _of_evaluation(self, events: list[_Event]) -> _Event | None:
        """The first event in a function that evaluates, or in the loop if that reads batches."""
        inline = not self._evaluates
        for event in events:
            if inline or any(frame in self._evaluates for frame in event.frames):
                return event
        return None


# The job.

CLOCKS = (time.time, time.time_ns, time.monotonic, time.perf_counter, datetime.now)

READERS = ("getstate", "get_state")
"""Methods of generators that draw no number."""

REREAD = 8
"""Examples of a dataset that are read twice."""

UNSTABLE = "an example is not the same when it is read again; an augmentation may be random"

NO_TRAINING = Answer(unknown="since job.resume(…) is not called")


@dataclass
class Seen:
    """What was seen of a job."""

    waits: Answer = NO_TRAINING
    gradients: Answer = NO_TRAINING
    measurements: Answer = NO_TRAINING
    forgotten: Answer = NO_TRAINING
    """Objects with a state that job.resume() was not given."""
    changes: tuple[Finding, ...] = ()
    """All that is carried from step to step and not restored."""
    unstable: list[Finding] = field(default_factory=list)
    """Datasets whose examples are not the same when they are read again."""
    evaluations: list[SeenInEvaluation] = field(default_factory=list)
    in_background: bool = False
    unpredictable: list[Place] = field(default_factory=list)
    clocks: list[Place] = field(default_factory=list)


class Watched(ShortJob[S]):
    """A job that is looked at."""

    def __init__(self, folder: JobFolder[S]) -> None:
        super().__init__(folder)
        self._seen = Seen()
        self._named: Mapping[str, Part] = {}
        self._datasets: list[Dataset[Any]] = []
        self._examples = 0
        self._waits, self._measurements = Waits(self.device), Measurements()
        self._gradients: Gradients | None = None
        self._carried: Carried | None = None
        self._evaluation: Evaluation | None = None

    def seen(self) -> Seen:
        """Return what was seen."""
        seen = self._seen
        seen.measurements = self._measurements.answer()
        if self._gradients:
            seen.waits, seen.gradients = self._waits.answer(), self._gradients.answer()
        if self._carried:
            seen.forgotten, seen.changes = Answer(self._carried.forgotten), self._carried.changes
        return seen

    def start(self) -> None:
        """Begin to look at the student's code."""
        super().start()
        sys.setprofile(self._called)

    def close(self) -> None:
        """Look no more."""
        sys.setprofile(None)
        super().close()

    def resume(self, **training: Part) -> None:
        """Note the parts that the student passes to job.resume()."""
        super().resume(**training)
        self._named = training
        for part in training.values():
            if isinstance(part, nn.Module):
                self._waits.mark([*part.parameters(), *part.buffers()])
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
            self._waits.mark(batch)
            with Operations(self._waits.done, self._measurements.done), self._waits:
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
        self._seen.in_background = True
        yield from super().in_background(function, model, at_once)

    def _look_at(self, part: Dataset[Any]) -> None:
        """Read some examples twice."""
        dataset, indices = underlying(part)
        self._datasets.append(dataset)
        once, again = (digest(examples_at(dataset, indices[:REREAD], list)) for _ in range(2))
        if once != again:
            at = facts.method_at(type(dataset), "__getitem__") or here()
            _note(self._seen.unstable, Finding(at, UNSTABLE))  # one line for all parts

    def _end_steps(self) -> None:
        super()._end_steps()
        if self._carried:
            self._carried.look()
        self._begin_evaluation()

    def _begin_evaluation(self) -> None:
        self._end_evaluation()
        self._evaluation = Evaluation(self._named, self._random, self.device)

    def _end_evaluation(self) -> None:
        evaluation, self._evaluation = self._evaluation, None
        if evaluation and (seen := evaluation.end()):
            self._seen.evaluations.append(seen)

    def _check_evaluation(self) -> None:
        super()._check_evaluation()
        if self._evaluation and not self._seen.in_background:
            self._evaluation.read()

    def _called(self, frame: FrameType, event: str, called: Any) -> None:
        """Note the lines that ask a clock or for an unpredictable number, and each use of a global
        generator.

        Before Python 3.12, NumPy's generators are not seen: Python does not report calls of
        Cython's functions. Source: docs.python.org/3/library/sys.html#sys.setprofile.
        """
        if event != "c_call":
            return
        owner, unpredictable = getattr(called, "__self__", None), called is os.urandom
        if isinstance(owner, tuple(GENERATORS)) and called.__name__ not in READERS:
            if any(owner is each for each in GLOBAL):
                if self._evaluation:
                    self._evaluation.draw()
            else:
                unpredictable = called.__name__ == "seed"  # by chance, as `random.Random()` does
        if unpredictable and (at := facts.asking(frame)):
            _note(self._seen.unpredictable, at)
        elif called in CLOCKS and is_students(frame.f_code.co_filename):
            _note(self._seen.clocks, line_of(frame))


def _note(noted: list[T], new: T) -> None:
    if new not in noted:
        noted.append(new)
