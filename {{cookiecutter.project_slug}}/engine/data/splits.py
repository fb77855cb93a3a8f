"""Holding out examples for validation and test."""

from collections.abc import Sized
from typing import Any, cast

import torch
from torch.utils.data import Dataset, Subset

from engine.data.remembering import remembered
from engine.data.seeds import generator
from engine.errors import SettingsError


@remembered
def split(dataset: Dataset[Any], fraction: float, seed: int) -> tuple[Subset[Any], Subset[Any]]:
    """Return the dataset without a random fraction of its examples, and those examples.

    Both keep the dataset's order; the same arguments give the same objects. Raises SettingsError if
    one of the two would be empty.
    """
    count = len(cast(Sized, dataset))
    held_out = round(fraction * count)
    if not 0 < held_out < count:
        raise SettingsError(
            f"--dataset: {count} examples are too few to hold out a fraction of {fraction}"
        )
    order = torch.randperm(count, generator=generator(seed, "split", count))
    chosen, rest = (part.sort().values.tolist() for part in order.tensor_split([held_out]))
    return Subset(dataset, rest), Subset(dataset, chosen)
