"""Which examples make up which batch, in which order, and what a batch may hold."""

from collections import namedtuple
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import pytest
import torch
from labjobs.data import batches as loaders
from labjobs.errors import SettingsError
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

CPU = torch.device("cpu")
EXAMPLES = TensorDataset(torch.arange(100, dtype=torch.uint8).view(-1, 1, 1, 1), torch.arange(100))
LOADERS = ["resident", "workers"]


class OneByOne(Dataset):
    """The same examples, as a dataset that is not in memory gives them."""

    def __len__(self):
        return len(EXAMPLES)

    def __getitem__(self, index):
        image, label = EXAMPLES[index]
        return image, int(label)


ONE_BY_ONE = OneByOne()


def make(count=22, batch_size=4, seed=0, loader="resident", dataset=EXAMPLES, workers=0):
    """Batches of the examples 50, 51, …"""
    subset = Subset(dataset, range(50, 50 + count))
    return loaders.make(subset, CPU, batch_size, loader, workers, seed)


def order(batches, number):
    """The examples of an epoch, by their labels."""
    return torch.cat([labels for _, labels in batches.epoch(number, 0)]).tolist()


@dataclass(frozen=True)
class Pair:
    """With a rule for its fields, and one that follows from others."""

    left: Tensor
    right: Tensor
    same: Tensor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "same", self.left.eq(self.right))


Point = namedtuple("Point", "x y")


class Nested(Dataset):
    """Examples of every nesting and many number formats, each made of its index."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return {
            "whole": index,
            "half": index / 2,
            "array": np.full((2, 3), index, dtype=np.float32),
            "inner": [torch.tensor(index % 2 == 0), Pair(torch.tensor([index]), torch.zeros(0))],
            "point": Point(torch.tensor(index, dtype=torch.float64), np.int16(index)),
        }


@pytest.mark.parametrize("loader", LOADERS)
def test_a_batch_is_any_nesting_of_any_number_formats(loader):
    batches = loaders.make(Nested(), CPU, 4, loader, 1, seed=0)
    seen = []
    for batch, size in zip(batches.epoch(0, 0), batches.order.sizes(0), strict=True):
        index = batch["whole"]
        assert (index.shape, index.dtype) == ((size,), torch.int64)
        assert torch.equal(batch["half"], index / 2) and batch["half"].dtype == torch.float32
        assert torch.equal(batch["array"], index.float().view(-1, 1, 1).expand(-1, 2, 3))
        even, pair = batch["inner"]
        assert isinstance(pair, Pair) and isinstance(batch["point"], Point)
        assert torch.equal(even, index % 2 == 0)
        assert torch.equal(pair.left, index.view(-1, 1)) and pair.right.shape == (size, 0)
        assert (
            torch.equal(batch["point"].x, index.double()) and batch["point"].y.dtype == torch.int16
        )
        seen += index.tolist()
    assert sorted(seen) == list(range(10))
    batches.close()


class InTuple(Nested):
    """A tuple with as many tensors as parts, one of which is a dictionary."""

    def __getitem__(self, index):
        return {"whole": torch.tensor(index)}, torch.tensor(-index)


@pytest.mark.parametrize("loader", LOADERS)
def test_a_tuple_keeps_the_parts_that_are_no_tensors(loader):
    batches = loaders.make(InTuple(), CPU, 4, loader, 1, seed=0)
    for inputs, labels in batches.epoch(0, 0):
        assert torch.equal(inputs["whole"], -labels)
    batches.close()


class Named(TensorDataset):
    """Tensors, and what is in them."""

    names = ("x", "y")


class Doubled(TensorDataset):
    """Tensors whose examples are others."""

    def __getitem__(self, index):
        return tuple(2 * each for each in super().__getitem__(index))


@pytest.mark.parametrize("kind", [TensorDataset, Named, Doubled])
def test_tensors_are_not_copied_unless_their_examples_are_others(kind):
    """Windows that overlap show it: a copy would be larger than what they are windows of."""
    numbers = torch.arange(101)
    batches = loaders.make(kind(numbers.unfold(0, 11, 10)), CPU, 4)
    assert batches.loader == "resident"
    (held,) = batches._leaves
    assert (held.data_ptr() == numbers.data_ptr()) == (kind is not Doubled)
    factor = 2 if kind is Doubled else 1
    read = torch.cat([batch for (batch,) in batches])
    assert torch.equal(read, factor * numbers.unfold(0, 11, 10))


@pytest.mark.parametrize("thing", ["word", None])
def test_an_example_that_cannot_be_in_a_batch_is_said(thing):
    class Odd(OneByOne):
        def __getitem__(self, index):
            return index, thing

    kind = type(thing).__name__
    with pytest.raises(TypeError, match=f"an example holds a {kind}, not a tensor or a number"):
        list(loaders.make(Odd(), CPU, 4, "workers", 0))


@pytest.mark.parametrize("loader", LOADERS)
def test_the_same_batches_can_be_read_twice_at_once(loader):
    batches = make(seed=None, loader=loader, dataset=ONE_BY_ONE, workers=1)
    for _ in range(2):
        for first, second in zip(batches, batches, strict=True):
            assert torch.equal(first[1], second[1])
    batches.close()


@pytest.mark.parametrize("loader", LOADERS)
def test_an_iteration_that_is_broken_off_leaves_nothing_behind(loader):
    batches = make(loader=loader, dataset=ONE_BY_ONE, workers=1)
    whole = order(batches, 2)
    for _ in range(3):
        list(islice(batches.epoch(1, 0), 2))
        assert order(batches, 2) == whole
    batches.close()


def test_no_examples_are_said_in_one_line():
    with pytest.raises(SettingsError, match=r"^--dataset: one of its parts has no examples$"):
        make(0)
