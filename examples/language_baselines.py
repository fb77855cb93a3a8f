"""Bits per byte of Python's documentation without a network, to compare a language model with.

    python examples/language_baselines.py    the first rows of the example's table

A trigram model is the counts of three bytes in a row, interpolated with those of two and one
(Witten & Bell 1991, doi.org/10.1109/18.87000). xz compresses the test text alone, and after the
training and validation texts: then the bytes that the test text adds.
"""

import lzma
import math
import sys
from collections import Counter, defaultdict
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[1] / "{{cookiecutter.project_slug}}"
sys.dont_write_bytecode = True  # into the example
sys.path[:0] = [str(EXAMPLE / ".examples" / "language"), str(EXAMPLE)]

import data  # noqa: E402

Counts = dict[bytes, Counter[int]]


def counts(text: bytes, order: int) -> Counts:
    """Return how often each byte follows each context of `order` bytes."""
    found: Counts = defaultdict(Counter)
    for place in range(order, len(text)):
        found[text[place - order : place]][text[place]] += 1
    return found


def probability(orders: list[Counts], context: bytes, byte: int) -> float:
    """Return a byte's probability after a context, interpolated with that after shorter ones."""
    p = 1 / 256
    for order, each in enumerate(orders):
        following = each.get(context[len(context) - order :])
        if following:
            seen, kinds = following.total(), len(following)
            p = (following[byte] + kinds * p) / (seen + kinds)
    return p


def n_gram(train: bytes, test: bytes, length: int) -> float:
    """Return the bits per byte of a model of so many bytes in a row."""
    orders = [counts(train, order) for order in range(length)]
    bits = 0.0
    for place in range(len(test)):
        context = test[max(0, place - length + 1) : place]
        bits -= math.log2(probability(orders[: len(context) + 1], context, test[place]))
    return bits / len(test)


def xz(before: bytes, test: bytes) -> float:
    """Return the bits per byte that xz adds for a text after another."""
    sizes = [
        len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)) for text in (before, before + test)
    ]
    return 8 * (sizes[1] - (sizes[0] if before else 0)) / len(test)


def main() -> None:
    """Print the rows."""
    (text,) = data.pydoc(Path())
    train, val, test = (part.numpy().tobytes() for part in data.parts_of(text))
    rows = {
        "uniform": 8.0,
        "bytes on their own": n_gram(train, test, 1),
        "trigrams": n_gram(train, test, 3),
        "five in a row": n_gram(train, test, 5),
        "xz": xz(b"", test),
        "xz, after the training text": xz(train + val, test),
    }
    for name, bits in rows.items():
        print(f"| {name} | {bits:.2f} |")


if __name__ == "__main__":
    main()
