"""What a training loop is made of: EMA, early stopping, clipping, precision, times."""

import math
import re
from types import SimpleNamespace

import pytest
import torch
from labjobs.devices import GlobalStreams
from labjobs.errors import Diverged, JobError
from labjobs.settings import Metric
from labjobs.training import compilation, progress
from labjobs.training.optim import EMA, EarlyStopping, clip_gradients
from torch import nn

METRICS = {"mae": Metric(better="lower"), "r2": Metric(better="higher")}


@pytest.mark.parametrize(
    ("monitor", "values"),
    [("val_mae", [3.0, 1.0, 2.0, 1.0, 1.5]), ("val_r2", [0.1, 0.9, 0.5, 0.9, 0.8])],
)
def test_early_stopping_keeps_the_earliest_best_in_the_declared_direction(monitor, values):
    stopping, never = EarlyStopping(METRICS, monitor, patience=3), EarlyStopping(METRICS, monitor)
    improved, due = [], []
    for value in values:
        improved.append(stopping.improved({"val_mae": 0, "val_r2": 0, monitor: value}))
        due.append(stopping.due)
        never.improved({monitor: value})
        assert not never.due
    assert improved == [True, True, False, False, False]
    assert due == [False, False, False, False, True]
    assert stopping.best_evaluation == 2


def test_while_a_metric_is_not_defined_it_is_worse_than_any_value():
    stopping, nan = EarlyStopping(METRICS, "val_r2"), {"val_r2": math.nan, "val_loss": 1.0}
    seen = [nan, nan, {"val_r2": -9.0}, nan, {"val_r2": 0.5}]
    assert [stopping.improved(each) for each in seen] == [True, True, True, False, True]
    with pytest.raises(Diverged, match="val_r2 was not finite"):
        stopping.improved({"val_r2": math.nan})


def test_a_metric_that_is_not_declared_cannot_be_monitored():
    line = "METRICS in settings.py has no r3 (did you mean val_r2?); add a line if it is measured"
    with pytest.raises(JobError, match=re.escape(f"--monitor val_r3: {line}")):
        EarlyStopping(METRICS, "val_r3")


@pytest.mark.parametrize("buffers", [False, True])
def test_the_ema_follows_the_weights_and_has_the_models_buffers(buffers):
    model = nn.BatchNorm1d(1, track_running_stats=buffers)
    ema = EMA(model, 0.5)
    expected, weight = torch.ones(1), model.weight.detach()
    for step, value in enumerate((3.0, -1.0, 7.0, 2.0, 5.0, 4.0, 8.0, 6.0, 0.5, 9.0), start=1):
        weight.fill_(value)
        for buffer in model.buffers():
            buffer.fill_(value)
        ema.update()
        kept = min(0.5, (1 + step) / (10 + step))
        expected = kept * expected + (1 - kept) * value
    assert ema.model.weight.detach() == pytest.approx(expected)
    assert [buffer.item() for buffer in ema.model.buffers()] == [9] * 3 * buffers


def test_the_ema_follows_buffers_that_are_replaced():
    model = nn.Module()
    model.register_buffer("center", torch.zeros(2))
    ema = EMA(model, 0.5)
    model.register_buffer("cache", None)
    with pytest.raises(JobError, match="the model has other buffers since; make it when it is com"):
        ema.update()
    ema = EMA(model, 0.5)
    for step in range(4):
        model.center = torch.full((2,), float(step))
        model.cache = torch.ones(step) if step % 2 else None
        ema.update()
        assert torch.equal(ema.model.center, model.center)
        assert (ema.model.cache is None) == (model.cache is None)


def test_an_ema_goes_on_from_a_job_without_one():
    """As in a fork with --ema of a job without it; and the other way round."""
    model = nn.Linear(1, 1)
    ema = EMA(model, 0.5)
    nn.init.constant_(model.weight, 7)
    ema.load_state_dict(EMA(model, 0).state_dict())
    assert ema.model.weight.item() == 7
    EMA(model, 0).load_state_dict(EMA(nn.Linear(1, 1), 0.5).state_dict())
    assert model.weight.item() == 7


def test_the_ema_follows_a_model_whose_tensors_were_moved():
    model = nn.Linear(1, 1)
    ema = EMA(model, 0.5)
    model.double().float()  # elsewhere in memory, as after model.to(device)
    nn.init.constant_(model.weight, 1e6)
    ema.update()
    assert ema.model.weight.item() > 1e5
    ema = EMA(model, 0.5)
    model.to("meta")
    with pytest.raises(JobError, match=r"^EMA: the model has been moved since; make it after"):
        ema.update()


def test_the_speed_counts_all_training_of_an_interval(monkeypatch):
    """Also what comes before an evaluation that is logged between two steps."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(progress, "time", clock)
    watch = progress.Stopwatch()
    watch.start({})
    for _ in range(4):
        clock.now += 1
        watch.trained(8)
        assert watch.elapsed == clock.now
    watch.end_steps()
    assert watch.rates["examples_per_second"] == 8


def test_random_numbers_go_on_on_another_kind_of_device():
    streams = GlobalStreams(0, torch.device("cpu"))
    state = streams.state_dict() | {"device": {"cuda": torch.zeros(16, dtype=torch.uint8)}}
    drawn = torch.rand(3)
    streams.load_state_dict(state)
    assert torch.equal(torch.rand(3), drawn)


def test_plateaus_are_counted_after_evaluations_without_a_better_one():
    stopping, seen = EarlyStopping(METRICS, "val_r2", plateau=3), []
    for value in (1, 0, 0, 2, *[0] * 6, 3, 0, 0):
        stopping.improved({"val_r2": value})
        seen.append(stopping.plateaus)
    assert seen == [0] * 6 + [1] * 3 + [2] * 4


@pytest.mark.parametrize("limit", [1.0, 100.0])
def test_gradients_of_several_types_are_cut_as_by_torch(limit):
    kinds = (torch.float32, torch.bfloat16, torch.float32, torch.float16)
    ours, torchs = ([nn.Parameter(torch.ones(5, 3, dtype=kind)) for kind in kinds] for _ in "ab")
    for mine, theirs in zip(ours, torchs, strict=True):
        mine.grad = torch.randn(5, 3).to(mine.dtype)
        theirs.grad = mine.grad.clone()
    norm = nn.utils.clip_grad_norm_(torchs, limit)
    assert clip_gradients(ours, limit).item() == pytest.approx(norm.item(), rel=1e-3)
    for mine, theirs in zip(ours, torchs, strict=True):
        assert mine.grad.dtype == theirs.grad.dtype
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_a_schedule_in_a_step_that_could_be_a_graph_goes_on_without_one():
    """As with --graph off, which is what a job is told to add for it."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def step(_batch):
        optimizer.step()
        schedule.step()

    take = compilation.rounded_rates(step, {"optimizer": optimizer})
    for _ in range(2):
        take(None)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.025)
