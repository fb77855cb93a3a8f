"""What a running training loop does, line by line, and where it reads tensors.

Both slow the loop, so they are for `--profile` alone.
"""

import re
import sys
import threading
import time
import traceback
import warnings
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Self
from unittest.mock import patch

import torch
from torch import Tensor
from torch.profiler import profile, record_function

from labjobs.paths import CODE
from labjobs.training import devices

READS = ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__")
"""Methods of a tensor by which the host waits for its value."""

SYNCHRONIZES = "called a synchronizing CUDA operation"
"""torch's words for a wait that it warns of."""

MICRO = 1e6
"""Units of the profiler's clock in a second."""


class Loop:
    """The lines of a function that is running, each as a range of torch's profiler.

    A range is called `run.py:120`. `calls` has the files of what a line calls; `first` is the line
    that runs at the start. Lines run while `evaluating` are `of_evaluation`, others `of_steps`.
    Source: docs.python.org/3/library/sys.html#sys.settrace.
    """

    def __init__(self, frame: FrameType) -> None:
        self.path, self.first = frame.f_code.co_filename, frame.f_lineno
        self.name = Path(self.path).name
        self.calls: defaultdict[int, set[str]] = defaultdict(set)
        self.evaluating = False
        self.of_evaluation: set[int] = set()
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
        (self.of_evaluation if self.evaluating else self.of_steps).add(number)
        self._range = record_function(f"{self.name}:{number}")
        self._range.__enter__()

    def _end(self) -> None:
        if self._range:
            self._range.__exit__(None, None, None)
            self._range = None


class Read(NamedTuple):
    """What reads a tensor, and where."""

    place: str
    what: str


class Reads:
    """The places where this thread waits for a tensor's value: how often, for how many seconds.

    On a CUDA GPU, also where torch itself says that it waits. Source:
    docs.pytorch.org/docs/stable/generated/torch.cuda.set_sync_debug_mode.html.
    """

    def __init__(self, device: torch.device) -> None:
        self.seconds: defaultdict[Read, list[float]] = defaultdict(list)
        self._device = device
        self._within = False
        self._thread = threading.get_ident()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for method in READS:
            timed = self._timed(method, getattr(Tensor, method))
            self._stack.enter_context(patch.object(Tensor, method, timed))
        self._stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("always", SYNCHRONIZES)
        self._show, warnings.showwarning = warnings.showwarning, self._warned
        self._stack.enter_context(devices.warning_of_waits(self._device))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

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
                self.seconds[Read(_place(), name)].append(time.perf_counter() - begun)

        return read

    def _warned(self, message: Warning | str, *about: Any, **more: Any) -> None:
        if not re.match(SYNCHRONIZES, str(message)):
            self._show(message, *about, **more)
        elif not self._within and threading.get_ident() == self._thread:
            self.seconds[Read(_place(), "waits for the GPU")].append(0.0)


class Events:
    """What torch's profiler recorded while a Loop with this name ran. Times are in seconds."""

    def __init__(self, profiler: profile, name: str) -> None:
        events = profiler.events() or []
        host = [event for event in events if event.device_type.name == "CPU"]
        self._lines = sorted(
            (event.time_range.start, event.time_range.end, int(event.name.split(":")[1]))
            for event in host
            if event.name.startswith(f"{name}:")
        )
        self._launches = [(e.time_range.start, e.kernels) for e in host if e.kernels]
        self._host = host
        self._gpu = [
            (event.time_range.start, event.time_range.end, event.name)
            for event in events
            if event.device_type.name == "CUDA" and not event.is_user_annotation
        ]

    @property
    def seconds(self) -> float:
        """From the first line to the last."""
        begun, ended = self._lines[0][0], self._lines[-1][1]
        return float(ended - begun) / MICRO

    def seconds_of(self, name: str) -> float:
        """Return the seconds of the ranges of a name, on the host."""
        ranges = [event.time_range for event in self._host if event.name == name]
        return sum(float(each.end - each.start) for each in ranges) / MICRO

    def by_line(self) -> dict[int, tuple[float, float]]:
        """Seconds of each line, on the host and of what it has the GPU do."""
        seconds: defaultdict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for start, end, number in self._lines:
            seconds[number][0] += (end - start) / MICRO
        starts = [start for start, _, _ in self._lines]
        for at, kernels in self._launches:  # by another thread too, as in the backward pass
            _, _, number = self._lines[max(0, bisect(starts, at) - 1)]
            seconds[number][1] += sum(kernel.duration for kernel in kernels) / MICRO
        return {number: (host, gpu) for number, (host, gpu) in seconds.items()}

    def on_gpu(self, kind: str = "") -> float:
        """Seconds in which the GPU does something, or something of a kind: `Memcpy HtoD`."""
        busy = until = 0.0
        for start, end, name in sorted(self._gpu):
            if name.startswith(kind):
                busy += max(0.0, end - max(start, until))
                until = max(until, end)
        return busy / MICRO


def frame_outside() -> FrameType:
    """The nearest frame, from here outwards, that is not in this project's engine."""
    frame = sys._getframe()
    while frame.f_back and Path(frame.f_code.co_filename).is_relative_to(CODE / "labjobs"):
        frame = frame.f_back
    return frame


def _place() -> str:
    """The line of the project's code that is running: `run.py:120`."""
    for frame in reversed(traceback.extract_stack()):
        file = Path(frame.filename)
        of_project = file.is_relative_to(CODE) and "site-packages" not in file.parts
        if of_project and frame.filename != __file__:
            return f"{file.relative_to(CODE)}:{frame.lineno}"
    return "elsewhere"
