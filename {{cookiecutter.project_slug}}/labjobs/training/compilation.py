"""torch.compile, used where it is worth it.

Compiled code is kept in the project's `.cache`, so the second job of a kind starts warm. Source:
docs.pytorch.org/docs/stable/user_guide/torch_compiler/torch.compiler.html.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from labjobs import layout
from labjobs.errors import SettingsError
from labjobs.files import PROJECT
from labjobs.job.terminal import log

# Activation checkpointing: blocks keep only their input, and recompute the rest.
#
# The backward pass then needs only the memory of one block and of the blocks' inputs, at the cost
# of about one more forward pass. Source: Chen et al. 2016, arxiv.org/abs/1604.06174;
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
        if listed and not isinstance(child, nn.ModuleList) and _layers(child) > 1:
            yield child
        else:
            yield from blocks(child)


def _layers(module: nn.Module) -> int:
    return sum(bool([*each.parameters(recurse=False)]) for each in module.modules())


class _Recomputed:
    """A block's forward pass, which is repeated in the backward pass."""

    def __init__(self, block: nn.Module) -> None:
        self._block = block
        self._norms = [layer for layer in block.modules() if isinstance(layer, _BatchNorm)]

    def __call__(self, *inputs: Any) -> Any:
        forward = partial(type(self._block).forward, self._block)
        if not torch.is_grad_enabled():
            return forward(*inputs)
        if self._norms:
            return _with_norms(forward, self._norms, *inputs)
        return checkpoint(forward, *inputs, use_reentrant=False)


# Compiled, the second pass would update the statistics again.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def _with_norms(forward: Callable[..., Any], norms: list[_BatchNorm], *inputs: Any) -> Any:
    contexts = partial(_contexts, norms)
    return checkpoint(forward, *inputs, use_reentrant=False, context_fn=contexts)


def _contexts(
    norms: list[_BatchNorm],
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """The contexts of the first and the second forward pass."""
    return nullcontext(), _statistics_kept(norms)


@contextmanager
def _statistics_kept(norms: list[_BatchNorm]) -> Iterator[None]:
    """Leave the running statistics of batch norms as they are: the first pass has updated them."""
    before = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    try:
        for norm in norms:
            norm.momentum, norm.num_batches_tracked = 0.0, None
        yield
    finally:
        for norm, momentum, batches in before:
            norm.momentum, norm.num_batches_tracked = momentum, batches


C = TypeVar("C", bound=Callable[..., Any])

WORTH_STEPS = 10_000
"""Optimizer steps from which `auto` compiles: compiling takes about half a minute, earned back over
this many steps at a gain of 3 ms a step."""

LOGGERS = {
    "recompiles": "torch._dynamo.guards.__recompiles",
    "graph_breaks": "torch._dynamo.symbolic_convert.__graph_breaks",
}
"""What torch can report about compiling, and the logger that reports it."""

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

events: list[str] = []
"""What slowed compiled code down, each in one line."""


def wanted(choice: str, device: torch.device, steps: int | None) -> bool:
    """Return whether to compile: not if `off`; if `auto`, on a CUDA GPU, for jobs of at least
    WORTH_STEPS steps (None: not known yet)."""
    if choice == "auto":
        return device.type == "cuda" and (steps is None or steps >= WORTH_STEPS)
    return choice != "off"


def graphs(choice: str, device: torch.device) -> bool:
    """Return whether training is recorded as CUDA graphs, which other devices do not have; the log
    says so."""
    if choice in GRAPHS and device.type != "cuda":
        log.warning("--compile %s: without CUDA graphs, which need a GPU", choice)
    return choice in GRAPHS and device.type == "cuda"


def begin_step() -> None:
    """With CUDA graphs, let the next step have the memory of what compiled code returned so far.

    Source: docs.pytorch.org/docs/stable/generated/torch.compiler.cudagraph_mark_step_begin.html.
    """
    torch.compiler.cudagraph_mark_step_begin()


def compiled(function: C, choice: str = "on", dynamic: bool = False) -> C:
    """Return a function compiled as --compile says, for fixed shapes, or with `dynamic` for any;
    what slows it down goes to the job's log."""
    _prepare()
    mode = None if choice in ("auto", "on") else choice
    return torch.compile(function, dynamic=dynamic, mode=mode)  # type: ignore[return-value]


def compile_blocks(network: nn.Module) -> None:
    """Compile each block of a network by itself; blocks that are alike share what is compiled.

    Raises SettingsError for a network without blocks. Source:
    docs.pytorch.org/tutorials/recipes/regional_compilation.html.
    """
    check("blocks", [network])
    _prepare()
    for block in blocks(network):
        block.compile(dynamic=False)


def check(choice: str, networks: Iterable[nn.Module]) -> None:
    """Raise SettingsError if blocks are to be compiled and no network has any."""
    if choice == "blocks" and not any(True for each in networks for _ in blocks(each)):
        raise SettingsError("--compile blocks: the network has no blocks; use --compile on")


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
        else:
            reasons = [line for line in rest if line.startswith("Graph Break Reason: ")]
        if reasons and "duplicate" not in first:
            events.append(f"{first}: {reasons[0].removeprefix('- ')}")
            log.warning("torch.compile: %s", events[-1])


def _prepare() -> None:
    """Keep compiled code in the project, and send torch's reports of what slows it down to the
    job's log."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(PROJECT / layout.CACHE / "inductor"))
    torch._logging.set_logs(**dict.fromkeys(LOGGERS, True))  # type: ignore
    for name in LOGGERS.values():
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [_EventLog()], False
