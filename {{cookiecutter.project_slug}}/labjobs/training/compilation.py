"""torch.compile, used where it is worth it.

Compiled code is kept in the project's `.cache`, so the second job of a kind starts warm. Source:
docs.pytorch.org/docs/stable/user_guide/torch_compiler/torch.compiler.html.
"""

import logging
import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import nn

from labjobs.errors import SettingsError
from labjobs.job.terminal import log
from labjobs.paths import PROJECT
from labjobs.training.recomputing import blocks

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
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(PROJECT / ".cache" / "inductor"))
    torch._logging.set_logs(**dict.fromkeys(LOGGERS, True))  # type: ignore
    for name in LOGGERS.values():
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [_EventLog()], False
