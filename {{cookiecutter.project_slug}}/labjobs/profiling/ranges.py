"""The steps of a training loop as ranges on the timeline of NVIDIA's profilers: --nvtx."""

from collections.abc import Iterator
from typing import Any

import torch

from labjobs.data.batches import Batches
from labjobs.errors import SettingsError
from labjobs.training import devices


class Ranges:
    """Marks what a loop does: wait for a batch, take a step, or evaluate.

    Raises SettingsError for a device other than a CUDA GPU.
    """

    def __init__(self, device: torch.device) -> None:
        if device.type != "cuda":
            raise SettingsError(f"--nvtx: needs a CUDA GPU, and the device is {device.type}")
        self._open = False

    def steps(
        self, stream: Iterator[tuple[Any, int]], _batches: Batches | None
    ) -> Iterator[tuple[Any, int]]:
        """Yield the batches with their numbers of examples."""
        while True:
            self._enter("batch")
            batch, examples = next(stream)
            self._enter("step")
            yield batch, examples

    def end_steps(self) -> None:
        """Mark the end of an interval's steps, when its evaluation begins."""
        self._enter("evaluation")

    def close(self) -> None:
        """Mark the end of all steps."""
        if self._open:
            devices.end_range()
            self._open = False

    def _enter(self, name: str) -> None:
        self.close()
        devices.begin_range(name)
        self._open = True
