"""Texts as tokens on disk: written once, and from then on mapped into memory.

A folder in the project's `.cache/tokens` holds the tokens of some texts, in three parts. Those to
train on are in `train.bin`, as unsigned numbers: uint8 for bytes, for a tokenizer uint16, or uint32
if its vocabulary is larger than 65,536. A tokenizer's tokens stand for several bytes of the text
each; `train.sizes` says how many, as uint16.

The folder's name is a hash of the texts' contents and of the tokenizer. It gets that name once
everything is on the disk, so an incomplete folder of a killed job is never read, and the next job
removes it. Of several jobs that need the same tokens, one writes them and the others wait. It can
be deleted at any time.
"""

import hashlib
import mmap
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from labjobs import PROJECT, SettingsError, first_line, locks

Text = bytes | mmap.mmap

FOLDER = PROJECT / ".cache" / "tokens"

PARTS = ("train", "val", "test")

BYTES = 256

HELD_OUT = 0.1  # fraction of each text for validation, and the same for testing

PIECE = 2**20  # bytes of a text that are turned into tokens at once

SIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""Torch's type for numbers with this many bytes. Older versions cannot select rows of unsigned
types."""


class Tokenizer:
    """Turns a text into tokens, with a Hugging Face tokenizer or, without one, into bytes.

    `definition` is the content of its `tokenizer.json`. Raises SettingsError if it cannot be read.
    """

    def __init__(self, definition: str = "") -> None:
        self.definition = definition
        self._made = _made(definition) if definition else None
        self.vocabulary = 1 + max(self._made.get_vocab().values()) if self._made else BYTES

    def encode(self, text: bytes) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
        """Return the tokens (N,) of a text, and the number of bytes (N,) from each token to the
        next; None if each token is one byte. Raises SettingsError if a tokenizer has to read text
        that is not UTF-8.
        """
        if self._made is None:
            return np.frombuffer(text, np.uint8), None
        try:
            decoded = text.decode()
        except UnicodeDecodeError as error:
            raise SettingsError(
                "--tokenizer: the text is not UTF-8; convert it, or use --tokenizer bytes"
            ) from error
        found = self._made.encode(decoded, add_special_tokens=False)
        if not found.ids:
            return np.zeros(0, int), np.zeros(0, int)
        code_points = np.frombuffer(decoded.encode("utf-32-le"), np.uint32)
        lengths = 1 + sum((code_points >= least).astype(int) for least in (0x80, 0x800, 0x10000))
        ends = np.concatenate([[0], np.cumsum(lengths)])
        begins = np.maximum.accumulate(ends[[begin for begin, _ in found.offsets]])
        begins[0] = 0
        return np.array(found.ids), np.diff(begins, append=len(text))

    def decode(self, tokens: list[int]) -> str:
        """Return the text of some tokens."""
        if self._made is None:
            return bytes(tokens).decode(errors="replace")
        return str(self._made.decode(tokens))


def _made(definition: str) -> Any:
    try:
        from tokenizers import Tokenizer as HuggingFace
    except ImportError as error:
        raise SettingsError(
            "--tokenizer: needs the package tokenizers: uv sync --group tokenizer"
        ) from error
    try:
        made: Any = HuggingFace.from_str(definition)
    except Exception as error:  # the library has no other class of errors
        raise SettingsError(
            f"--tokenizer: is not a valid tokenizer.json ({first_line(error)})"
        ) from error
    made.no_padding()
    made.no_truncation()
    return made


class Windows(TensorDataset):
    """Windows of a part of the texts: T + 1 tokens, of which the last is the first of the next
    window, and with a tokenizer their sizes.

    They are views of the files, which are mapped into memory: nothing is copied until a batch is.
    """

    def __init__(self, path: Path, vocabulary: int, context: int) -> None:
        self._made_of = path, vocabulary, context
        files = {path: width_of(vocabulary)}
        if (sizes := path.with_suffix(".sizes")).exists():
            files[sizes] = 2
        mapped = (_mapped(file, width) for file, width in files.items())
        super().__init__(*(each.unfold(0, context + 1, context) for each in mapped))

    def __reduce__(self) -> tuple[Any, ...]:
        return Windows, self._made_of  # another process maps the files itself


def _mapped(path: Path, width: int) -> Tensor:
    """Return the numbers in a file; writing to the tensor would leave the file as it is."""
    count = path.stat().st_size // width
    return torch.from_file(str(path), shared=False, size=count, dtype=SIGNED[width])


def count(path: Path, vocabulary: int) -> int:
    """Return the number of tokens in a file."""
    return path.stat().st_size // width_of(vocabulary)


def width_of(vocabulary: int) -> int:
    """Return the bytes of a token in a file: uint8, uint16 or uint32."""
    return 1 if vocabulary == BYTES else 2 if vocabulary <= 2**16 else 4


def unsigned(tokens: Tensor) -> Tensor:
    """Return numbers, as torch has them mapped, as int64."""
    return tokens.long() & 0xFFFF if tokens.dtype == torch.int16 else tokens.long()


def tokenized(texts: Sequence[Text], tokenizer: Tokenizer) -> Path:
    """Return the folder with the tokens of some texts; they are written first if necessary."""
    found = hashlib.sha256(f"1 {HELD_OUT} {PIECE} {tokenizer.definition}".encode())
    for text in texts:
        found.update(hashlib.sha256(text).digest())
    folder = FOLDER / found.hexdigest()[:32]
    if not folder.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        with locks.waiting(folder.with_suffix(".lock")):
            if not folder.exists():
                _write(folder, texts, tokenizer)
    return folder


def _write(folder: Path, texts: Sequence[Text], tokenizer: Tokenizer) -> None:
    """Write the tokens of some texts into a folder, whole or not at all."""
    unfinished = folder.with_suffix(".part")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    for number, name in enumerate(PARTS):
        path = unfinished / f"{name}.bin"
        path.touch()
        for text in texts:
            begin, end = bounds(text, tokenizer)[number : number + 2]
            for piece in pieces(text, begin, end):
                _append(path, piece, tokenizer)
    for file in unfinished.iterdir():
        with file.open("rb") as written:
            os.fsync(written.fileno())
    unfinished.rename(folder)


def _append(path: Path, piece: bytes, tokenizer: Tokenizer) -> None:
    tokens, sizes = tokenizer.encode(piece)
    with path.open("ab") as file:
        file.write(tokens.astype(f"u{width_of(tokenizer.vocabulary)}").tobytes())
    if sizes is None:
        return
    if sizes.max(initial=0) > 0xFFFF:
        raise SettingsError(f"--tokenizer: one token stands for {sizes.max()} bytes of the text")
    with path.with_suffix(".sizes").open("ab") as file:
        file.write(sizes.astype(np.uint16).tobytes())


def bounds(text: Text, tokenizer: Tokenizer) -> list[int]:
    """Return where the parts of a text begin and end; with a tokenizer, always between two
    characters."""
    held_out = int(HELD_OUT * len(text))
    places = [len(text) - 2 * held_out, len(text) - held_out]
    if tokenizer.definition:
        places = [_character(text, place) for place in places]
    return [0, *places, len(text)]


def pieces(text: Text, begin: int, end: int) -> Iterator[bytes]:
    """Yield a part of a text in pieces, which end at the end of a line if possible."""
    while begin < end:
        until = min(begin + PIECE, end)
        if until < end:
            line = text.rfind(b"\n", begin, until) + 1
            until = line or _character(text, until)
        yield text[begin:until]
        begin = until


def _character(text: Text, place: int) -> int:
    """Return where the character begins that a byte is part of: in UTF-8 at most 3 bytes before."""
    if place == len(text):
        return place
    near = range(place, max(place - 4, -1), -1)
    return next((each for each in near if text[each] & 0xC0 != 0x80), place)
