"""CUDA graphs of a GPU that is not there: what it was told while it recorded, to be done again.

Facts of torch that this relies on (2.15; torch/cuda/graphs.py, aten/src/ATen/cuda/CUDAGraph.cpp):
- while a stream is captured nothing is computed, and what would make the host wait is refused;
- a replay reads and writes the memory that was used then;
- torch's random numbers go on with each replay as they would have without a graph.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from stand_in.driver import driver


class Graph:
    """A recorded graph, under the name and with the methods that torch's own has."""

    def __new__(cls, *_: object, **__: object) -> "Graph":
        made = super().__new__(cls)
        made._calls = []
        return made

    stream: dict[int, int]
    """The current streams of the thread that records."""
    _calls: list[tuple[Callable[[], Any], Any]]
    _drawing: list[Callable[[], Any]]
    """Those calls that draw random numbers, without an effect."""

    def capture_begin(self, *_: object, **__: object) -> None:
        self._calls, self._drawing = [], []
        self._before: dict[int, tuple[Tensor, Any]] = {}
        self._numbers = [each.get_state() for each in torch.cuda.default_generators]
        driver.graph, self.stream = self, dict(driver.thread.streams)

    def capture_end(self) -> None:
        """Put everything back to what it was: nothing was computed."""
        driver.graph = None
        for tensor, before in self._before.values():
            tensor.untyped_storage().copy_(before)
        _set(self._numbers)

    def do(
        self,
        op: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        numbers: Callable[[], AbstractContextManager[Any]],
    ) -> Any:
        """Record an operation on the host's tensors; returns where its results will be."""
        arguments = op._schema.arguments
        given = dict(zip((each.name for each in arguments), args, strict=False)) | kwargs
        for argument in arguments:
            written = argument.alias_info and argument.alias_info.is_write
            if written or argument.name.startswith("running_"):  # of batch norm, without a mark
                self._keep(given.get(argument.name))

        def again() -> Any:
            with numbers():
                return op(*args, **kwargs)

        def draw() -> None:
            with numbers():
                op(*tree_map(_blank, args), **tree_map(_blank, kwargs))

        if torch.Tag.nondeterministic_seeded in op.tags:
            self._drawing.append(draw)
        result = again()
        self._calls.append((again, result))
        return result

    def _keep(self, value: Any) -> None:
        for tensor in tree_leaves(value):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                self._before.setdefault(storage.data_ptr(), (tensor, storage.clone()))

    def replay(self) -> None:
        """Do it, or have a GPU that runs late do it when its turn comes."""
        if not driver.late:
            self._again()
            return
        before = [each.get_state() for each in torch.cuda.default_generators]
        for draw in self._drawing:  # random numbers are drawn now
            draw()

        def task() -> None:
            now = [each.get_state() for each in torch.cuda.default_generators]
            _set(before)
            with torch.no_grad():
                self._again()
            _set(now)

        gpu = driver.thread.device
        driver.late.put(task, (gpu, driver.thread.streams.get(gpu, 0)))
        driver.late.some()

    def _again(self) -> None:
        for again, results in self._calls:
            for old, new in zip(tree_leaves(results), tree_leaves(again()), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def _blank(value: Any) -> Any:
    return torch.zeros_like(value) if isinstance(value, Tensor) else value


def _set(states: Sequence[Tensor]) -> None:
    for generator, state in zip(torch.cuda.default_generators, states, strict=True):
        generator.set_state(state)


def refuse_wait() -> None:
    """Raise RuntimeError, as CUDA does, if the host would wait while a graph is recorded."""
    if driver.recording:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
