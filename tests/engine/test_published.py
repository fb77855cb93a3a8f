"""Datasets, read from small files written here in their true formats."""

import pickle
import struct
import urllib.request
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
from labjobs.errors import SettingsError
from labjobs.vision import published
from test_images import everything, pixels
from torchvision import datasets

CIFAR10 = Path("cifar-10-batches-py")


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """A file that is missing would otherwise be fetched."""

    def refuse(*_args, **_kwargs):
        raise URLError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def write_idx(path, array):
    """Type and dimensions, high byte first, then the array (yann.lecun.com/exdb/mnist)."""
    write(path, struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes())


def write_cifar(root):
    """Four images a file; returns all images (N, 3, 32, 32), their labels and the classes."""
    images, labels = pixels(24, 3, 32, 32), [7 * n % 10 for n in range(24)]
    for n, file in enumerate([*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]):
        rows = slice(4 * n, 4 * n + 4)
        batch = {"data": images[rows].reshape(4, 3072), "labels": labels[rows]}
        write(root / CIFAR10 / file, pickle.dumps(batch | {"filenames": ["a.png"] * 4}))
    names = [f"class {n}" for n in range(10)]
    write(root / CIFAR10 / "batches.meta", pickle.dumps({"label_names": names, "num_vis": 3072}))
    return images, labels, names


def test_idx_files_are_read_exactly(tmp_path):
    images, labels = pixels(10, 28, 28), np.arange(10, dtype=np.uint8)
    for part, rows in (("train", slice(7)), ("t10k", slice(7, 10))):
        write_idx(tmp_path / "MNIST" / "raw" / f"{part}-images-idx3-ubyte", images[rows])
        write_idx(tmp_path / "MNIST" / "raw" / f"{part}-labels-idx1-ubyte", labels[rows])
    train, classes, test = published("MNIST", tmp_path)
    (train_images, train_labels), (test_images, test_labels) = everything(train), everything(test)
    assert np.array_equal(np.concatenate([train_images, test_images]), images[:, None])
    assert (train_labels, test_labels) == ([0, 1, 2, 3, 4, 5, 6], [7, 8, 9])
    assert len(classes) == 10


def test_cifar_files_are_read_exactly(tmp_path, monkeypatch):
    for files in ("train_list", "test_list"):
        unchecked = [[file, None] for file, _ in getattr(datasets.CIFAR10, files)]
        monkeypatch.setattr(datasets.CIFAR10, files, unchecked)
    monkeypatch.setitem(datasets.CIFAR10.meta, "md5", None)
    images, labels, names = write_cifar(tmp_path)
    train, classes, test = published("CIFAR10", tmp_path)
    (train_images, train_labels), (test_images, test_labels) = everything(train), everything(test)
    assert np.array_equal(train_images, images[:-4])
    assert np.array_equal(test_images, images[-4:])
    assert train_labels + test_labels == labels
    assert classes == names


@pytest.mark.parametrize("there", [False, True])
def test_what_is_missing_or_has_another_checksum_is_said_in_one_line(tmp_path, there):
    """Such a file is not opened: it is a pickle, which could run code."""
    if there:
        write_cifar(tmp_path)
    with pytest.raises(SettingsError) as caught:
        published("CIFAR10", tmp_path)
    said = f"--data-root: the dataset could not be downloaded to, or read from, {tmp_path} ("
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)
