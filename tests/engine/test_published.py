"""Datasets, read from small files written here in their true formats."""

import pickle
import struct
import urllib.request
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch
from labjobs.data.order import examples_at
from labjobs.data.vision import published
from labjobs.errors import SettingsError
from torchvision import datasets

RANDOM = np.random.default_rng(0)
CIFAR10 = Path("cifar-10-batches-py")
CIFAR10_FILES = [CIFAR10 / f"data_batch_{n}" for n in range(1, 6)] + [CIFAR10 / "test_batch"]
CIFAR100 = Path("cifar-100-python")


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """A file that is missing would otherwise be fetched."""

    def refuse(*_args, **_kwargs):
        raise URLError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)


def pixels(*shape):
    return RANDOM.integers(0, 256, shape, dtype=np.uint8)


def everything(dataset):
    """All images (N, C, H, W) and labels (N,) of a dataset."""
    images, labels = examples_at(dataset, torch.arange(len(dataset)))
    return images.numpy(), labels.tolist()


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def write_idx(path, array):
    """Type and dimensions, high byte first, then the array (yann.lecun.com/exdb/mnist)."""
    write(path, struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes())


def write_pickle(path, content):
    write(path, pickle.dumps(content))


def write_cifar(root, files, meta, kind="", classes=10):
    """Four images a file; returns all images (N, 3, 32, 32), their labels and the classes."""
    images = pixels(4 * len(files), 3, 32, 32)
    labels = [7 * n % classes for n in range(len(images))]
    for n, file in enumerate(files):
        rows = slice(4 * n, 4 * n + 4)
        batch = {"data": images[rows].reshape(4, 3072), f"{kind}labels": labels[rows]}
        write_pickle(root / file, batch | {"batch_label": "one", "filenames": ["a.png"] * 4})
    names = [f"class {n}" for n in range(classes)]
    write_pickle(root / meta, {f"{kind}label_names": names, "num_vis": 3072})
    return images, labels, names


def write_cifar10(root):
    return write_cifar(root, CIFAR10_FILES, CIFAR10 / "batches.meta")


def write_cifar100(root):
    files = [CIFAR100 / "train", CIFAR100 / "test"]
    return write_cifar(root, files, CIFAR100 / "meta", "fine_", 100)


@pytest.mark.parametrize("name", ["MNIST", "FashionMNIST"])
def test_idx_files_are_read_exactly(tmp_path, name):
    images, labels = pixels(10, 28, 28), np.arange(10, dtype=np.uint8)
    for part, rows in (("train", slice(7)), ("t10k", slice(7, 10))):
        write_idx(tmp_path / name / "raw" / f"{part}-images-idx3-ubyte", images[rows])
        write_idx(tmp_path / name / "raw" / f"{part}-labels-idx1-ubyte", labels[rows])
    train, classes, test = published(name, tmp_path)
    (train_images, train_labels), (test_images, test_labels) = everything(train), everything(test)
    assert np.array_equal(np.concatenate([train_images, test_images]), images[:, None])
    assert (train_labels, test_labels) == ([0, 1, 2, 3, 4, 5, 6], [7, 8, 9])
    assert len(classes) == 10


@pytest.mark.parametrize(
    ("name", "prepare"), [("CIFAR10", write_cifar10), ("CIFAR100", write_cifar100)]
)
def test_cifar_files_are_read_exactly(tmp_path, monkeypatch, name, prepare):
    kind = getattr(datasets, name)
    for files in ("train_list", "test_list"):
        unchecked = [[file, None] for file, _ in getattr(kind, files)]
        monkeypatch.setattr(kind, files, unchecked)
    monkeypatch.setitem(kind.meta, "md5", None)
    images, labels, names = prepare(tmp_path)
    train, classes, test = published(name, tmp_path)
    (train_images, train_labels), (test_images, test_labels) = everything(train), everything(test)
    assert np.array_equal(train_images, images[:-4])
    assert np.array_equal(test_images, images[-4:])
    assert train_labels + test_labels == labels
    assert classes == names


@pytest.mark.parametrize("name", ["MNIST", "CIFAR100"])
def test_what_is_missing_is_said_in_one_line(tmp_path, name):
    with pytest.raises(SettingsError) as caught:
        published(name, tmp_path)
    said = f"--data-root: the dataset could not be downloaded to, or read from, {tmp_path} ("
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


def test_a_file_with_another_checksum_is_not_opened(tmp_path):
    """It is a pickle, which could run code."""
    write_cifar10(tmp_path)
    with pytest.raises(SettingsError, match="--data-root: the dataset could not be downloaded"):
        published("CIFAR10", tmp_path)
