"""What `jobs.py find` measures in the steps of a loop; and the MFU's peaks.

`find batch-size` and `find workers` measure how fast a job trains and how much memory it takes,
`find noise-scale` the noise of its gradient.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from labjobs import devices, machine
from labjobs.data.batches import Batches
from labjobs.errors import JobError
from labjobs.job.journal import Journal
from labjobs.job.runtime import EXAMPLES, MEMORY, NOISE, RATE, SIGNAL
from labjobs.job.terminal import Paused

Stream = Iterator[tuple[Any, int]]
"""Batches with their numbers of examples."""


class Watcher:
    """Observes the steps of a loop; by itself it does nothing."""

    def steps(self, stream: Stream, batches: Batches | None) -> Stream:
        """Return the batches."""
        return stream

    def end_steps(self) -> None:
        """The steps of an interval are over, and the device has done them."""

    def close(self) -> None:
        """There are no more steps."""


# After a warm-up, in which code is compiled, kernels are chosen and queues fill, some windows are
# timed, and then the job pauses. It waits for the device only at the end of each window.

WARM_UP_STEPS, WARM_UP_SECONDS = 5, 1.0
"""The least steps and seconds of the warm-up."""

WINDOWS, WINDOW_SECONDS = 5, 0.5
"""Number of windows, and the least seconds of each; a window has at least one step."""


class Pace(Watcher):
    """Times a job's steps. `step` returns how many are done. Raises Paused when all is measured."""

    def __init__(self, device: torch.device, journal: Journal, step: Callable[[], int]) -> None:
        self._device, self._journal, self._step = device, journal, step

    def steps(self, stream: Stream, batches: Batches | None) -> Stream:
        """Yield batches until all windows are over."""
        yield from self._until(stream, WARM_UP_STEPS, WARM_UP_SECONDS)
        devices.reset_peak_memory(self._device)
        for _ in range(WINDOWS):
            devices.wait(self._device)
            began, sizes = time.perf_counter(), list[int]()
            for batch, size in self._until(stream, 1, WINDOW_SECONDS):
                sizes.append(size)
                yield batch, size
            devices.wait(self._device)
            measured = {
                RATE: sum(sizes) / (time.perf_counter() - began),
                EXAMPLES: float(max(sizes)),
                MEMORY: float(peak_memory(self._device)),
            }
            self._journal.metrics(self._step(), measured)
        raise Paused(f"after {self._step()} steps, since its speed has been measured")

    def _until(self, stream: Stream, steps: int, seconds: float) -> Stream:
        """Yield at least this many batches, for at least this long."""
        began, done = time.perf_counter(), 0
        while done < steps or time.perf_counter() - began < seconds:
            yield next(stream)
            done += 1


def peak_memory(device: torch.device) -> int:
    """Return the most memory so far in bytes: of tensors on a GPU, or else of the process."""
    on_device = devices.peak_memory(device)
    return machine.peak_memory() if on_device is None else on_device


# The noise of the gradient, from the parts of batches, for `find noise-scale`.
#
# For a batch of B examples in k parts, L is the squared norm of its gradient, and S the mean of the
# squared norms of the parts' gradients, weighted by the sizes of the parts. The expectations are
# |G|² + tr Σ / B and |G|² + k tr Σ / B, where G is the gradient over all data and Σ the covariance
# of single examples' gradients. So these estimates are unbiased for parts of any sizes:
#
#     tr Σ = B (S − L) / (k − 1)        |G|² = (k L − S) / (k − 1)
#
# Their ratio is the simple noise scale. Source: McCandlish et al. 2018, arxiv.org/abs/1812.06162,
# appendix A.1; its formulas are these for parts of B / k examples each.


class NoiseScale(Watcher):
    """Looks at the gradients between the parts of a batch, without waiting for the device.

    `training` returns what the loop trains with, an optimizer among it; `log` is given what a step
    has measured.
    """

    def __init__(
        self,
        training: Callable[[], Iterable[object]],
        log: Callable[[Mapping[str, Tensor]], object],
    ) -> None:
        self._training, self._log = training, log
        self._examples = 0  # of this step

    def steps(self, stream: Stream, batches: Batches | None) -> Stream:
        """Note how many examples each batch has."""
        for batch, size in stream:
            self._examples = size
            yield batch, size

    def parts(self, parts: Iterable[tuple[Any, Tensor]]) -> Iterator[tuple[Any, Tensor]]:
        """Yield the parts of a batch, each with its fraction (); log the estimates from
        their gradients.

        These are what the backward passes add up, before any clipping; with a GradScaler both
        estimates are multiplied by the square of its scale, and their ratio is the same. Raises
        JobError for a loop whose gradients have no one optimizer.
        """
        weights = self._weights()
        first = before = _gradients(weights)
        count, of_parts = 0, torch.zeros((), device=weights[0].device)
        for part, fraction in parts:
            yield part, fraction
            now = _gradients(weights)
            of_parts = of_parts + _squared(now, before) / fraction
            before, count = now, count + 1
        if count < 2:
            return
        of_batch = _squared(before, first)
        noise = self._examples * (of_parts - of_batch) / (count - 1)
        signal = (count * of_batch - of_parts) / (count - 1)
        self._log({SIGNAL: signal, NOISE: noise})

    def _weights(self) -> list[Tensor]:
        optimizers = [each for each in self._training() if hasattr(each, "param_groups")]
        if len(optimizers) != 1:
            raise JobError(
                "find noise-scale: needs one optimizer among what job.resume(…) names; it has "
                f"{len(optimizers) or 'none'}"
            )
        if not self._examples:
            raise JobError(
                "find noise-scale: needs the number of examples of a step; give job.steps "
                "batches, or examples=…"
            )
        return [weight for group in optimizers[0].param_groups for weight in group["params"]]


def _gradients(weights: Iterable[Tensor]) -> list[Tensor]:
    """A copy of the gradients so far."""
    return [
        torch.zeros_like(weight) if weight.grad is None else weight.grad.detach().clone()
        for weight in weights
    ]


def _squared(after: list[Tensor], before: list[Tensor]) -> Tensor:
    """The squared norm () of what was added to the gradients."""
    added = torch._foreach_sub(after, before)
    return torch.stack(torch._foreach_norm(added, 2, torch.float32)).square().sum()


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
