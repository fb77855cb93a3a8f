"""What is observed in the steps of a loop: for `jobs.py find`, and for --profile; the MFU's peaks.

`find batch-size` and `find workers` measure how fast a job trains and how much memory it takes,
`find noise-scale` the noise of its gradient.
"""

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from labjobs import devices, layout, machine
from labjobs.data.batches import Batches
from labjobs.errors import JobError
from labjobs.files import shown
from labjobs.job.folder import JobFolder
from labjobs.job.journal import EXAMPLES, MEMORY, NOISE, RATE, SIGNAL, Journal
from labjobs.job.terminal import Paused, log
from labjobs.training import compilation
from labjobs.training.compilation import Prepared

Stream = Iterator[tuple[Any, int]]  # batches with their numbers of examples
Parts = Iterator[tuple[Any, Tensor]]  # of a batch, each with its fraction () of it


class Watcher:
    """Observes the steps of a loop; by itself it does nothing."""

    graphed = False  # whether a step is one CUDA graph

    def steps(self, stream: Stream, batches: Batches | None) -> Stream:
        """Return the batches."""
        return stream

    def parts(self, parts: Parts) -> Parts:
        """Return the parts of a batch."""
        return parts

    def end_steps(self) -> None:
        """The steps of an interval are over, and the device has done them."""

    def close(self) -> None:
        """There are no more steps."""


# After a warm-up, in which code is compiled, kernels are chosen and queues fill, some windows are
# timed, and then the job pauses. It waits for the device only at the end of each window.

WARM_UP_STEPS, WARM_UP_SECONDS = 5, 1.0  # the least steps and seconds of the warm-up
WINDOWS, WINDOW_SECONDS = 5, 0.5  # number, and least seconds, of windows of at least one step


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
        self, training: Callable[[], Iterable[object]], log: Callable[[dict[str, Tensor]], object]
    ) -> None:
        self._training, self._log = training, log
        self._examples = 0  # of this step

    def steps(self, stream: Stream, batches: Batches | None) -> Stream:
        """Note how many examples each batch has."""
        for batch, size in stream:
            self._examples = size
            yield batch, size

    def parts(self, parts: Parts) -> Parts:
        """Yield the parts of a batch; log the estimates from their gradients.

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
            wanted = "one optimizer among what job.resume(…) names"
            line = f"needs {wanted}; it has {len(optimizers) or 'none'}"
            raise JobError(f"find noise-scale: {line}")
        if not self._examples:
            line = "needs the number of examples of a step; give job.steps batches, or examples=…"
            raise JobError(f"find noise-scale: {line}")
        return [weight for group in optimizers[0].param_groups for weight in group["params"]]


def _gradients(weights: Iterable[Tensor]) -> list[Tensor]:
    """A copy of the gradients so far."""
    return [torch.zeros_like(w) if w.grad is None else w.grad.detach().clone() for w in weights]


def _squared(after: list[Tensor], before: list[Tensor]) -> Tensor:
    """The squared norm () of what was added to the gradients."""
    added = torch._foreach_sub(after, before)
    return torch.stack(torch._foreach_norm(added, 2, torch.float32)).square().sum()


# How many floating-point operations a second a device could do.
#
# MFU is the fraction of the device's peak that training makes use of. Source: Chowdhery et al.
# 2022, arxiv.org/abs/2204.02311, appendix B.

PEAKS = {
    "B200": {"fp32": 75e12, "tf32": 1125e12, "bf16": 2250e12, "fp16": 2250e12},
    "H200": {"fp32": 67e12, "tf32": 494e12, "bf16": 989e12, "fp16": 989e12},
    "H100 PCIe": {"fp32": 51e12, "tf32": 378e12, "bf16": 756e12, "fp16": 756e12},
    "H100 NVL": {"fp32": 60e12, "tf32": 417e12, "bf16": 835e12, "fp16": 835e12},
    "H100": {"fp32": 67e12, "tf32": 494e12, "bf16": 989e12, "fp16": 989e12},
    "A100": {"fp32": 19.5e12, "tf32": 156e12, "bf16": 312e12, "fp16": 312e12},
    "A40$": {"fp32": 37.4e12, "tf32": 74.8e12, "bf16": 149.7e12, "fp16": 149.7e12},
    "A30$": {"fp32": 10.3e12, "tf32": 82e12, "bf16": 165e12, "fp16": 165e12},
    "A10$": {"fp32": 31.2e12, "tf32": 62.5e12, "bf16": 125e12, "fp16": 125e12},
    "L40S": {"fp32": 91.6e12, "tf32": 183e12, "bf16": 362e12, "fp16": 362e12},
    "L4$": {"fp32": 30.3e12, "tf32": 60e12, "bf16": 121e12, "fp16": 121e12},
    "RTX A6000$": {"fp32": 38.7e12, "tf32": 77.4e12, "bf16": 154.8e12, "fp16": 154.8e12},
    "RTX 5090$": {"fp32": 104.8e12, "tf32": 104.8e12, "bf16": 209.5e12, "fp16": 209.5e12},
    "RTX 4090$": {"fp32": 82.6e12, "tf32": 82.6e12, "bf16": 165.2e12, "fp16": 165.2e12},
    "RTX 3090$": {"fp32": 35.6e12, "tf32": 35.6e12, "bf16": 71e12, "fp16": 71e12},
    "V100": {"fp32": 15.7e12, "fp16": 125e12},
    "T4$": {"fp32": 8.1e12, "fp16": 65e12},
}
"""Dense operations a second, of 16-bit numbers with sums in 32 bits, by a part of a GPU's name, or
its end ($), and by precision, from nvidia.com's data sheets and papers on its architectures."""


def peak(name: str, precision: str) -> float | None:
    """Return the operations a second that a GPU of this name can do, None if that is not known."""
    known = next((peaks for gpu, peaks in PEAKS.items() if re.search(rf"\b{gpu}", name)), {})
    return known.get(precision)


# `--profile N`: watch N training steps, and write down where their time goes and what to change.
#
# After WARM_UP steps, N are timed as they are; the next N are watched by torch's profiler, which
# slows them. `profile.txt` in the job's folder is the report, `profile.json` the trace, for
# ui.perfetto.dev; on a CUDA GPU `memory.pickle` says what its memory held, for
# docs.pytorch.org/memory_viz. The job's run in the store has them as well.
#
# Advice is ordered by the fraction of the time that the problem takes. That is the most that a
# change can save; only trying it shows how much it does save.
# Source: docs.pytorch.org/docs/stable/profiler.html, .../torch_cuda_memory.html.

WARM_UP = 10  # steps before the first that counts
WORTH = 0.03  # smallest fraction of the time that is worth a change
OPERATIONS = 20  # that the report lists
MICRO = 1e6  # units of the profiler's clock in a second

FORWARD, BACKWARD, EVALUATION, REST = "forward", "backward", "evaluation", "everything else"
WAITING, OPTIMIZER = "waiting for data", "optimizer"


@dataclass(frozen=True)
class Watched:
    """What was seen. Times are in seconds, memory in bytes. `plain` is the time of the steps that
    were not watched, `examples` are those in them, `waiting` is the fraction of it spent waiting
    for data; `seconds` is the time of as many steps that were watched, with their evaluations, and
    `parts` how it was spent on the host. A GPU is not slowed by being watched, so what it does is a
    fraction of `plain`: `busy` computing or copying, `copying` from the host.
    """

    steps: int
    batch_size: int
    device: str
    precision: str
    compiled: bool
    graphed: bool
    loader: str
    plain: float
    examples: int
    waiting: float
    seconds: float
    parts: dict[str, float]
    peak: int
    recompiled: tuple[str, ...] = ()
    busy: float | None = None
    copying: float = 0.0
    operations: str = ""


def report(seen: Watched) -> str:
    """Return the whole report, as text."""
    found = enumerate(sorted(advice(seen), reverse=True), 1)
    changes = [f"{number}. {fraction:4.0%}  {text}" for number, (fraction, text) in found]
    sections = {
        f"{seen.steps} steps of {seen.batch_size} examples on {seen.device}": _speed(seen),
        "What to change, the largest part of the time first": changes
        or ["nothing stands out: the time goes into computing"],
        "Where the host's time goes, in ms a step": [
            f"{1000 * seconds / seen.steps:9.3f} {seconds / seen.seconds:6.1%}  {part}"
            for part, seconds in sorted(seen.parts.items(), key=lambda part: -part[1])
        ],
    }
    if seen.compiled:
        sections["torch.compile"] = [*seen.recompiled] or ["nothing was compiled a second time"]
    sections["Operations, by torch's profiler"] = seen.operations.splitlines()
    parts = ("\n  ".join((title, *lines)) for title, lines in sections.items())
    return "\n\n".join(parts) + "\n"


def _speed(seen: Watched) -> Iterator[str]:
    step = 1000 * seen.plain / seen.steps
    rate = seen.examples / seen.plain
    yield f"{step:.3g} ms a step, {rate:,.0f} examples a second in {seen.precision}"
    yield f"{seen.waiting:.0%} of the time waiting for data"
    if seen.busy is not None:
        busy = f"the GPU is busy {seen.busy:.0%} of the time ({seen.copying:.0%} being sent data)"
        yield f"{busy}, idle {1 - seen.busy:.0%}"
    if seen.graphed:
        yield "forward, backward and optimizer are one CUDA graph, so they have no times below"
    yield f"{seen.peak / 2**20:,.1f} MiB of memory at most"
    slower = seen.seconds / seen.plain
    yield f"{slower:.1f} times as long while it was profiled, as in all that follows"


def advice(seen: Watched) -> Iterator[tuple[float, str]]:
    """Yield what could be changed, with the fraction of the time that it is about, in no order."""
    if seen.waiting > WORTH:
        change = "more --workers, --loader resident if all fits, or less work for each example"
        if seen.loader == "resident":
            change = "fewer, larger steps (--batch-size)"
        yield seen.waiting, f"the loop waits for data: {change}"
    if seen.recompiled:
        text = "torch.compile recompiles, or gives up, at the lines named below: change those"
        yield seen.parts.get(FORWARD, 0.0) / seen.seconds, text
    evaluation = seen.parts.get(EVALUATION, 0.0) / seen.seconds
    if evaluation > WORTH:
        change = "--eval-every larger, or in the background (job.in_background)"
        yield evaluation, f"evaluation: {change}"
    if seen.busy is None:
        return
    idle = 1 - seen.busy - seen.waiting
    if idle > WORTH:
        change = "--batch-size larger" if seen.compiled else "--compile on, or --batch-size larger"
        if not seen.graphed:  # which ends nearly all of it, for small networks
            change = f"the step as one CUDA graph (job.graphed), {change}"
        change += "; --check names the lines at which the host waits for it"
        yield idle, f"the GPU waits for the host to launch work: {change}"
    half = seen.busy / 2  # which 16 bits save at least, where the GPU multiplies matrices
    if seen.precision == "fp32" and half > WORTH:
        yield half, "the GPU computes in 32 bits: --precision bf16 (or tf32)"
    if seen.copying > WORTH:
        yield seen.copying, "copying to the GPU: --loader resident, or uint8 from data.py"


class Step(NamedTuple):
    """A step: its seconds, the part of them spent waiting for the batch, its examples, and the
    seconds of an evaluation before it."""

    seconds: float
    waited: float
    examples: int
    evaluation: float


class Profile(Watcher):
    """Watches a job's steps, and writes files into its folder."""

    def __init__(
        self, count: int, folder: JobFolder[Any], device: torch.device, prepared: Sequence[Prepared]
    ) -> None:
        self._count, self._folder, self._device = count, folder, device
        self._prepared = prepared
        self._steps: list[Step] = []
        self._ended = time.perf_counter()  # the last step
        self._open: tuple[float, Step] | None = None  # when a step began, and its start
        self._watching = ExitStack()

    def steps(self, stream: Stream, batches: Batches | None) -> Stream:
        """Yield batches; watch what is done with them in time.

        A step is over when the next batch is asked for, or at `end_steps`; what follows that, until
        the next batch is asked for, is an evaluation.
        """
        self._loader = "" if batches is None else batches.loader
        while not self._is_over:
            asked = time.perf_counter()
            with record_function(WAITING):
                batch, examples = next(stream)
            waited = time.perf_counter() - asked
            self._open = asked, Step(waited, waited, examples, asked - self._ended)
            yield batch, examples
            self.end_steps()
        yield from stream

    def end_steps(self) -> None:
        """The last step is over, and the device has done those of an interval."""
        if self._open is None:
            return
        if len(self._steps) + 1 in (WARM_UP, WARM_UP + self._count):
            devices.wait(self._device)
        asked, step = self._open
        self._open = None
        self._steps.append(step._replace(seconds=time.perf_counter() - asked))
        if len(self._steps) == WARM_UP + self._count:
            self._begin()
        elif self._is_over:
            self._end()
        self._ended = time.perf_counter()

    def close(self) -> None:
        """Stop watching; report if the job had too few steps."""
        self._watching.close()
        if not self._is_over:
            wanted = WARM_UP + 2 * self._count
            log.warning("--profile: needs %d steps, the job had %d", wanted, len(self._steps))

    @property
    def _is_over(self) -> bool:
        return len(self._steps) == WARM_UP + 2 * self._count

    def _begin(self) -> None:
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # its own lines tell a user nothing
        kinds = [ProfilerActivity.CPU]
        if self._device.type == "cuda":
            kinds.append(ProfilerActivity.CUDA)
        devices.reset_peak_memory(self._device)
        devices.record_allocations(self._device)
        for owner, name, label in ((Prepared, "__call__", FORWARD), (Tensor, "backward", BACKWARD)):
            ranged = self._ranged(getattr(owner, name), label)
            self._watching.enter_context(patch.object(owner, name, ranged))
        # Of torch up to 2.11, the profiler warns if it is not to keep events of several cycles.
        self._profiler = self._watching.enter_context(profile(activities=kinds, acc_events=True))

    def _ranged(self, function: Callable[..., Any], label: str) -> Callable[..., Any]:
        """The function as a range of torch's profiler, while the loop trains."""

        def run(*given: Any, **more: Any) -> Any:
            if not self._open:
                return function(*given, **more)
            with record_function(label):
                return function(*given, **more)

        return run

    def _end(self) -> None:
        devices.wait(self._device)
        self._watching.close()
        folder, names = self._folder.path, [layout.PROFILE, layout.PROFILE_JSON]
        self._profiler.export_chrome_trace(str(folder / layout.PROFILE_JSON))
        if devices.dump_allocations(self._device, folder / "memory.pickle"):
            names.append("memory.pickle")
        (folder / layout.PROFILE).write_text(report(self._seen()), "utf-8")
        self._folder.journal.files(names)
        log.info("profile: %s", shown(folder / layout.PROFILE))

    def _seen(self) -> Watched:
        plain, watched = self._steps[WARM_UP : -self._count], self._steps[-self._count :]
        seconds = sum(step.seconds for step in plain)
        evaluation = sum(step.evaluation for step in watched)
        whole = sum(step.seconds for step in watched) + evaluation
        gpu = self._device.type == "cuda"
        sort = "self_device_time_total" if gpu else "self_cpu_time_total"
        return Watched(
            steps=self._count,
            batch_size=max(step.examples for step in plain),
            device=devices.describe(self._device),
            precision=", ".join(sorted({f.precision.name for f in self._prepared})) or "fp32",
            compiled=any(each.compiled for each in self._prepared),
            graphed=self.graphed,
            loader=self._loader,
            plain=seconds,
            examples=sum(step.examples for step in plain),
            waiting=sum(step.waited for step in plain) / seconds,
            seconds=whole,
            parts=self._parts(whole, evaluation),
            peak=peak_memory(self._device),
            recompiled=tuple(compilation.events),
            busy=min(1.0, self._on_gpu() / seconds) if gpu else None,
            copying=self._on_gpu("Memcpy HtoD") / seconds,
            operations=self._profiler.key_averages().table(sort, OPERATIONS),
        )

    def _parts(self, whole: float, evaluation: float) -> dict[str, float]:
        """The seconds of each part of the watched steps on the host."""
        parts = dict.fromkeys((WAITING, FORWARD, BACKWARD, OPTIMIZER), 0.0)
        for each in self._profiler.key_averages():
            part = OPTIMIZER if each.key.startswith("Optimizer.step#") else each.key
            if part in parts:
                parts[part] += each.cpu_time_total / MICRO
        parts[EVALUATION] = evaluation
        return parts | {REST: max(0.0, whole - sum(parts.values()))}

    def _on_gpu(self, kind: str = "") -> float:
        """The seconds in which the GPU does something, or something of a kind: `Memcpy HtoD`."""
        busy = until = 0.0
        spans = sorted(
            (event.time_range.start, event.time_range.end)
            for event in self._profiler.events() or []
            if event.device_type.name == "CUDA" and not event.is_user_annotation
            if event.name.startswith(kind)
        )
        for start, end in spans:
            busy += max(0.0, end - max(start, until))
            until = max(until, end)
        return busy / MICRO
