"""How the student's functions are called: forward functions under autocast, compiled where that is
worth it; an evaluation in the background; a whole optimizer step as one CUDA graph.

Compiled code is kept in the project's `.cache`, so the second job of a kind starts warm. Source:
docs.pytorch.org/docs/stable/user_guide/torch_compiler/torch.compiler.html.
"""

import logging
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from labjobs import devices, layout, machine, sources
from labjobs.data import trees
from labjobs.devices import Precision
from labjobs.distributed.collectives import Processes
from labjobs.errors import JobError, cause
from labjobs.files import PROJECT
from labjobs.job.terminal import log
from labjobs.training.meters import Measured, NamedSum, Sum, TrainMeter, summed, sums_of, wide
from labjobs.training.optim import EMA

# Activation checkpointing: blocks keep only their input, and recompute the rest, at the cost of
# about one more forward pass. Source: Chen et al. 2016, arxiv.org/abs/1604.06174;
# docs.pytorch.org/docs/stable/checkpoint.html.


def recompute_blocks(network: nn.Module) -> int:
    """Have each block of a network recompute its activations; return the number of blocks. The
    names of weights and the results do not change."""
    found = [*blocks(network)]
    for block in found:
        block.forward = _Recomputed(block)
    return len(found)


def blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the blocks of a network.

    A block is an element of a Sequential or a ModuleList with at least two layers that have
    weights, such as those of ResNets, ViTs and this project's ConvNet. A block within a block
    belongs to the outer one.
    """
    for child in module.children():
        listed = isinstance(module, nn.Sequential | nn.ModuleList)
        layers = sum(bool([*each.parameters(recurse=False)]) for each in child.modules())
        if listed and not isinstance(child, nn.ModuleList) and layers > 1:
            yield child
        else:
            yield from blocks(child)


class _Recomputed:
    """A block's forward pass, which is repeated in the backward pass: with the buffers, such as the
    running statistics of norms, that it began with, and without changing them again."""

    def __init__(self, block: nn.Module) -> None:
        self._block = block
        self._has_norms = any(isinstance(part, _NormBase) for part in block.modules())

    def __call__(self, *inputs: Any) -> Any:
        forward = partial(type(self._block).forward, self._block)
        if not torch.is_grad_enabled():
            return forward(*inputs)
        if self._has_norms or not torch.compiler.is_compiling():
            return self._with_buffers(forward, *inputs)
        return checkpoint(forward, *inputs, use_reentrant=False)

    # Compiled, the second pass would update the statistics again.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _with_buffers(self, forward: Callable[..., Any], *inputs: Any) -> Any:
        changed: list[Buffer] | None = None

        def run(*given: Any) -> Any:
            """Return what the block makes of its inputs, the first time or again."""
            nonlocal changed
            if changed is not None:
                with _buffers_of(changed):
                    return forward(*given)
            # Those of today: run.py may have put norms of several processes in others' place.
            parts = [*self._block.modules()]
            before = [(each._buffers, *own) for each in parts for own in each._buffers.items()]
            # Norms change their statistics in a way that no version tells.
            of_norms = {id(each._buffers) for each in parts if isinstance(each, _NormBase)}
            versions = [getattr(each, "_version", 0) for *_, each in before]
            copies = _copies(before)
            result = forward(*given)
            changed = [
                (own, name, copies[id(each)])
                for (own, name, each), version in zip(before, versions, strict=True)
                if each is not None
                and (id(own) in of_norms or own.get(name) is not each or each._version != version)
            ]
            return result

        return checkpoint(run, *inputs, use_reentrant=False)


Buffer = tuple[dict[str, Tensor | None], str, Tensor | None]
"""The buffers of a module, a name in them, and what was there."""


def _copies(buffers: Iterable[Buffer]) -> dict[int, Tensor]:
    """Copies of buffers by their ids; those that modules share stay one."""
    each = {id(buffer): buffer for *_, buffer in buffers if buffer is not None}
    return {key: buffer.clone() for key, buffer in each.items()}


@contextmanager
def _buffers_of(before: Sequence[Buffer]) -> Iterator[None]:
    """Have modules work on copies of these buffers instead of their own."""
    now, copies = [own.get(name) for own, name, _ in before], _copies(before)
    try:
        for own, name, buffer in before:
            own[name] = copies[id(buffer)]
        yield
    finally:
        for (own, name, _), mine in zip(before, now, strict=True):
            own[name] = mine


Forward = Callable[[Any, Any, Any], tuple[Tensor, dict[str, Any]]]
"""From a model, a batch and the settings to a loss () and what was measured, by name. The model may
be any module, such as one that holds several."""

Function = Callable[..., tuple[Any, ...]]
Region = Callable[..., tuple[tuple[Any, ...], dict[str, tuple[Any, ...]]]]

WORTH = 5e12
"""Weights times examples, of a whole job, from which `auto` compiles, which takes about half a
minute. For each of these, compiled code saved 3 ps in resnet18 and 4 ps in GPT-2 on an H200, so 15
to 20 s by then, and nothing in a perceptron (benchmarks/gpu/steps.md of the template); on an A100
it saves nearly half of GPT-2's time (github.com/karpathy/nanoGPT, README)."""

LOGGERS = {
    "recompiles": "torch._dynamo.guards.__recompiles",
    "graph_breaks": "torch._dynamo.symbolic_convert.__graph_breaks",
}
"""What torch can report about compiling, and the logger that reports it."""

GIVES_UP = "torch._dynamo.convert_frame"
"""The logger that reports what is not compiled any more, after too many variants."""

EXPECTED = (
    "grad_mode",
    ".training",
    "Unexpected recompilation",
    "___check_obj_id(model",
    "id(L['model']",
)
"""Parts of reasons that are expected: evaluation is compiled apart from training, and the EMA's
model apart from the one that is trained."""

GRAPHS = {"reduce-overhead": "on", "max-autotune": "max-autotune-no-cudagraphs"}
"""Choices of --compile that record CUDA graphs, and their equivalents without."""

events: list[str] = []  # what slowed compiled code down, each in one line


def graphs(choice: str, device: torch.device) -> bool:
    """Return whether training is recorded as CUDA graphs, which other devices do not have; the log
    says so."""
    if choice in GRAPHS and device.type != "cuda":
        log.warning("--compile %s: without CUDA graphs, which need a GPU", choice)
    return choice in GRAPHS and device.type == "cuda"


def compiled(function: Region, choice: str, dynamic: bool = False) -> Region:
    """Return a function compiled as --compile says, for fixed shapes, or with `dynamic` for any;
    what slows it down goes to the job's log, and compiled code into the project's cache."""
    from torch._inductor import config  # slow; it has read its environment variables by now

    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(PROJECT / layout.CACHE / "inductor"))
    if "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:
        # By itself torch starts one for each of the machine's cores, whatever jobs share them.
        config.compile_threads = machine.cores()
    if torch.are_deterministic_algorithms_enabled() and hasattr(config, "deterministic"):
        config.deterministic = True  # no kernel is chosen by its time
    torch._logging.set_logs(**dict.fromkeys(LOGGERS, True))  # type: ignore
    for name in (*LOGGERS.values(), GIVES_UP):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [_EventLog()], name == GIVES_UP
    mode = None if choice in ("auto", "on") else choice
    return torch.compile(function, dynamic=dynamic, mode=mode)


class _EventLog(logging.Handler):
    """Puts each event into the job's log, in one line."""

    def emit(self, record: logging.LogRecord) -> None:
        """Add what torch says: what happened and where in its first line, why in one of the rest.

        A graph break that comes again is marked as a duplicate by torch and was reported before.
        """
        first, *rest = (line.strip() for line in record.getMessage().splitlines())
        if first.startswith("Recompiling"):
            failed = [line for line in rest if line.startswith("- ")]
            reasons = [line for line in failed if not any(word in line for word in EXPECTED)]
        elif record.name == GIVES_UP:
            reasons = [line for line in rest if line.startswith("last reason: ")]
        else:
            reasons = [line for line in rest if line.startswith("Graph Break Reason: ")]
        if reasons and "duplicate" not in first:
            events.append(f"{first}: {reasons[0].removeprefix('- ')}")
            log.warning("torch.compile: %s", events[-1])


ONE_THREAD = threading.RLock()
"""Held while any compiled function runs: until torch 2.15 it refuses one that is called while
another thread compiles, as background evaluation would."""


Shape = tuple[int, ...]
Shapes = dict[str, list[Shape]]  # the shapes of the first batch, to "train" and to "evaluate"


class UsualShapes:
    """Those of each prepared function, `of` its number in the order in which they were prepared.
    Checkpoints hold them, since a process may begin with an epoch's smaller last batch. Several
    processes have slices of their own."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self.of = defaultdict[int, Shapes](dict)

    def state_dict(self) -> dict[str, Any]:
        """Return what is known in each process."""
        return {"processes": self._processes.everyones([*self.of.values()])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, if there are as many processes as there were."""
        everyones, rank = state["processes"], self._processes.rank
        if len(everyones) == rank.size:
            for number, shapes in enumerate(everyones[rank.number]):
                self.of[number].update(shapes)


class Prepared:
    """A forward function under autocast and compiled as `compile` says, if it is not `off`; `plain`
    without both. With `auto`, `pays` says whether compiling pays for a model; None: not known yet.

    It is compiled for the shapes of the first batch in training and the first in evaluation. An
    epoch's smaller last batch runs as it is. Should batches differ in more than their number of
    examples, as texts do, it is compiled once more, for any shapes. CUDA graphs are for training in
    the usual shapes alone: they would need memory for each other shape and each copy of the
    weights, and evaluation in the background records nothing while training goes on.
    """

    def __init__(
        self,
        forward: Function,
        precision: Precision,
        compile: str,
        usual: Shapes | None = None,
        pays: Callable[[nn.Module], bool | None] = lambda _: None,
    ) -> None:
        self.precision = precision
        self.plain = forward
        self._compile, self._pays = compile, pays
        self._usual: Shapes = {} if usual is None else usual
        self._decide(None if compile == "auto" else compile != "off")

    def __call__(self, model: nn.Module, batch: Any, *more: Any) -> tuple[Any, ...]:
        """Return the loss (), what was measured, with its sums if compiled, and anything else."""
        with self.precision.autocast():
            if self.compiled is None:
                self._decide(self._pays(model))
            compiled = self._compiled_for(model.training, batch)
            if not compiled:
                return self.plain(model, batch, *more)
            with ONE_THREAD:
                (loss, measured, *others), made = compiled(model, batch, *more)
            sums = {name: Sum(*pair) for name, pair in made.items()}
            return loss, Measured(measured, sums, measured), *others

    def _decide(self, compile: bool | None) -> None:
        self.compiled = compile
        if compile:
            without = GRAPHS.get(self._compile, self._compile)
            self._to_train = compiled(region(self.plain), self._compile)
            self._to_evaluate = compiled(region(self.plain), without)
            self._for_any = compiled(region(self.plain), without, dynamic=True)

    def _compiled_for(self, training: bool, batch: Any) -> Region | None:
        """The compiled function for a batch; None for one that is only smaller than the first."""
        kind = "train" if training else "evaluate"
        if not self.compiled and kind in self._usual:
            return None
        shapes = [tuple(each.shape) for each in trees.tensors(batch)]
        usual = self._usual.setdefault(kind, shapes)
        if not self.compiled:  # noted all the same: it may be compiled when the job goes on
            return None
        if shapes == usual:
            return self._to_train if training else self._to_evaluate
        return None if _differ_in_rows_alone(shapes, usual) else self._for_any


def _differ_in_rows_alone(shapes: Sequence[Shape], others: Sequence[Shape]) -> bool:
    """Whether two batches have the same shapes but for one number of examples in each."""
    rows = [{shape[:1] for shape in each} for each in (shapes, others)]
    one_each = all(len(found) == 1 for found in rows)
    return one_each and [shape[1:] for shape in shapes] == [shape[1:] for shape in others]


def region(forward: Function) -> Region:
    """Return a function that also sums what was measured: all of it is compiled as one region."""

    def run(*given: Any) -> tuple[tuple[Any, ...], dict[str, tuple[Any, ...]]]:
        returned = forward(*given)
        return returned, {name: tuple(summed(each)) for name, each in sums_of(returned[1]).items()}

    # torch counts what it compiles by code object, and gives up at eight.
    run.__code__ = run.__code__.replace()
    return run


# A function of a model's weights, such as an evaluation, that runs while training goes on.
#
# A thread calls the function with a copy of the weights, on a GPU on a stream of its own. A result
# comes when the function is asked for the next time, however fast it was, so that what is made of
# it does not depend on that; after the last interval all of them come.
#
# What runs in the background must not draw from the global random numbers, which training draws
# from. torch.compile sets them back to where they were when it began to compile, so training waits
# for what may compile: the first call.

LOOK = 0.1  # seconds after which a wait for a result checks for a signal

Evaluation = Callable[[nn.Module], Any]
State = dict[str, Any]


class Background:
    """The calls of one function in a thread, one after another, on a copy of a model's weights."""

    def __init__(self, device: torch.device, check: Callable[[], None]) -> None:
        self._device, self._check = device, check
        self.compiles = False  # whether calls may compile
        self._thread = ThreadPoolExecutor(1, "background", devices.in_thread, initargs=(device,))
        self._copy: nn.Module | None = None  # of the model, used on a stream of its own
        self._pending: list[tuple[State, nn.Module, Future[Any]]] = []  # one at most
        self._restored: list[tuple[State, State]] = []
        self._begun = -1

    def results(
        self, function: Evaluation, model: nn.Module, at: State, last: bool
    ) -> Iterator[tuple[State, Any, nn.Module]]:
        """Yield what is due, as (when it was asked for, result, weights), and begin the next call.

        `at` has the `step` at which it is asked for. The weights change after they were yielded.
        Raises what the function raised.
        """
        for asked, weights in self._restored:
            self._submit(function, model, weights, asked)
        self._restored = []
        if at["step"] > self._begun:
            yield from self._finished()
            self._begun = at["step"]
            self._submit(function, model, model.state_dict(), at)
        if last:
            yield from self._finished()

    def state_dict(self) -> State:
        """Return the weights whose results are still missing."""
        pending = [(at, copy.state_dict()) for at, copy, _ in self._pending]
        return {"begun": self._begun, "pending": pending or self._restored}

    def load_state_dict(self, state: State) -> None:
        """Have the function called for these weights again, when it is known."""
        self._begun, self._restored = state["begun"], state["pending"]

    def close(self) -> None:
        """Wait for the running call."""
        self._thread.shutdown(cancel_futures=True)
        self._pending.clear()

    def _finished(self) -> Iterator[tuple[State, Any, nn.Module]]:
        for at, copy, result in self._pending:
            found = self._wait(result)
            self._pending = []
            yield at, found, copy

    def _wait(self, result: Future[Any]) -> Any:
        self._check()
        while wait([result], LOOK).not_done:
            self._check()
        return result.result()

    def _submit(self, function: Evaluation, model: nn.Module, weights: State, at: State) -> None:
        first = self._copy is None
        if self._copy is None:
            self._copy, self._stream = deepcopy(model), devices.SideStream(self._device)
        self._copy.load_state_dict(weights)
        self._stream.wait_stream()
        result = self._thread.submit(self._call, function, self._copy)
        self._pending = [(at, self._copy, result)]
        if first and self.compiles:
            self._wait(result)

    def _call(self, function: Evaluation, model: nn.Module) -> Any:
        with self._stream:
            result = function(model)
        self._stream.synchronize()  # the result may be tensors, and is read on another stream
        return result


# An optimizer step as one CUDA graph: the host says once what a step is, and then only "again".
#
# A small network's step is a hundred operations, each of which the GPU ends sooner than the host
# can tell it the next. Recorded, they are one. The graph is what Python did while it was recorded:
# it reads the same memory, so each batch is copied there, and learning rates are tensors. What
# Python itself would do differently in another step is refused. Source:
# docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs.

ALIKE = 3
"""Steps of one form in a row that run as they are before a graph is recorded: in the first of them
optimizers make their state, and libraries choose their kernels."""

Step = Callable[[Any], None]


class GraphedStep:
    """A function of a batch that takes an optimizer step, recorded as a graph once ALIKE steps in a
    row had one form. Other steps, as with an epoch's smaller last batch, run as they are.

    With or without a graph learning rates are rounded to 32 bits, the precision that kernels read
    them in, so that the results are the same.
    """

    def __init__(
        self, step: Step, device: torch.device, meter: TrainMeter, parts: Mapping[str, Any]
    ) -> None:
        self._step, self._device, self._meter, self._parts = step, device, meter, parts
        self._stream = devices.SideStream(device)
        models = [part for part in parts.values() if isinstance(part, nn.Module)]
        self._modules = [module for model in models for module in model.modules()]
        self._weights = [weight for model in models for weight in model.parameters()]
        self._groups = _groups(parts)
        self._rates = [torch.zeros((), device=device) for _ in self._groups]
        self._form: Any = None  # of the last step that ran as it is
        self._alike = 0
        self.recording = False
        # Of the graph, once there is one: what it reads, and what it measures.
        self._graph: Any = None
        self._form_of_graph: Any = None
        self._batch: Any = None
        self._measured: list[NamedSum] = []
        self._sums: Tensor | None = None

    def __call__(self, batch: Any) -> None:
        """Take a step. Raises JobError, with the line, for what cannot be recorded."""
        form = self._form_of(batch)
        if form != self._form_of_graph:
            self._alike = self._alike + 1 if form == self._form else 1
            self._form = form
            if self._alike <= ALIKE:
                self._take(batch)
                return
            self._record(batch)
            self._form_of_graph = form
        self._alike = 0  # the smaller last batches of several epochs are not in a row
        for mine, given in zip(trees.leaves(self._batch), trees.leaves(batch), strict=True):
            if isinstance(mine, Tensor):
                mine.copy_(given, non_blocking=True)
        self._set_rates()
        self._graph.replay()
        if self._sums is not None:
            values = iter(self._sums.clone().unbind())
            for name, each in self._measured:
                self._meter.add_sum(name, each.filled(values))

    def _take(self, batch: Any) -> None:
        """Take a step as it is, on the stream that is recorded later: the nodes in which gradients
        add up belong to the stream that they were first used on."""
        with self._rates_as_tensors(), self._meter.adding() as added:
            self._stream.wait_stream()
            with self._stream:
                self._step(batch)
            self._stream.hand_over(part for _, each in added for part in each.tensors)

    def _form_of(self, batch: Any) -> Any:
        """All that a graph depends on, beside the numbers in memory and the code."""
        leaves = [_form_of_leaf(each) for each in trees.leaves(batch)]
        options = [group.get(key) for group in self._groups for key in OPTIONS]
        modes = [module.training for module in self._modules]
        return leaves, options, modes, [weight.requires_grad for weight in self._weights]

    def _set_rates(self) -> None:
        for group, rate in zip(self._groups, self._rates, strict=True):
            rate.fill_(group["lr"])

    @contextmanager
    def _rates_as_tensors(self) -> Iterator[None]:
        """Within, the optimizers' learning rates are tensors, as a graph needs them."""
        kept = ("lr", "capturable")
        before = [{key: group[key] for key in kept if key in group} for group in self._groups]
        self._set_rates()
        for group, own, rate in zip(self._groups, before, self._rates, strict=True):
            group |= dict.fromkeys(own, True) | {"lr": rate}
        try:
            yield
            if any(g["lr"] is not r for g, r in zip(self._groups, self._rates, strict=True)):
                raise JobError(
                    "job.graphed: set learning rates before the step, not in it, or add --graph off"
                )
        finally:
            for group, own in zip(self._groups, before, strict=True):
                group |= own

    def _record(self, batch: Any) -> None:
        """Record a step; nothing is computed."""
        for part in self._parts.values():
            if isinstance(part, EMA):
                part.count_on(self._device)
        before = self._on_the_host()
        self._batch = trees.mapped(lambda e: e.clone() if isinstance(e, Tensor) else e, batch)
        self.recording = True
        try:
            with self._rates_as_tensors():
                self._graph = devices.recorded(self._take_and_sum, self._stream)
        except Exception as error:
            at = sources.reached(error) or "the step"
            raise JobError(
                f"{at}: cannot be in a CUDA graph ({cause(error)}); change it, or add --graph off"
            ) from error
        finally:
            self.recording = False
        for what, value in self._on_the_host().items():
            if not devices.same(value, before[what]):
                raise JobError(
                    f"job.graphed: the step changes {what} on the host, which a graph does not; do "
                    "so outside of the step, or add --graph off"
                )
        log.info("the optimizer step is one CUDA graph from here on")

    def _take_and_sum(self) -> None:
        with self._meter.adding(in_graph=True) as added:
            self._step(self._batch)
        self._measured = [(name, summed(each)) for name, each in added]
        tensors = [part for _, each in self._measured for part in each.tensors]
        wider = [each.to(wide(each.device)) for each in tensors]
        self._sums = torch.stack(wider) if wider else None

    def _on_the_host(self) -> dict[str, Any]:
        """What Python would change in a step, and a graph does not."""
        states = {f"`{name}`": _plain(part) for name, part in self._parts.items()}
        parts = (part for part in self._parts.values() if isinstance(part, nn.Module))
        buffers = [id(each) for part in parts for each in part.buffers()]
        others = {"random numbers": devices.host_numbers(), "which tensors are buffers": buffers}
        return {**others, **states}


def _form_of_leaf(leaf: Any) -> Any:
    """What a graph depends on in a part of a batch: of a tensor on the GPU all but its numbers."""
    if isinstance(leaf, Tensor):
        return (leaf.shape, leaf.dtype) if leaf.is_cuda else leaf.tolist()
    return leaf if isinstance(leaf, int | float | str | None) else object()  # never the same


OPTIONS = ("betas", "momentum", "weight_decay", "eps", "nesterov", "dampening", "alpha")
"""Options of optimizers' groups, beside the learning rate, that a loop may change."""


def rounded_rates(step: Step, parts: Mapping[str, Any]) -> Step:
    """Return a step as it is, with learning rates rounded to the 32 bits that a graph reads."""
    groups = _groups(parts)

    def run(batch: Any) -> None:
        rates = [group["lr"] for group in groups]
        rounded = [each if isinstance(each, Tensor) else float(np.float32(each)) for each in rates]
        for group, rate in zip(groups, rounded, strict=True):
            group["lr"] = rate
        step(batch)
        for group, rate, taken in zip(groups, rates, rounded, strict=True):
            if group["lr"] is taken:  # or else a schedule has set another one in the step
                group["lr"] = rate

    return run


def _groups(parts: Mapping[str, Any]) -> list[dict[str, Any]]:
    optimizers = [part for part in parts.values() if isinstance(part, Optimizer)]
    return [group for optimizer in optimizers for group in optimizer.param_groups]


def _plain(part: Any) -> Any:
    """The values in a part's state that are no tensors."""
    return [each for each in trees.leaves(part.state_dict()) if not isinstance(each, Tensor)]
