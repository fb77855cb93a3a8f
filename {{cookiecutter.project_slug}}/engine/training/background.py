"""Functions of a model's weights, such as an evaluation, that run while training goes on.

A thread calls the function with a copy of the weights, on a GPU on a stream of its own. Results
come in the order in which they were asked for and always one interval later, so that what is made
of them does not depend on which was faster; after the last interval all of them come.

What runs in the background must not draw from the global random numbers, which training draws from.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from engine.training import devices

LOOK = 0.1
"""Seconds after which a wait for a result looks for a signal."""


@dataclass
class _Task:
    """A function's call in the background, for the weights of a step."""

    at: dict[str, Any]
    weights: nn.Module
    result: Future[Any]


class Background:
    """The calls of one function in a thread, each on a copy of a model's weights."""

    def __init__(self, device: torch.device, check: Callable[[], None]) -> None:
        self._device, self._check = device, check
        self._thread: ThreadPoolExecutor | None = None
        self._pending: deque[_Task] = deque()
        self._restored: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._spare: list[nn.Module] = []
        self._stream = devices.SideStream(device)
        self._begun = -1

    def results(
        self, function: Callable[[nn.Module], Any], model: nn.Module, at: dict[str, Any], last: bool
    ) -> Iterator[tuple[dict[str, Any], Any, nn.Module]]:
        """Yield what is due, as (when it was asked for, result, weights), and begin the next call.

        `at` has the `step` at which it is asked for. The weights change after they were yielded.
        Raises what the function raised.
        """
        for asked, weights in self._restored:
            self._submit(function, model, weights, asked)
        self._restored = []
        yield from self._finished(leave=0 if at["step"] > self._begun else 1)
        if at["step"] > self._begun:
            self._begun = at["step"]
            self._submit(function, model, model.state_dict(), at)
        if last:
            yield from self._finished(leave=0)

    def state_dict(self) -> dict[str, Any]:
        """Return the weights whose results have not come yet."""
        pending = [(task.at, task.weights.state_dict()) for task in self._pending]
        return {"begun": self._begun, "pending": pending or self._restored}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the function called for these weights again, when it is known."""
        self._begun, self._restored = state["begun"], state["pending"]

    def close(self) -> None:
        """Wait for the call that runs; those that have not begun never do."""
        if self._thread:
            self._thread.shutdown(cancel_futures=True)
        self._pending.clear()

    def _finished(self, leave: int) -> Iterator[tuple[dict[str, Any], Any, nn.Module]]:
        while len(self._pending) > leave:
            task = self._pending[0]
            result = self._wait(task.result)
            self._pending.popleft()
            yield task.at, result, task.weights
            self._spare.append(task.weights)

    def _wait(self, result: Future[Any]) -> Any:
        while True:
            self._check()
            try:
                return result.result(LOOK)
            except TimeoutError:
                if result.done():  # the function itself ran into a time limit
                    raise

    def _submit(
        self,
        function: Callable[[nn.Module], Any],
        model: nn.Module,
        weights: dict[str, Any],
        at: dict[str, Any],
    ) -> None:
        copy = self._spare.pop() if self._spare else deepcopy(model)
        copy.load_state_dict(weights)
        self._stream.wait_stream()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(
                1, "background", devices.in_thread, initargs=(self._device,)
            )
        self._pending.append(_Task(at, copy, self._thread.submit(self._call, function, copy)))

    def _call(self, function: Callable[[nn.Module], Any], weights: nn.Module) -> Any:
        with self._stream:
            return function(weights)
