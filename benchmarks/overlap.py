"""Reading and evaluation beside training: the guides' example, 100 ms, 150 ms and 400 ms a step.

    python benchmarks/overlap.py > benchmarks/overlap.md

Each step needs a batch that takes 100 ms to prepare, trains for 150 ms, and is followed by 400 ms
of evaluation. Here the work sleeps, so that it needs no core, as work elsewhere would: on a GPU, a
disk or another machine. An epoch has 10 steps, and the evaluation of 10 of them at its end.
"""

import argparse
import statistics
import tempfile
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

MODELS["slow"] = lambda shape, classes, _settings: Slow(classes)
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
    few = in_memory(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.arange(4))
    return Source(Slow(), few, [str(label) for label in range(10)], few)


DATASETS["slow"] = slow
"""
BY_HAND = """
import sys, time
import torch
from run import Settings, load
from torch.nn.functional import cross_entropy

settings = Settings(model="slow", dataset="slow", batch_size=4, loader="workers", workers=0)
batches, _, _, _, model = load(settings, torch.device("cpu"))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
model.train()
for epoch in range(3):
    begun = time.perf_counter()
    for images, labels in batches.epoch(epoch):
        cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.4)
print((time.perf_counter() - begun) / len(batches))
"""
BASE = ["--model", "slow", "--dataset", "slow", "--batch-size", str(BATCH), "--quiet", "--force"]
BASE += ["--loader", "workers"]
WAYS = {
    "a loop by hand, one after the other": None,
    "`--workers 0`": ["--workers", "0"],
    "`--workers 1`": ["--workers", "1"],
    "`--workers 1 --eval-beside 3`": ["--workers", "1", "--eval-beside", "3"],
}


def milliseconds(project: Path, flags: list[str] | None) -> float:
    """Of a step: by hand in the last of 3 epochs; by run.py in the median epoch, of 12 where they
    are evaluated beside training and of 4 elsewhere."""
    if not flags:
        return 1000 * float(run(project, "-c", BY_HAND))
    epochs = "12" if "--eval-beside" in flags else "4"
    run(project, "run.py", *BASE, *flags, "--epochs", epochs)
    points = [point["metrics"] for point in journal(project)]
    seconds = [metrics["epoch_seconds"] for metrics in points if "epoch_seconds" in metrics]
    return 1000 * statistics.median(seconds) / STEPS


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        project = make(folder)
        add(project, models=NETWORK, data=DATASET)
        rounds = [
            {way: milliseconds(project, flags) for way, flags in WAYS.items()}
            for _ in range(arguments.rounds)
        ]
    about = (
        f"{machine('torch', 'mlflow')}; n = {len(rounds)} rounds, all ways in turn. Preparing a "
        "batch sleeps for 100 ms, a training step for 150 ms, and evaluation for 400 ms a step. "
        "Milliseconds a step, median (least to most): of run.py the median epoch, with its "
        "evaluation. The limit is what cannot be done beside anything: the training itself, "
        "150 ms. `python benchmarks/overlap.py` makes this page."
    )
    rows = [[way, spread([each[way] for each in rounds], 0)] for way in WAYS]
    page("Reading and evaluation beside training", about, ["", "ms a step"], rows)


if __name__ == "__main__":
    main()
