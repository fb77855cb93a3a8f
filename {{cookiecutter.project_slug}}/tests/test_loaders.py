"""Which examples make up which part and which batch, and how training images are changed."""

import pytest
import torch
from conftest import wait_until
from torch.nn.functional import pad
from torch.utils.data import Dataset, Subset, TensorDataset

from engine.data import loaders
from engine.data.augmentation import Augmentation
from engine.data.splits import Source, split
from engine.errors import SettingsError

CPU = torch.device("cpu")
EXAMPLES = TensorDataset(torch.arange(100, dtype=torch.uint8).view(-1, 1, 1, 1), torch.arange(100))
NAMES = [str(number) for number in range(100)]


class OneByOne(Dataset):
    """The same examples, as a dataset that is not in memory gives them."""

    def __len__(self):
        return len(EXAMPLES)

    def __getitem__(self, index):
        image, label = EXAMPLES[index]
        return image, int(label)


ONE_BY_ONE = OneByOne()


def parts(seed=0, fraction=0.1, test=None, train=EXAMPLES):
    """The examples of the training, validation and test parts."""
    splits = split(Source(train, test, NAMES), fraction, seed)
    return [set(part.indices) for part in (splits.train, splits.val, splits.test)]


def test_splits_share_out_every_example_once():
    train, val, test = parts()
    assert (len(train), len(val), len(test)) == (72, 8, 20)
    assert train | val | test == set(range(100))


def test_test_set_of_its_own_stays_whole():
    train, val, test = parts(fraction=0.25, test=ONE_BY_ONE)
    assert (len(train), len(val), len(test)) == (75, 25, 100)
    assert train | val == set(range(100))


def test_splits_depend_on_the_seed_alone():
    assert parts(seed=3) == parts(seed=3) == parts(seed=3, train=ONE_BY_ONE)
    assert all(one != two for one, two in zip(parts(seed=3), parts(seed=4), strict=True))


def test_mean_and_deviation_are_those_of_the_training_part():
    train, *held_out = parts()
    images = torch.randint(200, (100, 3, 4, 4), dtype=torch.uint8)
    images[[*set.union(*held_out)]] = 255
    splits = split(Source(TensorDataset(images, torch.arange(100)), None, NAMES), 0.1, 0)
    trained = images[[*train]] / 255
    assert torch.allclose(splits.mean, trained.mean((0, 2, 3)), rtol=1e-4)
    assert torch.allclose(splits.std, trained.std((0, 2, 3)), rtol=1e-4)


def test_too_few_examples_to_split():
    with pytest.raises(SettingsError, match=r"--val-fraction 0.1: too few examples \(4\)"):
        parts(train=Subset(EXAMPLES, range(4)))


def make(count=22, batch_size=4, seed=0, kind="resident", dataset=EXAMPLES, workers=0):
    """Batches of the examples 50, 51, …"""
    subset = Subset(dataset, range(50, 50 + count))
    return loaders.make(subset, CPU, batch_size, kind, workers, seed)


def order(batches, epoch=1):
    """The examples of an epoch."""
    return torch.cat([labels for _, labels in batches.epoch(epoch)]).tolist()


def sizes(batches, epoch=1):
    """How many examples each batch of an epoch has."""
    return [len(labels) for _, labels in batches.epoch(epoch)]


@pytest.mark.parametrize(("dataset", "seed"), [(EXAMPLES, 0), (ONE_BY_ONE, 0), (ONE_BY_ONE, None)])
def test_loaders_give_the_same_batches_in_the_same_order(dataset, seed):
    resident = make(seed=seed, dataset=dataset)
    others = make(seed=seed, dataset=dataset, kind="workers", workers=2)
    for epoch in (1, 2, 1):
        both = zip(resident.epoch(epoch), others.epoch(epoch), strict=True)
        for (images, labels), (other_images, other_labels) in both:
            assert torch.equal(images, other_images)
            assert torch.equal(labels, other_labels)
            assert images.flatten().tolist() == labels.tolist()
            assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)


def test_order_depends_on_seed_and_epoch_alone():
    first = order(make())
    assert order(make()) == first
    assert order(make(), epoch=2) != first
    assert order(make(seed=1)) != first
    assert sorted(first) != first


@pytest.mark.parametrize(
    ("count", "batch_size", "expected"),
    [(8, 4, [4, 4]), (22, 4, [4] * 5 + [2]), (3, 4, [3]), (1, 4, [1]), (3, 1, [1, 1, 1])],
)
@pytest.mark.parametrize("seed", [0, None])
def test_every_example_comes_once_an_epoch(count, batch_size, expected, seed):
    batches = make(count, batch_size, seed)
    for epoch in (1, 2):
        assert sizes(batches, epoch) == expected
        assert sorted(order(batches, epoch)) == list(range(50, 50 + count))
    assert (len(batches), batches.examples) == (len(expected), count)


@pytest.mark.parametrize("kind", ["resident", "workers"])
def test_last_batch_of_one_is_left_out_only_while_shuffling(kind):
    shuffled, fixed = make(9, kind=kind), make(9, seed=None, kind=kind)
    assert (sizes(shuffled), len(shuffled), shuffled.examples) == ([4, 4], 2, 8)
    assert len({frozenset(order(shuffled, epoch)) for epoch in range(9)}) > 1  # not always the same
    assert (sizes(fixed), len(fixed), fixed.examples) == ([4, 4, 1], 3, 9)


@pytest.mark.parametrize("kind", ["resident", "workers"])
def test_validation_order_is_fixed(kind):
    batches = make(6, seed=None, kind=kind)
    assert order(batches, 1) == order(batches, 2) == [50, 51, 52, 53, 54, 55]


@pytest.mark.parametrize("kind", ["resident", "workers"])
def test_the_same_batches_can_be_read_twice_at_once(kind):
    batches = make(seed=None, kind=kind, dataset=ONE_BY_ONE, workers=1)
    for _ in range(2):
        both = zip(batches.epoch(), batches.epoch(), strict=True)
        assert all(torch.equal(first[1], second[1]) for first, second in both)


class Noting(OneByOne):
    """Notes in a file which examples are read."""

    def __init__(self, file):
        super().__init__()
        self.file = file

    def __getitem__(self, index):
        with self.file.open("a") as file:
            file.write(f"{index}\n")
        return super().__getitem__(index)


def test_workers_read_on_into_the_next_epoch(tmp_path):
    noted = tmp_path / "noted.txt"
    batches = make(8, dataset=Noting(noted), kind="workers", workers=1)
    first = order(batches, 1)
    wait_until(lambda: len(noted.read_text().splitlines()) == 8 + 8)  # two batches ahead
    second = order(batches, 2)
    assert list(map(int, noted.read_text().splitlines()))[:16] == first + second


@pytest.mark.parametrize("kind", ["resident", "workers"])
def test_torchs_own_random_numbers_are_left_alone(kind):
    before = torch.get_rng_state()
    for epoch in (1, 2):
        order(make(kind=kind, dataset=OneByOne(), workers=1), epoch)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("dataset", "free", "kind"),
    [
        (OneByOne(), 3600, loaders.Resident),
        (OneByOne(), 3599, loaders.Workers),
        (EXAMPLES, 0, loaders.Resident),  # in the CPU's memory already
    ],
)
def test_auto_keeps_900_bytes_on_a_device_that_has_3600(monkeypatch, dataset, free, kind):
    monkeypatch.setattr(loaders, "free_memory", lambda _device: free)
    assert isinstance(make(kind="auto", dataset=dataset), kind)


SIDE, SHIFT = 16, 2


def pictures(count):
    """Pictures (B, 2, 16, 16) whose pixels say where they are: 16 × row + column, and 255 − it."""
    place = torch.arange(SIDE * SIDE, dtype=torch.uint8).view(SIDE, SIDE)
    return torch.stack([place, 255 - place]).repeat(count, 1, 1, 1)


def changes(images):
    """What was done to each picture: (shift down, shift right, mirrored), else KeyError."""
    known = {}
    padded = pad(pictures(1).float(), [SHIFT] * 4, mode="reflect")[0].to(torch.uint8)
    for down, right in torch.cartesian_prod(*[torch.arange(-SHIFT, SHIFT + 1)] * 2).tolist():
        top, left = SHIFT + down, SHIFT + right
        picture = padded[:, top : top + SIDE, left : left + SIDE]
        known[picture.numpy().tobytes()] = (down, right, False)
        known[picture.flip(2).numpy().tobytes()] = (down, right, True)
    return [known[image.numpy().tobytes()] for image in images]


@pytest.mark.parametrize(("kind", "mirrors"), [("crop", {False}), ("crop-flip", {False, True})])
def test_each_image_is_shifted_and_mirrored_on_its_own(kind, mirrors):
    images = pictures(300)
    changed = Augmentation(kind, 0, CPU)(images)
    assert (changed.shape, changed.dtype) == (images.shape, torch.uint8)
    assert torch.equal(images, pictures(300))
    down, right, mirrored = (set(values) for values in zip(*changes(changed), strict=True))
    assert down == right == {-2, -1, 0, 1, 2}  # up to an eighth of 16
    assert mirrored == mirrors
    assert len(set(changes(changed))) > 20


def test_none_changes_nothing():
    images = pictures(4)
    assert Augmentation("none", 0, CPU)(images) is images


def test_augmentation_depends_on_the_seed_alone():
    images, before = pictures(50), torch.get_rng_state()
    first, again, other = (Augmentation("crop-flip", seed, CPU) for seed in (0, 0, 1))
    batches = [first(images), first(images)]
    assert torch.equal(again(images), batches[0])
    assert torch.equal(again(images), batches[1])
    assert not torch.equal(batches[0], batches[1])
    assert not torch.equal(other(images), batches[0])
    assert torch.equal(torch.get_rng_state(), before)
