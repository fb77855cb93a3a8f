"""Functions of a model's weights, such as an evaluation, that run while training goes on.

A thread calls the function with a copy of the weights, on a GPU on a stream of its own. Results
come in the order in which they were asked for and always as many intervals later as there are
threads, so that what is made of them does not depend on which was faster; after the last interval
all of them come.

What runs in the background must not draw from the global random numbers, which training draws from.
torch.compile sets them back to where they were when it began to compile, so training waits for what
may compile: the first call with each copy.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from labjobs import devices

LOOK = 0.1
"""Seconds after which a wait for a result checks for a signal."""


@dataclass
class _Weights:
    """A copy of a model's weights, and the stream that it is used on."""

    model: nn.Module
    stream: devices.SideStream


@dataclass
class _Task:
    """A function's call in the background, for the weights of a step."""

    at: dict[str, Any]
    weights: _Weights
    result: Future[Any]


class Background:
    """The calls of one function in threads, each on a copy of a model's weights."""

    def __init__(self, device: torch.device, check: Callable[[], None]) -> None:
        self._device, self._check = device, check
        self.compiles = False  # whether calls may compile
        self._threads: ThreadPoolExecutor | None = None
        self._pending: deque[_Task] = deque()
        self._restored: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._spare: list[_Weights] = []
        self._begun = -1

    def results(
        self,
        function: Callable[[nn.Module], Any],
        model: nn.Module,
        at: dict[str, Any],
        last: bool,
        at_once: int,
    ) -> Iterator[tuple[dict[str, Any], Any, nn.Module]]:
        """Yield what is due, as (when it was asked for, result, weights), and begin the next call.

        `at` has the `step` at which it is asked for. The weights change after they were yielded.
        Raises what the function raised.
        """
        if self._threads is None:
            self._threads = ThreadPoolExecutor(
                at_once, "background", devices.in_thread, initargs=(self._device,)
            )
        for asked, weights in self._restored:
            self._submit(function, model, weights, asked)
        self._restored = []
        new = at["step"] > self._begun
        yield from self._finished(leave=at_once - 1 if new else at_once)
        if new:
            self._begun = at["step"]
            self._submit(function, model, model.state_dict(), at)
        if last:
            yield from self._finished(leave=0)

    def state_dict(self) -> dict[str, Any]:
        """Return the weights whose results are still missing."""
        pending = [(task.at, task.weights.model.state_dict()) for task in self._pending]
        return {"begun": self._begun, "pending": pending or self._restored}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the function called for these weights again, when it is known."""
        self._begun, self._restored = state["begun"], state["pending"]

    def close(self) -> None:
        """Wait for the running calls; those that have not begun are dropped."""
        if self._threads:
            self._threads.shutdown(cancel_futures=True)
        self._pending.clear()

    def _finished(self, leave: int) -> Iterator[tuple[dict[str, Any], Any, nn.Module]]:
        while len(self._pending) > leave:
            task = self._pending[0]
            result = self._wait(task.result)
            self._pending.popleft()
            yield task.at, result, task.weights.model
            self._spare.append(task.weights)

    def _wait(self, result: Future[Any]) -> Any:
        self._check()
        while wait([result], LOOK).not_done:
            self._check()
        return result.result()

    def _submit(
        self,
        function: Callable[[nn.Module], Any],
        model: nn.Module,
        weights: dict[str, Any],
        at: dict[str, Any],
    ) -> None:
        assert self._threads
        first = not self._spare
        if first:
            self._spare.append(_Weights(deepcopy(model), devices.SideStream(self._device)))
        copy = self._spare.pop()
        copy.model.load_state_dict(weights)
        copy.stream.wait_stream()
        result = self._threads.submit(_call, function, copy)
        self._pending.append(_Task(at, copy, result))
        if first and self.compiles:
            self._wait(result)


def _call(function: Callable[[nn.Module], Any], weights: _Weights) -> Any:
    with weights.stream:
        result = function(weights.model)
    weights.stream.synchronize()  # the result may be tensors, and is read on another stream
    return result
