"""Reading and evaluation while training goes on: 100 ms, 150 ms and 400 ms a step, as in a guide.

    python benchmarks/overlap.py > benchmarks/overlap.md

Each step needs a batch that takes 100 ms to prepare, trains for 150 ms, and is followed by 400 ms
of evaluation. Here the work sleeps, so that it needs no core, as work elsewhere would: on a GPU, a
disk or another machine. An epoch has 10 steps, and the evaluation of 10 of them at its end.
"""

import argparse
import statistics
import tempfile
from itertools import pairwise
from pathlib import Path

from pages import machine, page, spread
from projects import add, journal, make, run

STEPS, BATCH = 10, 4
NETWORK = """

class Slow(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(64, classes)

    def forward(self, images: Tensor) -> Tensor:
        time.sleep(0.15 if self.training else 4.0)
        return self.layer(images.flatten(1))


import time

MODELS["slow"] = lambda settings, spec: Slow(len(spec.classes))
"""
DATASET = """

import time


class Slow(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.025)
        return torch.zeros(1, 8, 8, dtype=torch.uint8), index % 10


def slow(_root: Path, _size: int | None) -> Source:
    few = TensorDataset(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.arange(4))
    return Source(Slow(), [str(label) for label in range(10)], few, few)


DATASETS["slow"] = slow
"""
BY_HAND = """
import sys, time
from pathlib import Path

import data, models, torch
from labjobs.data.batches import make
from settings import Settings
from torch.nn.functional import cross_entropy

settings = Settings(model="slow", dataset="slow", batch_size=4)
parts = data.load(settings, Path.cwd())
model = models.make(settings, parts.spec)
batches = make(parts.train, torch.device("cpu"), 4, "workers", 0, seed=0)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
model.train()
for epoch in range(3):
    begun = time.perf_counter()
    for images, labels in batches.epoch(epoch, 0):
        cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.4)
print((time.perf_counter() - begun) / len(batches))
"""
IN_BACKGROUND = "in the background"
SYNCHRONOUS = """        metrics = evaluate(job, forward, ema.model, val, "val")
        if settings.compare_ema:
            metrics |= evaluate(job, forward, model, val, "val_weights")
        job.log_epoch(metrics)
        if stopping.improved(metrics):
            job.keep_best(metrics, model=ema.model)
"""
RECIPE = """        def evaluated(weights: nn.Module) -> Metrics:
            return evaluate(job, forward, weights, val, "val")

        for metrics, weights in job.in_background(evaluated, ema.model, at_once=3):
            job.log_epoch(metrics)
            if stopping.improved(metrics):
                job.keep_best(metrics, model=weights)
            if stopping.due:
                break
"""
BASE = ["--model", "slow", "--dataset", "slow", "--batch-size", str(BATCH), "--quiet", "--force"]
BASE += ["--loader", "workers"]
WAYS = {
    "a loop by hand, one after the other": None,
    "`--workers 0`": ["--workers", "0"],
    "`--workers 1`": ["--workers", "1"],
    "`--workers 1`, 3 evaluations in the background": ["--workers", "1", "--note", IN_BACKGROUND],
}


def milliseconds(project: Path, flags: list[str] | None) -> float:
    """Of a step: by hand in the last of 3 epochs; by run.py in the median epoch, of 12 where they
    are evaluated in the background and of 4 elsewhere."""
    if not flags:
        return 1000 * float(run(project, "-c", BY_HAND))
    background = IN_BACKGROUND in flags
    script = "run_background.py" if background else "run.py"
    run(project, script, *BASE, *flags, "--epochs", "12" if background else "4")
    points = [point["metrics"] for point in journal(project)]
    ends = [0.0, *(each["elapsed_seconds"] for each in points if "elapsed_seconds" in each)]
    seconds = [end - begun for begun, end in pairwise(ends)]
    return 1000 * statistics.median(seconds) / STEPS


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        project = make(folder)
        add(project, models=NETWORK, data=DATASET)
        script = (project / "run.py").read_text()
        assert SYNCHRONOUS in script
        (project / "run_background.py").write_text(script.replace(SYNCHRONOUS, RECIPE))
        rounds = [
            {way: milliseconds(project, flags) for way, flags in WAYS.items()}
            for _ in range(arguments.rounds)
        ]
    about = (
        f"{machine('torch', 'mlflow')}; n = {len(rounds)} rounds, all ways in turn. Preparing a "
        "batch sleeps for 100 ms, a training step for 150 ms, and evaluation for 400 ms a step. "
        "Milliseconds a step, median (least to most): of run.py the median epoch, with its "
        "evaluation. The limit is the training itself, "
        "150 ms. `python benchmarks/overlap.py` makes this page."
    )
    rows = [[way, spread([each[way] for each in rounds], 0)] for way in WAYS]
    page("Reading and evaluation while training goes on", about, ["", "ms a step"], rows)


if __name__ == "__main__":
    main()
