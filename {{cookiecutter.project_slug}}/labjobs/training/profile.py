"""`--profile N`: watch N training steps, and write down where their time goes and what to change.

After WARM_UP steps, N are timed as they are; the next N are watched by torch's profiler, which
slows them. `profile.txt` in the job's folder is the report, `profile.json` the trace, for
ui.perfetto.dev; on a CUDA GPU `memory.pickle` says what its memory held, for
docs.pytorch.org/memory_viz. The job's run in the store has them as well.

Advice is ordered by the fraction of the time that the problem takes. That is the most that a
change can save; only trying it shows how much it does save.
Source: docs.pytorch.org/docs/stable/profiler.html, .../torch_cuda_memory.html.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from labjobs import devices, layout
from labjobs.data.batches import Batches
from labjobs.files import shown
from labjobs.job.terminal import log
from labjobs.training import compilation, probes
from labjobs.training.compilation import Prepared

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
    found = [f"{fraction:4.0%}  {text}" for fraction, text in sorted(advice(seen), reverse=True)]
    sections = {
        f"{seen.steps} steps of {seen.batch_size} examples on {seen.device}": _speed(seen),
        "What to change, the largest part of the time first": [
            f"{number}. {text}" for number, text in enumerate(found, 1)
        ]
        or ["nothing stands out: the time goes into computing"],
        "Where the host's time goes, in ms a step": [
            f"{1000 * seconds / seen.steps:9.3f} {seconds / seen.seconds:6.1%}  {part}"
            for part, seconds in sorted(seen.parts.items(), key=lambda part: -part[1])
        ],
    }
    if seen.compiled:
        again = [*seen.recompiled] or ["nothing was compiled a second time"]
        sections["torch.compile"] = again
    sections["Operations, by torch's profiler"] = seen.operations.splitlines()
    return "\n".join(
        line
        for title, lines in sections.items()
        for line in (title, *(f"  {line}" for line in lines), "")
    )


def _speed(seen: Watched) -> Iterator[str]:
    step = 1000 * seen.plain / seen.steps
    rate = seen.examples / seen.plain
    yield f"{step:.3g} ms a step, {rate:,.0f} examples a second in {seen.precision}"
    yield f"{seen.waiting:.0%} of the time waiting for data"
    if seen.busy is not None:
        busy = f"the GPU is busy {seen.busy:.0%} of the time ({seen.copying:.0%} being sent data)"
        yield f"{busy}, idle {1 - seen.busy:.0%}"
    yield f"{seen.peak / 2**20:,.1f} MiB of memory at most"
    slower = seen.seconds / seen.plain
    yield f"{slower:.1f} times as long while it was watched, as in all that follows"


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


class Profile(probes.Watcher):
    """Watches a job's steps, and writes files into its folder, whose names `finished` is told."""

    def __init__(
        self,
        count: int,
        folder: Path,
        device: torch.device,
        finished: Callable[[list[str]], None],
    ) -> None:
        self._count, self._folder, self._device, self._finished = count, folder, device, finished
        self._steps: list[Step] = []
        self._ended = time.perf_counter()  # the last step
        self._open: tuple[float, Step] | None = None  # when a step began, and its start
        self._functions: set[Prepared] = set()
        self._watching = ExitStack()

    def steps(self, stream: probes.Stream, batches: Batches | None) -> probes.Stream:
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
        for owner, name, label in (
            (Prepared, "__call__", FORWARD),
            (Tensor, "backward", BACKWARD),
        ):
            ranged = self._ranged(getattr(owner, name), label)
            self._watching.enter_context(patch.object(owner, name, ranged))
        self._profiler = self._watching.enter_context(profile(activities=kinds))

    def _ranged(self, function: Callable[..., Any], label: str) -> Callable[..., Any]:
        """The function as a range of torch's profiler, while the loop trains."""

        @wraps(function)
        def run(first: Any, *arguments: Any, **more: Any) -> Any:
            """Call the function within its range."""
            if self._open is None:
                return function(first, *arguments, **more)
            if isinstance(first, Prepared):
                self._functions.add(first)
            with record_function(label):
                return function(first, *arguments, **more)

        return run

    def _end(self) -> None:
        devices.wait(self._device)
        self._watching.close()
        self._profiler.export_chrome_trace(str(self._folder / layout.PROFILE_JSON))
        names = [layout.PROFILE, layout.PROFILE_JSON]
        if devices.dump_allocations(self._device, self._folder / "memory.pickle"):
            names.append("memory.pickle")
        (self._folder / layout.PROFILE).write_text(report(self._seen()), "utf-8")
        self._finished(names)
        log.info("profile: %s", shown(self._folder / layout.PROFILE))

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
            precision=", ".join(sorted({each.precision for each in self._functions})) or "fp32",
            compiled=any(each.compiled for each in self._functions),
            loader=self._loader,
            plain=seconds,
            examples=sum(step.examples for step in plain),
            waiting=sum(step.waited for step in plain) / seconds,
            seconds=whole,
            parts=self._parts(whole, evaluation),
            peak=probes.peak_memory(self._device),
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
