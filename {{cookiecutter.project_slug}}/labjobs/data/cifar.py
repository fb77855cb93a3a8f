"""CIFAR, read by torchvision from files that contain no code.

The files are pickles, which can run code when they are opened. They are searched for code first, so
that any files in this format can be used, not only those whose checksums torchvision knows.
"""

import pickle
from pathlib import Path
from typing import Any

from torchvision import datasets

from labjobs.errors import SettingsError

ARRAYS = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("_codecs", "encode"),
}
"""Everything that a pickled array calls, in files of numpy 1 and 2."""


class CIFAR10(datasets.CIFAR10):  # type: ignore[misc]
    """torchvision's dataset, read from any files in this format that contain no code."""

    train_list: list[list[Any]]
    test_list: list[list[Any]]
    meta: dict[str, Any]

    def __init__(self, root: Path, train: bool, download: bool) -> None:
        self.train_list, self.test_list = _unchecked(self.train_list), _unchecked(self.test_list)
        self.meta = {**self.meta, "md5": None}
        names = [name for name, _ in [*self.train_list, *self.test_list]]
        for name in [*names, self.meta["filename"]]:
            _refuse_code(root / self.base_folder / name)
        super().__init__(root, train, download=download)


class CIFAR100(CIFAR10, datasets.CIFAR100):  # type: ignore[misc]
    """The same for 100 classes."""


class _DataOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return a class that makes arrays. Raises UnpicklingError for any other."""
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


def _unchecked(files: list[list[str]]) -> list[Any]:
    return [[name, None] for name, _ in files]
