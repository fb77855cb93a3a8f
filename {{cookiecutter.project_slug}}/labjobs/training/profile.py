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
import re
import sys
import threading
import time
import warnings
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Self
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function

from labjobs import devices, layout
from labjobs.data.batches import Batches
from labjobs.files import shown
from labjobs.job.terminal import log
from labjobs.sources import is_engines, is_students, place
from labjobs.training import compilation, probes, profile_report
from labjobs.training.compilation import Prepared
from labjobs.training.profile_report import Line, Reading, Watched, report

WARM_UP = 10  # steps before the first that counts
WAITING = "waiting for data"

# The part of a step to which a line belongs: that of the first of these files that it calls.
PARTS = {
    "torch/_tensor.py": "backward",
    "labjobs/training/profile.py": "forward",  # which calls labjobs/training/compilation.py
    "torch/nn/modules/module.py": "forward",
    "torch/optim/optimizer.py": "optimizer",
    "torch/_compile.py": "optimizer",
    "torch/amp/grad_scaler.py": "optimizer",
    "optimizers.py": "optimizer",
    "labjobs/training/optim.py": "optimizer",
    "data.py": "augmentation",
    "labjobs/data/vision.py": "augmentation",
    "labjobs/training/loop.py": "logging",
}

# Methods of a tensor by which the host waits for its value.
READS = ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__")
SYNCHRONIZES = "called a synchronizing CUDA operation"  # torch's words for a wait that it warns of
MICRO = 1e6  # units of the profiler's clock in a second


class Step(NamedTuple):
    """A step without the profiler: its seconds, the part of them spent waiting for the batch, and
    its examples."""

    seconds: float
    waited: float
    examples: int


class Profile(probes.Watcher):
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
        elif self._is_watching:
            self._calls.clear()  # those of the last step tell what each costs

    def _begin(self) -> None:
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # its own lines tell a user nothing
        kinds = [ProfilerActivity.CPU]
        if self._device.type == "cuda":
            kinds.append(ProfilerActivity.CUDA)
        devices.reset_peak_memory(self._device)
        devices.record_allocations(self._device)
        self._calls: list[Call] = []
        self._watching.enter_context(_noting(self._calls))
        self._profiler = self._watching.enter_context(profile(activities=kinds))
        self._reads = Reads(self._device, self._watching)
        frame = sys._getframe()
        while frame.f_back and is_engines(frame.f_code.co_filename):
            frame = frame.f_back
        self._loop = self._watching.enter_context(Loop(frame))

    def _end(self) -> None:
        devices.wait(self._device)
        self._watching.close()
        self._profiler.export_chrome_trace(str(self._folder / layout.PROFILE_JSON))
        names = [layout.PROFILE, layout.PROFILE_JSON]
        if devices.dump_allocations(self._device, self._folder / "memory.pickle"):
            names.append("memory.pickle")
        (self._folder / layout.PROFILE).write_text(report(self._seen()))
        self._finished(names)
        log.info("profile: %s", shown(self._folder / layout.PROFILE))

    def _seen(self) -> Watched:
        plain = self._timed[WARM_UP : WARM_UP + self._count]
        seconds = sum(step.seconds for step in plain)
        events = Events(self._profiler, self._loop.name)
        device, gpu = devices.describe(self._device), self._device.type == "cuda"
        precision = ", ".join(sorted({call[0].precision for call in self._calls})) or "fp32"
        costs = [
            profile_report.flops(prepared.plain, *arguments) for prepared, *arguments in self._calls
        ]
        known, last = [cost for cost in costs if cost is not None], self._timed[-1].examples
        return Watched(
            steps=self._count,
            batch_size=max(step.examples for step in plain),
            device=device,
            precision=precision,
            compiled=any(call[0].compiled for call in self._calls),
            loader=self._loader,
            plain=seconds,
            examples=sum(step.examples for step in plain),
            waiting=sum(step.waited for step in plain) / seconds,
            seconds=events.seconds,
            lines=self._lines(events),
            reads=[Reading(*read, len(s), sum(s)) for read, s in self._reads.seconds.items()],
            compiling=compilation.events,
            memory=profile_report.memory(list(self._parts()), self._device),
            busy=min(1.0, events.on_gpu() / seconds) if gpu else None,
            copying=events.on_gpu("Memcpy HtoD") / seconds,
            flops=sum(known) / last if last and len(known) == len(costs) else None,
            peak=probes.peak(device, precision),
        )

    def _lines(self, events: "Events") -> list[Line]:
        """The lines of the loop; for the line that asks for the next batch, the time that it
        waits."""
        loop = self._loop
        lines = []
        for number, (host, gpu) in events.by_line().items():
            text = linecache.getline(loop.path, number).strip()
            files = " ".join(loop.calls[number]) + " "
            part = "evaluation"
            if number in loop.of_steps:
                part = next((part for file, part in PARTS.items() if f"/{file} " in files), "")
            line = Line(f"{loop.name}:{number}", text, part, host, gpu)
            if number == loop.first:
                waited = min(host, events.seconds_of(WAITING))
                lines.append(line._replace(part=WAITING, host=waited, gpu=0.0))
                line = line._replace(part="logging and checkpoints", host=host - waited)
            lines.append(line)
        return lines


Call = tuple[Prepared, nn.Module, Any, Any]
"""A call of a forward function in training, with its arguments; of tensors, only the shapes."""


@contextmanager
def _noting(calls: list[Call]) -> Iterator[None]:
    """Note the calls of the student's forward functions."""
    call = Prepared.__call__

    def noted(prepared: Prepared, model: nn.Module, batch: Any, settings: Any) -> Any:
        if model.training:
            calls.append((prepared, model, profile_report.without_data(batch), settings))
        return call(prepared, model, batch, settings)

    with patch.object(Prepared, "__call__", noted):
        yield


class Loop:
    """The lines of a function that is running, each as a range of torch's profiler.

    A range is called `run.py:120`. `calls` has the files of what a line calls; `first` is the line
    that runs at the start. Lines that do not only run while `evaluating` are `of_steps`.
    Source: docs.python.org/3/library/sys.html#sys.settrace.
    """

    def __init__(self, frame: FrameType) -> None:
        self.path, self.first = frame.f_code.co_filename, frame.f_lineno
        self.name = Path(self.path).name
        self.calls: defaultdict[int, set[str]] = defaultdict(set)
        self.evaluating = False
        self.of_steps: set[int] = set()
        self._frame = frame
        self._range: record_function | None = None

    def __enter__(self) -> Self:
        self._before = sys.gettrace(), self._frame.f_trace  # of a debugger, say
        self._frame.f_trace = self._move
        sys.settrace(self._call)
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        of_all, self._frame.f_trace = self._before
        sys.settrace(of_all)
        self._end()

    def _call(self, frame: FrameType, _event: str, _arg: object) -> None:
        caller = frame.f_back
        if caller and caller.f_code.co_filename.endswith("_contextlib.py"):  # @torch.no_grad()
            caller = caller.f_back
        if caller is self._frame:
            self.calls[self._frame.f_lineno].add(frame.f_code.co_filename)

    def _move(self, _frame: FrameType, event: str, _arg: object) -> Callable[..., Any]:
        self._end()
        if event == "line":
            self._begin()
        return self._move

    def _begin(self) -> None:
        number = self._frame.f_lineno
        if not self.evaluating:
            self.of_steps.add(number)
        self._range = record_function(f"{self.name}:{number}")
        self._range.__enter__()

    def _end(self) -> None:
        if self._range:
            self._range.__exit__(None, None, None)
            self._range = None


class Reads:
    """The places where this thread waits for a tensor's value, with the method: how many seconds
    each time, until `watching` is closed.

    On a CUDA GPU, also where torch itself says that it waits. Source:
    docs.pytorch.org/docs/stable/generated/torch.cuda.set_sync_debug_mode.html.
    """

    def __init__(self, device: torch.device, watching: ExitStack) -> None:
        self.seconds: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        self._device = device
        self._within = False
        self._thread = threading.get_ident()
        for method in READS:
            timed = self._timed(method, getattr(Tensor, method))
            watching.enter_context(patch.object(Tensor, method, timed))
        watching.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("always", SYNCHRONIZES)
        self._show, warnings.showwarning = warnings.showwarning, self._warned
        watching.enter_context(devices.warning_of_waits(device))

    def _timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def read(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            """The method; what it calls of its own kind is part of it."""
            here = tensor.device.type == self._device.type
            if not here or self._within or threading.get_ident() != self._thread:
                return method(tensor, *args, **kwargs)
            begun, self._within = time.perf_counter(), True
            try:
                return method(tensor, *args, **kwargs)
            finally:
                self._within = False
                self._note(name, time.perf_counter() - begun)

        return read

    def _warned(self, message: Warning | str, *about: Any, **more: Any) -> None:
        if not re.match(SYNCHRONIZES, str(message)):
            self._show(message, *about, **more)
        elif not self._within and threading.get_ident() == self._thread:
            self._note("waits for the GPU", 0.0)

    def _note(self, what: str, seconds: float) -> None:
        """Note what reads in the student's code; what the engine reads, no student could change."""
        frame: FrameType | None = sys._getframe()
        while frame:
            file = frame.f_code.co_filename
            if is_students(file):
                self.seconds[str(place(file, frame.f_lineno)), what].append(seconds)
            if is_students(file) or (is_engines(file) and file != __file__):
                return
            frame = frame.f_back


class Events:
    """What torch's profiler recorded while a Loop with this name ran. Times are in seconds."""

    def __init__(self, profiler: profile, name: str) -> None:
        events = profiler.events() or []
        self._host = [event for event in events if event.device_type.name == "CPU"]
        self._lines = sorted(
            (event.time_range.start, event.time_range.end, int(event.name.split(":")[1]))
            for event in self._host
            if event.name.startswith(f"{name}:")
        )
        self._gpu = sorted(
            (event.time_range.start, event.time_range.end, event.name)
            for event in events
            if event.device_type.name == "CUDA" and not event.is_user_annotation
        )

    @property
    def seconds(self) -> float:
        """From the first line to the last."""
        return float(self._lines[-1][1] - self._lines[0][0]) / MICRO

    def seconds_of(self, name: str) -> float:
        """Return the seconds of the ranges of a name, on the host."""
        spans = [event.time_range for event in self._host if event.name == name]
        return sum(float(each.end - each.start) for each in spans) / MICRO

    def by_line(self) -> dict[int, tuple[float, float]]:
        """Return the seconds of each line, on the host and of what it has the GPU do."""
        seconds: defaultdict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for start, end, number in self._lines:
            seconds[number][0] += (end - start) / MICRO
        starts = [start for start, _, _ in self._lines]
        for event in self._host:  # of another thread too, as in the backward pass
            if event.kernels:
                _, _, number = self._lines[max(0, bisect(starts, event.time_range.start) - 1)]
                seconds[number][1] += sum(kernel.duration for kernel in event.kernels) / MICRO
        return {number: (host, gpu) for number, (host, gpu) in seconds.items()}

    def on_gpu(self, kind: str = "") -> float:
        """Return the seconds in which the GPU does something, or something of a kind: `Memcpy
        HtoD`."""
        busy = until = 0.0
        for start, end, name in self._gpu:
            if name.startswith(kind):
                busy += max(0.0, end - max(start, until))
                until = max(until, end)
        return busy / MICRO
