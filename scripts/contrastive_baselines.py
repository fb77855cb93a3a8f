"""Test accuracies with few labels and without contrastive learning, to compare the example with.

    python scripts/contrastive_baselines.py    the first rows of the example's table

All have the same images, draws of labelled images and probes as the example's default jobs: first
the accuracy of linear probes, then that of nearest neighbours. The supervised network learns from
the labelled images alone, under the same random changes, for STEPS steps with all of them; its
accuracy is that of its own outputs.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

REPOSITORY = Path(__file__).resolve().parents[1]
PROJECT = REPOSITORY / "{{cookiecutter.project_slug}}"
sys.dont_write_bytecode = True  # into the example
sys.path[:0] = [str(REPOSITORY / "examples" / "contrastive"), str(PROJECT)]

import data  # noqa: E402
import models  # noqa: E402
import run  # noqa: E402
from labjobs import examples_at, underlying  # noqa: E402
from settings import Settings  # noqa: E402

LABELS = (1, 2, 5)
"""Labelled images of each class."""

SEEDS = range(3)
STEPS, RATE = 300, 1e-3  # of the supervised network

Features = Callable[[Tensor], Tensor]


def examples(part: data.Examples | None) -> data.Batch:
    """Return the images (N, C, H, W) and labels (N,) of a part."""
    assert part is not None
    images, labels = examples_at(*underlying(part))
    return images, labels


def probed(splits: data.Splits, features: Features) -> list[float]:
    """Return the accuracies on test images of linear probes and of nearest neighbours."""
    images, classes = examples(splits.labelled)
    known = torch.stack([features(each) for each in images])
    images, labels = examples(splits.test)
    queries = features(images)
    probes = run.linear_probe(known, classes), run.nearest_neighbour(known, classes)
    return [(probe(queries) == labels).float().mean().item() for probe in probes]


@torch.no_grad()
def untrained(splits: data.Splits, settings: Settings) -> list[float]:
    """Return the same for features of a network with its initial weights."""
    return probed(splits, models.make(settings, splits.spec).eval().features)


def supervised(splits: data.Splits, settings: Settings) -> list[float]:
    """Return the accuracy on test images of networks that learn from the labelled ones: a mean over
    the draws."""
    views, found = data.augmentation(settings), []
    for batch in zip(*examples(splits.labelled), strict=True):
        network = models.make(settings, splits.spec).features
        model = nn.Sequential(network, nn.Linear(settings.features, len(splits.spec.classes)))
        optimizer = torch.optim.Adam(model.parameters(), RATE)
        for _ in range(STEPS):
            loss = cross_entropy(model(views(batch)[0]), batch[1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        images, labels = examples(splits.test)
        with torch.no_grad():
            found.append((model(images).argmax(1) == labels).float().mean().item())
    return [sum(found) / len(found)]


def main() -> None:
    """Print the rows."""
    for count in LABELS:
        found: dict[str, list[list[float]]] = {}
        for seed in SEEDS:
            settings = Settings(probe_labels=count, seed=seed)
            splits = data.load(settings, Path())
            torch.manual_seed(seed)
            pixels = probed(splits, lambda images: images.flatten(1).float())
            found.setdefault("pixels", []).append(pixels)
            found.setdefault("untrained", []).append(untrained(splits, settings))
            found.setdefault("supervised", []).append(supervised(splits, settings))
        for name, rows in found.items():
            each = [f"{mean:.3f}" for mean in torch.tensor(rows).mean(0).tolist()]
            print(f"{count} labels, {name}: {', '.join(each)}", flush=True)


if __name__ == "__main__":
    main()
