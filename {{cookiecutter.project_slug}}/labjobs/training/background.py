"""A function of a model's weights, such as an evaluation, that runs while training goes on.

A thread calls the function with a copy of the weights, on a GPU on a stream of its own. A result
comes when the function is asked for the next time, however fast it was, so that what is made of it
does not depend on that; after the last interval all of them come.

What runs in the background must not draw from the global random numbers, which training draws from.
torch.compile sets them back to where they were when it began to compile, so training waits for what
may compile: the first call.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from labjobs import devices

LOOK = 0.1  # seconds after which a wait for a result checks for a signal


@dataclass
class _Weights:
    """A copy of a model's weights, and the stream that it is used on."""

    model: nn.Module
    stream: devices.SideStream


class Background:
    """The calls of one function in a thread, one after another, on a copy of a model's weights."""

    def __init__(self, device: torch.device, check: Callable[[], None]) -> None:
        self._device, self._check = device, check
        self.compiles = False  # whether calls may compile
        self._thread = ThreadPoolExecutor(1, "background", devices.in_thread, initargs=(device,))
        self._copy: _Weights | None = None
        self._pending: list[tuple[dict[str, Any], _Weights, Future[Any]]] = []  # one at most
        self._restored: list[tuple[dict[str, Any], dict[str, Any]]] = []
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
        if at["step"] > self._begun:
            yield from self._finished()
            self._begun = at["step"]
            self._submit(function, model, model.state_dict(), at)
        if last:
            yield from self._finished()

    def state_dict(self) -> dict[str, Any]:
        """Return the weights whose results are still missing."""
        pending = [(at, copy.model.state_dict()) for at, copy, _ in self._pending]
        return {"begun": self._begun, "pending": pending or self._restored}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the function called for these weights again, when it is known."""
        self._begun, self._restored = state["begun"], state["pending"]

    def close(self) -> None:
        """Wait for the running call."""
        self._thread.shutdown(cancel_futures=True)
        self._pending.clear()

    def _finished(self) -> Iterator[tuple[dict[str, Any], Any, nn.Module]]:
        for at, copy, result in self._pending:
            found = self._wait(result)
            self._pending = []
            yield at, found, copy.model

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
        first = self._copy is None
        self._copy = copy = self._copy or _Weights(
            deepcopy(model), devices.SideStream(self._device)
        )
        copy.model.load_state_dict(weights)
        copy.stream.wait_stream()
        result = self._thread.submit(_call, function, copy)
        self._pending = [(at, copy, result)]
        if first and self.compiles:
            self._wait(result)


def _call(function: Callable[[nn.Module], Any], weights: _Weights) -> Any:
    with weights.stream:
        result = function(weights.model)
    weights.stream.synchronize()  # the result may be tensors, and is read on another stream
    return result
