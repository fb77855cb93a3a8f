"""Language models, and which network goes with which data."""

import pytest
import torch
from torch.utils.data import TensorDataset

import data
import models
import run
from engine.cli import parser as cli
from engine.data.splits import Source
from engine.errors import SettingsError
from engine.job.folder import Job
from engine.training import networks
from engine.training.precision import Precision
from engine.training.seeding import GlobalStreams

LENGTH, VOCABULARY = 12, 7


@pytest.fixture
def counting(monkeypatch):
    """A dataset in which each token is one more than the one before, and a model of that size."""
    first = torch.arange(300).unsqueeze(1)
    tokens = (first + torch.arange(LENGTH + 1)) % VOCABULARY
    examples = TensorDataset(tokens[:, :-1], tokens[:, 1:])
    source = Source(examples, None, [str(token) for token in range(VOCABULARY)])
    data.load.cache_clear()
    monkeypatch.setitem(data.DATASETS, "counting", lambda _root, _size: source)
    small = lambda *about: models.GPT(*about[:2], width=16, layers=2, heads=2)  # noqa: E731
    monkeypatch.setitem(models.LANGUAGE_MODELS, "gpt", small)
    return source


@pytest.mark.parametrize("loader", ["resident", "workers"])
def test_a_language_model_learns_by_the_same_loop(tmp_path, counting, loader):
    words = ["--dataset", "counting", "--model", "gpt", "--lr", "1e-2", "--epochs", "12"]
    how = ["--loader", loader, "--workers", "0", "--quiet", "--runs-root", str(tmp_path)]
    job = Job(cli.parse(run.Settings, words + how))
    job.make_folder()
    job.take()
    job.open()
    run.check(job.settings)
    cpu = torch.device("cpu")
    precision = Precision("bf16", cpu)
    train, val, test, classes, model = run.load(job.settings, cpu)
    epoch = run.train(job, train, val, model, precision, GlobalStreams(0, cpu))
    results = run.save(job, test, classes, model, epoch, precision)
    assert results["test_accuracy"] > 0.95 and results["test_loss"] < 0.5


def test_no_token_sees_those_after_it():
    model = models.GPT(LENGTH, VOCABULARY, width=16, layers=2, heads=2).eval()
    tokens = torch.randint(VOCABULARY, (3, LENGTH))
    changed = tokens.clone()
    changed[:, 5] = (tokens[:, 5] + 1) % VOCABULARY
    before, after = model(tokens), model(changed)
    assert before.shape == (3, LENGTH, VOCABULARY)
    assert torch.allclose(before[:, :5], after[:, :5], atol=1e-5)
    assert not torch.allclose(before[:, 5:], after[:, 5:], atol=1e-3)


def test_gpt_has_124_million_weights():
    source = data.load("random-tokens", run.Settings().data_root, "auto")
    with torch.device("meta"):
        model = models.LANGUAGE_MODELS["gpt"](*source.shape, len(source.classes), run.Settings())
        logits = model(torch.zeros(2, *source.shape, dtype=torch.int64))
    assert logits.shape == (2, 1024, 50_304)
    assert sum(weight.numel() for weight in model.parameters()) // 10**6 == 124


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--model gpt", "--model gpt: reads tokens, and --dataset digits has images"),
        ("--dataset counting", "--model mlp: no such model of tokens; known: gpt"),
        (
            "--dataset counting --model gtp",
            "--model gtp: no such model of tokens; did you mean gpt?",
        ),
        (
            "--dataset counting --model gpt --augment crop",
            "--augment: is for images, and --dataset counting has tokens",
        ),
        (
            "--dataset counting --model gpt --image-size 8",
            "--image-size: is for images, and --dataset counting has tokens",
        ),
    ],
)
def test_a_network_that_does_not_go_with_the_data_is_said_in_one_line(counting, words, line):
    with pytest.raises(SettingsError) as caught:
        run.check(cli.parse(run.Settings, words.split()))
    assert str(caught.value) == line


def test_examples_are_images_or_tokens():
    with pytest.raises(SettingsError, match=r"tokens int64 \(N, T\), not torch.float32 \(9, 4\)$"):
        Source(TensorDataset(torch.zeros(9, 4), torch.zeros(9, 4)), None, ["a"])


def test_a_language_model_is_made_for_the_data(counting):
    model = networks.make(models, run.Settings(model="gpt"), counting, parts=None)
    assert model(counting.train[:2][0]).shape == (2, LENGTH, VOCABULARY)
