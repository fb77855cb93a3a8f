"""Parts of a dataset by label, by group and in folds, against what brute force finds."""

from itertools import combinations

import numpy as np
import pytest
import torch
from labjobs.data.order import underlying
from labjobs.data.splits import check_groups, fold, split
from labjobs.errors import SettingsError
from torch.utils.data import TensorDataset

CHANCES = [np.random.default_rng(seed) for seed in range(200)]


def dataset(count):
    """Examples that are their own places."""
    return TensorDataset(torch.arange(count))


def places(part):
    """Where a part's examples are in the whole dataset."""
    return underlying(part)[1].numpy()


def refusal(function, *args, **kwargs):
    """The one line with which arguments are refused."""
    with pytest.raises(SettingsError) as caught:
        function(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def random_labels(chance, least=1):
    """Labels of uneven numbers of examples, in any order."""
    sizes = chance.integers(least, 40, size=chance.integers(1, 12))
    return chance.permutation(np.repeat(np.arange(len(sizes)), sizes))


def random_groups(chance, most=8):
    """Groups of uneven sizes, in any order."""
    sizes = chance.integers(1, 30, size=chance.integers(2, most + 1))
    return chance.permutation(np.repeat(np.arange(len(sizes)), sizes))


def test_a_random_part_is_what_it_has_always_been():
    """Otherwise all jobs of older versions would be of other examples."""
    assert places(split(dataset(20), 0.25, 3)[1]).tolist() == [0, 8, 10, 14, 15]
    names = [f"patient {n % 7}" for n in range(20)]  # whose hashes differ from run to run
    assert places(split(dataset(20), 0.25, 3, groups=names)[1]).tolist() == [5, 6, 12, 13, 19]
    assert places(fold(dataset(20), 2, 3, 0, groups=names)[1]).tolist() == [3, 4, 10, 11, 17, 18]


def test_the_number_held_out_of_each_label_is_within_one_of_the_fraction():
    made = 0
    for seed, chance in enumerate(CHANCES):
        labels, fraction = random_labels(chance), float(chance.choice([0.1, 0.29, 1 / 3, 0.5, 0.8]))
        try:
            rest, held_out = map(places, split(dataset(len(labels)), fraction, seed, labels))
        except SettingsError as error:
            exact = fraction * np.bincount(labels)
            assert ((exact < 1) | (exact > np.bincount(labels) - 1)).any(), error
            continue
        made += 1
        assert sorted([*rest, *held_out]) == list(range(len(labels)))
        exact = fraction * np.bincount(labels)
        assert (np.abs(np.bincount(labels[held_out]) - exact) < 1).all()
        assert len(held_out) == round(fraction * len(labels))
        assert {*labels[held_out]} == {*labels[rest]} == {*labels}
    assert made > 50


def nearest_by_force(sizes, wanted):
    """How near to a number any of the sizes come together."""
    each = (sum(some) for n in range(len(sizes) + 1) for some in combinations(sizes, n))
    return min(abs(total - wanted) for total in each)


def test_groups_come_as_near_to_the_fraction_as_groups_can():
    made = 0
    for seed, chance in enumerate(CHANCES):
        groups = random_groups(chance)
        sizes, fraction = np.bincount(groups), float(chance.choice([0.1, 0.25, 0.5, 0.7]))
        wanted = round(fraction * len(groups))
        try:
            rest, held_out = map(
                places, split(dataset(len(groups)), fraction, seed, groups=groups.tolist())
            )
        except SettingsError:
            assert min(wanted, len(groups) - wanted) == nearest_by_force(sizes.tolist(), wanted)
            continue
        made += 1
        assert not {*groups[rest]} & {*groups[held_out]}
        assert sorted([*rest, *held_out]) == list(range(len(groups)))
        assert abs(len(held_out) - wanted) == nearest_by_force(sizes.tolist(), wanted)
    assert made > 100


def test_with_both_whole_groups_of_each_label_are_held_out():
    for seed, chance in enumerate(CHANCES[:50]):
        groups = chance.permutation(np.repeat(np.arange(30), chance.integers(1, 9, size=30)))
        labels = (groups % 3 == 0).astype(int)
        rest, held_out = map(places, split(dataset(len(groups)), 0.3, seed, labels, groups))
        assert not {*groups[rest]} & {*groups[held_out]}
        exact = 0.3 * np.bincount(labels)
        assert (np.abs(np.bincount(labels[held_out]) - exact) < 2).all()


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("labelled", [False, True])
def test_folds_are_apart_together_whole_and_even(grouped, labelled):
    for seed, chance in enumerate(CHANCES[:60]):
        groups = chance.permutation(np.repeat(np.arange(24), chance.integers(1, 20, size=24)))
        labels, count = groups % 2, int(chance.integers(2, 7))
        how = {"labels": labels if labelled else None, "groups": groups if grouped else None}
        whole_set = dataset(len(groups))
        parts = [
            [*map(places, fold(whole_set, k, count, seed, **how))] for k in range(1, count + 1)
        ]
        assert sorted(place for _, part in parts for place in part) == list(range(len(groups)))
        for rest, part in parts:
            assert sorted([*rest, *part]) == list(range(len(groups)))
            assert not grouped or not {*groups[rest]} & {*groups[part]}
        most = np.bincount(groups).max() if grouped else 1
        counted = np.array([np.bincount(labels[part], minlength=2) for _, part in parts])
        counted = counted if labelled else counted.sum(axis=1, keepdims=True)
        assert (counted.min(axis=0) > 0).all()
        assert (np.ptp(counted, axis=0) <= most).all()
        if not grouped:
            assert np.ptp(counted.sum(axis=1)) <= 1


def test_the_same_arguments_give_the_same_objects():
    examples, labels = dataset(40), [0, 1] * 20
    assert split(examples, 0.2, 0, labels=labels)[0] is split(examples, 0.2, 0, labels=labels)[0]
    tensor = torch.tensor(labels)
    assert fold(examples, 1, 4, 0, tensor) is fold(examples, 1, 4, 0, tensor)
    assert fold(examples, 1, 4, 0, tensor) is not fold(examples, 1, 4, 0, tensor.clone())


FIVE, FOUR, NAMES = dataset(5), dataset(4), ["cat", "cat", "cat", "cat", "dog"]
REFUSED = {
    "0.4 of 1 examples with the label 'dog' is 0, but at least": (split, FIVE, 0.4, 0, NAMES),
    "0.2 of 1 groups is 0, but at least one must": (split, FIVE, 0.2, 0, None, ["a"] * 5),
    "5 examples are too few for 6 folds": (fold, FIVE, 1, 6, 0),
    "2 groups are too few for 3 folds": (fold, FIVE, 1, 3, 0, None, NAMES),
    "1 examples with the label 'dog' are too few for 2 folds": (fold, FIVE, 1, 2, 0, NAMES),
    "2 labels for 4 examples; give one each": (split, FOUR, 0.5, 0, [0, 1]),
    "the group 'a' has several labels": (split, FOUR, 0.5, 0, [0, 1, 0, 1], [*"aabb"]),
    "labels: they cannot be compared; give a number": (fold, FOUR, 1, 2, 0, torch.zeros(4, 2)),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_is_too_few_or_does_not_fit_is_refused_in_one_line(said):
    flag = "" if " but at least" in said else "--dataset: "
    assert refusal(*REFUSED[said]).startswith(flag + said)


def test_folds_are_counted_from_1():
    assert places(split(FIVE, 0.2, 0, groups=NAMES)[1]).tolist() == [4]
    assert refusal(fold, FIVE, 4, 3, 0) == "--fold 4: must be from 1 to 3"
    assert refusal(fold, FIVE, 1, 1, 0) == "folds 1: must be at least 2"


def test_a_group_on_both_sides_is_refused_wherever_the_parts_come_from():
    examples, patients = dataset(6), ["p1", "p1", "p2", "p2", "p3", "p4"]
    train, test = split(examples, 1 / 3, 0, groups=patients)
    check_groups(patients, train=train, val=None, test=test)
    check_groups(patients, train=train, test=["p8", "p9"])
    train, test = split(examples, 0.5, 0)
    said = refusal(check_groups, patients, train=train, test=test)
    assert said.startswith("--dataset: group 'p") and "is in two parts, train and test" in said
    mine = torch.utils.data.Subset(examples, [0, 2]), torch.utils.data.Subset(examples, [1, 3])
    for parts, why in (
        ({"val": mine[0], "test": mine[1]}, "group 'p1' is in two parts, val and test, as 2 "),
        ({"train": examples, "test": ["p9", "p3"]}, "group 'p3' is in two parts, train and test"),
        ({"train": examples, "test": dataset(6)}, "its parts come from several datasets; give"),
    ):
        assert refusal(check_groups, patients, **parts).startswith(f"--dataset: {why}")
