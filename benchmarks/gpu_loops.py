"""The loops of gpu_steps.py, in a project: `gpu_loops.py TURNS STEPS FLAGS… -- FLAGS…`.

For each of the jobs with these flags, run.py's loop and loops by hand take turns of STEPS steps
each. The last printed line has, for each job, the seconds per step of each loop, turn by turn,
without the first two turns, and the operations of a step.

A loop by hand has its data on the GPU and reads what it measured once per turn. Forward pass and
loss are compiled together, as in nanoGPT, or not; the whole step is one CUDA graph, or not; cuDNN
searches for the fastest convolutions, as in airbench, or not.
"""

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import data
import models
import optimizers
import torch
from hand_loops import Region, measuring, plain, read
from settings import Settings
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from turns import Loops, seconds_per_step

GPU = torch.device("cuda", 0)
WARM_UP = 5
"""Steps before a step is recorded as a graph, which are not timed."""


class Way(NamedTuple):
    """How a loop by hand is written; with `search`, cuDNN tries its convolutions first."""

    region: Region = plain
    compiled: bool = False
    graph: bool = False
    search: bool = False

    def __str__(self) -> str:
        words = [self.region.__name__, *(name for name in self._fields[1:] if getattr(self, name))]
        return ", ".join(words)


WAYS = [
    Way(plain),
    Way(measuring),
    Way(plain, compiled=True),
    Way(measuring, compiled=True),
    Way(plain, graph=True),
    Way(measuring, graph=True),
    Way(measuring, compiled=True, graph=True),
    Way(plain, compiled=True, graph=True, search=True),
]


class ByHand:
    """A network that is trained by hand; a graph finds batches in memory that stays the same."""

    def __init__(self, way: Way, settings: Settings, parts: Any, total: int) -> None:
        torch.manual_seed(0)
        self._settings, self._way, self._total = settings, way, total
        self._inputs, self._labels = (each.to(GPU) for each in read(parts.train))
        self._model = models.make(settings, parts.spec).to(GPU).train()
        self._optimizer = optimizers.make(self._model, settings)
        self._region = torch.compile(way.region, dynamic=False) if way.compiled else way.region
        if way.graph:
            for group in self._optimizer.param_groups:
                group["lr"] = torch.tensor(settings.lr, device=GPU)
                group["capturable"] = True
        self._batch = [each[: settings.batch_size].clone() for each in (self._inputs, self._labels)]
        self._order: Iterator[Tensor] = iter(())
        self._measured = torch.zeros(2, device=GPU)
        self._done = 0
        self._stream = torch.cuda.Stream()  # the one that a graph is recorded on, from the start

    def turns(self, steps: int) -> Iterator[None]:
        """Take some steps each time that the next is asked for."""
        take = self._step
        while True:
            torch.backends.cudnn.benchmark = self._way.search
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                for _ in range(steps):
                    if self._way.graph and self._done == WARM_UP:
                        take = self._recorded()
                    self._prepare()
                    take()
                    self._done += 1
                self._measured.tolist()
            torch.backends.cudnn.benchmark = False
            yield

    def operations(self) -> int:
        """Return the floating-point operations of a step, without those of the optimizer."""
        with FlopCounterMode(display=False) as counter:
            plain(self._model, *self._batch)[0].backward()
        self._optimizer.zero_grad()
        return int(counter.get_total_flops())

    def _prepare(self) -> None:
        """Set the learning rate, and the next batch."""
        rows = next(self._order, None)
        if rows is None or len(rows) < self._settings.batch_size:
            order = torch.randperm(len(self._inputs), device=GPU)
            self._order = iter(order.split(self._settings.batch_size))
            rows = next(self._order)
        rate = self._settings.lr * (1 + math.cos(math.pi * self._done / self._total)) / 2
        for group in self._optimizer.param_groups:
            if self._way.graph:
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        if self._way.graph:
            torch.index_select(self._inputs, 0, rows, out=self._batch[0])
            torch.index_select(self._labels, 0, rows, out=self._batch[1])
        else:
            self._batch = [self._inputs[rows], self._labels[rows]]

    def _step(self) -> None:
        half = self._settings.precision == "bf16"
        with torch.autocast("cuda", torch.bfloat16) if half else nullcontext():
            loss, *measured = self._region(self._model, *self._batch)
        loss.backward()
        if self._settings.clip_norm:
            nn.utils.clip_grad_norm_(self._model.parameters(), self._settings.clip_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()
        for each in measured:
            self._measured += each

    def _recorded(self) -> Callable[[], None]:
        """Return a step as one CUDA graph."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            self._step()
        return graph.replay


def chosen(settings: Settings, flags: list[str]) -> list[Way]:
    """Return the loops by hand beside a job: all if it compiles, else those that are as it is. A
    language model's step is too large for several graphs."""
    if "--compile on" not in " ".join(flags) or "--graph" in flags:
        return WAYS[:2]
    return [way for way in WAYS if not (way.graph and hasattr(settings, "context"))]


def main() -> None:
    """Print what was found as JSON, in the last line."""
    turns, steps = map(int, sys.argv[1:3])
    jobs = [[*words] for is_job, words in groupby(sys.argv[3:], "--".__ne__) if is_job]
    found = []
    for flags in jobs:
        operations = 0

        def loops(settings: Settings, flags: list[str] = flags) -> Loops:
            """Return the loops by hand, for these settings."""
            nonlocal operations
            parts = data.load(settings, Path.cwd() / "data")
            ways = chosen(settings, flags)
            every = {str(way): ByHand(way, settings, parts, turns * steps) for way in ways}
            operations = every[str(WAYS[0])].operations()
            return {name: each.turns(steps) for name, each in every.items()}

        seconds = seconds_per_step(loops, turns, steps, flags)
        found.append({"seconds": seconds, "operations": operations})
        torch._dynamo.reset()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
