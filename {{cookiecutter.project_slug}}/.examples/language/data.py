"""Texts as tokens, and their splits.

A token is a byte: any file can be read, and no tokenizer has to be kept. To add a dataset, write a
function such as `pydoc` and a line in DATASETS. It returns tokens (N,), uint8, of which an example
is a window: `--context` tokens, and for each of them the one that follows.

The text is cut in three: the first part is trained on, the next validates, the last is for the
test. Windows follow one another without overlap, so an epoch has each token once. The last, shorter
window of each part is left out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pydoc_data import topics

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, TensorDataset

from engine.errors import SettingsError
from models import Spec
from settings import Settings

Batch = tuple[Tensor, Tensor]  # tokens (B, T), uint8, and those that follow, (B, T)
Examples = Dataset[tuple[Tensor, ...]]

HELD_OUT = 0.1  # of the text, for validation and for the test each


@dataclass(frozen=True)
class Splits:
    """What a job is trained, validated and tested on, and what its network needs to know of it."""

    train: Examples
    val: Examples
    test: Examples
    spec: Spec


def load(settings: Settings, data_root: Path) -> Splits:
    """Return windows of the three parts of the text that the settings name.

    Raises SettingsError if there is no text, or too little.
    """
    texts = DATASETS[settings.dataset](data_root.expanduser())
    parts = [parts_of(text) for text in texts]
    train, val, test = (windows(list(each), settings.context) for each in zip(*parts, strict=True))
    return Splits(train, val, test, Spec(settings.context, 256))


def parts_of(text: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the parts of a text (N,) to train, validate and test on: views of it."""
    held_out = int(HELD_OUT * len(text))
    train, val, test = text.split([len(text) - 2 * held_out, held_out, held_out])
    return train, val, test


def windows(texts: list[Tensor], context: int) -> Examples:
    """Return the windows of texts (N,) as examples: tokens (T,) and those that follow, (T,).

    They are views: the texts stay where they are, on disk if they are mapped into memory. Raises
    SettingsError if no text has a whole window.
    """
    whole = [text.unfold(0, context + 1, context) for text in texts if len(text) > context]
    if not whole:
        most = max(map(len, texts), default=0)
        raise SettingsError(f"--context {context}: the longest part of a text has {most} tokens")
    return ConcatDataset([TensorDataset(each[:, :-1], each[:, 1:]) for each in whole])


def pydoc(_root: Path) -> list[Tensor]:
    """Return the English of Python's own documentation, 0.5 MB; it comes with Python, and differs
    a little between its versions."""
    text = "\n\n".join(topics.topics[name] for name in sorted(topics.topics))
    return [torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)]


def files(root: Path) -> list[Tensor]:
    """Return your own text: all `<root>/**/*.txt`, which are mapped into memory and read as needed.

    Each file is cut in three. Raises SettingsError if there are none.
    """
    found = sorted(path for path in root.rglob("*.txt") if path.stat().st_size)
    if not found:
        raise SettingsError(f"--data-root {root}: has no text in it, as *.txt")
    # "c" is copy on write: torch wants arrays that it could write to.
    return [torch.from_numpy(np.memmap(path, np.uint8, "c")) for path in found]


DATASETS: dict[str, Callable[[Path], list[Tensor]]] = {
    "pydoc": pydoc,
    "files": files,
}
