"""The report of `--profile`: where the time and the memory of a step go, and what to change first.

Advice is ordered by the fraction of the time that the problem takes. That is the most that a
change can save; only trying it shows how much it does save.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from labjobs import devices, machine

WORTH = 0.03  # smallest fraction of the time that is worth a change
CHANGES = {
    "evaluation": "--eval-every larger, or in the background (job.in_background)",
    "logging": "measure less, or on the device",
    "logging and checkpoints": "--log-every larger, --checkpoint-minutes larger",
    "augmentation": "--augment none, if it does not help",
}
"""What to change if a part of a step takes long."""


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

    def fraction(self, part: str) -> float:
        """Return the fraction of the watched time that a part of a step takes on the host."""
        return sum(line.host for line in self.lines if line.part == part) / self.seconds


def report(seen: Watched) -> str:
    """Return the whole report, as text."""
    found = [f"{fraction:4.0%}  {text}" for fraction, text in sorted(advice(seen), reverse=True)]
    numbered = [f"{number}. {text}" for number, text in enumerate(found, 1)]
    sections = {
        f"{seen.steps} steps of {seen.batch_size} examples on {seen.device}": _speed(seen),
        "What to change, the largest part of the time first": numbered
        or ["nothing stands out: the time goes into computing"],
        "Where the time goes": _parts(seen),
        "Line by line": [
            _row(seen, line.host, line.gpu, f"{line.place}  {line.text}")
            for line in sorted(seen.lines, key=lambda line: line.host, reverse=True)
            if max(line.host, line.gpu) / seen.seconds > WORTH / 3
        ],
        "Where the host waits for a tensor": [
            f"{read.place}  {read.what}, {read.times} times, {1000 * read.seconds:.3g} ms in all"
            for read in seen.reads
        ]
        or ["nowhere"],
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
        yield line + (f": {speed / seen.peak:.1%} of this GPU's peak (MFU)" if seen.peak else "")
    if seen.busy is not None:
        busy = f"the GPU is busy {seen.busy:.0%} of the time ({seen.copying:.0%} being sent data)"
        yield f"{busy}, idle {1 - seen.busy:.0%}"


def advice(seen: Watched) -> Iterator[tuple[float, str]]:
    """Yield what could be changed, with the fraction of the time that it is about, in no order."""
    if seen.waiting > WORTH:
        more = "more --workers, --loader resident if all fits, or less work for each example in "
        more = (
            "fewer, larger steps (--batch-size)" if seen.loader == "resident" else f"{more}data.py"
        )
        yield seen.waiting, f"the loop waits for data: {more}"
    for read in seen.reads:
        if read.times >= seen.steps:
            text = f"{read.place} reads a tensor in every step ({read.what}): keep it on the device"
            yield read.seconds / seen.seconds, text
    if seen.compiling:
        text = "torch.compile recompiles, or gives up, at the lines named below: change those"
        yield seen.fraction("forward"), text
    for part, change in CHANGES.items():
        if seen.fraction(part) > WORTH:
            yield seen.fraction(part), f"{part}: {change}"
    if seen.busy is None:
        return
    idle = 1 - seen.busy - seen.waiting
    if idle > WORTH:
        change = "--batch-size larger" if seen.compiled else "--compile on, or --batch-size larger"
        yield idle, f"the GPU waits for the host to launch work: {change}"
    half = seen.busy / 2  # which 16 bits save at least, where the GPU multiplies matrices
    if seen.precision == "fp32" and half > WORTH:
        yield half, "the GPU computes in 32 bits: --precision bf16 (or tf32)"
    if seen.copying > WORTH:
        yield seen.copying, "copying to the GPU: --loader resident, or uint8 from data.py"


def _parts(seen: Watched) -> Iterator[str]:
    yield f"{'ms':>9} {'of all':>6}" + ("" if seen.busy is None else f" {'GPU ms':>9}")
    parts = {line.part for line in seen.lines}
    for part in sorted(parts, key=seen.fraction, reverse=True):
        lines = [line for line in seen.lines if line.part == part]
        host, on_gpu = sum(line.host for line in lines), sum(line.gpu for line in lines)
        yield _row(seen, host, on_gpu, part or "other lines")
    rest = seen.seconds - sum(line.host for line in seen.lines)
    yield _row(seen, rest, 0.0, "between the lines")


def _row(seen: Watched, host: float, gpu: float, text: str) -> str:
    on_gpu = "" if seen.busy is None else f" {1000 * gpu / seen.steps:9.3f}"
    return f"{1000 * host / seen.steps:9.3f} {host / seen.seconds:6.1%}{on_gpu}  {text}"


def without_data(values: Any) -> Any:
    """Return nested values with each tensor replaced by one that has a shape but no data."""

    def without(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return torch.empty_like(value, device="meta", requires_grad=value.requires_grad)

    return tree_map(without, values)


def flops(forward: Callable[..., Any], model: nn.Module, batch: Any, settings: Any) -> int | None:
    """Return the operations of forward(model, batch, settings) and of its loss's backward pass.

    It runs only on shapes, so neither the model nor any random number changes. Returns None if that
    is not possible, because the code looks at values or uses tensors other than these arguments.
    """

    class Loss(nn.Module):
        """The loss () of a batch."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, batch: Any) -> Any:
            return forward(self.model, batch, settings)[0]

    whole = Loss()
    state = without_data({**dict(whole.named_parameters()), **dict(whole.named_buffers())})
    try:
        with FlopCounterMode(display=False) as counter:
            functional_call(whole, state, (without_data(batch),)).backward()
    except Exception:  # a forward function may do anything
        return None
    return int(counter.get_total_flops())


def memory(parts: Sequence[object], device: torch.device) -> dict[str, int]:
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
        return kinds | {"the whole process, at most": machine.peak_memory()}
    kinds["activations, data and the rest"] = max(0, peak - sum(kinds.values()))
    return kinds | {"the most at once": peak, "free": devices.free_memory(device)}


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in tensors}.values())
