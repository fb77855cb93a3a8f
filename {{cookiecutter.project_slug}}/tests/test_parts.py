"""What holds for all settings, metrics, datasets, augmentations and names in registries, whichever
they are."""

import random
import socket
from dataclasses import MISSING, fields, is_dataclass, replace

import numpy as np
import pytest
import torch
from conftest import HERE, LOADS, needs_data, refuse, short

import data
import settings
from labjobs import settings as declared
from labjobs.cli import flags
from labjobs.cli.parser import parse
from labjobs.data import batches, trees
from labjobs.data.batches import Place, is_stream
from labjobs.errors import SettingsError
from labjobs.job.runtime import Runtime
from settings import Settings

DEFAULT = Settings()

KINDS = [
    kind
    for kind in vars(settings).values()
    if isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == "settings"
]
"""The settings of run.py, and of other scripts."""


@pytest.mark.parametrize("kind", KINDS)
def test_every_default_can_be_said(kind):
    if any(field.default is MISSING for field in fields(kind)):
        pytest.skip("it has settings without a default")
    for field in fields(kind):
        flag = f"--{field.name.replace('_', '-')}={flags.as_text(field.default)}"
        said, _ = parse(kind, Runtime, [flag])
        assert getattr(said, field.name) == field.default == getattr(kind(), field.name)


@pytest.mark.parametrize("kind", KINDS)
def test_help_has_every_flag(kind, capsys):
    with pytest.raises(SystemExit):
        parse(kind, Runtime, ["--help"])
    shown = capsys.readouterr().out
    for field in (*fields(kind), *(f for f in fields(Runtime) if not f.metadata.get("only_with"))):
        assert f"\n  --{field.name.replace('_', '-')} " in shown


def test_the_metrics_are_right():
    declared.check(settings.METRICS)


OTHERS = {
    name.replace("_", "-"): flag.names
    for name, flag in flags.of(Settings).items()
    if flag.rules.get("names") and name not in ("model", "dataset")
}
"""The names in registries, by setting: not of networks, which --check runs, nor of datasets, which
may not be on this machine."""


@needs_data
@pytest.mark.parametrize("number", range(max(map(len, OTHERS.values()), default=0)))
def test_a_job_with_a_name_from_each_registry_finishes(project, number):
    """Or diverges; and what it runs is in its fingerprint, so that a change of it is noticed."""
    names = [f"--{setting}={names[number % len(names)]}" for setting, names in OTHERS.items()]
    done = project.run(*names, *short(2), "--scratch")
    assert done.returncode == 0 or " not finite by " in done.stderr, done.stderr
    assert "added to the job's fingerprint" not in done.stdout + done.stderr


COLLATE = getattr(data, "collate", None)
"""What makes a batch of examples that cannot be stacked; see `python jobs.py docs recipes`."""


@pytest.fixture
def offline(monkeypatch):
    """Let nothing be fetched."""
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def first_batch(parts):
    """The first training batch of examples or of a stream, and how many it has."""
    seed = None if is_stream(parts.train) else 0
    size = getattr(DEFAULT, "batch_size", 8)
    how = {"batch_size": size, "seed": seed, "collate": getattr(parts, "collate", COLLATE)}
    made = batches.make(parts.train, torch.device("cpu"), **how)
    return next(made.endless(0, 0, Place()))


def has_rows(batch, count):
    """Whether a batch has a row for each example; what `collate` makes may have any shape."""
    return COLLATE is not None or {len(leaf) for leaf in trees.leaves(batch)} == {count}


@pytest.mark.parametrize("name", getattr(data, "DATASETS", ()) if LOADS else ())
def test_a_dataset_gives_batches_or_one_line_says_why_not(name, tmp_path, offline):
    """Only the default may have its files here."""
    root = HERE / "data" if name == DEFAULT.dataset else tmp_path
    try:
        parts = data.load(replace(DEFAULT, dataset=name), root)
    except SettingsError as error:
        assert str(error).startswith("--")
    except FileNotFoundError as error:
        assert str(root) in str(error)
    else:
        batch, count = first_batch(parts)
        assert count and has_rows(batch, count)


@needs_data
@pytest.mark.parametrize("name", getattr(data, "AUGMENTATIONS", ()) if LOADS else ())
def test_an_augmentation_depends_on_the_restored_random_numbers_alone(name, offline):
    """Otherwise a job that was interrupted would not go on as it would have."""
    batch, count = first_batch(data.load(DEFAULT, HERE / "data"))
    augment, results = data.augmentation(replace(DEFAULT, augment=name)), []
    for _ in range(2):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        results.append([augment(batch) for _ in range(3)])
    for one, other in zip(*results, strict=True):
        leaves = zip(trees.leaves(one), trees.leaves(other), strict=True)
        assert all(torch.equal(left, right) for left, right in leaves)
        assert has_rows(one, count)
