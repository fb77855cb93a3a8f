"""Texts as tokens, and their splits.

A token is a byte: any file can be read, and no tokenizer has to be kept. To add a dataset, write a
function such as `pydoc` and a line in DATASETS. It returns tokens (N,), uint8, of which an example
is a window: `--context` tokens, and for each of them the one that follows.

Each text is cut in three: the first part is trained on, the next validates, the last is for the
test. The windows of a part follow one another without overlap, from one text to the next, so an
epoch has each token once. Only the last, shorter window of a part is left out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pydoc_data import topics

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from engine.errors import SettingsError
from models import Spec
from settings import Settings

Batch = tuple[Tensor, Tensor]  # tokens (B, T), uint8, and those that follow, (B, T)

HELD_OUT = 0.1  # of the text, for validation and for the test each


class Windows(Dataset[Batch]):
    """Windows of texts one after another: tokens (T,), and those that follow, (T,).

    The texts stay where they are, on disk if they are mapped into memory.
    """

    def __init__(self, texts: list[Tensor], context: int) -> None:
        self._texts, self._context = texts, context
        self._ends = np.cumsum([len(text) for text in texts])

    def __len__(self) -> int:
        """Return the number of whole windows."""
        return max(0, int(self._ends[-1]) - 1) // self._context

    def __getitem__(self, index: int) -> Batch:
        """Return a window."""
        first = index * self._context
        number = int(np.searchsorted(self._ends, first, "right"))
        left, pieces = self._context + 1, []
        while left:
            text = self._texts[number]
            begin = max(0, first - int(self._ends[number]) + len(text))
            pieces.append(text[begin : begin + left])
            left -= len(pieces[-1])
            number += 1
        tokens = torch.cat(pieces)
        return tokens[:-1], tokens[1:]


@dataclass(frozen=True)
class Splits:
    """What a job is trained, validated and tested on, and what its network needs to know of it."""

    train: Windows
    val: Windows
    test: Windows
    spec: Spec


def load(settings: Settings, data_root: Path) -> Splits:
    """Return windows of the three parts of the text that the settings name.

    Raises SettingsError if there is no text, or too little.
    """
    texts = DATASETS[settings.dataset](data_root.expanduser())
    parts = zip(*map(parts_of, texts), strict=True)
    train, val, test = (Windows([*part], settings.context) for part in parts)
    if not all(map(len, (train, val, test))):
        size = sum(map(len, texts))
        raise SettingsError(f"--context {settings.context}: the text of {size} bytes is too short")
    return Splits(train, val, test, Spec(settings.context, 256))


def parts_of(text: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the parts of a text (N,) to train, validate and test on: views of it."""
    held_out = int(HELD_OUT * len(text))
    train, val, test = text.split([len(text) - 2 * held_out, held_out, held_out])
    return train, val, test


def pydoc(_root: Path) -> list[Tensor]:
    """Return the English of Python's own documentation, 0.5 MB; it comes with Python, and differs
    a little between its versions."""
    text = "\n\n".join(topics.topics[name] for name in sorted(topics.topics))
    return [torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)]


def files(root: Path) -> list[Tensor]:
    """Return your own text: all `<root>/**/*.txt`. They are mapped into memory, and read as needed.

    Raises SettingsError if there are none.
    """
    found = sorted(path for path in root.rglob("*.txt") if path.stat().st_size)
    if not found:
        raise SettingsError(f"--data-root {root}: is no folder with texts, as *.txt")
    # "c" is copy on write: torch wants arrays that it could write to.
    return [torch.from_numpy(np.memmap(path, np.uint8, "c")) for path in found]


DATASETS: dict[str, Callable[[Path], list[Tensor]]] = {
    "pydoc": pydoc,
    "files": files,
}
