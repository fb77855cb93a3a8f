"""Streams: examples without an index, read in any number of processes, and on from any batch."""

import random
from itertools import chain, islice
from typing import Any

import pytest
import torch
from attempts import At
from labjobs.data import batches as loaders
from labjobs.data.batches import Place
from labjobs.errors import JobError, SettingsError
from labjobs.settings import Span
from test_resume import assert_continues
from torch.utils.data import IterableDataset
from toy import DATA, EXAMPLES, Loop

CPU = torch.device("cpu")
SIZE = 4


class Numbers(IterableDataset[int]):
    """The numbers of some ranges, each pass in another order."""

    def __init__(self, ranges: list[range]) -> None:
        self._ranges = ranges
        self._pass = 0

    def set_epoch(self, number: int) -> None:
        self._pass = number

    def _order(self) -> list[int]:
        numbers = [n for each in self._ranges for n in each]
        random.Random(self._pass).shuffle(numbers)
        return numbers

    def __iter__(self):
        return iter(self._order())


class Stateful(Numbers):
    """The same, with a state; counts what it had to give."""

    def __init__(self, ranges: list[range]) -> None:
        super().__init__(ranges)
        self._given = torch.zeros((), dtype=torch.long)

    def __iter__(self):
        for number in self._order()[int(self._given) :]:
            self._given += 1
            yield number
        self._given.zero_()

    def state_dict(self) -> dict[str, Any]:
        return {"given": self._given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._given = state["given"].clone()


def sharded(kind: type[Numbers]) -> type[Numbers]:
    """A kind of stream that can be read in parts."""

    class Sharded(kind):
        @property
        def num_shards(self) -> int:
            return len(self._ranges)

        def shard(self, num_shards: int, index: int) -> Numbers:
            return kind(self._ranges[index::num_shards])

    return Sharded


KINDS = {
    "plain": Numbers,
    "with a state": Stateful,
    "sharded": sharded(Numbers),
    "sharded, with a state": sharded(Stateful),
}
RANGES = {
    1: [range(22)],
    4: [range(9), range(100, 111), range(200, 203), range(300, 305)],
    11: [range(100 * n, 100 * n + n + 3) for n in range(11)],
}


def make(kind: str, shards: int, workers: int = 0, **more: Any) -> loaders.Batches:
    return loaders.make(KINDS[kind](RANGES[shards]), CPU, SIZE, workers=workers, **more)


def trained(batches: loaders.Batches, count: int, place: Place) -> list[list[int]]:
    """The next batches of an endless stream; all of them are full."""
    given = list(islice(batches.endless(1, 0, place), count))
    assert all(examples == len(batch) == SIZE for batch, examples in given)
    return [batch.tolist() for batch, _ in given]


@pytest.mark.parametrize("shards", RANGES)
@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_on_from_any_batch_with_any_number_of_processes(kind, shards):
    whole = trained(make(kind, shards), 30, Place())
    for done, workers in ((0, 2), (1, 1), (3, 0), (7, 3), (13, 0), (25, 8)):
        before, after = Place(), Place()
        trained(make(kind, shards), done, before)
        after.load_state_dict(before.state_dict())
        batches = make(kind, shards, workers)
        assert trained(batches, 30 - done, after) == whole[done:]
        assert after.batches == 30
        batches.close()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shards", RANGES)
@pytest.mark.parametrize("kind", KINDS)
def test_an_evaluation_is_one_pass_each_time(kind, shards, workers):
    batches = make(kind, shards, workers)
    first, again = ([batch.tolist() for batch in batches] for _ in range(2))
    assert first == again
    assert sorted(chain(*first)) == sorted(n for each in RANGES[shards] for n in each)
    batches.close()


def test_what_a_stream_does_not_have_is_refused():
    with pytest.raises(JobError, match="a stream comes in its own order; leave shuffle out"):
        make("plain", 1, seed=0)
    with pytest.raises(SettingsError, match="--loader resident: not for a stream"):
        make("plain", 1, loader="resident")
    with pytest.raises(TypeError, match="have no length"):
        len(make("plain", 1))
    with pytest.raises(
        JobError, match="the stream of training examples, or a part of it, is empty"
    ):
        batches = loaders.make(Numbers([]), CPU, SIZE, workers=0)
        trained(batches, 1, Place())
    place = Place()
    trained(make("sharded", 4), 4, place)
    with pytest.raises(JobError, match="has 1 parts, but it had 4"):
        trained(make("sharded", 1), 1, place)


def loop_over(kind: type[Numbers], loop: type[Loop] = Loop) -> Loop:
    """A loop that trains on a stream of the toy project's examples."""

    class Examples(kind):
        def __iter__(self):
            return (DATA[number] for number in super().__iter__())

    return loop(train_on=Examples([range(EXAMPLES)]), shuffle=False)


class Named(Loop):
    """Trains on batches of words."""

    def batches(self, job):
        return job.batches(self.train_on, SIZE, collate=lambda examples: ["word"] * len(examples))


@pytest.mark.parametrize("kind", [Numbers, Stateful])
def test_a_job_goes_on_with_the_next_example(toy, kind):
    stops, length = (At("step", 3), At("batch", 2)), {"steps": 20, "eval_every": Span("6")}
    assert_continues(toy, *stops, loop=loop_over(kind), runtime={"workers": 1}, **length)
    said = (toy.run("parts", loop_over(kind), **length).folder / "log.txt").read_text()
    assert ("examples were read again and skipped in" in said) == (kind is Numbers)


class Unsteady(Numbers):
    """The order of a pass depends on how many there were in this process."""

    _order_of = random.Random(0)

    def __iter__(self):
        numbers = self._order()
        self._order_of.shuffle(numbers)
        return iter(numbers)


def test_a_stream_that_gives_other_examples_is_named(toy):
    how = {"steps": 20, "eval_every": Span("6"), "loop": loop_over(Unsteady)}
    assert toy.run("parts", stop=At("step", 8), **how).status == 143
    said = (toy.done("parts", **how).folder / "log.txt").read_text()
    assert "the stream gives other examples when it is read again" in said


SHORT = {"steps": 9, "eval_every": Span("3")}


@pytest.mark.parametrize(
    ("settings", "loop", "status", "said"),
    [
        ({}, Loop, 2, "--epochs: this data has no epochs; use --steps or --minutes"),
        ({"steps": 9}, Loop, 2, "--eval-every: this data has no epochs; give a number of steps"),
        (SHORT | {"accumulate": 2}, Named, 1, "--accumulate: this batch cannot be split"),
    ],
)
def test_what_a_job_on_a_stream_cannot_do_is_refused(toy, settings, loop, status, said):
    done = toy.run(loop=loop_over(Numbers, loop), **settings)
    assert done.status == status and said in done.said
