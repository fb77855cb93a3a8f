"""The loops of best_steps.py: `hand_loops.py TURNS STEPS FLAGS…`, in a project.

run.py's loop, in a job with these flags, and loops by hand take turns of STEPS steps each. The last
line that is printed has the seconds of a step by loop, turn by turn, but for the first two turns.

All train a network of the same kind on the same data in the same batches, from memory, with the
project's optimizer (fused), a cosine schedule and, where the job clips, torch's clip_grad_norm_. A
loop by hand reads what it measures once a turn, not in each step.
"""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import data
import models
import optimizers
import run
import torch
from engine.attempt import Attempt
from engine.cli.parser import parse
from engine.data.batches import Batches
from engine.data.order import whole
from engine.job.folder import JobFolder
from engine.job.runtime import Runtime
from engine.training.job import Job
from loops import terminal
from settings import METRICS, Settings
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import default_collate

SKIPPED = 2
"""Turns at the beginning that do not count: there torch compiles, and sets itself up."""

Region = Callable[[nn.Module, Tensor, Tensor], tuple[Tensor, ...]]


def plain(model: nn.Module, inputs: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """The loss alone."""
    return (cross_entropy(model(inputs).flatten(0, -2), labels.flatten().long()),)


def measuring(model: nn.Module, inputs: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """The loss, and what run.py measures: its mean and the accuracy, or its mean in bits."""
    logits, classes = model(inputs).flatten(0, -2), labels.flatten().long()
    loss = cross_entropy(logits, classes)
    if "accuracy" in METRICS:
        return loss, torch.stack([loss.detach(), (logits.argmax(1) == classes).float().mean()])
    return loss, torch.stack([loss.detach(), loss.detach() / math.log(2)])


def by_hand(region: Region, settings: Settings, parts: Any, total: int, turn: int) -> Iterator[Any]:
    """Take the steps of a turn each time that the next is asked for."""
    torch.manual_seed(0)
    inputs, labels = read(parts.train)
    model = models.make(settings, parts.spec).train()
    optimizer = optimizers.make(model, settings)
    parameters = [*model.parameters()]
    step, order, measured = 0, iter(()), []
    while True:
        for _ in range(turn):
            batch = next(order, None)
            if batch is None or len(batch) < settings.batch_size:
                order = iter(torch.randperm(len(inputs)).split(settings.batch_size))
                batch = next(order)
            lr = settings.lr * (1 + math.cos(math.pi * step / total)) / 2
            for group in optimizer.param_groups:
                group["lr"] = lr
            loss, *more = region(model, inputs[batch], labels[batch])
            measured += more
            loss.backward()
            if settings.clip_norm:
                nn.utils.clip_grad_norm_(parameters, settings.clip_norm)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
        if measured:
            torch.stack(measured).tolist()
            measured = []
        yield


def read(part: Any) -> tuple[Tensor, Tensor]:
    """All examples, in two tensors: inputs and labels, or tokens and those that follow."""
    dataset, indices = whole(part)
    inputs, *labels = default_collate([dataset[index] for index in indices.tolist()])
    return (inputs, *labels) if labels else (inputs[:, :-1], inputs[:, 1:])


class Turns:
    """run.py's batches; after each turn of run.py's loop the loops by hand have theirs."""

    def __init__(self, batches: Batches, others: dict[str, Iterator[Any]], steps: int) -> None:
        self.batches, self._others, self._steps = batches, others, steps
        self.seconds: dict[str, list[float]] = {name: [] for name in ("run.py", *others)}
        self._done = 0

    endless = Batches.endless

    def __getattr__(self, name: str) -> Any:
        return getattr(self.batches, name)

    def from_position(self, epoch: int, batch: int) -> Iterator[Any]:
        """The batches of an epoch, with those turns between them."""
        if not self._done:
            self._begun = time.perf_counter()
        for each in self.batches.from_position(epoch, batch):
            if self._done and self._done % self._steps == 0:
                self._end()
            yield each
            self._done += 1

    def _end(self) -> None:
        self._note("run.py", self._begun)
        with torch.enable_grad():
            for name, loop in self._others.items():
                begun = time.perf_counter()
                next(loop)
                self._note(name, begun)
        self._begun = time.perf_counter()

    def _note(self, name: str, begun: float) -> None:
        self.seconds[name].append((time.perf_counter() - begun) / self._steps)


def loops(settings: Settings, turns: int, steps: int) -> dict[str, Iterator[Any]]:
    """The loops by hand."""
    parts = data.load(settings, Path.cwd() / "data")
    compiled = {region: torch.compile(region, dynamic=False) for region in (plain, measuring)}
    regions = {
        "plain": plain,
        "plain, compiled": compiled[plain],
        "measuring": measuring,
        "measuring, compiled": compiled[measuring],
    }
    total = turns * steps
    return {name: by_hand(each, settings, parts, total, steps) for name, each in regions.items()}


def main() -> None:
    """Print the seconds."""
    turns, steps, flags = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{Path.cwd()}/steps.db"
    length = str(turns * steps + 1)
    words = [*flags, "--steps", length, "--eval-every", length, "--threads", "1", "--force"]
    settings, runtime = parse(Settings, Runtime, words)
    torch.set_num_threads(1)
    found: list[Turns] = []

    def main(job: Job[Settings]) -> dict[str, float]:
        model, batches, val, _ = run.load(job)
        found.append(Turns(batches, loops(job.settings, turns, steps), steps))
        forward = job.prepare(run.forward, job.settings.precision)
        run.train(job, forward, model, found[0], val)
        return {}

    with terminal():
        assert Attempt(JobFolder(settings, runtime, METRICS)).run(main, run.check) == 0
    (measured,) = found
    print(json.dumps({name: each[SKIPPED:] for name, each in measured.seconds.items()}), flush=True)


if __name__ == "__main__":
    main()
