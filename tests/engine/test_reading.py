"""Datasets that are read one example at a time: by processes, or once onto the device."""

import multiprocessing
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import active_children
from pickle import PicklingError

import pytest
import torch
from labjobs.data import batches as loaders
from labjobs.job import terminal
from torch.utils.data import Dataset

CPU = torch.device("cpu")


class Examples(Dataset):
    """The numbers below 100, each the example of its index, in 9 bytes."""

    def __len__(self):
        return 100

    def __getitem__(self, index):
        return torch.tensor(index, dtype=torch.uint8), index


class Noted(Examples):
    """Examples that write their index into a pipe as they are read."""

    def __init__(self):
        self.notes, self._pen = os.pipe()

    def __getitem__(self, index):
        os.write(self._pen, bytes([index]))
        return super().__getitem__(index)

    def read(self, count):
        """Return the next indices that are read; waits for them."""
        return [os.read(self.notes, 1)[0] for _ in range(count)]

    def nothing_more(self):
        """Return whether no other index has been read."""
        os.set_blocking(self.notes, False)
        try:
            return not os.read(self.notes, 1)
        except BlockingIOError:
            return True
        finally:
            os.set_blocking(self.notes, True)


def make(dataset, loader="workers", workers=1):
    """Shuffled batches of 10."""
    return loaders.make(dataset, CPU, 10, loader, workers, seed=0)


def order(batches, epoch=0):
    return [n for _, labels in batches.epoch(epoch, 0) for n in labels.tolist()]


def test_processes_read_on_into_the_next_epoch():
    dataset = Noted()
    batches = make(dataset)
    first = order(batches, 1)
    assert dataset.read(100) == first
    ahead = dataset.read(20)  # two batches
    second = order(batches, 2)
    assert ahead + dataset.read(80) == second
    batches.close()


@pytest.fixture(params=["forkserver", "spawn"])
def start_method(request):
    """How multiprocessing starts processes: on Python 3.14 by default with a fork server."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(request.param, force=True)
    yield request.param
    multiprocessing.set_start_method(before, force=True)


@pytest.mark.skipif(sys.platform != "linux", reason="forks are for Linux")
def test_processes_are_forks_unless_the_script_has_chosen_to_spawn(start_method):
    dataset = type("Local", (Examples,), {})()  # cannot be pickled
    batches = make(dataset)
    if start_method == "spawn":
        with pytest.raises(PicklingError, match="Local"):
            order(batches)
    else:
        assert sorted(order(batches)) == list(range(100))
    batches.close()


def test_all_batches_of_a_dataset_share_one_copy_while_they_are_in_use():
    dataset = Noted()
    one, other = make(dataset, "resident"), make(dataset, "resident")
    assert order(one) == order(other)
    assert sorted(dataset.read(100)) == list(range(100)) and dataset.nothing_more()
    del one, other
    make(dataset, "resident")
    assert sorted(dataset.read(100)) == list(range(100))


@pytest.mark.parametrize("number", terminal.SIGNALS)
def test_processes_leave_signals_to_the_job(number):
    batches = make(Examples())
    begun = batches.epoch(0, 0)
    first = next(begun)
    (process,) = active_children()
    os.kill(process.pid, number)
    rest = [labels for _, labels in begun]
    assert torch.cat([first[1], *rest]).tolist() == order(make(Examples(), "resident"))
    batches.close()


class Stuck(Examples):
    """A dataset that cannot be read to its end."""

    def __getitem__(self, index):
        if index == 20:
            os.read(os.pipe()[0], 1)  # to which nobody writes
        return super().__getitem__(index)


def test_processes_that_are_stuck_are_ended_too(monkeypatch):
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
    batches = loaders.make(Stuck(), CPU, 10, "workers", 1)
    begun = iter(batches)
    next(begun)
    batches.close()
    assert not active_children()


def test_processes_that_a_pools_thread_has_started_end_well():
    """Those of an evaluation in the background are forks of such a thread."""
    batches = make(Examples())
    with ThreadPoolExecutor(1) as pool:
        pool.submit(list, batches).result()
    (process,) = active_children()
    batches.close()
    assert process.exitcode == 0
