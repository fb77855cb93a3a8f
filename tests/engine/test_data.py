"""Held-out examples, and random changes to images."""

import pytest
import torch
from labjobs.data.order import underlying
from labjobs.data.splits import split
from labjobs.data.vision import random_shift
from labjobs.errors import SettingsError
from torch.nn.functional import pad
from torch.utils.data import TensorDataset

EXAMPLES = TensorDataset(torch.arange(100))


def held_out(fraction=0.2, seed=0, dataset=EXAMPLES):
    """The examples in both parts, by their index in the whole dataset."""
    return [underlying(part)[1].tolist() for part in split(dataset, fraction, seed)]


def test_every_example_is_in_one_part():
    rest, chosen = held_out()
    assert (len(rest), len(chosen)) == (80, 20)
    assert sorted(rest + chosen) == list(range(100))
    assert (rest, chosen) == (sorted(rest), sorted(chosen)) != (list(range(80)), [*range(80, 100)])


def test_the_split_depends_on_the_dataset_the_fraction_and_the_seed_alone():
    other = TensorDataset(torch.zeros(100))
    assert held_out() == held_out() == held_out(dataset=other)
    assert held_out(seed=1) != held_out()
    before = torch.get_rng_state()
    held_out(seed=2)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_part_can_be_split_again():
    rest, test = split(EXAMPLES, 0.2, 0)
    train, val = held_out(0.25, dataset=rest)
    assert (len(train), len(val)) == (60, 20)
    assert sorted(train + val + underlying(test)[1].tolist()) == list(range(100))


def test_the_same_split_is_made_once():
    assert split(EXAMPLES, 0.2, 0) is split(EXAMPLES, 0.2, 0)
    assert split(EXAMPLES, 0.2, 0) is not split(TensorDataset(torch.arange(100)), 0.2, 0)


@pytest.mark.parametrize(("count", "fraction"), [(4, 0.1), (1, 0.5), (3, 0.9), (0, 0.5)])
def test_no_part_is_empty(count, fraction):
    with pytest.raises(SettingsError) as caught:
        split(TensorDataset(torch.zeros(count)), fraction, 0)
    line = f"--dataset: {count} examples are too few to hold out a fraction of {fraction}"
    assert str(caught.value) == line


SIDES = {"tall": (24, 16), "square": (16, 16), "small": (7, 7), "dot": (1, 1)}


def shifted(picture):
    """All shifts of a picture (C, H, W) by up to an eighth of its sides, by their bytes."""
    down, right = (side // 8 for side in picture.shape[1:])
    larger = pad(picture.float(), [right, right, down, down], mode="reflect").to(torch.uint8)
    _, height, width = picture.shape
    return {
        larger[:, top : top + height, left : left + width].numpy().tobytes(): (top, left)
        for top in range(2 * down + 1)
        for left in range(2 * right + 1)
    }


@pytest.mark.parametrize("shape", SIDES.values(), ids=SIDES)
def test_each_image_is_shifted_by_itself(shape):
    random = torch.Generator().manual_seed(0)
    picture = torch.randint(256, (2, *shape), dtype=torch.uint8, generator=random)
    images, known = picture.repeat(600, 1, 1, 1), shifted(picture)
    torch.manual_seed(0)
    changed = random_shift(images)
    assert (changed.shape, changed.dtype) == (images.shape, torch.uint8)
    assert torch.equal(images, picture.repeat(600, 1, 1, 1))
    found = [known[image.numpy().tobytes()] for image in changed]
    assert set(found) == set(known.values())


def test_shifts_follow_torchs_random_numbers():
    images = torch.rand(50, 3, 16, 16)
    torch.manual_seed(3)
    first, second = random_shift(images), random_shift(images)
    torch.manual_seed(3)
    assert torch.equal(random_shift(images), first)
    assert not torch.equal(first, second)


def by_hand(images):
    """Each image shifted and mirrored by random numbers that are drawn in this order."""
    batch, _, *sides = images.shape
    tops, lefts = (torch.randint(2 * (side // 8) + 1, (batch,)) for side in sides)
    mirrored = torch.rand(batch, 1, 1, 1) < 0.5
    down, right = (side // 8 for side in sides)
    larger = pad(images.float(), [right, right, down, down], mode="reflect").to(images.dtype)
    parts = [
        each[:, top : top + sides[0], left : left + sides[1]]
        for each, top, left in zip(larger, tops, lefts, strict=True)
    ]
    return torch.where(mirrored, torch.stack(parts).flip(3), torch.stack(parts))


@pytest.mark.parametrize("shape", SIDES.values(), ids=SIDES)
def test_random_numbers_mean_the_same_shifts_for_ever(shape):
    """A job's curve depends on them; other ones need another results version of the engine."""
    images = torch.randint(256, (50, 3, *shape), dtype=torch.uint8)
    torch.manual_seed(3)
    changed, state = random_shift(images, mirror=True), torch.get_rng_state()
    torch.manual_seed(3)
    assert torch.equal(changed, by_hand(images))
    assert torch.equal(state, torch.get_rng_state())
    assert changed.is_contiguous()


@pytest.mark.parametrize("shape", SIDES.values(), ids=SIDES)
def test_images_and_their_masks_are_shifted_alike(shape):
    images = torch.randint(256, (50, 3, *shape), dtype=torch.uint8)
    masks = images.sum(1)  # the same pixels give the same sum
    torch.manual_seed(3)
    shifted_images, shifted_masks = random_shift(images, masks, mirror=True)
    assert (shifted_masks.shape, shifted_masks.dtype) == (masks.shape, masks.dtype)
    assert torch.equal(shifted_images.sum(1), shifted_masks)
    torch.manual_seed(3)
    assert torch.equal(random_shift(images, mirror=True), shifted_images)
