"""The calls of the student's forward functions while a job is profiled."""

from types import TracebackType
from typing import Any, Self
from unittest.mock import patch

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from labjobs.profiling import flops
from labjobs.training.forward import Prepared


class Calls:
    """The calls in training, with their number formats and costs; only shapes are kept, not
    data."""

    def __init__(self) -> None:
        self._calls: list[tuple[Prepared, nn.Module, Any, Any]] = []
        call = Prepared.__call__

        def noted(prepared: Prepared, model: nn.Module, batch: Any, settings: Any) -> Any:
            if model.training:
                self._calls.append((prepared, model, flops.without_data(batch), settings))
            return call(prepared, model, batch, settings)

        self._patch = patch.object(Prepared, "__call__", noted)

    def __enter__(self) -> Self:
        self._patch.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._patch.stop()

    @property
    def precision(self) -> str:
        """The number formats of the functions that were called."""
        return ", ".join(sorted({prepared.precision for prepared, *_ in self._calls})) or "fp32"

    @property
    def compiled(self) -> bool:
        """Whether one of them is compiled."""
        return any(prepared.compiled for prepared, *_ in self._calls)

    def flops(self, examples: int) -> float | None:
        """Return the operations per example, for this many examples; None if they cannot be
        counted."""
        known: dict[Any, int | None] = {}
        total = 0
        for prepared, model, batch, settings in self._calls:
            shapes = tuple(leaf.shape for leaf in tree_leaves(batch) if isinstance(leaf, Tensor))
            kind = prepared, model, shapes
            if kind not in known:
                known[kind] = flops.of_call(prepared.plain, model, batch, settings)
            cost = known[kind]
            if cost is None:
                return None
            total += cost
        return total / examples if self._calls and examples else None
