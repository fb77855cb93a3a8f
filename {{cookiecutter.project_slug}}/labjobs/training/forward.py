"""The student's forward functions as they are called: under autocast, compiled where it pays.

A function of (model, batch, settings) that returns a loss and what it measured is compiled whole:
the network, the loss and the sums of what was measured are one region.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

from torch import Size, Tensor, nn

from labjobs.data import trees
from labjobs.devices import Precision
from labjobs.training import compilation
from labjobs.training.meters import Measured, Sum, summed, sums_of

Forward = Callable[[Any, Any, Any], tuple[Tensor, dict[str, Any]]]
"""From a model, a batch and the settings to a loss () and what was measured, by name. The model may
be any module, such as one that holds several."""

Region = Callable[[nn.Module, Any, Any], tuple[Tensor, dict[str, Any], dict[str, tuple[Any, ...]]]]

ONE_THREAD = threading.RLock()
"""Held while any compiled function runs: until torch 2.15 it refuses one that is called while
another thread compiles, as background evaluation would."""


class Prepared:
    """A forward function under autocast and compiled as `compile` says, if it is not `off`; `plain`
    without both.

    It is compiled for the shapes of the first batch in training and the first in evaluation. An
    epoch's smaller last batch runs as it is. Should batches differ in more than their number of
    examples, as texts do, it is compiled once more, for any shapes. CUDA graphs are for training in
    the usual shapes alone: they would need memory for each other shape and each copy of the
    weights, and evaluation in the background records nothing while training goes on.

    With `blocks`, only the blocks of a network are compiled, each by itself.
    """

    def __init__(self, forward: Forward, precision: Precision, compile: str) -> None:
        self._precision = precision
        self.plain = forward
        self.compiled = compile != "off"
        self._in_blocks = WeakSet[nn.Module]() if compile == "blocks" else None
        """Networks whose blocks are compiled separately."""
        if self.compiled and self._in_blocks is None:
            without = compilation.GRAPHS.get(compile, compile)
            self._to_train = compilation.compiled(region(forward), compile)
            self._to_evaluate = compilation.compiled(region(forward), without)
            self._for_any = compilation.compiled(region(forward), without, dynamic=True)
        self._usual: dict[bool, list[Size]] = {}
        """The shapes of the first batch, in training and in evaluation."""

    @property
    def precision(self) -> str:
        """The number format, with `auto` resolved."""
        return self._precision.name

    def __call__(
        self, model: nn.Module, batch: Any, settings: Any
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return the loss () and what was measured; with its sums, if that was compiled."""
        with self._precision.autocast():
            if self._in_blocks is not None:
                return self._by_blocks(self._in_blocks, model, batch, settings)
            compiled = self._compiled_for(model.training, batch) if self.compiled else None
            if not compiled:
                return self.plain(model, batch, settings)
            with ONE_THREAD:
                loss, measured, made = compiled(model, batch, settings)
            return loss, Measured(measured, {name: Sum(*pair) for name, pair in made.items()})

    def _by_blocks(
        self, known: WeakSet[nn.Module], model: nn.Module, batch: Any, settings: Any
    ) -> tuple[Tensor, dict[str, Any]]:
        with ONE_THREAD:
            if model not in known:
                compilation.compile_blocks(model)
                known.add(model)
            return self.plain(model, batch, settings)

    def _compiled_for(self, training: bool, batch: Any) -> Region | None:
        """The compiled function for a batch; None for one that is only smaller than the first."""
        shapes = [leaf.shape for leaf in trees.leaves(batch) if isinstance(leaf, Tensor)]
        usual = self._usual.setdefault(training, shapes)
        if shapes == usual:
            return self._to_train if training else self._to_evaluate
        return None if _differ_in_rows_alone(shapes, usual) else self._for_any


def _differ_in_rows_alone(shapes: Sequence[Size], others: Sequence[Size]) -> bool:
    """Whether two batches have the same shapes but for one number of examples in each."""
    rows = [{shape[:1] for shape in each} for each in (shapes, others)]
    one_each = all(len(found) == 1 for found in rows)
    return one_each and [shape[1:] for shape in shapes] == [shape[1:] for shape in others]


def region(forward: Forward) -> Region:
    """Return a function that also sums what was measured."""

    def run(
        model: nn.Module, batch: Any, settings: Any
    ) -> tuple[Tensor, dict[str, Any], dict[str, tuple[Any, ...]]]:
        loss, measured = forward(model, batch, settings)
        made = {name: tuple(summed(each)) for name, each in sums_of(measured).items()}
        return loss, measured, made

    return run
