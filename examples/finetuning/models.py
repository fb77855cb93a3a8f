"""Networks: transformers of Hugging Face that classify texts.

To add a network that starts from random weights, write its configuration and a line in MODELS. Any
other name is that of a checkpoint: a folder in --data-root with config.json, model.safetensors and
tokenizer.json, as `hf download` and save_pretrained() write them.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    BertConfig,
    DistilBertConfig,
    PretrainedConfig,
    logging,
)

from labjobs import SettingsError, did_you_mean, first_line
from settings import Settings

# Its report on the weights has many lines; start() refuses a checkpoint that lacks some.
reports: Any = logging
reports.set_verbosity_error()
reports.disable_progress_bar()


@dataclass(frozen=True)
class Spec:
    """What a network needs to know, as plain values. They are stored with each job, so that its
    network can be made again without the data, and without the checkpoint that it started from."""

    classes: tuple[str, ...]
    config: str  # the configuration of the network, as JSON
    tokenizer: str  # what makes tokens of texts, as JSON: Tokenizer.from_str reads it

    @property
    def padding(self) -> int:
        """The token that batches are padded with."""
        return int(json.loads(self.config)["pad_token_id"])


class Classifier(nn.Module):
    """A transformer that returns only the logits."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network, self.classes = network, int(network.config.num_labels)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return logits (B, K) of tokens (B, T); the mask (B, T) is 0 where there is padding."""
        if self.network.config.model_type in ENCODERS:
            mask = mask[:, None, None, :].bool()
        logits: Tensor = self.network(input_ids=tokens, attention_mask=mask).logits
        return logits


ENCODERS = ("bert", "distilbert", "electra", "roberta", "xlm-roberta")
"""Transformers that take a mask for each of their heads and queries, (B, 1, 1, T), as it is. Given
(B, T), transformers asks in each step whether anything is padding, which waits for the device."""


def make(settings: Settings, spec: Spec) -> Classifier:
    """Return the network of the settings, with random weights."""
    config = AutoConfig.for_model(**json.loads(spec.config))
    network: Any = AutoModelForSequenceClassification
    return Classifier(network.from_config(config))


def example_input(settings: Settings, spec: Spec, examples: int) -> tuple[Tensor, Tensor]:
    """Return this many random inputs for the network, for `jobs.py export-model`."""
    vocabulary = int(json.loads(spec.config)["vocab_size"])
    tokens = torch.randint(vocabulary, (examples, settings.max_tokens))
    return tokens, torch.ones_like(tokens)


def start(model: Classifier, settings: Settings, root: Path) -> None:
    """Load the weights of the checkpoint that the settings name, if any, into a network.

    Layers on top of the transformer keep random weights if the checkpoint lacks them or has
    different ones, for another task. Raises SettingsError if it cannot be read, or lacks other
    layers.
    """
    if settings.model in MODELS:
        return
    folder, network = checkpoint(settings.model, root.expanduser()), model.network
    with readable(folder):
        for weights in folder.glob("*.safetensors"):
            weights.open("rb").close()  # so that they count as the job's data
        model.network, found = type(network).from_pretrained(
            folder,
            config=network.config,
            local_files_only=True,
            use_safetensors=True,  # no other format is safe to open
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    new = [*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])]
    below = f"{network.base_model_prefix}."
    for name in new:
        if name.startswith(below) and "pooler" not in name:
            raise SettingsError(f"--model: {folder} lacks weights of the transformer: {name}")


def configuration(settings: Settings, root: Path, vocabulary: int, classes: int) -> str:
    """Return the configuration of the network that the settings name, as JSON.

    Raises SettingsError if it cannot be read, does not say what batches are padded with, or if the
    network takes fewer than --max-tokens.
    """
    if settings.model in MODELS:
        config = MODELS[settings.model](vocabulary, settings.max_tokens)
    else:
        folder = checkpoint(settings.model, root)
        with readable(folder):
            config = AutoConfig.from_pretrained(folder, local_files_only=True)
        if config.pad_token_id is None:  # as in decoders
            config.pad_token_id = config.eos_token_id
        if not isinstance(config.pad_token_id, int):
            raise SettingsError(f"--model: {folder}/config.json has no pad_token_id")
    most = getattr(config, "max_position_embeddings", settings.max_tokens)
    if most < settings.max_tokens:
        raise SettingsError(f"--max-tokens {settings.max_tokens}: {settings.model} takes {most}")
    config.num_labels = classes
    return config.to_json_string(use_diff=False)


def checkpoint(name: str, root: Path) -> Path:
    """Return the folder of a checkpoint. Raises SettingsError if there is none."""
    folder = root / name
    if not (folder / "config.json").is_file():
        raise SettingsError(
            f"--model {name}: no such network in models.py, and there is no {folder}/config.json; "
            f"{did_you_mean(name, MODELS)}"
        )
    return folder


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    """Raise SettingsError for any error: damaged files make their readers raise many kinds."""
    try:
        yield
    except Exception as error:
        raise SettingsError(f"--model: {folder} cannot be read ({first_line(error)})") from error


def bert(vocabulary: int, length: int) -> PretrainedConfig:
    """BERT (Devlin et al. 2019, arxiv.org/abs/1810.04805) with 2 layers of width 64."""
    return BertConfig(
        vocab_size=vocabulary,
        max_position_embeddings=length,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
    )


def distilbert(vocabulary: int, length: int) -> PretrainedConfig:
    """DistilBERT (Sanh et al. 2019, arxiv.org/abs/1910.01108) with 2 layers of width 64."""
    return DistilBertConfig(
        vocab_size=vocabulary,
        max_position_embeddings=length,
        dim=64,
        hidden_dim=256,
        n_layers=2,
        n_heads=4,
    )


MODELS: dict[str, Callable[[int, int], PretrainedConfig]] = {
    "bert-tiny": bert,
    "distilbert-tiny": distilbert,
}
