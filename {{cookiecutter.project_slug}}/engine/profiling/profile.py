"""`--profile N`: watch N training steps, and write down where their time goes and what to change.

    with Profile(job, batches, model, optimizer, precision) as profile:
        for ... in profile.steps(batches):
            ...

After WARM_UP steps, N are timed as they are; the next N are watched by torch's profiler, which
slows them, with every line of the training loop as a range of its own. `profile.txt` in the job's
folder is the report, `profile.json` the trace, for perfetto.dev; on a CUDA GPU `memory.pickle` says
what its memory held, for docs.pytorch.org/memory_viz. The job's run in the store has them as well.
Source: docs.pytorch.org/docs/stable/profiler.html, .../torch_cuda_memory.html.
"""

import linecache
import os
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from engine.data.loaders import Batches
from engine.job.folder import Job
from engine.job.terminal import log
from engine.paths import shown
from engine.profiling import flops
from engine.profiling.report import Line, Reading, Watched, report
from engine.profiling.tracing import Events, Loop, Reads, frame_outside
from engine.training import compilation, devices
from engine.training.precision import Precision

T = TypeVar("T", bound=Any)

WARM_UP = 10
"""Steps before the first that counts."""

PARTS = {
    "engine/training/evaluation.py": "evaluation",
    "torch/_tensor.py": "backward",
    "torch/nn/modules/module.py": "forward",
    "torch/optim/optimizer.py": "optimizer",
    "torch/_compile.py": "optimizer",
    "torch/amp/grad_scaler.py": "optimizer",
    "run.py": "loss",
    "engine/training/optimizers.py": "optimizer",
    "engine/training/ema.py": "optimizer",
    "engine/training/schedules.py": "optimizer",
    "engine/data/augmentation.py": "augmentation",
    "engine/training/training_state.py": "checkpoints",
    "engine/training/meters.py": "logging",
    "engine/job/journal.py": "logging",
    "engine/job/terminal.py": "logging",
    "logging/__init__.py": "logging",
}
"""The part of a step that a line is, by the first of these files that it calls."""


class Step(NamedTuple):
    """A step as it is when nobody looks: its seconds, those of them spent waiting for the batch,
    and its examples."""

    seconds: float
    waited: float
    examples: int


class Profile:
    """Watches a job's steps, if `--profile` asks for it."""

    def __init__(
        self,
        job: Job[Any],
        batches: Batches,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        precision: Precision,
    ) -> None:
        self._job, self._count = job, job.settings.profile
        self._batches, self._model, self._optimizer = batches, model, optimizer
        self._precision, self._device = precision, precision.device
        self._timed: list[Step] = []
        self._watching = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop watching; say so if the job had fewer steps than were to be watched."""
        self._watching.close()
        wanted = WARM_UP + 2 * self._count
        if self._count and kind is None and len(self._timed) < wanted:
            log.warning("--profile: needs %d steps, the job had %d", wanted, len(self._timed))

    def steps(self, batches: Iterator[T]) -> Iterator[T]:
        """The batches of an epoch; the steps that are made of them are watched when it is time."""
        return self._counted(batches) if self._count else batches

    def _counted(self, batches: Iterator[T]) -> Iterator[T]:
        """Times each step, from asking for its batch to asking for the next."""
        asked = time.perf_counter()
        for batch in batches:
            came = time.perf_counter()
            yield batch
            step = len(self._timed) + 1
            if step in (WARM_UP, WARM_UP + self._count):
                devices.wait(self._device)
            self._timed.append(Step(time.perf_counter() - asked, came - asked, len(batch[0])))
            if step == 1:
                self._inputs = batch[0]
            elif step == WARM_UP + self._count:
                self._begin()
            elif step == WARM_UP + 2 * self._count:
                self._end()
            asked = time.perf_counter()
        devices.wait(self._device)  # what is left to do is the last step's
        if self._timed:
            last = self._timed[-1]
            longer = last.seconds + time.perf_counter() - asked
            self._timed[-1] = last._replace(seconds=longer)

    def _begin(self) -> None:
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # its own lines tell a user nothing
        kinds = [ProfilerActivity.CPU]
        if self._device.type == "cuda":
            kinds.append(ProfilerActivity.CUDA)
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.memory._record_memory_history()
        self._profiler = self._watching.enter_context(profile(activities=kinds))
        self._reads = self._watching.enter_context(Reads(self._device))
        self._loop = self._watching.enter_context(Loop(frame_outside()))

    def _end(self) -> None:
        devices.wait(self._device)
        self._watching.close()
        folder = self._job.folder
        self._profiler.export_chrome_trace(str(folder / "profile.json"))
        names = ["profile.txt", "profile.json"]
        if self._device.type == "cuda":
            torch.cuda.memory._dump_snapshot(str(folder / "memory.pickle"))
            torch.cuda.memory._record_memory_history(enabled=None)
            names.append("memory.pickle")
        (folder / "profile.txt").write_text(report(self._seen()))
        self._job.journal.files(names)
        log.info("profile: %s", shown(folder / "profile.txt"))

    def _seen(self) -> Watched:
        plain = self._timed[WARM_UP : WARM_UP + self._count]
        seconds = sum(step.seconds for step in plain)
        events = Events(self._profiler, self._loop.name)
        precision = self._precision.name
        return Watched(
            steps=self._count,
            batch_size=self._job.settings.batch_size,
            device=devices.describe(self._device),
            precision=precision,
            compiled=isinstance(self._model, compilation.Compiled),
            loader=type(self._batches).__name__.lower(),
            beside=self._job.settings.eval_beside > 0,
            plain=seconds,
            examples=sum(step.examples for step in plain),
            waiting=sum(step.waited for step in plain) / seconds,
            seconds=events.seconds,
            lines=self._lines(events),
            reads=[Reading(*read, len(s), sum(s)) for read, s in self._reads.seconds.items()],
            compiling=compilation.events,
            memory=self._memory(),
            busy=min(1.0, events.on_gpu() / seconds) if self._device.type == "cuda" else None,
            copying=events.on_gpu("Memcpy HtoD") / seconds,
            flops=flops.of_step(self._model, self._inputs),
            peak=flops.peak(self._device, precision),
        )

    def _lines(self, events: Events) -> list[Line]:
        """The lines of the loop; the one that asks for the next batch waits for data."""
        loop = self._loop
        lines = []
        for number, (host, gpu) in events.by_line().items():
            files = " ".join(loop.calls[number]) + " "
            part = next((part for file, part in PARTS.items() if f"/{file} " in files), "")
            part = "waiting for data" if number == loop.first else part
            text = linecache.getline(loop.path, number).strip()
            lines.append(Line(f"{loop.name}:{number}", text, part, host, gpu))
        return lines

    def _memory(self) -> dict[str, int]:
        """Bytes by kind; the gradients are as large as the weights that are trained."""
        state = [value for state in self._optimizer.state.values() for value in state.values()]
        weights = list(self._model.parameters())
        kinds = {
            "weights": _bytes(weights),
            "buffers": _bytes(self._model.buffers()),
            "gradients": _bytes(weight for weight in weights if weight.requires_grad),
            "optimizer": _bytes(value for value in state if isinstance(value, Tensor)),
        }
        if self._device.type == "cuda":
            most = torch.cuda.max_memory_allocated()
            kinds |= {"activations, data and the rest": most - sum(kinds.values())}
            kinds |= {"the most at once": most, "free": devices.free_memory(self._device)}
        else:
            unit = 1 if sys.platform == "darwin" else 1024
            most = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            kinds["the whole process, at most"] = most
        return kinds


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
