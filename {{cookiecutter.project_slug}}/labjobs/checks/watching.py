"""A job that is looked at while it runs: how its steps read and measure tensors, what gets
gradients, and what evaluation changes.
"""

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import datetime
from difflib import get_close_matches
from linecache import getline
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import Dataset
from torch.utils.weak import WeakIdKeyDictionary

from labjobs.checks.facts import (
    Answer,
    Carried,
    Finding,
    Moment,
    ShortJob,
    attribute_at,
    digest,
    here,
    line_of,
    running,
    tensors,
)
from labjobs.data.batches import Batches, is_stream
from labjobs.data.order import examples_at, underlying
from labjobs.devices import GlobalStreams
from labjobs.errors import few
from labjobs.files import CODE
from labjobs.job.folder import JobFolder
from labjobs.sources import Place, is_students, place
from labjobs.training.progress import Part

ALIKE = 0.8  # similarity of two names of which one may be a misspelling; 1 is equal


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
        result = func(*args, **(kwargs or {}))
        for listener in self._listeners:
            listener(func, args, kwargs or {}, result)
        return result


# Does each parameter of the models that are trained get a gradient, and change?

UNUSED = "no gradient, though requires_grad is set; unused, or detached?"
UNTRAINED = "a gradient, but no change; does the optimizer have it?"

NAMED = 2  # the largest number of names in a line


class _Parameter(NamedTuple):
    name: str
    tensor: nn.Parameter
    place: Place | None
    before: str


class Gradients:
    """The gradients of those parameters of parts that require one, from now on."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        self._all = [
            _Parameter(f"{name}.{path}", tensor, _made_at(part, path) or here(), digest(tensor))
            for name, part in parts.items()
            if isinstance(part, nn.Module)
            for path, tensor in part.named_parameters()
            if tensor.requires_grad
        ]
        self._some: dict[int, Tensor] = {}  # whether any gradient was not 0, by a tensor's id
        for each in self._all:
            each.tensor.register_post_accumulate_grad_hook(self._note)

    def _note(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        some = parameter.grad.detach().any()
        self._some[id(parameter)] = some | self._some.get(id(parameter), some)

    def answer(self) -> Answer:
        """Return which parameters do not take part in training."""
        if not self._some:
            return Answer(unknown="since no loss.backward() was seen")
        unused = [each for each in self._all if id(each.tensor) not in self._some]
        moved = [each for each in self._all if bool(self._some.get(id(each.tensor), False))]
        same = [each for each in moved if digest(each.tensor) == each.before]
        if len(same) == len(moved):  # the learning rate is still too low
            same = []
        return Answer((*_by_place(unused, UNUSED), *_by_place(same, UNTRAINED)))


def _by_place(parameters: Iterable[_Parameter], what: str) -> list[Finding]:
    """A finding for each line, since a layer has several parameters."""
    found = defaultdict(list)
    for each in parameters:
        found[each.place].append(each.name)
    return [Finding(at, f"{few(names, NAMED)}: {what}") for at, names in found.items()]


def _made_at(module: nn.Module, path: str) -> Place | None:
    """Where the student's code creates the object at a path such as `network.layers.0.weight`: the
    innermost attribute of a class of the student's."""
    found = None
    for name in path.split("."):
        found = attribute_at(type(module), name) or found
        module = getattr(module, name)
    return found


# Do a prediction and its target have the same shape?
#
# A prediction (B, 1) minus a target (B,) has the shape (B, B); its mean is not the error of the
# predictions. Of its own losses, such as mse_loss, torch says so itself.

aten = torch.ops.aten


class Differences(dict[Place, Finding]):
    """The differences of a column and a row, of which one is a prediction, by their lines."""

    def done(self, func: Any, args: Any, _kwargs: dict[str, Any], result: Any) -> None:
        """Look at an operation."""
        if func is not aten.sub.Tensor or len(found := tensors(args[:2])) != 2:
            return
        shapes = [tuple(each.shape) for each in found]
        row, column = sorted(shapes, key=len)
        crossed = len(row) == 1 and row[0] > 1 and column == (*row, 1)
        is_error = found[0].requires_grad != found[1].requires_grad
        if is_error and crossed and (place := here()):
            text = f"{shapes[0]} minus {shapes[1]} is {tuple(result.shape)}; give both one shape"
            self.setdefault(place, Finding(place, text))


# Do training steps wait for the device, where the student's code reads a tensor's value?
#
# On a GPU, the host then waits. On a CPU, nothing waits, but the same lines are found: a tensor
# counts as being on the device if it was made from a batch, from weights, or with `device=`.

READS = {
    *("item", "tolist", "numpy", "cpu", "to", "__array__", "__bool__", "__contains__"),
    *("__float__", "__format__", "__index__", "__int__", "__repr__"),
}
"""What reads a tensor's value: the functions that torch calls for it."""

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
            Finding(place, f"{name.strip('_')}() waits for the device; {LOGGED}")
            for place, name in self._found.items()
            if DECLARED not in getline(str(CODE / place.file), place.line)
        ]
        return Answer(tuple(found))

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch for the student; some read a tensor on a CPU by no operation."""
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        reads = name in READS and (name != "to" or "cpu" in (*args[1:], kwargs.get("device")))
        if reads and self._on_device(args[:1]) and not kwargs.get("non_blocking"):
            self._note(name)
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
            self._note("item" if what == "_local_scalar_dense" else what)

    def _on_device(self, tree: Any) -> bool:
        if self._device.type == "cpu":
            return any(each in self._marked for each in tensors(tree))
        return any(each.device == self._device for each in tensors(tree))

    def _note(self, name: str) -> None:
        place = here()
        if place and not self._ignored:
            self._found.setdefault(place, name)


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
# trial. So a result that depends on them, as with dropout, differs too. The first evaluation shows
# which functions of the student's read the batches; from then on, the whole of them is looked at.

OTHER_SEED = 2**31 - 1


# The job.

CLOCKS = (time.time, time.time_ns, time.monotonic, time.perf_counter, datetime.now)

REREAD = 8  # examples of a dataset that are read twice

UNSTABLE = "an example is not the same when it is read again; an augmentation may be random"


class Watched(ShortJob):
    """A job that is looked at."""

    def __init__(self, folder: JobFolder[Any], stops: Sequence[Moment], smaller: bool) -> None:
        super().__init__(folder, stops, smaller)
        self._datasets: list[Dataset[Any]] = []
        self._waits, self._differences = Waits(self.device), Differences()
        self._gradients: Gradients | None = None
        self._carried: Carried | None = None
        self._measured: dict[str, Place | None] = {}
        self._loop: FrameType | None = None
        self._evaluate = set[CodeType]()  # functions that the loop calls to evaluate
        self._whole: tuple[FrameType, ExitStack] | None = None  # a call of one that is looked at

    def start(self) -> None:
        """Begin to look at the student's code."""
        super().start()
        sys.setprofile(self._called)

    def close(self) -> None:
        """Look no more, and note what was seen."""
        sys.setprofile(None)
        super().close()
        seen = self.outcome
        if self._gradients:
            seen.waits, seen.gradients = self._waits.answer(), self._gradients.answer()
            seen.measurements = Answer((*self._differences.values(), *self._misspelt()))
        if self._carried:
            changes = self._carried.changes
            seen.forgotten = Answer(tuple(found for kind, found in changes if kind == 0))
            seen.changes = tuple(found for _, found in changes)

    def batches(self, part: Dataset[Any] | None, *args: Any, **kwargs: Any) -> Batches | None:  # type: ignore[override]
        """Read some examples twice, and look at each pass over the batches."""
        if part is not None and not is_stream(part):
            self._look_at(part)
        made = super().batches(part, *args, **kwargs)
        if made is not None:
            made.watch = self._evaluation
        return made

    def resume(self, **training: Part) -> None:
        """Look at the parts that the student passes to job.resume()."""
        super().resume(**training)
        for part in training.values():
            if isinstance(part, nn.Module):
                self._waits.mark([*part.parameters(), *part.buffers()])
        self._gradients = Gradients(training)

    def epochs(self) -> Iterator[int]:
        """Note the variables that exist when the loop begins."""
        self._carried, self._loop = Carried(self._parts, self._datasets), running()[0]
        yield from super().epochs()

    def steps(self, *batches: Any, **examples: Any) -> Iterator[Any]:
        """Look at what is done with each batch."""
        for batch in super().steps(*batches, **examples):
            self._waits.mark(batch)
            with Operations(self._waits.done, self._differences.done), self._waits:
                yield batch

    def log(self, measured: Mapping[str, Any] | None = None, **more: Any) -> None:
        """Note the names of what is measured."""
        super().log(measured, **more)
        for name in {**(measured or {}), **more}:
            self._measured.setdefault(name, here())

    def _misspelt(self) -> Iterator[Finding]:
        """Metrics that are declared and not measured, if another name is nearly the same."""
        declared = self._folder.metrics.keys()
        others = self._measured.keys() - declared
        for name in declared - self._measured.keys():
            for near in get_close_matches(name, others, n=1, cutoff=ALIKE):
                line = f"METRICS in settings.py has {name}, which is not measured, but {near} is"
                yield Finding(self._measured[near], line)

    def _look_at(self, part: Dataset[Any]) -> None:
        dataset, indices = underlying(part)
        self._datasets.append(dataset)
        once, again = (digest(examples_at(dataset, indices[:REREAD], list)) for _ in range(2))
        if once != again:
            at, code = here(), getattr(type(dataset).__getitem__, "__code__", None)
            if code and is_students(code.co_filename):
                at = place(code.co_filename, code.co_firstlineno)
            found = Finding(at, UNSTABLE)
            if found not in self.outcome.unstable:  # one line for all parts
                self.outcome.unstable.append(found)

    def _end_steps(self) -> None:
        super()._end_steps()
        if self._carried:
            self._carried.look()

    @contextmanager
    def _evaluation(self) -> Iterator[None]:
        """Look at a pass over batches, unless it is in another thread, or before training."""
        in_background = threading.current_thread() is not threading.main_thread()
        self.outcome.in_background |= in_background
        if in_background or not (self._position.evaluating or self._position.over):
            yield
            return
        frames = running()
        if self._loop in frames[1:]:
            self._evaluate.add(frames[frames.index(self._loop) - 1].f_code)
        with (
            nullcontext() if self._whole else self._drawing(frames[0]),
            self._changing(self._parts),
        ):
            yield

    @contextmanager
    def _changing(self, parts: Iterable[str]) -> Iterator[None]:
        """Note which of these parts change."""
        before, at = self._digests(), here()
        yield
        now = self._digests()
        if changed := [name for name in parts if now[name] != before[name]]:
            text = f"evaluation changes {', '.join(changed)}; is the model in training mode?"
            self.outcome.changed_in_evaluation.append(Finding(at, text))

    @contextmanager
    def _drawing(self, reading: FrameType) -> Iterator[None]:
        """Give random numbers that training does not have; note whether some are drawn, and where:
        in the line of the function that reads the batches, or else the innermost one."""
        training, drawn_at, at = self._random.state_dict(), list[Place](), line_of(reading)
        GlobalStreams(OTHER_SEED, self.device)
        others = digest(self._random.state_dict())

        def done(func: Any, args: Any, kwargs: dict[str, Any], _result: Any) -> None:
            seeded = torch.Tag.nondeterministic_seeded in func.tags
            if seeded and kwargs.get("generator") is None and not drawn_at:
                drawn_at.append(line_of(reading))

        with Operations(done):
            yield
        drew = digest(self._random.state_dict()) != others
        self._random.load_state_dict(training)
        self.outcome.evaluations.append((drew, [*drawn_at, at][0]))

    def _called(self, frame: FrameType, event: str, called: Any) -> None:
        """Note the first line that reads a clock, and look at all of a function that evaluates.

        Source: docs.python.org/3/library/sys.html#sys.setprofile.
        """
        if event == "c_call" and called in CLOCKS and is_students(frame.f_code.co_filename):
            self.outcome.clock = self.outcome.clock or line_of(frame)
        elif event == "return" and self._whole and self._whole[0] is frame:
            _, looking = self._whole
            self._whole = None
            looking.close()
        elif event == "call" and frame.f_code in self._evaluate and not self._whole:
            self._whole = frame, ExitStack()
            self._whole[1].enter_context(self._drawing(frame))
            self._whole[1].enter_context(self._changing(self._models))

    @property
    def _models(self) -> list[str]:
        """The parts that no evaluation changes; a schedule may wait for its result."""
        found = [(name, getattr(part, "model", part)) for name, part in self._parts.items()]
        return [name for name, part in found if isinstance(part, nn.Module)]
