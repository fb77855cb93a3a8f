"""An optimizer step as one CUDA graph: the host says once what a step is, and then only "again".

A small network's step is a hundred operations, each of which the GPU ends sooner than the host can
tell it the next. Recorded, they are one. The graph is what Python did while it was recorded: it
reads the same memory, so each batch is copied there, and learning rates are tensors. What Python
itself would do differently in another step is refused. Source:
docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from labjobs import devices, sources
from labjobs.data import trees
from labjobs.errors import JobError, cause
from labjobs.job.terminal import log
from labjobs.training.meters import NamedSum, TrainMeter, summed, wide
from labjobs.training.optim import EMA

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
        self._form: Any = None
        self._alike = 0
        self._graph: _Graph | None = None
        self.recording = False

    def __call__(self, batch: Any) -> None:
        """Take a step. Raises JobError, with the line, for what cannot be recorded."""
        form = self._form_of(batch)
        if self._graph and form == self._graph.form:
            self._graph.replay(batch, self._set_rates)
            return
        self._alike = self._alike + 1 if form == self._form else 1
        self._form = form
        if self._alike <= ALIKE:
            self._take(batch)
            return
        self._graph = self._recorded(batch, form)
        self._graph.replay(batch, self._set_rates)

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
        options = [value for group in self._groups for key, value in group.items() if key in PLAIN]
        modes = [module.training for module in self._modules]
        return leaves, options, modes, [weight.requires_grad for weight in self._weights]

    def _set_rates(self) -> None:
        for group, rate in zip(self._groups, self._rates, strict=True):
            rate.fill_(group["lr"])

    @contextmanager
    def _rates_as_tensors(self) -> Iterator[None]:
        """Within, the optimizers' learning rates are tensors, as a graph needs them."""
        before = [(group["lr"], group.get("capturable")) for group in self._groups]
        self._set_rates()
        for group, rate in zip(self._groups, self._rates, strict=True):
            group["lr"] = rate
            if "capturable" in group:
                group["capturable"] = True
        try:
            yield
            if any(g["lr"] is not r for g, r in zip(self._groups, self._rates, strict=True)):
                raise JobError(
                    "job.graphed: set learning rates before the step, not in it, or add --graph off"
                )
        finally:
            for group, (rate, capturable) in zip(self._groups, before, strict=True):
                group["lr"] = rate
                if "capturable" in group:
                    group["capturable"] = capturable

    def _recorded(self, batch: Any, form: Any) -> "_Graph":
        """Record a step; nothing is computed."""
        for part in self._parts.values():
            if isinstance(part, EMA):
                part.count_on(self._device)
        before = self._on_the_host()
        self.recording = True
        try:
            with self._rates_as_tensors():
                graph = _Graph(form, batch, self._step, self._stream, self._meter)
        except Exception as error:
            at = sources.reached(error) or "the step"
            raise JobError(
                f"{at}: cannot be in a CUDA graph ({cause(error)}); change it, or add --graph off"
            ) from error
        finally:
            self.recording = False
        for what, value in self._on_the_host().items():
            if value != before[what]:
                raise JobError(
                    f"job.graphed: the step changes {what} on the host, which a graph does not; do "
                    "so outside of the step, or add --graph off"
                )
        log.info("the optimizer step is one CUDA graph from here on")
        return graph

    def _on_the_host(self) -> dict[str, Any]:
        """What Python would change in a step, and a graph does not."""
        kind, keys, *rest = np.random.get_state(legacy=True)
        return {
            "random numbers": (
                torch.get_rng_state().tolist(),
                random.getstate(),
                (kind, np.asarray(keys).tolist(), *rest),
            ),
            **{f"`{name}`": _plain(part) for name, part in self._parts.items()},
        }


class _Graph:
    """A recorded step, with the memory that it reads its batch from."""

    def __init__(
        self, form: Any, batch: Any, step: Step, stream: devices.SideStream, meter: TrainMeter
    ) -> None:
        self.form = form
        self._meter = meter
        self._batch = trees.mapped(lambda e: e.clone() if isinstance(e, Tensor) else e, batch)
        self._measured: list[NamedSum] = []
        self._sums: Tensor | None = None
        self._graph = devices.recorded(lambda: self._run(step), stream)

    def _run(self, step: Step) -> None:
        with self._meter.adding(in_graph=True) as added:
            step(self._batch)
        self._measured = [(name, summed(each)) for name, each in added]
        tensors = [part for _, each in self._measured for part in each.tensors]
        if tensors:
            self._sums = torch.stack([each.to(wide(each.device)) for each in tensors])

    def replay(self, batch: Any, prepare: Callable[[], None]) -> None:
        """Take the step with another batch."""
        for mine, given in zip(trees.leaves(self._batch), trees.leaves(batch), strict=True):
            if isinstance(mine, Tensor):
                mine.copy_(given, non_blocking=True)
        prepare()
        self._graph.replay()
        if self._sums is not None:
            values = iter(self._sums.clone().unbind())
            self._meter.add_sums((name, each.filled(values)) for name, each in self._measured)


def _form_of_leaf(leaf: Any) -> Any:
    """What a graph depends on in a part of a batch: of a tensor on the GPU all but its numbers."""
    if isinstance(leaf, Tensor):
        return (leaf.shape, leaf.dtype) if leaf.is_cuda else leaf.tolist()
    return leaf if isinstance(leaf, int | float | str | None) else object()  # never the same


PLAIN = ("betas", "momentum", "weight_decay", "eps", "nesterov", "dampening", "alpha")
"""Options of optimizers' groups, beside the learning rate, that a loop may change."""


def rounded_rates(step: Step, parts: Mapping[str, Any]) -> Step:
    """Return a step as it is, with learning rates rounded to the 32 bits that a graph reads."""
    groups = _groups(parts)

    def run(batch: Any) -> None:
        """Take the step with rounded rates, and put the others back."""
        rates = [group["lr"] for group in groups]
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate if isinstance(rate, Tensor) else float(np.float32(rate))
        step(batch)
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate

    return run


def _groups(parts: Mapping[str, Any]) -> list[dict[str, Any]]:
    optimizers = [part for part in parts.values() if isinstance(part, Optimizer)]
    return [group for optimizer in optimizers for group in optimizer.param_groups]


def _plain(part: Any) -> Any:
    """The values in a part's state that are no tensors."""
    return [each for each in trees.leaves(part.state_dict()) if not isinstance(each, Tensor)]
