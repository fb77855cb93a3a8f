"""CUDA graphs that are not there: what a compiled function returns is written over later.

A function that is compiled in a mode with CUDA graphs runs here as it is, but what it returns, and
the gradients of its backward pass, lie in memory that is its own. When a next iteration begins,
that memory is given to what is returned then, and the rest of it has no number left.

Facts of torch that this relies on (2.15; torch/_inductor/cudagraph_trees.py):
- an iteration begins with each call for which no backward pass is pending; once
  `cudagraph_mark_step_begin` was called, with the first call after it, and with no other;
- a gradient that the backward pass returns becomes a parameter's `grad` without a copy.
"""

import atexit
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

MODES = ("reduce-overhead", "max-autotune")


class Memory:
    """The memory of graphs, by the place of a tensor among those of an iteration."""

    def __init__(self) -> None:
        self.marks = 0
        self.pending = False
        self._iteration: object = None
        self._calls = 0
        self._tensors: list[Tensor] = []
        self._given = 0

    def begin_call(self) -> None:
        """A call begins; with it an iteration, if torch would begin one."""
        self._calls += 1
        iteration = self.marks or (self._iteration if self.pending else -self._calls)
        if iteration == self._iteration:
            return
        self._iteration, self._given = iteration, 0
        for tensor in self._tensors:
            _spoil(tensor)

    def clear(self) -> None:
        """Begin anew: no compiled function is called any more."""
        self.__init__()  # type: ignore[misc]

    def keep(self, value: Tensor) -> Tensor:
        """Return memory of graphs with the numbers of a tensor."""
        at = self._given
        self._given += 1
        like = (value.shape, value.dtype, value.device)
        known = self._tensors[at : at + 1]
        if not known or (known[0].shape, known[0].dtype, known[0].device) != like:
            if known:
                _spoil(known[0])
            self._tensors[at : at + 1] = [torch.empty_like(value)]
        return self._tensors[at].copy_(value)


memory = Memory()
atexit.register(memory.clear)  # before the modules that its tensors need are gone


def mark_step_begin() -> None:
    memory.marks += 1


def graphed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function as if its calls were recorded as CUDA graphs."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        memory.begin_call()
        for parameter in _parameters(args):
            _keep_gradient(parameter)
        results = function(*args, **kwargs)
        return tree_map(lambda each: _Returned.apply(each) if _on_gpu(each) else each, results)

    return run


class _Returned(torch.autograd.Function):
    """A tensor as graphs return it."""

    @staticmethod
    def forward(context: Any, value: Tensor) -> Tensor:
        memory.pending |= context.needs_input_grad[0]
        kept = memory.keep(value).view_as(value)
        if not value.is_floating_point():
            context.mark_non_differentiable(kept)
        return kept

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        memory.pending = False
        return gradient


def _keep_gradient(parameter: nn.Parameter) -> None:
    """Have the gradient that a parameter gets lie in the memory of graphs, if it had none."""
    if hasattr(parameter, "in_graphs") or not parameter.requires_grad:
        return
    parameter.in_graphs = True  # type: ignore[attr-defined]
    had: list[bool] = []
    parameter.register_hook(lambda _: had.append(parameter.grad is not None))

    def keep(_: Tensor) -> None:
        if not had.pop() and parameter.grad is not None:
            parameter.grad = memory.keep(parameter.grad).view_as(parameter)

    parameter.register_post_accumulate_grad_hook(keep)


def _parameters(args: tuple[Any, ...]) -> Iterator[nn.Parameter]:
    for model in args:
        if isinstance(model, nn.Module):
            yield from model.parameters()


def _on_gpu(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_cuda


def _spoil(tensor: Tensor) -> None:
    with torch.no_grad():
        tensor.fill_(float("nan") if tensor.is_floating_point() else 1)
