"""Datasets that are read one example at a time: by processes, or once onto the device."""

import os
import subprocess
import sys
from multiprocessing import active_children, get_context
from pathlib import Path

import labjobs
import pytest
import torch
from labjobs.data import batches as loaders
from labjobs.job import terminal
from torch.utils.data import Dataset

ENGINE = str(Path(labjobs.__file__).parents[1])
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
    """The examples of an epoch."""
    return [n for (_, labels), _ in batches.from_position(epoch, 0) for n in labels.tolist()]


def test_processes_read_on_into_the_next_epoch():
    dataset = Noted()
    batches = make(dataset)
    first = order(batches, 1)
    assert dataset.read(100) == first
    ahead = dataset.read(20)  # two batches
    second = order(batches, 2)
    assert ahead + dataset.read(80) == second
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
    begun = batches.from_position(0, 0)
    first, _ = next(begun)
    (process,) = active_children()
    os.kill(process.pid, number)
    rest = [labels for (_, labels), _ in begun]
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


SCRIPT = """
import sys
from concurrent.futures import ThreadPoolExecutor
import torch
from torch.utils.data import Dataset
from labjobs.data import batches as loaders

class Examples(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        if index == int(sys.argv[1]):
            raise ValueError("no such file")
        return torch.zeros(3), index

made = loaders.make(Examples(), torch.device("cpu"), 4, "workers", 2, seed=0)
evaluated = loaders.make(Examples(), torch.device("cpu"), 4, "workers", 1)
pool = ThreadPoolExecutor(2)
evaluations = [pool.submit(lambda: sum(len(labels) for _, labels in evaluated)) for _ in range(2)]
begun = made.from_position(0, 0)
next(begun)
print(*[evaluation.result() for evaluation in evaluations])
"""


def run(*words):
    """Run the script above in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": ENGINE},
    )


def test_reading_in_a_pool_of_threads_ends_without_a_word():
    done = run("-1")
    assert (done.stdout.split(), done.stderr) == (["64", "64"], "")


def read_for_ever(write):
    """Read batches by two processes, all of which have `write` for their standard error."""
    os.dup2(write, 2)
    os.close(write)
    sys.stderr = os.fdopen(2, "w")  # not pytest's
    batches = make(Examples(), workers=2)
    for epoch in range(1_000_000):
        order(batches, epoch)
        os.write(2, b"." if epoch == 3 else b"")


def test_processes_of_a_killed_job_end_without_a_trace():
    jobs = []
    for _ in range(6):  # one in three would print one, if nothing were done against it
        read, write = os.pipe()
        job = get_context("fork").Process(target=read_for_ever, args=(write,))
        job.start()
        os.close(write)
        jobs.append((job, read))
    for job, read in jobs:
        assert os.read(read, 1) == b"."
        job.kill()
    for job, read in jobs:
        with os.fdopen(read) as errors:
            assert errors.read() == ""  # it ends when the last of its processes has
        job.join()
