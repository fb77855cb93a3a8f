"""Bits per byte of Python's documentation: of the example's GPT, and of what needs no network.

    python scripts/language_baselines.py > docs/language.md

A trigram model is the counts of three bytes in a row, interpolated with those of two and one
(Witten & Bell 1991, doi.org/10.1109/18.87000). xz compresses the test text alone, and after the
training text: then the bytes that the test text adds.
"""

import argparse
import lzma
import math
import os
import resource
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

TEMPLATE = Path(__file__).resolve().parents[1]
PROJECT = TEMPLATE / "{{cookiecutter.project_slug}}"
sys.dont_write_bytecode = True  # into the example
sys.path[:0] = [str(TEMPLATE / "benchmarks"), str(TEMPLATE / "examples/language"), str(PROJECT)]

import data  # noqa: E402
import texts  # noqa: E402
from pages import machine, page  # noqa: E402
from projects import journal, make, run  # noqa: E402
from settings import Settings  # noqa: E402

JOB = "--context 128 --batch-size 16 --lr 3e-3 --warmup 100"
STEPS = 12_000
"""Took 11 minutes of a core's time."""

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


def gpt(flags: str, steps: int, threads: str) -> tuple[float, float, float]:
    """Return the bits per byte of the example's GPT, the minutes of training and evaluation, and
    those of a core that the job's processes had."""
    with tempfile.TemporaryDirectory() as folder:
        project = make(folder, "language")
        length = f"--steps {steps} --eval-every {steps // 10} --threads {threads} --quiet"
        before = core_minutes()
        run(project, "run.py", *flags.split(), *length.split())
        used = core_minutes() - before
        points = [line["metrics"] for line in journal(project)]
    found = {name: value for each in points for name, value in each.items()}
    return found["test_bits_per_byte"], found["elapsed_seconds"] / 60, used


def core_minutes() -> float:
    """Return the processor time of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) / 60


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--threads", default="auto", help="of the GPT's job")
    parser.add_argument("--beside", default="nothing else ran", help="what else the machine did")
    arguments = parser.parse_args()
    (text,) = data.pydoc(Settings(), Path())
    ends = texts.bounds(text, texts.Tokenizer())
    train, _, test = (bytes(text[ends[part] : ends[part + 1]]) for part in range(3))
    load = os.getloadavg()[0]
    network, minutes, used = gpt(JOB, arguments.steps, arguments.threads)
    loads = f"{load:.1f} before and {os.getloadavg()[0]:.1f} after"
    rows = {
        "uniform": 8.0,
        "bytes on their own": n_gram(train, test, 1),
        "trigrams, interpolated": n_gram(train, test, 3),
        "five bytes in a row, interpolated": n_gram(train, test, 5),
        "xz on the test text alone": xz(b"", test),
        "xz on the test text, after the training text": xz(train, test),
        "GPT": network,
    }
    about = (
        f"{machine('torch')}. Bits per byte of the last tenth of Python's documentation "
        f"(pydoc_data, {len(text):,} bytes: {len(train):,} to train on, {len(test):,} to test). "
        f"The GPT is `python run.py {JOB} --steps {arguments.steps}` of the example `language`, "
        f"one seed: {arguments.steps * 16 * 128:,} tokens in {minutes:.1f} minutes "
        f"({used:.1f} of a core's time, --threads {arguments.threads}), while "
        f"{arguments.beside} (load average {loads}). The counts are those of the training text. "
        "`python scripts/language_baselines.py` makes this page."
    )
    listed = [[name, f"{bits:.2f}"] for name, bits in sorted(rows.items(), key=lambda row: -row[1])]
    page("A small GPT, counting and compressing", about, ["", "bits per byte"], listed)


if __name__ == "__main__":
    main()
