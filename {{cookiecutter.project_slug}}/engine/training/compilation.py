"""torch.compile, where it pays.

Compiled code is kept in the project's `.cache`, so the second job of a kind starts warm. Source:
docs.pytorch.org/docs/stable/user_guide/torch_compiler/torch.compiler.html.
"""

import logging
import os
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from engine.job.terminal import log
from engine.paths import PROJECT

WORTH_STEPS = 10_000
"""Optimizer steps from which `auto` compiles: compiling takes about half a minute, earned back over
this many steps at a gain of 3 ms a step."""

EVENTS = {
    "recompiles": "torch._dynamo.guards.__recompiles",
    "graph_breaks": "torch._dynamo.symbolic_convert.__graph_breaks",
}
"""What torch can tell of compiling, and the logger that tells it."""


def compiler(
    choice: str, device: torch.device, steps: int, batch_size: int
) -> Callable[[nn.Module], nn.Module]:
    """What makes of a model the one that the loop calls: compiled for `on`, as it is for `off`;
    `auto` compiles on a CUDA GPU for jobs of at least WORTH_STEPS steps. Weights are shared."""
    worth = device.type == "cuda" and steps >= WORTH_STEPS
    if choice == "off" or (choice == "auto" and not worth):
        return lambda model: model
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(PROJECT / ".cache" / "inductor"))
    _listen()
    return partial(Compiled, batch_size=batch_size)


class Compiled(nn.Module):
    """A model compiled for batches of one size. Smaller ones, such as the last of an epoch, it runs
    as it is: so there is nothing to compile a second time."""

    def __init__(self, model: nn.Module, batch_size: int) -> None:
        super().__init__()
        self.model = model
        self._batch_size = batch_size
        self._compiled = torch.compile(model.forward, dynamic=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """What the model makes of a batch (B, ...)."""
        whole = len(inputs) == self._batch_size
        result: Tensor = self._compiled(inputs) if whole else self.model(inputs)
        return result


EXPECTED = ("grad_mode", ".training", "Unexpected recompilation")
"""Words of reasons that are none: evaluation is compiled apart from training; the last is torch's
for what another thread, that evaluates too, has compiled meanwhile."""

events: list[str] = []
"""What slowed compiled code down, each in one line."""


class _EventLog(logging.Handler):
    """Tells of each event in one line of the job's log."""

    def emit(self, record: logging.LogRecord) -> None:
        """Add what torch says: what happened and where in its first line, why in one of the rest.

        Of a graph break that comes again torch says so; it was told already.
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


def _listen() -> None:
    """Have torch's word on what slows compiled code down come to the job's log."""
    torch._logging.set_logs(**dict.fromkeys(EVENTS, True))  # type: ignore
    for name in EVENTS.values():
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [_EventLog()], False
