"""A thread that writes checkpoints while training goes on."""

from collections.abc import Callable, Mapping
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from labjobs.errors import Diverged
from labjobs.training import checkpoints


class _Waiting(NamedTuple):
    content: dict[str, Any]
    models: Mapping[str, Mapping[str, Any]]
    previous: Path | None


class Writer:
    """Writes checkpoints in order; of those that wait for one file, only the newest."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._waiting: dict[Path, _Waiting] = {}
        self._tasks: list[Future[None]] = []

    @property
    def idle(self) -> bool:
        """Whether everything is written. Raises what a write raised."""
        self._raise_failures()
        return not self._tasks

    def act(self, task: Callable[[], None]) -> None:
        """Queue something to be done after what is being written."""
        self._tasks.append(self._thread.submit(task))

    def write(
        self,
        path: Path,
        content: dict[str, Any],
        models: Mapping[str, Mapping[str, Any]],
        previous: Path | None = None,
    ) -> None:
        """Have a checkpoint written; see `checkpoints.save`.

        If the weights of one of the `models` in it are not finite, nothing is written, and the next
        call raises Diverged.
        """
        self._raise_failures()
        self._waiting[path] = _Waiting(content, models, previous)
        self.act(partial(self._write_newest, path))

    def wait(self) -> None:
        """Return once everything so far is written. Raises what a write raised."""
        futures.wait(self._tasks)
        self._raise_failures()

    def close(self) -> None:
        """Return once everything is written. Raises what a write raised."""
        self._thread.shutdown()
        self._raise_failures()

    def _write_newest(self, path: Path) -> None:
        if path not in self._waiting:
            return
        content, models, previous = self._waiting.pop(path)
        for model, weights in models.items():
            if bad := [name for name, weight in weights.items() if not _finite(weight)]:
                raise Diverged(
                    f"weights of {model} are no longer finite ({bad[0]}); lower the learning rate"
                )
        checkpoints.save(path, content, previous)

    def _raise_failures(self) -> None:
        done = [task for task in self._tasks if task.done()]
        self._tasks = [task for task in self._tasks if not task.done()]
        for task in done:
            task.result()


def _finite(weight: Any) -> bool:
    """By NumPy: torch would start threads for it beside those that train, and GNU's OpenMP lets all
    threads wait in a slower way once they are more than the cores (GOMP_SPINCOUNT)."""
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        return True
    return bool(np.isfinite(weight.float().numpy(force=True)).all())
