"""Texts as tokens, and their splits.

A token is a byte, or with --tokenizer what a tokenizer from a file makes of the text. To add a
dataset, write a function such as `pydoc` and a line in DATASETS. It returns texts, as bytes or
mapped into memory. texts.py writes their tokens to disk, once. An example is a window of these:
`--context` tokens and the one that follows.

Each text is cut into three parts: the first for training, the next for validation, the last for
testing. The windows of a part follow one another, from one text to the next, so in an epoch each
token except the first is predicted once. Only the last, shorter window of a part is left out.
"""

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pydoc_data import topics

from torch import Tensor

import texts
from labjobs import SettingsError
from models import Spec
from settings import Settings
from texts import Text, Tokenizer, Windows

Batch = tuple[Tensor, ...]  # tokens (B, T + 1), and with a tokenizer the bytes of each (B, T + 1)


@dataclass(frozen=True)
class Splits:
    """What a job is trained, validated and tested on, and what its network needs to know about the
    data."""

    train: Windows
    val: Windows
    test: Windows
    spec: Spec


def load(settings: Settings, data_root: Path) -> Splits:
    """Return windows of the three parts of the text that the settings name.

    Raises SettingsError if there is no text or tokenizer, or too little text.
    """
    root, context = data_root.expanduser(), settings.context
    made = tokenizer(settings.tokenizer, root)
    folder = texts.tokenized(DATASETS[settings.dataset](settings, root), made)
    files = [folder / f"{name}.bin" for name in texts.PARTS]
    counts = [texts.count(file, made.vocabulary) for file in files]
    if min(counts) <= context:
        raise SettingsError(
            f"--context {context}: the text of {sum(counts)} tokens is too short, since one of its "
            f"parts has only {min(counts)}"
        )
    train, val, test = (Windows(file, made.vocabulary, context) for file in files)
    return Splits(train, val, test, Spec(context, made.vocabulary, made.definition))


@cache
def tokenizer(name: str, root: Path) -> Tokenizer:
    """Return the tokenizer that --tokenizer names.

    Raises SettingsError if there is none.
    """
    if name == "bytes":
        return Tokenizer()
    try:
        return Tokenizer((root / name).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"--tokenizer {name}: there is no such tokenizer.json in {root}; known: bytes"
        ) from error


def pydoc(_settings: Settings, _root: Path) -> list[Text]:
    """Return Python's own documentation, 0.5 MB of English, which comes with Python and differs a
    little between its versions."""
    text = "\n\n".join(topics.topics[name] for name in sorted(topics.topics))
    return [text.encode()]


def files(settings: Settings, root: Path) -> list[Text]:
    """Return your own text: the files in the data folder that --text names.

    Raises SettingsError if there are none.
    """
    if ".." in Path(settings.text).parts or Path(settings.text).is_absolute():
        raise SettingsError(f"--text {settings.text}: must name files in --data-root {root}")
    paths = sorted(path for path in root.glob(settings.text) if path.is_file())
    seen = [path for path in paths if not any(map(is_hidden, path.relative_to(root).parts))]
    found = [path for path in seen if path.stat().st_size]
    if (root / settings.text).is_dir():
        raise SettingsError(
            f"--text {settings.text}: is a folder; name its files, as in '{settings.text}/**/*.txt'"
        )
    if not found:
        raise SettingsError(f"--data-root {root}: has no files that match {settings.text}")
    return [mapped(path) for path in found]


def is_hidden(name: str) -> bool:
    """Return whether a file or folder of this name is hidden; hidden ones do not count as data."""
    return name.startswith(".")


def mapped(path: Path) -> mmap.mmap:
    """Return a file mapped into memory, so that the file may be larger than the memory."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


DATASETS: dict[str, Callable[[Settings, Path], list[Text]]] = {
    "pydoc": pydoc,
    "files": files,
}
