"""A network by its name, fitted to the data: a classifier of images, or a language model.

A language model takes tokens (B, T), int64, and returns logits (B, T, K) of the tokens that follow.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import nn

from engine.cli.settings import JobSettings
from engine.data.splits import Source, Splits
from engine.errors import SettingsError, did_you_mean
from engine.training import classifiers

LanguageModels = Mapping[str, Callable[[int, int, Any], nn.Module]]  # length, tokens, settings

OF_IMAGES = {"image_size": "auto", "augment": "none", "pretrained": False}
"""Settings that only images have, and their values without."""


class Own(Protocol):
    """The project's own networks, as models.py has them."""

    @property
    def MODELS(self) -> classifiers.Networks:
        """Networks of images, by name."""

    @property
    def LANGUAGE_MODELS(self) -> LanguageModels:
        """Networks of tokens, by name."""


def make(own: Own, settings: JobSettings, source: Source, parts: Splits) -> nn.Module:
    """The network that the settings name, with as many inputs and outputs as the data has.

    Raises SettingsError as `check` does, JobError if published weights cannot be had.
    """
    check(own, settings, source)
    if not source.tokens:
        return classifiers.make(own.MODELS, settings, source, parts)
    (length,) = source.shape
    return own.LANGUAGE_MODELS[settings.model](length, len(source.classes), settings)


def check(own: Own, settings: JobSettings, source: Source) -> None:
    """Raise SettingsError if there is no such network, or the data is not for it."""
    name, data = settings.model, settings.dataset
    if not source.tokens:
        if name in own.LANGUAGE_MODELS:
            raise SettingsError(f"--model {name}: reads tokens, and --dataset {data} has images")
        classifiers.check(own.MODELS, settings, source)
        return
    if name not in own.LANGUAGE_MODELS:
        hint = did_you_mean(name, own.LANGUAGE_MODELS)
        raise SettingsError(f"--model {name}: no such model of tokens; {hint}")
    for setting, without in OF_IMAGES.items():
        if getattr(settings, setting) != without:
            flag = f"--{setting.replace('_', '-')}"
            raise SettingsError(f"{flag}: is for images, and --dataset {data} has tokens")
