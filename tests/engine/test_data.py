"""Held-out examples, and random changes to images."""

import pytest
import torch
from labjobs.data.splits import split
from labjobs.errors import SettingsError
from labjobs.vision import random_shift
from torch.nn.functional import pad
from torch.utils.data import TensorDataset


@pytest.mark.parametrize(("count", "fraction"), [(4, 0.1), (1, 0.5), (3, 0.9), (0, 0.5)])
def test_no_part_is_empty(count, fraction):
    with pytest.raises(SettingsError) as caught:
        split(TensorDataset(torch.zeros(count)), fraction, 0)
    line = f"{fraction} of {count} examples is {round(count * fraction)}, but at least one must be"
    assert str(caught.value).startswith(line)


SIDES = {"tall": (24, 16), "square": (16, 16), "small": (7, 7), "dot": (1, 1)}


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
