"""torchvision's dataset classes, with one clear line for what is missing, damaged or unsafe."""

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import TensorDataset
from torchvision import datasets
from torchvision.transforms import v2

from engine.errors import JobError, SettingsError

ARRAYS = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("_codecs", "encode"),
}
"""All that a pickled array calls, in files of numpy 1 and 2."""


def in_memory(inputs: Tensor, labels: Sequence[int] | Tensor) -> TensorDataset:
    """A dataset of images (N, C, H, W), uint8, and labels (N,); or of tokens (N, T), int64, and
    those that follow."""
    return TensorDataset(inputs.contiguous(), torch.as_tensor(labels, dtype=torch.int64))


class CIFAR10(datasets.CIFAR10):  # type: ignore[misc]
    """Takes any files in the format, not only the published ones, whose checksums torchvision
    knows. As they are pickles, they are searched for code instead."""

    train_list: list[list[Any]]
    test_list: list[list[Any]]
    meta: dict[str, Any]

    def __init__(self, root: Path, train: bool) -> None:
        self.train_list, self.test_list = _unchecked(self.train_list), _unchecked(self.test_list)
        self.meta = {**self.meta, "md5": None}
        names = [name for name, _ in [*self.train_list, *self.test_list]]
        for name in [*names, self.meta["filename"]]:
            _refuse_code(root / self.base_folder / name)
        super().__init__(root, train, download=True)


class CIFAR100(CIFAR10, datasets.CIFAR100):  # type: ignore[misc]
    """The same for 100 classes."""


class ImageFolder(datasets.ImageFolder):  # type: ignore[misc]
    """Images in one folder a class, in colour, their middle square scaled to a size.

    Raises SettingsError if there are fewer than two classes or one without images; JobError, when
    it is read, for a file that is no image.
    """

    def __init__(self, root: Path, size: int) -> None:
        if not root.is_dir():
            raise SettingsError(f"--data-root: there is no folder {root}")
        steps = [v2.PILToTensor(), v2.Resize(size, antialias=True), v2.CenterCrop(size)]
        try:
            super().__init__(root, transform=v2.Compose(steps), loader=_open)
        except FileNotFoundError as error:
            wanted = "wanted: a folder of images a class"
            raise SettingsError(f"--data-root: {_first_line(error)}; {wanted}") from error
        if len(self.classes) < 2:
            raise SettingsError(f"--data-root: {root} has one class only, {self.classes[0]}")

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        try:
            image, label = super().__getitem__(index)
        except Exception as error:  # there is no end to what a damaged file makes its reader raise
            file = self.samples[index][0]
            raise JobError(f"{file} cannot be read as an image: {_first_line(error)}") from error
        return image, label


@contextmanager
def reading(root: Path) -> Iterator[None]:
    """Turn what goes wrong while a published dataset is fetched or read into a SettingsError."""
    try:
        yield
    except (SettingsError, JobError):
        raise
    except Exception as error:  # there is no end to what a damaged file makes its reader raise
        raise SettingsError(
            f"--data-root: the dataset could not be fetched into, or read from, {root} "
            f"({_first_line(error)}); put its files there, or name their folder"
        ) from error


def _open(path: str) -> Image.Image:
    """An image as it is to be looked at, in 8-bit colour."""
    with Image.open(path) as image:
        if image.mode.startswith(("I", "F")):
            raise ValueError("it has more than 8 bits a channel, which would be cut off")
        return ImageOps.exif_transpose(image).convert("RGB")


class _DataOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in ARRAYS:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it would call {module}.{name}")


def _refuse_code(file: Path) -> None:
    """Raise SettingsError if a pickle does more than make arrays and plain values.

    Source: docs.python.org/3/library/pickle.html#restricting-globals.
    """
    try:
        with file.open("rb") as pickled:
            _DataOnly(pickled, encoding="latin1").load()
    except FileNotFoundError:
        return
    except (pickle.UnpicklingError, EOFError) as error:
        raise SettingsError(f"--data-root: {file} is not plain data ({error}); refused") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def _unchecked(files: list[list[str]]) -> list[Any]:
    return [[name, None] for name, _ in files]
