"""Random combinations of a project's settings, drawn from what each setting allows."""

import random
from collections.abc import Iterator

from labjobs.cli import flags
from labjobs.cli.flags import Flag, option

NUMBERS = {
    "image_size": ("auto", 12),
    "val_fraction": (0.1, 0.5, 0),
    "fold": (0, 1, 5),
    "batch_size": (1, 7, 64),
    "accumulate": (1, 3),
    "lr": (1e-4, 1e-2),
    "lr_for_batch": (0, 32),
    "weight_decay": (0, 0.1),
    "warmup": ("0", "1", "0.1e"),
    "label_smoothing": (0, 0.1),
    "clip_norm": (0, 1, 1e9),
    "ema": (0, 0.9),
    "patience": (0, 1),
    "split_seed": (0, 3),
    "seed": (0, 3),
}
"""Values of settings that are numbers; the others are drawn from their names."""

LENGTH = {"epochs", "steps", "minutes", "eval_every", "note", "dataset", "pretrained", "init_from"}
"""Settings that are not drawn."""

NETWORKS = ("mlp", "convnet", "convnet-separable", "convnet-se", "resnet18", "no-such-network")


def combinations(kind: type, count: int, seed: int = 0) -> Iterator[list[str]]:
    """Yield `count` command lines of two-step jobs, each with about half of the settings."""
    chance = random.Random(seed)
    drawn = {name: flag for name, flag in flags.of(kind).items() if name not in LENGTH}
    for _ in range(count):
        chosen = [name for name in drawn if chance.random() < 0.5]
        words = [
            f"{option(name)}={chance.choice(_values(name, drawn[name]))}" for name in sorted(chosen)
        ]
        yield [*words, "--steps=2", "--eval-every=1"]


def _values(name: str, flag: Flag) -> list[object]:
    if name == "model":
        return [*NETWORKS]
    if name in NUMBERS:
        return [*NUMBERS[name]]
    return [*flag.names, *flag.reader.words] or ["on", "off"]
