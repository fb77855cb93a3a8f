"""Jobs of the tests' own loop on GPUs that are not there and run late, each in another order.

    export STAND_IN_GPUS=2 PYTHONPATH=tests/gpu_stand_in:tests/engine:PROJECT
    python tests/late_jobs.py 0 100

Prints a line for each schedule from the first number on: whether the job ended with the bits of the
same job on a GPU that does all at once. test_schedules.py runs this on the engine,
as it is and with faults.
"""

import json
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from attempts import At, Ended, Toy, plain
from labjobs.settings import Span
from labjobs.training.loop import Job
from labjobs.training.optim import clip_gradients
from stand_in.late import Late, running_late
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset
from toy import DATA, EXAMPLES, Loop, forward

ONE_GRAPH, NO_GRAPH = "one graph", "no graph"
"""Of jobs that are not compiled: whether their steps, given to job.graphed, are."""

OFTEN, SELDOM = 1e-6, 10.0
"""Minutes between two checkpoints: there is one after each step, or none before the end."""

CHOICES: dict[str, tuple[Any, ...]] = {
    "device": ("auto", "cuda:1"),
    "pauses": (("1e", OFTEN), ("1e", SELDOM), ("2e", SELDOM)),
    "starts_late": (False, True),
    "loader": ("resident", "workers"),
    "background": (False, True),
    "accumulate": (1, 2),
    "ema": (0.0, 0.9),
    "clip_norm": (0.0, 1.0),
    "precision": ("fp32", "bf16"),
    "nested": (False, True),
    "compile": ("off", "reduce-overhead", ONE_GRAPH),
}
"""What jobs differ in. Of `pauses`, an evaluation and a checkpoint make the host wait for the GPU;
without them it runs ahead by whole epochs. A thread that evaluates in the background `starts_late`,
as on a busy machine: after the next step of training."""

MANY = [*range(EXAMPLES, len(DATA))] * 4
"""Examples to evaluate on: more batches of outputs are kept than may be under way at once."""

Way = tuple[tuple[str, Any], ...]


class Nested(Dataset[tuple[dict[str, Tensor], Tensor]]):
    """The same examples, with one of their tensors in a dictionary."""

    def __len__(self) -> int:
        return len(DATA)

    def __getitem__(self, index: int) -> tuple[dict[str, Tensor], Tensor]:
        points, label = DATA[index]
        return {"points": points}, label


def nested(model: nn.Module, batch: Any, settings: Any) -> tuple[Tensor, dict[str, Any]]:
    """Return what `forward` returns of such a batch."""
    return forward(model, (batch[0]["points"], batch[1]), settings)


@dataclass
class WithNorm(Loop):
    """A loop whose evaluation returns a tensor too, which nobody has waited for."""

    starts_late: bool = False
    graphed: bool = False
    """Whether steps are given to job.graphed; these log tensors on the GPU alone."""

    _of: Job[Any] | None = None
    _take: Any = None

    def step(self, job: Job[Any], forward: Any, model: Any, batch: Any, optimizer: Any) -> None:
        if not self.graphed:
            super().step(job, forward, model, batch, optimizer)
            return
        if self._of is not job:
            self._of = job
            self._take = job.graphed(partial(take, job, forward, model, optimizer))
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * (1 - job.fraction_done)
        self._take(batch)
        job.log(lr=optimizer.param_groups[0]["lr"])

    def evaluate(self, model: Any, *others: Any) -> dict[str, Any]:
        """Return the means of what is measured, and the norm of the weights."""
        job, *_, part = others
        if self.starts_late and threading.current_thread() is not threading.main_thread():
            wait_for_a_step(job)
        means = super().evaluate(model, *others)
        norms = [weights.detach().norm() for weights in model.parameters()]
        return {**means, f"{part}_norm": torch.stack(norms).norm()}


def take(job: Job[Any], forward: Any, model: Any, optimizer: Any, batch: Any) -> None:
    """Take an optimizer step that can be one graph."""
    for part, fraction in job.parts(batch):
        loss, measured = forward(model, part, job.settings)
        loss.backward(fraction)
        job.log({name: measured[name] for name in ("loss", "accuracy", "confidence", "recall")})
    if job.settings.clip_norm:
        job.log(norm=clip_gradients(model.parameters(), job.settings.clip_norm))
    optimizer.step()
    optimizer.zero_grad()


def wait_for_a_step(job: Job[Any]) -> None:
    """Return when training has taken a step, unless it is at its end or was interrupted."""
    before, deadline = job.fraction_done, time.monotonic() + 1
    while job.fraction_done == before < 1 and time.monotonic() < deadline:
        time.sleep(0.001)


def main(first: int, count: int) -> None:
    os.fsync = lambda file: None
    torch.set_num_threads(1)
    for seed in range(first, first + count):
        print(json.dumps(in_order_of(seed)), flush=True)


def in_order_of(seed: int) -> dict[str, Any]:
    """Run a job in an order drawn from a seed; says whether it ended as it should."""
    chance = random.Random(seed)
    way = tuple((name, chance.choice(values)) for name, values in CHOICES.items())
    stop = chance.choice((None, At("step", chance.randint(1, 13))))
    alike = NO_GRAPH if dict(way)["compile"] == ONE_GRAPH else "off"
    expected = undisturbed(tuple(dict(way, compile=alike).items()))
    said: dict[str, Any] = {"seed": seed, "error": ""}
    late: Late | None = None
    try:
        with TemporaryDirectory() as root, running_late(seed) as late:
            said["same"] = content(Path(root), way, stop) == expected
    except Exception as error:
        said |= {"same": False, "error": str(error) or type(error).__name__}
    return said | ({"tasks": late.done, "ahead": late.ahead} if late else {})


@cache
def undisturbed(way: Way) -> Any:
    """What the job leaves on a GPU that does all at once."""
    with TemporaryDirectory() as root:
        return content(Path(root), way)


def content(root: Path, way: Way, stop: At | None = None) -> Any:
    """Run a job, with an interruption or without; return all that it left."""
    settings = dict(way)
    eval_every, checkpoint_minutes = settings.pop("pauses")
    compile = settings.pop("compile")
    graphed = compile in (ONE_GRAPH, NO_GRAPH)
    runtime = {
        "device": settings.pop("device"),
        "quiet": True,
        "loader": settings.pop("loader"),
        "compile": "off" if graphed else compile,
        "graph": "on" if compile == ONE_GRAPH else "off",
        "workers": 0,
        "checkpoint_minutes": checkpoint_minutes,
    }
    settings["eval_every"] = Span(eval_every)
    data, of_batch = (Nested(), nested) if settings.pop("nested") else (DATA, forward)
    train_on, val_on = Subset(data, range(EXAMPLES)), Subset(data, MANY)
    late = settings.pop("starts_late")
    loop = WithNorm(of_batch, train_on, val_on, starts_late=late, graphed=graphed)
    toy = Toy(root, lambda: "")
    for at in (stop, None) if stop else (None,):
        done = toy.run(loop=loop, stop=at, runtime=runtime, epochs=2, **settings)
    if done.status:
        raise RuntimeError(done.log.strip().splitlines()[-1])
    return done.content(), [*arrays(done)]


def arrays(done: Ended) -> Iterator[Any]:
    """Yield what was kept of the test examples."""
    with np.load(done.folder / "predictions.npz") as kept:
        yield from chain.from_iterable(plain((name, kept[name].tolist())) for name in kept)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
