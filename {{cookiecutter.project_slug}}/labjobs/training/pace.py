"""How fast a job trains and how much memory it takes, for `find batch-size` and `find workers`.

After a warm-up, in which code is compiled, kernels are chosen and queues fill, some windows are
timed, and then the job pauses. It waits for the device only at the end of each window.
"""

import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from labjobs.data.batches import Batches
from labjobs.job.interruption import Paused
from labjobs.job.journal import Journal
from labjobs.job.purpose import EXAMPLES, LOADER, MEMORY, RATE, WORKERS
from labjobs.training import devices

WARM_UP_STEPS, WARM_UP_SECONDS = 5, 1.0
"""The least steps and seconds of the warm-up."""

WINDOWS, WINDOW_SECONDS = 5, 0.5
"""Number of windows, and the least seconds of each; a window has at least one step."""


class Pace:
    """Times a job's steps. `step` returns how many are done. Raises Paused when all is measured."""

    def __init__(
        self, device: torch.device, journal: Journal, step: Callable[[], int], workers: int | str
    ) -> None:
        self._device, self._journal, self._step = device, journal, step
        self._workers = {WORKERS: float(workers)} if isinstance(workers, int) else {}

    def steps(
        self, stream: Iterator[tuple[Any, int]], batches: Batches | None
    ) -> Iterator[tuple[Any, int]]:
        """Yield batches with their numbers of examples, until all windows are over."""
        self._journal.tags({LOADER: batches.loader if batches else "none"})
        yield from self._until(stream, WARM_UP_STEPS, WARM_UP_SECONDS)
        devices.reset_peak_memory(self._device)
        for _ in range(WINDOWS):
            devices.wait(self._device)
            began, sizes = time.perf_counter(), list[int]()
            for batch, size in self._until(stream, 1, WINDOW_SECONDS):
                sizes.append(size)
                yield batch, size
            devices.wait(self._device)
            rate = sum(sizes) / (time.perf_counter() - began)
            measured = {RATE: rate, EXAMPLES: float(max(sizes)), MEMORY: self._peak_memory()}
            self._journal.metrics(self._step(), measured | self._workers)
        raise Paused(f"after {self._step()} steps, since its speed has been measured")

    def end_steps(self) -> None:
        """Do nothing: evaluations between steps count as training time; the finder has none."""

    def close(self) -> None:
        """Do nothing: a job that ends earlier has fewer windows."""

    def _until(
        self, stream: Iterator[tuple[Any, int]], steps: int, seconds: float
    ) -> Iterator[tuple[Any, int]]:
        """Yield at least this many batches, for at least this long."""
        began, done = time.perf_counter(), 0
        while done < steps or time.perf_counter() - began < seconds:
            yield next(stream)
            done += 1

    def _peak_memory(self) -> float:
        """The peak memory in bytes: of tensors on a GPU, or else of the process."""
        on_device = devices.peak_memory(self._device)
        if on_device is not None:
            return float(on_device)
        unit = 1 if sys.platform == "darwin" else 1024
        return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
