"""data.py and models.py as they come with the template."""

from itertools import chain

import data
import models
import numpy as np
import pytest
import torch
from labjobs.data.order import examples_at, underlying
from labjobs.errors import SettingsError
from settings import Settings
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset


def load(root, **settings):
    return data.load(Settings(**settings), root)


def examples(part):
    """Everything that is in a part, as one batch."""
    return examples_at(*underlying(part))


def test_digits_come_along(tmp_path):
    parts = load(tmp_path)
    images = torch.cat([examples(part)[0] for part in (parts.train, parts.val, parts.test)])
    labels = torch.cat([examples(part)[1] for part in (parts.train, parts.val, parts.test)])
    pixels, digits = load_digits(return_X_y=True)  # 0 to 16
    expected = np.round(pixels * 255 / 16).astype(np.uint8)
    order = np.concatenate([underlying(p)[1] for p in (parts.train, parts.val, parts.test)])
    assert np.array_equal(images.flatten(1).numpy(), expected[order])
    assert np.array_equal(labels.numpy(), digits[order])
    assert sorted(order.tolist()) == list(range(1797))
    assert (parts.spec.shape, parts.spec.classes) == ((1, 8, 8), tuple("0123456789"))
    train = examples(parts.train)[0] / 255
    assert parts.spec.mean[0] == pytest.approx(train.mean().item(), rel=0.05)
    assert parts.spec.std[0] == pytest.approx(train.std().item(), rel=0.05)


def test_each_training_example_validates_in_one_fold(tmp_path):
    folds = [load(tmp_path, fold=number) for number in range(1, data.FOLDS + 1)]
    trained, validated, tested = (
        [underlying(getattr(each, part))[1].tolist() for each in folds]
        for part in ("train", "val", "test")
    )
    assert all(each == tested[0] for each in tested)
    assert sorted(chain(*validated, tested[0])) == list(range(1797))
    for parts in zip(trained, validated, tested, strict=True):
        assert sorted(chain(*parts)) == list(range(1797))


def vectors(_root, _size):
    return data.Source(TensorDataset(torch.rand(20, 5), torch.arange(20) % 2), ["no", "yes"])


def test_inputs_that_are_no_images_reach_the_network_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setitem(data.DATASETS, "vectors", vectors)
    parts = load(tmp_path, dataset="vectors", val_fraction=0.25)
    model = models.make(Settings(dataset="vectors"), parts.spec)
    inputs, _ = examples(parts.train)
    assert inputs.shape == (12, 5)
    assert torch.equal(model(inputs), model.layers(inputs))


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"pretrained": True}, "--pretrained: no weights are published for this project's mlp"),
        ({"dataset": "vectors", "augment": "crop"}, "--augment, --image-size: --dataset vectors"),
        ({"dataset": "vectors", "model": "resnet18"}, "--model resnet18: takes uint8 images"),
    ],
)
def test_a_network_that_does_not_go_with_the_data_is_said_in_one_line(
    tmp_path, monkeypatch, settings, line
):
    monkeypatch.setitem(data.DATASETS, "vectors", vectors)
    chosen = Settings(**settings)
    with pytest.raises(SettingsError) as caught:
        spec = data.load(chosen, tmp_path).spec
        with torch.device("meta"):
            models.make(chosen, spec)
    assert str(caught.value).startswith(line)
