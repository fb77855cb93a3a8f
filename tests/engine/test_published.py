"""Datasets, read from small files written here in their true formats."""

import io
import os
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


class Python2Pickler(pickle._Pickler):
    """Writes text and bytes as Python 2 did when it made the published CIFAR files."""

    def save_string(self, text):
        text = text.encode() if isinstance(text, str) else text
        self.write(pickle.BINSTRING + struct.pack("<i", len(text)) + text)

    dispatch = pickle._Pickler.dispatch | {str: save_string, bytes: save_string}


def write_pickle(path, content):
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(content)
    write(path, file.getvalue().replace(b"numpy._core", b"numpy.core"))  # as numpy 1 had it


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
def test_cifar_files_are_read_exactly(tmp_path, name, prepare):
    images, labels, names = prepare(tmp_path)
    train, classes, test = published(name, tmp_path)
    (train_images, train_labels), (test_images, test_labels) = everything(train), everything(test)
    assert np.array_equal(train_images, images[:-4])
    assert np.array_equal(test_images, images[-4:])
    assert train_labels + test_labels == labels
    assert classes == names


def truncated(root):
    write_cifar10(root)
    file = root / CIFAR10_FILES[2]
    file.write_bytes(file.read_bytes()[:-3000])


def batch_of(content):
    def damaged(root):
        write_cifar10(root)
        write_pickle(root / CIFAR10_FILES[2], content)

    return damaged


@pytest.mark.parametrize(
    ("name", "prepare", "words"),
    [
        ("MNIST", Path.mkdir, "--data-root: the dataset could not be downloaded to, or read from,"),
        ("CIFAR100", Path.mkdir, "no network"),
        ("CIFAR10", truncated, "data_batch_3 is not plain data"),
        ("CIFAR10", batch_of({"data": pixels(4, 3072), "labels": [1]}), "--data-root"),
        ("CIFAR10", batch_of(["no", "batch"]), "--data-root"),
        (
            "CIFAR10",
            batch_of({"data": pixels(1, 3072), "labels": [77]}),
            "--dataset: a label is not one of its 10 classes",
        ),
    ],
)
def test_what_is_missing_or_damaged_is_said_in_one_line(tmp_path, name, prepare, words):
    prepare(tmp_path / "data")
    with pytest.raises(SettingsError) as caught:
        published(name, tmp_path / "data")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


class Code:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("file", [CIFAR10_FILES[1], CIFAR10_FILES[5], CIFAR10 / "batches.meta"])
def test_cifar_file_with_code_in_it_is_refused_and_does_not_run(tmp_path, file):
    write_cifar10(tmp_path)
    code = pickle.dumps({"data": Code(f"touch '{tmp_path}/ran'"), "labels": []}, protocol=2)
    write(tmp_path / file, code)
    with pytest.raises(SettingsError, match=rf"{file} is not plain data \(.*system\); refused$"):
        published("CIFAR10", tmp_path)
    assert not (tmp_path / "ran").exists()
