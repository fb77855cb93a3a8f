"""Texts and their classes.

To add a dataset, write a function such as `pydoc` and a line in DATASETS. It returns texts with the
class of each and, if some belong together, their groups: all texts of a group are on the same side
of a split, so that no test text has its neighbours in training.

An example is a text and the number of its class. `Collate` turns a list of them into tokens.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pydoc_data import topics
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import WordLevelTrainer
from torch import Tensor
from torch.utils.data import Dataset

from labjobs import SettingsError, first_line, fold, split, underlying
from models import MODELS, Spec, checkpoint, configuration, readable
from settings import FOLDS, Settings

Batch = dict[str, Tensor]  # input_ids and attention_mask (B, T), labels (B,), all int64
Example = tuple[str, int]
Examples = Dataset[Example]

TEST_FRACTION = 0.2  # of the texts

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
"""Tokens that are not words: the first in the vocabulary of a new network."""

MULTIPLE = 16
"""Batches are padded to a multiple of this, which is faster on GPUs and gives --compile few
lengths."""

TOPICS = (
    *("compound", "debugger", "formatstrings", "specialnames"),
    *("string-methods", "types", "typesmapping", "typesseq"),
)
"""The topics of Python's documentation that are classified."""

NEIGHBOURS = 5  # number of successive paragraphs of a topic that are kept in the same part


class Texts(Dataset[Example]):
    """Texts (N), with the name of each one's class and, if given, its group."""

    def __init__(
        self, texts: Sequence[str], names: Sequence[str], groups: Sequence[Hashable] | None = None
    ) -> None:
        self.classes = sorted({*names})
        numbers = {name: number for number, name in enumerate(self.classes)}
        self.texts, self.groups = texts, groups
        self.labels = [numbers[name] for name in names]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> Example:
        """Return a text and the number of its class."""
        return self.texts[index], self.labels[index]


class Collate:
    """Turns examples into a batch of tokens, padded to its longest text."""

    def __init__(self, tokenizer: str, padding: int, longest: int) -> None:
        self._tokenizer: Any = Tokenizer.from_str(tokenizer)
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(longest)
        self._padding, self._longest = padding, longest

    def __call__(self, examples: Sequence[Example]) -> Batch:
        """Return the tokens and the labels of examples; the mask is 0 where there is padding."""
        texts, labels = zip(*examples, strict=True)
        encoded = self._tokenizer.encode_batch(texts)
        length = max(len(text) for text in encoded)
        length = min(self._longest, -(-length // MULTIPLE) * MULTIPLE)
        for text in encoded:
            text.pad(length, pad_id=self._padding)
        return {
            "input_ids": torch.tensor([text.ids for text in encoded]),
            "attention_mask": torch.tensor([text.attention_mask for text in encoded]),
            "labels": torch.tensor(labels),
        }


@dataclass(frozen=True)
class Splits:
    """What a job is trained, validated and tested on, what its network needs to know about the
    data, and the function that makes a batch from examples."""

    train: Examples
    val: Examples | None
    test: Examples
    spec: Spec
    collate: Collate


def load(settings: Settings, data_root: Path) -> Splits:
    """Return the splits of the dataset that the settings name.

    Raises SettingsError if it is missing, damaged or too small, or if there is no such network.
    """
    root = data_root.expanduser()
    texts, seed = read(settings.dataset, root), settings.split_seed
    by = {"groups": texts.groups} if texts.groups else {"labels": texts.labels}
    train, test = split(texts, TEST_FRACTION, seed, **by)
    val: Examples | None = None
    if settings.fold:
        train, val = fold(train, settings.fold, FOLDS, seed, **by)
    elif settings.val_fraction:
        train, val = split(train, settings.val_fraction, seed, **by)
    elif settings.monitor != "none":
        raise SettingsError("--val-fraction 0: without validation examples, add --monitor none")
    if settings.model in MODELS:
        tokenizer = words(texts.texts[index] for index in underlying(train)[1])
    else:
        folder = checkpoint(settings.model, root)
        with readable(folder):
            tokenizer = Tokenizer.from_str((folder / "tokenizer.json").read_text("utf-8"))
    config = configuration(settings, root, tokenizer.get_vocab_size(), len(texts.classes))
    spec = Spec(tuple(texts.classes), config, tokenizer.to_str())
    collate = Collate(spec.tokenizer, spec.padding, settings.max_tokens)
    return Splits(train, val, test, spec, collate)


def words(texts: Iterable[str]) -> Any:
    """Return a tokenizer for the words that occur at least twice in texts.

    Parts of words would give better results, but the trainers that find them are not deterministic:
    the same texts may give a different vocabulary.
    """
    tokenizer: Any = Tokenizer(WordLevel(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = Lowercase(), Whitespace()
    trainer: Any = WordLevelTrainer(min_frequency=2, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    ends = [(token, SPECIAL.index(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    return tokenizer


@cache  # many jobs of a grid read the same
def read(dataset: str, root: Path) -> Texts:
    """Return the dataset of a name."""
    return DATASETS[dataset](root)


def pydoc(_root: Path) -> Texts:
    """Return the sentences of eight topics of Python's own documentation; their class is the topic.

    Sentences of fewer than five words and those that occur twice are left out. The texts differ a
    little between versions of Python.
    """
    found: list[tuple[str, str, tuple[str, int]]] = []
    for topic in TOPICS:
        for number, paragraph in enumerate(topics.topics[topic].split("\n\n")):
            for sentence in re.split(r"(?<=[.:])\s+(?=[A-Z])", paragraph):
                text = " ".join(sentence.split())
                if len(re.findall("[A-Za-z]+", text)) >= 5:
                    found.append((text, topic, (topic, number // NEIGHBOURS)))
    times = Counter(text for text, _, _ in found)
    return Texts(*zip(*(each for each in found if times[each[0]] == 1), strict=True))


def files(root: Path) -> Texts:
    """Return your own texts: all `<root>/*.csv` and `<root>/*.jsonl`, with a `text` and a `label`
    in each row, and a `group` in all or in none."""
    rows: dict[str, dict[str, Any]] = {}  # by where they are
    for path in sorted([*root.glob("*.csv"), *root.glob("*.jsonl")]):
        try:
            with path.open(encoding="utf-8", newline="") as lines:
                parsed = (json.loads(line) for line in lines if line.strip())
                found = csv.DictReader(lines) if path.suffix == ".csv" else parsed
                for number, row in enumerate(found, 1):
                    rows[f"{path}, row {number}"] = row if isinstance(row, dict) else {}
        except (ValueError, csv.Error) as error:
            raise SettingsError(f"--data-root: {path}: {first_line(error)}") from error
    if not rows:
        raise SettingsError(f"--data-root: there are no texts in {root}, as *.csv or *.jsonl")
    names = ["text", "label", *(["group"] if any("group" in row for row in rows.values()) else [])]
    for place, row in rows.items():
        for name in names:
            if row.get(name) in (None, ""):
                raise SettingsError(f"--data-root: {place} has no {name}")
    texts, labels, *groups = ([str(row[name]) for row in rows.values()] for name in names)
    if len({*labels}) == 1:
        raise SettingsError(f"--data-root: {root} has only one label, {labels[0]}")
    return Texts(texts, labels, *groups)


DATASETS: dict[str, Callable[[Path], Texts]] = {
    "pydoc": pydoc,
    "files": files,
}
