"""The loops of best_steps.py: `hand_loops.py TURNS STEPS FLAGS…`, in a project.

run.py's loop, in a job with these flags, and loops by hand take turns of STEPS steps each. The last
printed line has the seconds per step of each loop, turn by turn, without the first two turns.

All of them train the same kind of network on the same data in memory, with batches of the same
size, the project's optimizer (fused), a cosine schedule and, if the job clips gradients, torch's
clip_grad_norm_. A loop by hand reads its measurements once per turn, not in each step.
"""

import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import data
import models
import optimizers
import torch
from labjobs.data.order import underlying
from settings import METRICS, Settings
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import default_collate
from turns import Loops, seconds_per_step

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
    dataset, indices = underlying(part)
    inputs, *labels = default_collate([dataset[index] for index in indices.tolist()])
    return (inputs, *labels) if labels else (inputs[:, :-1], inputs[:, 1:])


def loops(settings: Settings, turns: int, steps: int) -> Loops:
    """Return the loops by hand: each kind of region, compiled and not."""
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
    """Print the seconds per step as JSON, in the last line."""
    turns, steps = map(int, sys.argv[1:3])

    def by_hand(settings: Settings) -> Loops:
        """Return the loops by hand, for these settings."""
        return loops(settings, turns, steps)

    print(json.dumps(seconds_per_step(by_hand, turns, steps, sys.argv[3:])), flush=True)


if __name__ == "__main__":
    main()
