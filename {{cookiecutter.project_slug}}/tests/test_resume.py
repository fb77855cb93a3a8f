"""A job that is interrupted and goes on ends as if nothing had happened, bit for bit."""

import json
import os
import signal
from typing import get_args, get_type_hints

import pytest
import torch

import run
from engine.cli import parser as cli
from engine.cli.settings import JobSettings
from engine.errors import JobError
from engine.job.folder import Job
from engine.job.interruption import Interrupted, handle
from engine.training import devices
from engine.training.precision import Precision
from engine.training.seeding import GlobalStreams

WORDS = {name: get_args(kind) for name, kind in get_type_hints(JobSettings).items()}
EPOCHS, BATCHES = 4, 6  # 1,294 examples, in batches of 256
BESIDE = {"beside": ("--eval-beside", "2"), "in line": ()}
TIMES = {"epoch_seconds", "examples_per_second", "data_wait_fraction"}


class Stopping:
    """Batches, of which one brings a signal with it."""

    def __init__(self, batches, at):
        self.batches, self.left = batches, at
        self.examples = batches.examples

    def __len__(self):
        return len(self.batches)

    def epoch(self, *where):
        for batch in self.batches.epoch(*where):
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGTERM)
            yield batch


@pytest.fixture(autouse=True)
def default_signals():
    yield
    handle(signal.SIG_DFL)


@pytest.fixture
def train(tmp_path):
    """run.py's own loop in a folder; stopped by a signal with a training or validation batch."""

    def train(folder, *flags, stop=0, val_stop=0):
        fixed = ("--device", "cpu", "--batch-size", "256", "--epochs", str(EPOCHS), "--quiet")
        words = ("--runs-root", str(tmp_path / folder), *fixed, "--log-every", "4", *flags)
        job = Job(cli.parse(run.Settings, words))
        job.make_folder()
        job.take()
        job.open()
        job.interruption.listen()
        precision = Precision(job.settings.precision, devices.choose("cpu"))
        streams = GlobalStreams(job.settings.seed, precision.device)
        batches, val_batches, _, _, model = run.load(job.settings, precision.device)
        parts = Stopping(batches, stop), Stopping(val_batches, val_stop), model, precision, streams
        try:
            run.train(job, *parts)
        finally:
            job.close("interrupted", "")
        return job.folder

    return train


def content(folder):
    """What last.pt and best.pt hold, and the journal's points, but for times."""
    last = torch.load(folder / "last.pt", weights_only=True)
    best = torch.load(folder / "best.pt", weights_only=True)
    del last["watch"]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    points = [
        (line["step"], {k: v for k, v in line["metrics"].items() if k not in TIMES})
        for line in lines
        if "metrics" in line
    ]
    return plain({"last": last, "best": best, "points": points})


def plain(value):
    """A nested value with the bytes of its tensors, so that == compares bit for bit."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.numpy().tobytes()
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


def assert_goes_on(train, *flags, **stop):
    whole = train("whole", *flags)
    with pytest.raises(Interrupted):
        train("parts", *flags, **stop)
    assert content(train("parts", *flags)) == content(whole)
    return whole


@pytest.mark.parametrize("loader", ["resident", "workers"])
@pytest.mark.parametrize("schedule", WORDS["schedule"])
@pytest.mark.parametrize("optimizer", WORDS["optimizer"])
def test_every_optimizer_schedule_and_loader(train, optimizer, schedule, loader):
    flags = ("--optimizer", optimizer, "--schedule", schedule, "--warmup", "1")
    assert_goes_on(
        train, *flags, "--loader", loader, "--workers", "0", "--augment", "crop-flip", stop=9
    )


@pytest.mark.parametrize("stop", [1, BATCHES - 1, BATCHES, BATCHES + 1, EPOCHS * BATCHES])
def test_at_any_step(train, stop):
    assert_goes_on(train, "--augment", "crop-flip", "--ema", "0.9", stop=stop)


@pytest.mark.parametrize("val_stop", [1, 3])
def test_while_it_evaluates(train, val_stop):
    assert_goes_on(train, "--val-fraction", "0.3", "--monitor", "val_accuracy", val_stop=val_stop)


def test_batch_norm_average_and_early_stopping(train):
    flags = ("--model", "convnet", "--ema", "0.9", "--patience", "1", "--lr", "0.1")
    assert_goes_on(train, *flags, stop=8)


@pytest.mark.parametrize("how", [{"stop": 9}, {"stop": 19}, {"val_stop": 2}, {"val_stop": 3}])
def test_while_it_evaluates_beside(train, how):
    assert_goes_on(train, "--eval-beside", "--ema", "0.9", **how)


@pytest.mark.parametrize("flags", [(), ("--model", "convnet", "--lr", "0.1", "--patience", "1")])
def test_evaluation_beside_has_the_results_of_evaluation_in_line(train, flags):
    beside, in_line = (content(train(name, *flags, *how)) for name, how in BESIDE.items())
    assert beside["best"] == in_line["best"]
    judged = [sorted(p for p in each["points"] if "val_loss" in p[1]) for each in (beside, in_line)]
    assert judged[0] == judged[1] and judged[0]


def test_evaluation_beside_goes_on_in_line(train):
    whole = train("whole")
    with pytest.raises(Interrupted):
        train("parts", "--eval-beside", "2", stop=20)
    assert content(train("parts"))["best"] == content(whole)["best"]


def test_scale_of_the_loss(train, monkeypatch):
    scaler = lambda _: torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=5)  # noqa: E731
    monkeypatch.setattr(Precision, "scaler", scaler)
    folder = assert_goes_on(train, stop=9)
    last = torch.load(folder / "last.pt", weights_only=True)
    assert last["scaler"]["scale"] == 8.0 * 2 ** (EPOCHS * BATCHES // 5)


def test_random_numbers_of_the_model(train, monkeypatch):
    """torch's, as dropout draws them, Python's and numpy's."""
    source = run.models.MODELS["mlp"]

    def with_dropout(*about):
        return torch.nn.Sequential(source(*about), torch.nn.Dropout(0.5))

    monkeypatch.setitem(run.models.MODELS, "mlp", with_dropout)
    assert_goes_on(train, stop=9)


def test_random_numbers_go_on_on_another_kind_of_device():
    streams = GlobalStreams(0, torch.device("cpu"))
    state = streams.state_dict() | {"device": {"cuda": torch.zeros(16, dtype=torch.uint8)}}
    drawn = torch.rand(3)
    streams.load_state_dict(state)
    assert torch.equal(torch.rand(3), drawn)


def test_twice_and_between_saves_by_time(train):
    flags = ("--augment", "crop", "--checkpoint-minutes", "1e-9")
    whole = train("whole", *flags)
    for stop in (3, 8):
        with pytest.raises(Interrupted):
            train("parts", *flags, stop=stop)
    folder = whole.parent.parent / "parts" / whole.name
    assert (folder / "previous.pt").exists()
    assert content(train("parts", *flags)) == content(whole)
    assert not (folder / "previous.pt").exists()  # a finished job needs but one


def test_weights_that_are_not_finite_are_in_no_checkpoint(train, monkeypatch, tmp_path):
    """Not even if it was the gradient alone that was not."""
    update = run.Average.update
    steps = []

    def spoil(average):
        steps.append(update(average))
        if len(steps) == 9:
            for parameter in average.model.parameters():
                parameter.data.fill_(torch.inf)

    monkeypatch.setattr(run.Average, "update", spoil)
    with pytest.raises(JobError, match=r"not finite|no longer finite"):
        train("parts", "--checkpoint-minutes", "1e-9")
    kept = [torch.load(file, weights_only=True) for file in tmp_path.rglob("*.pt")]
    assert kept
    for checkpoint in kept:
        assert all(weight.isfinite().all() for weight in checkpoint["model"].values())


def test_a_point_that_was_written_is_not_written_again(train):
    """Killed after its last checkpoint, a job does steps over again that are in the journal."""
    whole = train("whole")
    folder = train("parts")
    before = (folder / "metrics.jsonl").read_text()
    (folder / "last.pt").unlink()
    train("parts")
    after = (folder / "metrics.jsonl").read_text()
    assert after.startswith(before) and '"metrics"' not in after.removeprefix(before)
    assert content(folder) == content(whole)


def test_a_curve_keeps_the_spacing_of_its_first_attempt(train):
    with pytest.raises(Interrupted):
        train("parts", stop=9)
    again = train("parts", "--log-every", "1")
    assert content(again)["points"] == content(train("whole"))["points"]


def test_a_checkpoint_that_does_not_fit_is_said_in_one_line(train, monkeypatch):
    with pytest.raises(Interrupted):
        train("parts", stop=9)
    monkeypatch.setitem(run.models.MODELS, "mlp", run.models.MODELS["convnet"])
    with pytest.raises(JobError, match=r"^its checkpoint does not fit the code; delete .* anew$"):
        train("parts")
