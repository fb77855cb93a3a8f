"""`--profile N`: watch N training steps, and write down where their time goes and what to change.

After WARM_UP steps, N are timed as they are; the next N are watched by torch's profiler, which
slows them, with every line of the training loop as a range of its own. `profile.txt` in the job's
folder is the report, `profile.json` the trace, for ui.perfetto.dev; on a CUDA GPU `memory.pickle`
says what its memory held, for docs.pytorch.org/memory_viz. The job's run in the store has them as
well.
Source: docs.pytorch.org/docs/stable/profiler.html, .../torch_cuda_memory.html.
"""

import linecache
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from labjobs.data.batches import Batches
from labjobs.job.terminal import log
from labjobs.paths import shown
from labjobs.profiling import memory, peaks
from labjobs.profiling.calls import Calls
from labjobs.profiling.report import Line, Reading, Watched, report
from labjobs.profiling.tracing import Events, Loop, Reads, frame_outside
from labjobs.training import compilation, devices

WARM_UP = 10
"""Steps before the first that counts."""

WAITING = "waiting for data"

PARTS = {
    "torch/_tensor.py": "backward",
    "labjobs/profiling/calls.py": "forward",  # which calls labjobs/training/forward.py
    "torch/nn/modules/module.py": "forward",
    "torch/optim/optimizer.py": "optimizer",
    "torch/_compile.py": "optimizer",
    "torch/amp/grad_scaler.py": "optimizer",
    "optimizers.py": "optimizer",
    "labjobs/training/gradients.py": "optimizer",
    "labjobs/training/ema.py": "optimizer",
    "data.py": "augmentation",
    "labjobs/data/augmentation.py": "augmentation",
    "labjobs/training/training_loop.py": "logging",
}
"""The part of a step to which a line belongs, determined by the first of these files that it
calls."""


class Step(NamedTuple):
    """A step without the profiler: its seconds, the part of them spent waiting for the batch, and
    its examples."""

    seconds: float
    waited: float
    examples: int


class Profile:
    """Watches a job's steps, and writes files into its folder, whose names `finished` is told.

    `parts` returns the models and optimizers of the loop, whatever else is among them.
    """

    def __init__(
        self,
        count: int,
        folder: Path,
        device: torch.device,
        parts: Callable[[], Iterable[object]],
        finished: Callable[[list[str]], None],
    ) -> None:
        self._count, self._folder, self._device = count, folder, device
        self._parts, self._finished = parts, finished
        self._timed: list[Step] = []
        self._open: tuple[float, float, int] | None = None  # the step that is being done
        self._watching = ExitStack()

    def steps(
        self, stream: Iterator[tuple[Any, int]], batches: Batches | None
    ) -> Iterator[tuple[Any, int]]:
        """Yield batches with their numbers of examples; watch what is done with them in time.

        A step is over when the next batch is asked for, or at `end_steps`.
        """
        self._loader = "" if batches is None else batches.loader
        while True:
            self._end_step()
            if self._is_over:
                break
            asked = time.perf_counter()
            with record_function(WAITING) if self._is_watching else nullcontext():
                batch, examples = next(stream)
            self._open = asked, time.perf_counter(), examples
            yield batch, examples
        yield from stream

    def end_steps(self) -> None:
        """The steps of an interval are over, and the device has done them: what follows until the
        next batch is asked for is its evaluation."""
        self._end_step()
        if self._is_watching:
            self._loop.evaluating = True

    def close(self) -> None:
        """Stop watching; report if the job had too few steps."""
        self._watching.close()
        if not self._is_over:
            wanted = WARM_UP + 2 * self._count
            log.warning("--profile: needs %d steps, the job had %d", wanted, len(self._timed))

    @property
    def _is_watching(self) -> bool:
        return WARM_UP + self._count <= len(self._timed) < WARM_UP + 2 * self._count

    @property
    def _is_over(self) -> bool:
        return len(self._timed) == WARM_UP + 2 * self._count

    def _end_step(self) -> None:
        if self._is_watching:
            self._loop.evaluating = False
        if self._open is None:
            return
        if len(self._timed) + 1 in (WARM_UP, WARM_UP + self._count):
            devices.wait(self._device)
        asked, came, examples = self._open
        self._open = None
        self._timed.append(Step(time.perf_counter() - asked, came - asked, examples))
        if len(self._timed) == WARM_UP + self._count:
            self._begin()
        elif self._is_over:
            self._end()

    def _begin(self) -> None:
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # its own lines tell a user nothing
        kinds = [ProfilerActivity.CPU]
        if self._device.type == "cuda":
            kinds.append(ProfilerActivity.CUDA)
        devices.reset_peak_memory(self._device)
        devices.record_allocations(self._device)
        self._calls = self._watching.enter_context(Calls())
        self._profiler = self._watching.enter_context(profile(activities=kinds))
        self._reads = self._watching.enter_context(Reads(self._device))
        self._loop = self._watching.enter_context(Loop(frame_outside()))

    def _end(self) -> None:
        devices.wait(self._device)
        self._watching.close()
        self._profiler.export_chrome_trace(str(self._folder / "profile.json"))
        names = ["profile.txt", "profile.json"]
        if devices.dump_allocations(self._device, self._folder / "memory.pickle"):
            names.append("memory.pickle")
        (self._folder / "profile.txt").write_text(report(self._seen()))
        self._finished(names)
        log.info("profile: %s", shown(self._folder / "profile.txt"))

    def _seen(self) -> Watched:
        plain = self._timed[WARM_UP : WARM_UP + self._count]
        seconds = sum(step.seconds for step in plain)
        events = Events(self._profiler, self._loop.name)
        device, gpu = devices.describe(self._device), self._device.type == "cuda"
        precision = self._calls.precision
        return Watched(
            steps=self._count,
            batch_size=max(step.examples for step in plain),
            device=device,
            precision=precision,
            compiled=self._calls.compiled,
            loader=self._loader,
            plain=seconds,
            examples=sum(step.examples for step in plain),
            waiting=sum(step.waited for step in plain) / seconds,
            seconds=events.seconds,
            lines=self._lines(events),
            reads=[Reading(*read, len(s), sum(s)) for read, s in self._reads.seconds.items()],
            compiling=compilation.events,
            memory=memory.by_kind(list(self._parts()), self._device),
            busy=min(1.0, events.on_gpu() / seconds) if gpu else None,
            copying=events.on_gpu("Memcpy HtoD") / seconds,
            flops=self._calls.flops(sum(step.examples for step in self._timed[-self._count :])),
            peak=peaks.peak(device, precision),
        )

    def _lines(self, events: Events) -> list[Line]:
        """Return the lines of the loop; for the line that asks for the next batch, the time that it
        waits."""
        loop = self._loop
        lines = []
        for number, (host, gpu) in events.by_line().items():
            text = linecache.getline(loop.path, number).strip()
            line = Line(f"{loop.name}:{number}", text, self._part(number), host, gpu)
            if number == loop.first:
                waited = min(host, events.seconds_of(WAITING))
                lines.append(line._replace(part=WAITING, host=waited, gpu=0.0))
                line = line._replace(part="logging and checkpoints", host=host - waited)
            lines.append(line)
        return lines

    def _part(self, number: int) -> str:
        if number in self._loop.of_evaluation - self._loop.of_steps:
            return "evaluation"
        files = " ".join(self._loop.calls[number]) + " "
        return next((part for file, part in PARTS.items() if f"/{file} " in files), "")
