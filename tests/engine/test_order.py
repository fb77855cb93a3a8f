"""Which examples make up which batch, and how they are fetched."""

from types import SimpleNamespace

import pytest
import torch
from labjobs.data.order import Order, examples_at, underlying
from labjobs.distributed.ranks import Rank
from labjobs.errors import JobError, SettingsError
from labjobs.training.progress import Length
from torch.utils.data import Dataset, Subset, TensorDataset

ORDERS = [
    ((10, 4, None), [4, 4, 2]),
    ((9, 4, None), [4, 4, 1]),
    ((9, 4, 0), [4, 4]),
    ((5, 4, 0), [4]),
    ((4, 4, 0), [4]),
    ((1, 4, 0), [1]),
    ((3, 1, 0), [1, 1, 1]),
    ((3, 2, 0), [2]),
    ((0, 4, 0), []),
]


@pytest.mark.parametrize(("how", "sizes"), ORDERS)
def test_the_sizes_of_an_epochs_batches(how, sizes):
    count, batch_size, seed = how
    order = Order(torch.arange(100, 100 + count), batch_size, seed)
    assert (len(order), order.shuffled) == (len(sizes), seed == 0)
    assert order.sizes(1) == order.own_sizes(1) == sizes
    epochs = [order.epoch(number).tolist() for number in (1, 2, 1)]
    assert epochs[0] == epochs[2]
    assert all(len({*epoch}) == len(epoch) == sum(sizes) for epoch in epochs)
    assert {*epochs[0]} <= {*range(100, 100 + count)}


@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize("count", [1, 4, 5, 8, 10, 11, 12])
@pytest.mark.parametrize("processes", [2, 3, 4])
def test_processes_take_slices_of_the_batches_of_one(seed, count, processes):
    size = 5
    one = Order(torch.arange(100, 100 + count), size, seed)
    slices = [
        Order(torch.arange(100, 100 + count), size, seed, Rank(number, processes, number))
        for number in range(processes)
    ]
    whole_batches = one.epoch(3).split(size)
    taken = [each.epoch(3).split(each.own_sizes(3)) for each in slices]
    assert [len(each) for each in taken] == [len(each) for each in slices]
    for number, batch in enumerate(whole_batches):
        parts = [each[number] for each in taken if number < len(each)]
        examples = torch.cat(parts)[: len(batch)]  # after them is what fills empty slices
        assert examples.tolist() == batch.tolist()
        if seed is not None:
            assert len(parts) == processes and all(len(part) for part in parts)
    for each in slices:
        assert one.epoch(3)[each.positions].tolist() == each.epoch(3).tolist()
        assert each.sizes(3) == one.sizes(3)


def test_a_batch_has_an_example_for_each_process():
    with pytest.raises(SettingsError, match="fewer examples than 3 processes; use one"):
        Order(torch.arange(10), 2, 0, Rank(0, 3, 0))


def growing(count, epoch, random):
    """Batches of 3 examples, then of 4, and so on, of a part of them that grows."""
    return torch.randperm(6 + 2 * epoch, generator=random).split(3 + epoch)


def test_a_function_chooses_the_batches_of_each_epoch():
    order = Order(torch.arange(100, 120), growing, 5)
    assert [order.sizes(number) for number in (1, 2, 3)] == [[3, 3], [4, 4], [5, 5]]
    assert order.sizes(4) == [6, 6] and order.shuffled
    epochs = [order.epoch(number).tolist() for number in (1, 3, 1)]
    assert epochs[0] == epochs[2] and sorted(epochs[1]) == [*range(100, 110)]
    assert order.sizes(0) == [3, 3]  # to evaluate on

    slices = [Order(torch.arange(100, 120), growing, 5, Rank(n, 2, n)) for n in range(2)]
    taken = [each.epoch(3).split(each.own_sizes(3)) for each in slices]
    assert (
        torch.cat([part for parts in zip(*taken, strict=True) for part in parts]).tolist()
        == (epochs[1])
    )


def test_each_epochs_batches_are_asked_for_once_for_the_length_of_a_job():
    asked = []

    def noted(count, epoch, random):
        asked.append(epoch)
        return growing(count, epoch, random)

    length = Length(SimpleNamespace(epochs=3))
    length.set_epoch(Order(torch.arange(20), noted, 5))
    asked.clear()
    assert (length.total, length.total, length.place(3), length.epochs_in(3)) == (6, 6, (2, 1), 1.5)
    assert asked == [0, 1, 2, 3]


@pytest.mark.parametrize("chosen", [[], [[]], [[20]], [[0, -1]], [torch.arange(3), []]])
def test_a_function_that_chooses_no_batches_is_refused(chosen):
    def nonsense(count, epoch, random):
        return chosen

    with pytest.raises(JobError, match="at least 1 examples, as places from 0 to 19"):
        Order(torch.arange(20), nonsense, 0).sizes(1)


class Several(Dataset):
    """Examples that are fetched several at once."""

    def __len__(self):
        return 9

    def __getitems__(self, indices):
        return [10 * index for index in indices]

    def __getitem__(self, index):
        raise AssertionError("one by one")


def test_how_examples_become_a_batch():
    indices, tensors = torch.tensor([3, 1]), TensorDataset(torch.arange(5), torch.arange(5.0))
    numbers, halves = examples_at(tensors, indices)
    assert (numbers.tolist(), halves.tolist()) == ([3, 1], [3.0, 1.0])
    assert examples_at(tensors, indices, lambda examples: [a + 10 for a, _ in examples]) == [13, 11]
    assert examples_at(Several(), indices).tolist() == [30, 10]
    assert examples_at(Several(), indices, sum) == 40
    assert examples_at([5, 6, 7, 8], indices).tolist() == [8, 6]


class Marked(Subset):
    """A subset that changes its examples."""


def test_a_subset_of_a_subset_is_looked_through():
    tensors = TensorDataset(torch.arange(20))
    inner = Subset(tensors, range(10, 20))
    found, indices = underlying(Subset(inner, torch.tensor([3, 1])))
    assert found is tensors and indices.tolist() == [13, 11]
    found, indices = underlying(tensors)
    assert found is tensors and indices.tolist() == [*range(20)]
    marked = Marked(tensors, [5, 6])
    found, indices = underlying(Subset(marked, [1]))
    assert found is marked and indices.tolist() == [1]


def test_the_order_of_a_seed_and_an_epoch_stays_what_it_was():
    """Jobs of earlier versions go on in it. Of torch's own random numbers it takes none."""
    before = torch.get_rng_state()
    order = Order(torch.arange(7), 2, 3)
    assert [order.epoch(number).tolist() for number in (1, 2)] == [
        [6, 1, 3, 0, 4, 2],
        [3, 6, 0, 4, 5, 1],
    ]
    assert torch.equal(torch.get_rng_state(), before)
