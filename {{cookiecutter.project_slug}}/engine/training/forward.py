"""The student's forward functions as they are called: under autocast, compiled where it pays.

A function of (model, batch, settings) that returns a loss and what it measured is compiled whole:
the network, the loss and the sums of what was measured are one region.
"""

import threading
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from engine.training import compilation
from engine.training.measures import Measured, Sum, summed, sums_of
from engine.training.precision import Precision

Forward = Callable[[Any, Any, Any], tuple[Tensor, dict[str, Any]]]
"""From a model, a batch and the settings to a loss () and what was measured, by name. The model may
be any module, such as one that holds several."""

Region = Callable[[nn.Module, Any, Any], tuple[Tensor, dict[str, Any], dict[str, tuple[Any, ...]]]]

ONE_THREAD = threading.RLock()
"""Held while any compiled function runs: until torch 2.15 it refuses one that is called while
another thread compiles, as background evaluation would."""


class Prepared:
    """A forward function under autocast and, with `compile`, compiled; `plain` without both.

    It is compiled for the shapes of the first batch in training and the first in evaluation; other
    shapes, such as an epoch's smaller last batch, run as they are, so nothing is compiled twice.
    """

    def __init__(self, forward: Forward, precision: Precision, compile: bool) -> None:
        self._precision = precision
        self.plain = forward
        self.compiled = compile
        self._compiled = compilation.compiled(region(forward)) if compile else None
        self._shapes: dict[bool, list[Any]] = {}

    @property
    def precision(self) -> str:
        """The number format, with `auto` resolved."""
        return self._precision.name

    def __call__(
        self, model: nn.Module, batch: Any, settings: Any
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return the loss () and what was measured; with its sums, if that was compiled."""
        with self._precision.autocast():
            if not (self._compiled and self._usual(model.training, batch)):
                return self.plain(model, batch, settings)
            with ONE_THREAD:
                loss, measured, made = self._compiled(model, batch, settings)
            return loss, Measured(measured, {name: Sum(*pair) for name, pair in made.items()})

    def _usual(self, training: bool, batch: Any) -> bool:
        shapes = [leaf.shape for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
        return self._shapes.setdefault(training, shapes) == shapes


def region(forward: Forward) -> Region:
    """Return a function that also sums what was measured."""

    def run(
        model: nn.Module, batch: Any, settings: Any
    ) -> tuple[Tensor, dict[str, Any], dict[str, tuple[Any, ...]]]:
        loss, measured = forward(model, batch, settings)
        made = {name: tuple(summed(each)) for name, each in sums_of(measured).items()}
        return loss, measured, made

    return run
