"""What holds for all datasets and augmentations in data.py, whichever they are."""

import random
import socket
from dataclasses import replace

import numpy as np
import pytest
import torch

import data
from labjobs.data import batches, trees
from labjobs.data.streams import Place, is_stream
from labjobs.errors import SettingsError
from settings import Settings

DEFAULT = Settings()

COLLATE = getattr(data, "collate", None)
"""What makes a batch of examples that cannot be stacked; see `python jobs.py docs recipes`."""


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """Let nothing be fetched."""

    def refuse(*_args, **_kwargs):
        raise OSError("no network in tests")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def first_batch(part):
    """The first training batch of some examples or of a stream, and how many it has."""
    seed = None if is_stream(part) else 0
    made = batches.make(part, torch.device("cpu"), batch_size=8, seed=seed, collate=COLLATE)
    return next(made.endless(0, 0, Place()))


def has_rows(batch, count):
    """Whether a batch has a row for each example; what `collate` makes may have any shape."""
    return COLLATE is not None or {len(leaf) for leaf in trees.leaves(batch)} == {count}


@pytest.mark.parametrize("name", getattr(data, "DATASETS", ()))
def test_a_dataset_gives_batches_or_one_line_says_why_not(name, tmp_path):
    try:
        parts = data.load(replace(DEFAULT, dataset=name), tmp_path)
    except SettingsError as error:
        assert str(error).startswith("--") and name != DEFAULT.dataset
    else:
        batch, count = first_batch(parts.train)
        assert count and has_rows(batch, count)


@pytest.mark.parametrize("name", getattr(data, "AUGMENTATIONS", ()))
def test_an_augmentation_depends_on_the_restored_random_numbers_alone(name, tmp_path):
    """Otherwise a job that was interrupted would not go on as it would have."""
    batch, count = first_batch(data.load(DEFAULT, tmp_path).train)
    augment, results = data.augmentation(replace(DEFAULT, augment=name)), []
    for _ in range(2):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        results.append([augment(batch) for _ in range(3)])
    for one, other in zip(*results, strict=True):
        leaves = zip(trees.leaves(one), trees.leaves(other), strict=True)
        assert all(torch.equal(left, right) for left, right in leaves)
        assert has_rows(one, count)
