"""The numbers of a training loop, and that no step waits for them."""

import math
import threading
from contextlib import contextmanager, nullcontext
from typing import get_args, get_type_hints

import pytest
import torch
from torch._dynamo.utils import counters

import run
from engine.cli import parser as cli
from engine.cli.settings import JobSettings
from engine.errors import JobError
from engine.job import journal
from engine.job.folder import Job
from engine.training import compilation, devices, meters
from engine.training.meters import Stopwatch, TrainMeter
from engine.training.precision import Precision
from engine.training.seeding import GlobalStreams

WORDS = {name: get_args(kind) for name, kind in get_type_hints(JobSettings).items()}
CPU = torch.device("cpu")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


class Trapped:
    """Training batches; while all but the first are drawn and used, a context is on."""

    def __init__(self, batches, context):
        self.batches, self.context = batches, context
        self.examples = batches.examples

    def __len__(self):
        return len(self.batches)

    def epoch(self, number, done):
        batches = self.batches.epoch(number, done)
        yield next(batches)  # torch may set itself up: at first, and its loader in every epoch
        with self.context() if number > 2 else nullcontext():
            yield from batches


def train(tmp_path, context, *flags):
    """run.py's own loop, on the digits, with a context on in its steps; its points."""
    words = ["--runs-root", str(tmp_path), "--model", "convnet", "--batch-size", "256", *flags]
    job = Job(
        cli.parse(run.Settings, [*words, "--epochs", "3", "--augment", "crop-flip", "--quiet"])
    )
    job.make_folder()
    job.take()
    job.open()
    precision = Precision(job.settings.precision, devices.choose(job.settings.device))
    streams = GlobalStreams(0, precision.device)
    batches, val_batches, _, _, model = run.load(job.settings, precision.device)
    run.train(job, Trapped(batches, context), val_batches, model, precision, streams)
    return [point for point in points(job.folder) if len(point) == 3]


OPTIONS = ("--clip-norm", "0.1", "--ema", "0.9", "--label-smoothing", "0.1")
STEPS = 3 * 6  # 1,294 examples, in batches of 256


@contextmanager
def no_reading():
    """Fail if the training thread reads a tensor on the host."""

    def refused(method):
        def read(*args, **kwargs):
            if threading.current_thread() is threading.main_thread():
                raise AssertionError("a step read a tensor on the host")
            return method(*args, **kwargs)

        return read

    with pytest.MonkeyPatch.context() as trap:
        for name in ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__"):
            trap.setattr(torch.Tensor, name, refused(getattr(torch.Tensor, name)))
        yield


@contextmanager
def no_waiting():
    """Fail if the host waits for the GPU."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def at_once(monkeypatch):
    """Blocks of numbers leave the device after every step."""
    monkeypatch.setattr(meters, "INTERVAL", 0)


@pytest.mark.parametrize("loader", ["resident", "workers"])
@pytest.mark.parametrize("optimizer", WORDS["optimizer"])
def test_steps_never_read_the_device(tmp_path, at_once, optimizer, loader):
    flags = ("--device", "cpu", "--optimizer", optimizer, "--loader", loader, "--workers", "0")
    assert len(train(tmp_path, no_reading, *flags, *OPTIONS, "--eval-beside")) == STEPS


@pytest.mark.parametrize("read", ["item", "tolist", "__bool__", "numpy"])
def test_a_step_that_reads_is_caught(tmp_path, monkeypatch, read):
    monkeypatch.setattr(run.Progress, "step", lambda _: getattr(torch.ones(1), read)())
    with pytest.raises(AssertionError, match="a step read a tensor"):
        train(tmp_path, no_reading, "--device", "cpu", "--model", "mlp")


@pytest.mark.slow
def test_compiled_once_for_all_epochs_and_for_the_next_job(tmp_path, monkeypatch):
    """Though each last batch is smaller, and each epoch is evaluated, by another thread."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compilation, "events", [])
    torch._dynamo.reset()  # what other tests have compiled
    counters.clear()
    flags = ("--device", "cpu", "--model", "mlp", "--compile", "on", "--val-fraction", "0.5")
    refuse = lambda: torch.compiler.set_stance("fail_on_recompile")  # noqa: E731
    train(tmp_path, refuse, *flags, "--ema", "0.9", "--eval-beside")
    assert compilation.events == []
    assert counters["stats"]["unique_graphs"] == 2  # to train, to evaluate
    before = cached()
    torch._dynamo.reset()  # as in another process
    train(tmp_path, nullcontext, *flags, "--seed", "1")
    assert cached() > before


def cached():
    """How often compiled code came from the cache."""
    return counters["aot_autograd"]["autograd_cache_hit"]


@needs_gpu
@pytest.mark.parametrize("loader", ["resident", "workers"])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_steps_never_wait_for_the_gpu(tmp_path, at_once, precision, loader):
    flags = ("--device", "cuda", "--precision", precision, "--loader", loader, "--workers", "1")
    assert len(train(tmp_path, no_waiting, *flags, *OPTIONS)) == STEPS


@needs_gpu
def test_fp16_learns(tmp_path):
    losses = [loss for _, loss, _ in train(tmp_path, nullcontext, "--precision", "fp16")]
    assert sum(losses[-6:]) < sum(losses[:6])


def points(folder):
    """(step, train_loss, lr) of the journal's metrics."""
    with (folder / journal.FILE).open("rb") as file:
        lines = [line for line in journal.read(file) if "metrics" in line]
    return [(line["step"], *line["metrics"].values()) for line in lines]


@pytest.fixture
def meter(tmp_path):
    return lambda every="auto", steps=9: TrainMeter(
        journal.Journal(tmp_path, every), every, steps, CPU
    )


def feed(meter, losses, start=1):
    """Steps with these losses and a tenth of the step as their rate; one of two is right."""
    logits, labels = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1])
    for step, loss in enumerate(losses, start):
        meter.update(torch.tensor(loss), logits, labels, step / 10)


def test_points_are_means_under_the_last_of_their_steps(tmp_path, meter):
    meter = meter(every=3)
    feed(meter, [1.0, 2.0, 3.0, 4.0])
    meter.flush()
    assert meter.end_epoch() == {"train_accuracy": 0.5}
    assert points(tmp_path) == [(3, 2.0, 0.3)]
    feed(meter, [6.0, 8.0, 9.0], start=5)
    meter.flush()
    assert meter.end_epoch() == {"train_accuracy": 0.5}
    assert points(tmp_path) == [(3, 2.0, 0.3), (6, 6.0, 0.6)]


def test_the_last_steps_are_written_though_too_few_for_a_mean(tmp_path, meter):
    meter = meter(every=3)
    feed(meter, [1.0, 2.0, 3.0, 4.0, 6.0])
    meter.flush()
    meter.close()
    meter.close()
    assert points(tmp_path) == [(3, 2.0, 0.3), (5, 5.0, 0.5)]


def test_every_point_is_written_once_however_many(tmp_path, meter):
    meter, count = meter(every=1), 2 * meters.BLOCK + 7
    feed(meter, [float(step) for step in range(1, count + 1)])
    assert 0 < len(points(tmp_path)) < count  # blocks leave while training goes on
    meter.flush()
    feed(meter, [0.5], start=count + 1)
    meter.flush()
    expected = [(step, step, step / 10) for step in range(1, count + 1)]
    assert points(tmp_path) == [*expected, (count + 1, 0.5, (count + 1) / 10)]


@pytest.mark.parametrize(("steps", "every"), [(9, 1), (1000, 1), (5999, 5)])
def test_auto_makes_about_1000_points(tmp_path, meter, steps, every):
    meter = meter(steps=steps)
    feed(meter, [1.0] * 10)
    meter.flush()
    assert [step for step, *_ in points(tmp_path)] == list(range(every, 11, every))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_loss_that_is_not_finite_is_named_with_its_step(tmp_path, meter, bad):
    meter = meter(every=1)
    feed(meter, [1.0, 1.0, bad, 1.0])
    with pytest.raises(JobError, match=r"^train_loss was not finite by optimizer step 3; lower --"):
        meter.flush()
    assert [step for step, *_ in points(tmp_path)] == [1, 2, 3, 4]


class Clock:
    """A clock that is set by hand."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


def test_stopwatch_tells_waiting_from_training_and_goes_on_where_it_was(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(meters, "time", clock)

    def batches():
        for seconds in (1.0, 0.0):
            clock.now += seconds
            yield "batch"

    watch = Stopwatch()
    watch.start()
    for _ in watch.waiting(batches()):
        clock.now += 3.0
    state, again = watch.state_dict(), Stopwatch()
    clock.now += 100.0  # the job is stopped and goes on
    again.load_state_dict(state)
    again.start()
    clock.now += 1.0
    again.trained()
    clock.now += 2.0
    expected = {"epoch_seconds": 10, "examples_per_second": 4, "data_wait_fraction": 1 / 8}
    assert again.end_epoch(32) == expected
    again.start()
    clock.now += 5.0
    again.trained()
    expected = {"epoch_seconds": 5, "examples_per_second": 4, "data_wait_fraction": 0}
    assert again.end_epoch(20) == expected
