"""The steps of a training loop as ranges on the timeline of NVIDIA's profilers: --nvtx."""

from collections.abc import Iterator
from typing import Any

import torch

from labjobs import devices
from labjobs.data.batches import Batches
from labjobs.errors import SettingsError


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


# How many floating-point operations a second a device could do.
#
# MFU is the fraction of the device's peak that training makes use of. Source: Chowdhery et al.
# 2022, arxiv.org/abs/2204.02311, appendix B.

PEAKS = {
    "H200": {"fp32": 67e12, "tf32": 494e12, "bf16": 989e12, "fp16": 989e12},
    "H100 PCIe": {"fp32": 51e12, "tf32": 378e12, "bf16": 756e12, "fp16": 756e12},
    "H100": {"fp32": 67e12, "tf32": 494e12, "bf16": 989e12, "fp16": 989e12},
    "A100": {"fp32": 19.5e12, "tf32": 156e12, "bf16": 312e12, "fp16": 312e12},
    "L40S": {"fp32": 91.6e12, "tf32": 183e12, "bf16": 362e12, "fp16": 362e12},
    "V100": {"fp32": 15.7e12, "fp16": 125e12},
}
"""Dense operations a second by a part of a GPU's name and by precision, from nvidia.com's data
sheets."""


def peak(name: str, precision: str) -> float | None:
    """Return the operations a second that a GPU of this name can do, None if that is not known."""
    known = next((peaks for gpu, peaks in PEAKS.items() if gpu in name), {})
    return known.get(precision)
