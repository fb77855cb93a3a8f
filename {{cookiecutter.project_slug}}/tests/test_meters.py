"""The numbers of a training loop, and that no step waits for them."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Subset, TensorDataset

from engine import journal, loaders, meters, optimizers
from engine.augmentation import Augmentation
from engine.job import JobError
from engine.meters import Stopwatch, TrainMeter
from engine.precision import Precision
from engine.schedules import Schedule

CPU = torch.device("cpu")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


class Steps:
    """Training steps as in run.py, three an epoch."""

    def __init__(self, device, precision, folder):
        images = torch.arange(10 * 64).to(torch.uint8).view(10, 1, 8, 8)
        examples = Subset(TensorDataset(images, torch.arange(10) % 3), range(10))
        self.batches = loaders.make(examples, device, 4, "resident", seed=0)
        self.precision = Precision(precision, device)
        self.scaler = self.precision.scaler()
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).to(device)
        self.optimizer = optimizers.make(self.model, "adam", 1e-2, 0.1)
        self.schedule = Schedule(self.optimizer, "cosine", 1e-2, 3000, 0)
        self.augment = Augmentation("crop-flip", 0, device)
        self.meter = TrainMeter(journal.Journal(folder), 1, 3000, device)

    def epochs(self, numbers):
        for number in numbers:
            for images, labels in self.batches.epoch(number):
                with self.precision.autocast():
                    logits = self.model(self.augment(images) / 255)
                    loss = cross_entropy(logits, labels)
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()
                self.meter.update(loss, logits, labels, self.schedule.lr)
                self.schedule.step()


def test_steps_never_read_the_device(tmp_path, monkeypatch):
    steps = Steps(CPU, "fp32", tmp_path)

    def refuse(*_args, **_kwargs):
        raise AssertionError("a step read a tensor on the host")

    with monkeypatch.context() as trap:
        for name in ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__"):
            trap.setattr(torch.Tensor, name, refuse)
        steps.epochs(range(100))  # enough for a block to leave, too
    steps.meter.end_epoch()
    assert len(points(tmp_path)) == 300 > meters.BLOCK


@needs_gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_steps_never_wait_for_the_gpu(tmp_path, precision):
    steps = Steps(torch.device("cuda"), precision, tmp_path)
    steps.epochs(range(3))  # the first time, torch may set itself up
    torch.cuda.set_sync_debug_mode("error")
    try:
        steps.epochs(range(3, 60))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    steps.meter.end_epoch()
    assert len(points(tmp_path)) == 180


@needs_gpu
def test_fp16_trains_with_its_scaler(tmp_path):
    steps = Steps(torch.device("cuda"), "fp16", tmp_path)
    steps.epochs(range(100))
    steps.meter.end_epoch()  # JobError if a loss was not finite
    losses = [loss for _, loss, _ in points(tmp_path)]
    assert steps.scaler.is_enabled()
    assert sum(losses[-30:]) < sum(losses[:30])


def points(folder):
    """(step, train_loss, lr) of the journal's metrics."""
    lines, _ = journal.read(folder)
    return [(line["step"], *line["metrics"].values()) for line in lines]


@pytest.fixture
def meter(tmp_path):
    return lambda every="auto", steps=9: TrainMeter(journal.Journal(tmp_path), every, steps, CPU)


def feed(meter, losses, start=1):
    """Steps with these losses and a tenth of the step as their rate; one of two is right."""
    logits, labels = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1])
    for step, loss in enumerate(losses, start):
        meter.update(torch.tensor(loss), logits, labels, step / 10)


def test_points_are_means_under_the_last_of_their_steps(tmp_path, meter):
    meter = meter(every=3)
    feed(meter, [1.0, 2.0, 3.0, 4.0])
    assert meter.end_epoch() == 0.5
    assert points(tmp_path) == [(3, 2.0, 0.3)]
    feed(meter, [6.0, 8.0, 9.0], start=5)
    assert meter.end_epoch() == 0.5
    assert points(tmp_path) == [(3, 2.0, 0.3), (6, 6.0, 0.6)]


def test_the_last_steps_are_written_though_too_few_for_a_mean(tmp_path, meter):
    meter = meter(every=3)
    feed(meter, [1.0, 2.0, 3.0, 4.0, 6.0])
    meter.end_epoch()
    meter.close()
    meter.close()
    assert points(tmp_path) == [(3, 2.0, 0.3), (5, 5.0, 0.5)]


def test_every_point_is_written_once_however_many(tmp_path, meter):
    meter, count = meter(every=1), 2 * meters.BLOCK + 7
    feed(meter, [float(step) for step in range(1, count + 1)])
    assert 0 < len(points(tmp_path)) < count  # blocks leave while training goes on
    meter.end_epoch()
    feed(meter, [0.5], start=count + 1)
    meter.end_epoch()
    expected = [(step, step, step / 10) for step in range(1, count + 1)]
    assert points(tmp_path) == [*expected, (count + 1, 0.5, (count + 1) / 10)]


@pytest.mark.parametrize(("steps", "every"), [(9, 1), (1000, 1), (5999, 5)])
def test_auto_makes_about_1000_points(tmp_path, meter, steps, every):
    meter = meter(steps=steps)
    feed(meter, [1.0] * 10)
    meter.end_epoch()
    assert [step for step, *_ in points(tmp_path)] == list(range(every, 11, every))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_loss_that_is_not_finite_is_named_with_its_step(tmp_path, meter, bad):
    meter = meter(every=1)
    feed(meter, [1.0, 1.0, bad, 1.0])
    with pytest.raises(JobError, match=r"^train_loss was not finite by optimizer step 3; lower --"):
        meter.end_epoch()
    assert [step for step, *_ in points(tmp_path)] == [1, 2, 3, 4]


def test_stopwatch_tells_waiting_from_training(monkeypatch):
    clock = iter([0.0, 1.0, 2.0, 5.0, 6.0, 8.0, 10.0])
    monkeypatch.setattr(meters, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    watch = Stopwatch()  # 0: starts; 1 to 2: waits for the batch; 5 to 6: for the end of them
    assert list(watch.waiting(iter(["batch"]))) == ["batch"]
    watch.trained()
    expected = {"epoch_seconds": 10, "examples_per_second": 4, "data_wait_fraction": 2 / 8}
    assert watch.metrics(32) == expected
