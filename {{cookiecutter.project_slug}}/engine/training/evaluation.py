"""Evaluation of a model's weights after each epoch: between epochs, or beside training.

    evaluations = Evaluations(model, evaluate, compile, settings.eval_beside)
    with evaluations:
        for epoch in ...:
            ...
            for of_epoch, evaluated, metrics in evaluations.after(epoch, known, last):
                ...

Beside training, a thread evaluates a copy of the weights, on a CUDA GPU on a stream of its own. The
results come in the order of the epochs and always as many epochs later, so that what is made of
them does not depend on which was faster; after the last epoch all of them come.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import nn

Metrics = dict[str, float]


@dataclass
class _Copy:
    """A copy of the weights, as it is kept and as it is called, with the stream it is used on."""

    model: nn.Module
    called: nn.Module
    stream: torch.cuda.Stream | None


@dataclass
class _Evaluation:
    """An epoch's weights that are being evaluated; what else is known of the epoch."""

    epoch: int
    known: Metrics
    weights: _Copy
    result: Callable[[], Metrics]


class Evaluations:
    """Evaluates a model by `evaluate`, which takes it as it was prepared by `compile`.

    Up to `at_once` epochs' weights are evaluated beside training; none if that is 0. `epoch` is the
    last epoch that is over. Whoever leaves the context waits for no more than has begun.
    """

    def __init__(
        self,
        model: nn.Module,
        evaluate: Callable[[nn.Module], Metrics],
        compile: Callable[[nn.Module], nn.Module],
        at_once: int,
    ) -> None:
        self.epoch = self._begun = 0
        self._evaluate, self._compile, self._at_once = evaluate, compile, at_once
        self._own = _Copy(model, compile(model), None)
        device = next(model.parameters()).device
        self._cuda = device.type == "cuda"
        use = partial(torch.cuda.set_device, device) if self._cuda else None  # each thread anew
        self._threads = ThreadPoolExecutor(max(1, at_once), "evaluation", initializer=use)
        self._spare: list[_Copy] = []
        self._pending: deque[_Evaluation] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def after(
        self, epoch: int, known: Metrics, last: bool
    ) -> Iterator[tuple[int, nn.Module, Metrics]]:
        """Hand in the weights as they are after an epoch, with what is known of it.

        Yields the epochs whose results are due, with their weights, which change after that, and
        their metrics. Raises what `evaluate` raises.
        """
        yield from self._results(leave=max(0, self._at_once - 1))
        if epoch > self._begun:
            self._begin(epoch, known)
        if last or not self._at_once:
            yield from self._results(leave=0)
        self.epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """The weights whose results are not in yet."""
        pending = [(e.epoch, e.known, e.weights.model.state_dict()) for e in self._pending]
        return {"epoch": self.epoch, "begun": self._begun, "pending": pending}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Evaluate those weights once more."""
        self.epoch, self._begun = state["epoch"], state["begun"]
        for epoch, known, weights in state["pending"]:
            self._submit(epoch, known, weights)

    def _results(self, leave: int) -> Iterator[tuple[int, nn.Module, Metrics]]:
        while len(self._pending) > leave:
            first = self._pending[0]
            metrics = first.result() | first.known
            self._pending.popleft()
            yield first.epoch, first.weights.model, metrics
            if first.weights is not self._own:
                self._spare.append(first.weights)

    def _begin(self, epoch: int, known: Metrics) -> None:
        if self._at_once:
            self._submit(epoch, known, self._own.model.state_dict())
        else:
            metrics = self._evaluate(self._own.called)
            self._pending.append(_Evaluation(epoch, known, self._own, lambda: metrics))
        self._begun = epoch

    def _submit(self, epoch: int, known: Metrics, weights: dict[str, Any]) -> None:
        copy = self._spare.pop() if self._spare else self._copy()
        copy.model.load_state_dict(weights)
        if copy.stream:
            copy.stream.wait_stream(torch.cuda.current_stream())
        result = self._threads.submit(self._evaluate_beside, copy).result
        self._pending.append(_Evaluation(epoch, known, copy, result))

    def _copy(self) -> _Copy:
        model = deepcopy(self._own.model).requires_grad_(False)
        return _Copy(model, self._compile(model), torch.cuda.Stream() if self._cuda else None)

    def _evaluate_beside(self, copy: _Copy) -> Metrics:
        with torch.cuda.stream(copy.stream) if copy.stream else nullcontext():
            return self._evaluate(copy.called)
