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
from PIL import Image
from sklearn.datasets import load_digits
from torch.utils.data import Subset

import data
from engine.data import loaders
from engine.data.splits import fetch, split
from engine.errors import JobError, SettingsError, cause

RANDOM = np.random.default_rng(0)
CIFAR10 = Path("cifar-10-batches-py")
CIFAR10_FILES = [CIFAR10 / f"data_batch_{n}" for n in range(1, 6)] + [CIFAR10 / "test_batch"]
CIFAR100 = Path("cifar-100-python")


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """A file that is missing could else be fetched."""

    def refuse(*_args, **_kwargs):
        raise URLError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)


def pixels(*shape):
    return RANDOM.integers(0, 256, shape, dtype=np.uint8)


def everything(dataset):
    """All images (N, C, H, W) and labels (N,) of a dataset."""
    images, labels = fetch(dataset, torch.arange(len(dataset)))
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


def write_image(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


def write_folder(root, classes=("cat", "dog"), size=16):
    """Three PNG images a class; returns them as (N, 3, size, size)."""
    images = pixels(3 * len(classes), size, size, 3)
    for n, image in enumerate(images):
        write_image(root / classes[n // 3] / f"{n % 3}.png", image)
    return images.transpose(0, 3, 1, 2)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_idx_files_are_read_exactly(tmp_path, name):
    raw = tmp_path / {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}[name] / "raw"
    images, labels = pixels(10, 28, 28), np.arange(10, dtype=np.uint8)
    for part, rows in (("train", slice(7)), ("t10k", slice(7, 10))):
        write_idx(raw / f"{part}-images-idx3-ubyte", images[rows])
        write_idx(raw / f"{part}-labels-idx1-ubyte", labels[rows])
    source = data.load(name, tmp_path, "auto")
    (train, train_labels), (test, test_labels) = everything(source.train), everything(source.test)
    assert np.array_equal(np.concatenate([train, test]), images[:, None])
    assert (train_labels, test_labels) == ([0, 1, 2, 3, 4, 5, 6], [7, 8, 9])
    assert len(source.classes) == 10


@pytest.mark.parametrize(
    ("name", "prepare"), [("cifar10", write_cifar10), ("cifar100", write_cifar100)]
)
def test_cifar_files_are_read_exactly(tmp_path, name, prepare):
    images, labels, classes = prepare(tmp_path)
    source = data.load(name, tmp_path, "auto")
    (train, train_labels), (test, test_labels) = everything(source.train), everything(source.test)
    assert np.array_equal(train, images[:-4])
    assert np.array_equal(test, images[-4:])
    assert train_labels + test_labels == labels
    assert source.classes == classes


def test_digits_come_along(tmp_path):
    source = data.load("digits", tmp_path, "auto")
    images, labels = everything(source.train)
    pixels, digits = load_digits(return_X_y=True)  # 0 to 16
    assert images.shape == (1797, 1, 8, 8)
    assert np.array_equal(images.reshape(1797, 64), np.round(pixels * 255 / 16))
    assert labels == digits.tolist()
    assert source.test is None


def test_images_read_one_by_one_are_scaled_to_image_size(tmp_path):
    write_folder(tmp_path, size=40)
    for size, side in ((12, 12), ("auto", 224)):
        images, _ = everything(data.load("image-folder", tmp_path, size).train)
        assert images.shape == (6, 3, side, side)
        assert images.dtype == np.uint8


def test_validation_images_of_their_own_are_used(tmp_path):
    train, val, test = (write_folder(tmp_path / part) for part in ("train", "val", "test"))
    parts = split(data.load("image-folder", tmp_path, 16), 0.1, seed=0)
    for part, images in ((parts.train, train), (parts.val, val), (parts.test, test)):
        assert np.array_equal(everything(part.dataset)[0], images)
        assert list(part.indices) == [0, 1, 2, 3, 4, 5]


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
    train, test = write_folder(tmp_path / "train"), write_folder(tmp_path / "test")
    source = data.load("image-folder", tmp_path, 16)
    assert np.array_equal(everything(source.train)[0], train)
    assert np.array_equal(everything(source.test)[0], test)
    assert data.load("image-folder", tmp_path / "train", 16).test is None


def test_the_test_images_may_be_called_val_as_in_imagenet(tmp_path):
    write_folder(tmp_path / "train")
    held_out = write_folder(tmp_path / "val")
    assert np.array_equal(everything(data.load("image-folder", tmp_path, 16).test)[0], held_out)


def test_image_is_turned_as_its_camera_says(tmp_path):
    picture, turned = pixels(8, 8, 3), Image.Exif()
    turned[0x0112] = 3  # orientation: upside down
    write_image(tmp_path / "cat" / "0.png", picture)
    (tmp_path / "dog").mkdir()
    Image.fromarray(picture).save(tmp_path / "dog" / "0.png", exif=turned)
    (straight, upside_down), _ = everything(data.load("image-folder", tmp_path, 8).train)
    assert np.array_equal(upside_down, straight[:, ::-1, ::-1])


def test_image_of_more_than_8_bits_is_refused(tmp_path):
    write_folder(tmp_path)
    Image.fromarray(pixels(8, 8).astype(np.uint16) * 257).save(tmp_path / "cat" / "0.png")
    with pytest.raises(JobError, match="more than 8 bits"):
        everything(data.load("image-folder", tmp_path, 8).train)


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
    write_cifar10(root)
    file = root / CIFAR10_FILES[2]
    file.write_bytes(file.read_bytes()[:-3000])


def too_few_labels(root):
    write_cifar10(root)
    write_pickle(root / CIFAR10_FILES[2], {"data": pixels(4, 3072), "labels": [1]})


def unknown_label(root):
    write_cifar10(root)
    write_pickle(root / CIFAR10_FILES[2], {"data": pixels(1, 3072), "labels": [77]})


def no_batch(root):
    write_cifar10(root)
    write_pickle(root / CIFAR10_FILES[2], ["no", "batch"])


@pytest.mark.parametrize(
    ("name", "prepare", "words"),
    [
        ("cifar", Path.mkdir, "--dataset cifar: no such dataset; did you mean cifar10?"),
        ("mnist", Path.mkdir, "--data-root"),
        ("cifar100", Path.mkdir, "no network"),
        ("cifar10", truncated, "data_batch_3 is not plain data"),
        ("cifar10", too_few_labels, "--data-root"),
        ("cifar10", no_batch, "--data-root"),
        ("cifar10", unknown_label, "a label is not one of its 10 classes"),
        ("image-folder", str, "there is no folder"),
        ("image-folder", Path.mkdir, "any class folder"),
        ("image-folder", one_class, "has one class only, cat"),
        ("image-folder", no_image, "no valid file for the classes dog"),
        ("image-folder", other_test_classes, "has other classes than train"),
    ],
)
def test_what_is_missing_or_damaged_is_said_in_one_line(tmp_path, name, prepare, words):
    prepare(tmp_path / "data")
    with pytest.raises(SettingsError) as caught:
        data.load(name, tmp_path / "data", "auto")
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
        data.load("cifar10", tmp_path, "auto")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("loader", ["resident", "workers"])
def test_corrupt_image_is_named_in_one_line(tmp_path, loader):
    write_folder(tmp_path)
    broken = tmp_path / "dog" / "1.png"
    write(broken, broken.read_bytes()[:300])
    images = data.load("image-folder", tmp_path, 16).train
    with pytest.raises(JobError) as caught:
        list(loaders.make(Subset(images, range(6)), torch.device("cpu"), 4, loader, 1).epoch())
    line = f"{broken} cannot be read as an image: image file is truncated"
    assert cause(caught.value) == line
