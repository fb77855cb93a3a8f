"""Datasets, read from small files written here in their true formats."""

import os
import pickle
import struct
import urllib.request
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Subset

import data
from engine import loaders
from engine.job import JobError
from engine.launch import _one_line
from engine.settings import SettingsError
from engine.splits import fetch

CIFAR = {
    "cifar10": ("cifar-10-batches-py", [f"data_batch_{n}" for n in range(1, 6)], "test_batch"),
    "cifar100": ("cifar-100-python", ["train"], "test"),
}


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """A file that is missing could else be fetched."""

    def refuse(*_args, **_kwargs):
        raise URLError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)


def pixels(*shape):
    return np.random.default_rng(len(shape)).integers(0, 256, shape, dtype=np.uint8)


def everything(dataset):
    """All images (N, C, H, W) and labels (N,) of a dataset."""
    images, labels = fetch(dataset, torch.arange(len(dataset)))
    return images.numpy(), labels.tolist()


def write_idx(path, array):
    """Type and dimensions, high byte first, then the array (yann.lecun.com/exdb/mnist)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    path.write_bytes(head + array.tobytes())


class Python2Pickler(pickle._Pickler):
    """Writes text and bytes as Python 2 did when it made the published CIFAR files."""

    def save_string(self, text):
        text = text.encode() if isinstance(text, str) else text
        self.write(pickle.BINSTRING + struct.pack("<i", len(text)) + text)

    dispatch = pickle._Pickler.dispatch | {str: save_string, bytes: save_string}


def write_pickle(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        Python2Pickler(file, protocol=2).dump(content)
    path.write_bytes(path.read_bytes().replace(b"numpy._core", b"numpy.core"))  # as numpy 1 had it


def write_cifar(root, name):
    """Four images a file; returns those for training (N, 3, 32, 32), their labels, the classes."""
    folder, train, test = CIFAR[name]
    kind, classes = ("", 10) if name == "cifar10" else ("fine_", 100)
    images = pixels(4 * len(train), 3, 32, 32)
    labels = [7 * n % classes for n in range(len(images))]
    for n, file in enumerate([*train, test]):
        rows = slice(4 * n, 4 * n + 4) if file != test else slice(4)
        some = {"data": images[rows].reshape(4, 3072), f"{kind}labels": labels[rows]}
        names = {"batch_label": file, "filenames": [f"{n}.png" for n in range(4)]}
        write_pickle(root / folder / file, names | some)
    words = [f"class {n}" for n in range(classes)]
    meta = "meta" if kind else "batches.meta"
    write_pickle(root / folder / meta, {f"{kind}label_names": words, "num_vis": 3072})
    return images, labels, words


def write_image(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


def write_folder(root, classes=("cat", "dog"), count=3, size=16):
    """A folder of PNG images a class; returns them as (N, 3, size, size)."""
    images = pixels(len(classes) * count, size, size, 3)
    for n, image in enumerate(images):
        write_image(root / classes[n // count] / f"{n % count}.png", image)
    return images.transpose(0, 3, 1, 2)


@pytest.mark.parametrize(
    ("name", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")]
)
def test_idx_files_are_read_exactly(tmp_path, name, folder):
    images, labels = pixels(7, 28, 28), np.arange(7, dtype=np.uint8)
    for part, rows in (("train", slice(7)), ("t10k", slice(3))):
        write_idx(tmp_path / folder / "raw" / f"{part}-images-idx3-ubyte", images[rows])
        write_idx(tmp_path / folder / "raw" / f"{part}-labels-idx1-ubyte", labels[rows])
    source = data.load(name, tmp_path, "auto")
    for part, count in ((source.train, 7), (source.test, 3)):
        read, read_labels = everything(part)
        assert np.array_equal(read, images[:count, None])
        assert read_labels == list(range(count))
    assert len(source.classes) == 10


@pytest.mark.parametrize("name", CIFAR)
def test_cifar_files_are_read_exactly(tmp_path, name):
    images, labels, classes = write_cifar(tmp_path, name)
    source = data.load(name, tmp_path, "auto")
    read, read_labels = everything(source.train)
    assert np.array_equal(read, images)
    assert read_labels == labels
    assert np.array_equal(everything(source.test)[0], images[:4])
    assert source.classes == classes


def test_digits_come_along(tmp_path):
    source = data.load("digits", tmp_path, "auto")
    images, labels = everything(source.train)
    assert images.shape == (1797, 1, 8, 8)
    assert (images.min(), images.max(), set(labels)) == (0, 255, set(range(10)))
    assert source.test is None


def test_images_are_scaled_to_image_size(tmp_path):
    write_cifar(tmp_path, "cifar10")
    write_folder(tmp_path / "own", size=40)
    for name, root in (
        ("digits", tmp_path),
        ("cifar10", tmp_path),
        ("image-folder", tmp_path / "own"),
    ):
        images, _ = everything(data.load(name, root, 12).train)
        assert images.shape[2:] == (12, 12)
        assert images.dtype == np.uint8
    assert everything(data.load("image-folder", tmp_path / "own", "auto").train)[0].shape[2] == 224


def test_png_of_any_mode_is_read_exactly(tmp_path):
    grey, colour, alpha, index = pixels(8, 8), pixels(8, 8, 3), pixels(8, 8, 1), pixels(8, 8) % 4
    palette = pixels(4, 3)
    write_image(tmp_path / "cat" / "l.png", grey)
    write_image(tmp_path / "cat" / "rgb.png", colour)
    write_image(tmp_path / "dog" / "rgba.png", np.concatenate([colour, alpha], axis=2))
    with_palette = Image.fromarray(index)
    with_palette.putpalette(palette.tobytes())
    with_palette.save(tmp_path / "dog" / "p.png")
    images, labels = everything(data.load("image-folder", tmp_path, 8).train)
    expected = [np.repeat(grey[..., None], 3, 2), colour, palette[index], colour]
    assert np.array_equal(images, np.stack(expected).transpose(0, 3, 1, 2))
    assert labels == [0, 0, 1, 1]


def test_jpeg_of_any_size_has_its_middle_square_taken(tmp_path):
    write_image(tmp_path / "cat" / "wide.jpg", pixels(8, 20, 3))
    write_image(tmp_path / "dog" / "tall.jpeg", pixels(24, 8))
    source = data.load("image-folder", tmp_path, 8)
    wide = np.asarray(Image.open(tmp_path / "cat" / "wide.jpg"))[:, 6:14]
    tall = np.asarray(Image.open(tmp_path / "dog" / "tall.jpeg").convert("RGB"))[8:16]
    images, _ = everything(source.train)
    assert np.array_equal(images, np.stack([wide, tall]).transpose(0, 3, 1, 2))
    assert source.classes == ["cat", "dog"]


def test_train_and_test_folders_are_kept_apart(tmp_path):
    train, test = write_folder(tmp_path / "train"), write_folder(tmp_path / "test", count=2)
    source = data.load("image-folder", tmp_path, 16)
    assert np.array_equal(everything(source.train)[0], train)
    assert np.array_equal(everything(source.test)[0], test)
    assert data.load("image-folder", tmp_path / "train", 16).test is None


def one_class(root):
    write_folder(root, classes=["cat"])


def no_image(root):
    write_folder(root)
    for image in (root / "dog").iterdir():
        image.unlink()


def other_test_classes(root):
    write_folder(root / "train")
    write_folder(root / "test", classes=["cat", "cow"])


def truncated(root):
    write_cifar(root, "cifar10")
    file = root / "cifar-10-batches-py" / "data_batch_3"
    file.write_bytes(file.read_bytes()[:-3000])


def unequal(root):
    write_cifar(root, "cifar10")
    write_pickle(
        root / "cifar-10-batches-py" / "test_batch", {"data": pixels(4, 3072), "labels": [1]}
    )


@pytest.mark.parametrize(
    ("name", "prepare", "words"),
    [
        ("cifar", None, "--dataset cifar: no such dataset; did you mean cifar10?"),
        ("mnist", None, "--data-root"),
        ("cifar100", None, "no network"),
        ("cifar10", truncated, "data_batch_3 is not plain data"),
        ("cifar10", unequal, "--data-root"),
        ("image-folder", None, "there is no folder"),
        ("image-folder", Path.mkdir, "any class folder"),
        ("image-folder", one_class, "has one class only, cat"),
        ("image-folder", no_image, "no valid file for the classes dog"),
        ("image-folder", other_test_classes, "train and test have different classes"),
    ],
)
def test_what_is_missing_or_damaged_is_said_in_one_line(tmp_path, name, prepare, words):
    root = tmp_path / "data"
    if prepare:
        prepare(root)
    with pytest.raises(SettingsError) as caught:
        data.load(name, root, "auto")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


class Malicious:
    def __init__(self, file):
        self.command = f"touch '{file}'"

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("file", ["data_batch_2", "test_batch", "batches.meta"])
def test_cifar_file_with_code_in_it_is_refused_and_does_not_run(tmp_path, file):
    write_cifar(tmp_path, "cifar10")
    path = tmp_path / "cifar-10-batches-py" / file
    path.write_bytes(pickle.dumps({"data": Malicious(tmp_path / "ran"), "labels": []}, protocol=2))
    with pytest.raises(SettingsError, match=rf"{file} is not plain data \(.*system\); refused$"):
        data.load("cifar10", tmp_path, "auto")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("loader", ["resident", "workers"])
def test_corrupt_image_is_named_in_one_line(tmp_path, loader):
    write_folder(tmp_path)
    broken = tmp_path / "dog" / "1.png"
    broken.write_bytes(broken.read_bytes()[:300])
    images = data.load("image-folder", tmp_path, 16).train
    with pytest.raises(JobError) as caught:
        list(loaders.make(Subset(images, range(6)), torch.device("cpu"), 4, loader, 1).epoch())
    line = f"{broken} cannot be read as an image; mend it or take it away"
    assert _one_line(caught.value) == line
