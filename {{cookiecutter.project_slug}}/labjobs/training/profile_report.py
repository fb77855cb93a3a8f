"""What uses the memory while a job trains."""

import resource
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from labjobs import devices

# The report of `--profile`: where the time of a step goes, and what to change first.
#
# Advice is ordered by the fraction of the time that the problem takes. That is the most that a
# change can save; only trying it shows how much it does save.

WORTH = 0.03
"""Smallest fraction of the time that is worth a change."""


class Line(NamedTuple):
    """A line of the training loop: its place, its text, the part of a step to which it belongs, and
    its seconds on the host and on the GPU over all watched steps."""

    place: str
    text: str
    part: str
    host: float
    gpu: float


class Reading(NamedTuple):
    """A place where the host waits for a tensor's value, how often and how long, in seconds."""

    place: str
    what: str
    times: int
    seconds: float


class Advice(NamedTuple):
    """What to change, and the fraction of the time that it is about."""

    fraction: float
    text: str


@dataclass(frozen=True)
class Watched:
    """What was seen in the watched steps. Times are in seconds, memory in bytes. `plain` is the
    time of the same number of steps without watching, with `examples` in them, `waiting` the
    fraction of it spent waiting for data; `seconds` is the time of the watched ones. A GPU is not
    slowed by being watched, so what it does is a fraction of `plain`: `busy` computing or copying,
    `copying` from the host. `flops` are an example's operations.
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
    lines: Sequence[Line]
    reads: Sequence[Reading]
    compiling: Sequence[str]
    memory: dict[str, int]
    busy: float | None = None
    copying: float = 0.0
    flops: float | None = None
    peak: float | None = None

    def fraction(self, *parts: str) -> float:
        """Return the fraction of the watched time that these parts of a step take on the host."""
        return sum(line.host for line in self.lines if line.part in parts) / self.seconds


def report(seen: Watched) -> str:
    """Return the whole report, as text."""
    sections = {
        f"{seen.steps} steps of {seen.batch_size} examples on {seen.device}": _speed(seen),
        "What to change, the largest part of the time first": _numbered(seen),
        "Where the time goes": _parts(seen),
        "Line by line": _lines(seen),
        "Where the host waits for a tensor": _reads(seen),
        "torch.compile": seen.compiling or ["nothing was compiled a second time"],
        "Memory": [f"{size / 2**20:10,.1f} MiB  {kind}" for kind, size in seen.memory.items()],
    }
    if not seen.compiled:
        del sections["torch.compile"]
    return "\n".join(
        line
        for title, lines in sections.items()
        for line in (title, *(f"  {line}" for line in lines), "")
    )


def _speed(seen: Watched) -> Iterator[str]:
    rate = seen.examples / seen.plain
    step = 1000 * seen.plain / seen.steps
    yield f"{step:.3g} ms a step, {rate:,.0f} examples a second in {seen.precision}"
    yield f"{seen.waiting:.0%} of the time waiting for data"
    slower = seen.seconds / seen.plain
    yield f"{slower:.1f} times as long while it was watched, as in all that follows"
    if seen.flops:
        speed = seen.flops * rate
        line = f"{seen.flops * seen.batch_size / 1e9:,.3g} GFLOP a step, {speed / 1e9:,.3g} GFLOP/s"
        if seen.peak:
            line += f": {speed / seen.peak:.1%} of this GPU's peak (MFU)"
        yield line
    if seen.busy is not None:
        idle = 1 - seen.busy
        busy = f"the GPU is busy {seen.busy:.0%} of the time ({seen.copying:.0%} being sent data)"
        yield f"{busy}, idle {idle:.0%}"


def _numbered(seen: Watched) -> list[str]:
    found = sorted(advice(seen), reverse=True)
    nothing = ["nothing stands out: the time goes into computing"]
    return [
        f"{number}. {one.fraction:4.0%}  {one.text}" for number, one in enumerate(found, 1)
    ] or nothing


def advice(seen: Watched) -> Iterator[Advice]:
    """Yield what could be changed, in no order."""
    if seen.waiting > WORTH:
        yield Advice(seen.waiting, f"the loop waits for data: {_more_data(seen.loader)}")
    for read in seen.reads:
        if read.times >= seen.steps:
            text = f"{read.place} reads a tensor in every step ({read.what}): keep it on the device"
            yield Advice(read.seconds / seen.seconds, text)
    if seen.compiling:
        text = "torch.compile recompiles, or gives up, at the lines named below: change those"
        yield Advice(seen.fraction("forward"), text)
    for part, change in (
        ("evaluation", "--eval-every larger, or in the background (job.in_background)"),
        ("logging", "measure less, or on the device"),
        ("logging and checkpoints", "--log-every larger, --checkpoint-minutes larger"),
        ("augmentation", "--augment none, if it does not help"),
    ):
        if seen.fraction(part) > WORTH:
            yield Advice(seen.fraction(part), f"{part}: {change}")
    if seen.busy is not None:
        yield from _for_gpu(seen)


def _more_data(loader: str) -> str:
    if loader == "resident":
        return "fewer, larger steps (--batch-size)"
    return "more --workers, --loader resident if all fits, or less work for each example in data.py"


def _for_gpu(seen: Watched) -> Iterator[Advice]:
    assert seen.busy is not None
    idle = 1 - seen.busy - seen.waiting
    if idle > WORTH:
        change = "--batch-size larger" if seen.compiled else "--compile on, or --batch-size larger"
        yield Advice(idle, f"the GPU waits for the host to launch work: {change}")
    half = seen.busy / 2  # which 16 bits save at least, where the GPU multiplies matrices
    if seen.precision == "fp32" and half > WORTH:
        yield Advice(half, "the GPU computes in 32 bits: --precision bf16 (or tf32)")
    if seen.copying > WORTH:
        yield Advice(seen.copying, "copying to the GPU: --loader resident, or uint8 from data.py")


def _parts(seen: Watched) -> Iterator[str]:
    gpu = seen.busy is not None
    yield f"{'ms':>9} {'of all':>6}" + (f" {'GPU ms':>9}" if gpu else "")
    parts = {line.part for line in seen.lines}
    for part in sorted(parts, key=seen.fraction, reverse=True):
        lines = [line for line in seen.lines if line.part == part]
        host, on_gpu = sum(line.host for line in lines), sum(line.gpu for line in lines)
        yield _row(seen, host, on_gpu, part or "other lines")
    rest = seen.seconds - sum(line.host for line in seen.lines)
    yield _row(seen, rest, 0.0, "between the lines")


def _lines(seen: Watched) -> Iterator[str]:
    for line in sorted(seen.lines, key=lambda line: line.host, reverse=True):
        if max(line.host, line.gpu) / seen.seconds > WORTH / 3:
            yield _row(seen, line.host, line.gpu, f"{line.place}  {line.text}")


def _row(seen: Watched, host: float, gpu: float, text: str) -> str:
    on_gpu = f" {1000 * gpu / seen.steps:9.3f}" if seen.busy is not None else ""
    return f"{1000 * host / seen.steps:9.3f} {host / seen.seconds:6.1%}{on_gpu}  {text}"


def _reads(seen: Watched) -> Iterator[str]:
    if not seen.reads:
        yield "nowhere"
    for read in seen.reads:
        waits = f"{1000 * read.seconds:.3g} ms in all"
        yield f"{read.place}  {read.what}, {read.times} times, {waits}"


# What a step costs, in floating-point operations.


def without_data(values: Any) -> Any:
    """Return nested values with each tensor replaced by one that has a shape but no data."""

    def without(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return torch.empty_like(value, device="meta", requires_grad=value.requires_grad)

    return tree_map(without, values)


def of_call(forward: Callable[..., Any], model: nn.Module, batch: Any, settings: Any) -> int | None:
    """Return the operations of forward(model, batch, settings) and of its loss's backward pass.

    It runs only on shapes, so neither the model nor any random number changes. Returns None if that
    is not possible, because the code looks at values or uses tensors other than these arguments.
    """
    whole = _Call(forward, model, settings)
    state = without_data({**dict(whole.named_parameters()), **dict(whole.named_buffers())})
    try:
        with FlopCounterMode(display=False) as counter:
            functional_call(whole, state, (without_data(batch),)).backward()
    except Exception:  # a forward function may do anything
        return None
    return int(counter.get_total_flops())


class _Call(nn.Module):
    """A forward function's loss, as a function of a batch."""

    def __init__(self, function: Callable[..., Any], model: nn.Module, settings: Any) -> None:
        super().__init__()
        self.model = model
        self._function, self._settings = function, settings

    def forward(self, batch: Any) -> Tensor:
        """Return the loss () of a batch."""
        loss: Tensor = self._function(self.model, batch, self._settings)[0]
        return loss


def by_kind(parts: Sequence[object], device: torch.device) -> dict[str, int]:
    """Return bytes by kind, of the models and optimizers among a loop's parts.

    Gradients are as large as the weights that are trained. The rest of the device's peak memory is
    activations, data and other things; on a CPU, only the memory of the whole process is known.
    """
    models = [part for part in parts if isinstance(part, nn.Module)]
    optimizers = [part for part in parts if isinstance(part, torch.optim.Optimizer)]
    weights = [weight for model in models for weight in model.parameters()]
    states = [kept.values() for optimizer in optimizers for kept in optimizer.state.values()]
    kinds = {
        "weights": _bytes(weights),
        "buffers": _bytes(buffer for model in models for buffer in model.buffers()),
        "gradients": _bytes(weight for weight in weights if weight.requires_grad),
        "optimizer": _bytes(v for state in states for v in state if isinstance(v, Tensor)),
    }
    peak = devices.peak_memory(device)
    if peak is None:
        unit = 1 if sys.platform == "darwin" else 1024
        most = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return kinds | {"the whole process, at most": most}
    kinds["activations, data and the rest"] = max(0, peak - sum(kinds.values()))
    return kinds | {"the most at once": peak, "free": devices.free_memory(device)}


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in tensors}.values())
