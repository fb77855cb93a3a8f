"""The pieces of a training loop."""

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import torch
from torch import nn

from engine.cli.settings import JobSettings
from engine.errors import JobError, SettingsError
from engine.paths import PROJECT
from engine.training import checkpoints, compilation, optimizers
from engine.training.early_stopping import EarlyStopping
from engine.training.ema import Average
from engine.training.precision import Precision
from engine.training.schedules import PLATEAU_EPOCHS, Schedule

CPU = torch.device("cpu")
WORDS = {name: get_args(kind) for name, kind in get_type_hints(JobSettings).items()}


def course(kind, steps, warmup=0, lr=1.0):
    """The rate of each step, and the one after the last."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=9.0)
    schedule, rates = Schedule(optimizer, kind, lr, steps, warmup), []
    for _ in range(steps + 1):
        assert optimizer.param_groups[0]["lr"] == schedule.lr
        rates.append(schedule.lr)
        schedule.step()
    return rates


def test_schedules_without_warm_up():
    assert course("constant", 9, lr=0.1) == course("plateau", 9, lr=0.1) == [0.1] * 10
    assert course("step", 9) == pytest.approx([1] * 3 + [0.1] * 3 + [0.01] * 4)
    cosine = course("cosine", 100, lr=0.2)
    assert cosine[::25] == pytest.approx([0.2, 0.1 + 0.1 / 2**0.5, 0.1, 0.1 - 0.1 / 2**0.5, 0])
    assert sorted(cosine, reverse=True) == cosine


@pytest.mark.parametrize("kind", WORDS["schedule"])
def test_warm_up_rises_linearly_and_is_never_0(kind):
    rates = course(kind, 24, warmup=4)
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1])
    assert rates[4:] == pytest.approx(course(kind, 20))


def test_plateau_cuts_to_a_tenth_after_epochs_without_a_better_one():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=9.0)
    schedule, rates = Schedule(optimizer, "plateau", 1.0, 100, 0), []
    short, long = [False] * (PLATEAU_EPOCHS - 1), [False] * PLATEAU_EPOCHS
    for improved in [True, *short, True, *long, *long]:
        schedule.epoch(improved)
        rates.append(optimizer.param_groups[0]["lr"])
    same = 2 * PLATEAU_EPOCHS
    assert rates == pytest.approx([1] * same + [0.1] * PLATEAU_EPOCHS + [0.01])


@pytest.mark.parametrize(
    ("monitor", "values"),
    [("val_loss", [3.0, 1.0, 2.0, 1.0, 1.5]), ("val_accuracy", [0.1, 0.9, 0.5, 0.9, 0.8])],
)
def test_early_stopping_keeps_the_earliest_best_epoch(monitor, values):
    stopping, never = EarlyStopping(monitor, patience=3), EarlyStopping(monitor, patience=0)
    improved, due = [], []
    for value in values:
        improved.append(stopping.improved({"val_loss": 0, "val_accuracy": 0, monitor: value}))
        due.append(stopping.due)
        never.improved({monitor: value})
        assert not never.due
    assert improved == [True, True, False, False, False]
    assert due == [False, False, False, False, True]
    assert stopping.best_epoch == 2


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_monitored_metric_that_is_not_finite_ends_the_job(value):
    stopping = EarlyStopping("val_loss", patience=0)
    stopping.improved({"val_loss": 1.0})
    with pytest.raises(JobError, match=r"^val_loss was not finite after epoch 2; lower --lr$"):
        stopping.improved({"val_loss": value})


def test_the_norm_of_all_gradients_together_is_cut():
    model = nn.Linear(3, 1)
    optimizer = optimizers.make(model, "sgd", lr=0.1, weight_decay=0.0)
    for limit, norm in ((0.0, 20.0), (50.0, 20.0), (5.0, 5.0)):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 10.0)  # 4 numbers, of norm 20
        optimizers.clip(optimizer, torch.amp.GradScaler("cpu", enabled=False), limit)
        grads = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        assert grads.norm().item() == pytest.approx(norm)


@pytest.mark.parametrize("buffers", [False, True])
def test_the_average_follows_the_weights_and_has_the_models_buffers(buffers):
    model = nn.BatchNorm1d(1, track_running_stats=buffers)
    average = Average(model, 0.5)
    expected, weight = torch.ones(1), model.weight.detach()
    for step, value in enumerate((3.0, -1.0, 7.0, 2.0, 5.0, 4.0, 8.0, 6.0, 0.5, 9.0), start=1):
        weight.fill_(value)
        for buffer in model.buffers():
            buffer.fill_(value)
        average.update()
        kept = min(0.5, (1 + step) / (10 + step))
        expected = kept * expected + (1 - kept) * value
    assert average.model.weight.detach() == pytest.approx(expected)
    assert [buffer.item() for buffer in average.model.buffers()] == [9] * 3 * buffers
    assert not average.model.weight.requires_grad


def test_without_a_decay_the_average_is_the_model():
    model = nn.Linear(1, 1)
    average = Average(model, 0.0)
    average.update()
    assert average.model is model and average.state_dict() == {}


@pytest.mark.parametrize("name", WORDS["optimizer"])
def test_only_matrices_and_kernels_decay(name):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 2))
    optimizer = optimizers.make(model, name, lr=0.1, weight_decay=0.5)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for old, new in zip(before, model.parameters(), strict=True):
        assert torch.equal(old, new) is (new.ndim < 2)
        assert new.norm() <= old.norm()
    assert optimizer.defaults.get("nesterov", False) is (name == "sgd")
    assert optimizer.defaults.get("momentum", 0) == (0.9 if name == "sgd" else 0)


def test_what_slows_compiled_code_is_told_in_a_line_with_its_place(monkeypatch):
    def broken(x):
        print("not to be compiled")
        return x * 2

    monkeypatch.setattr(compilation, "events", told := [])
    make = compilation.compiler("on", CPU, 1, 3)
    torch.compile(broken, backend="eager")(torch.ones(3))
    torch.compile(lambda x: x + 1, backend="eager", dynamic=False)(torch.ones(4))
    grows = torch.compile(lambda x: x - 1, backend="eager", dynamic=False)
    grows(torch.ones(4)), grows(torch.ones(5))
    assert isinstance(make(nn.Linear(1, 1)), compilation.Compiled)
    (break_line, recompile_line) = told
    place = f"{__file__}:{broken.__code__.co_firstlineno + 1}"
    assert break_line.startswith(f"Graph break in user code at {place}: Graph Break Reason: ")
    assert recompile_line.startswith("Recompiling function <lambda> in ")
    assert recompile_line.endswith("size mismatch at index 0. expected 4, actual 5")


@pytest.mark.parametrize("name", ["fp16", "tf32"])
def test_precision_that_needs_a_gpu_says_so(name):
    with pytest.raises(SettingsError, match=rf"^--precision {name}: needs a CUDA GPU, .*cpu$"):
        Precision(name, CPU)


@pytest.mark.parametrize(("name", "meant"), [("auto", "fp32"), ("fp32", "fp32"), ("bf16", "bf16")])
def test_precision_on_the_cpu(name, meant):
    precision, model = Precision(name, CPU), nn.Linear(4, 2)
    with precision.autocast():
        logits = model(torch.ones(3, 4))
    assert precision.name == meant
    assert logits.dtype == (torch.bfloat16 if meant == "bf16" else torch.float32)
    assert model.weight.dtype == torch.float32
    assert not precision.scaler().is_enabled()


@pytest.mark.parametrize(
    ("choice", "device", "steps", "compiles"),
    [
        ("off", "cuda", 10**6, False),
        ("on", "cpu", 1, True),
        ("auto", "cpu", 10**6, False),
        ("auto", "cuda", compilation.WORTH_STEPS - 1, False),
        ("auto", "cuda", compilation.WORTH_STEPS, True),
    ],
)
def test_auto_compiles_long_jobs_on_cuda(monkeypatch, tmp_path, choice, device, steps, compiles):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    model = nn.Linear(2, 2)
    forward = compilation.compiler(choice, torch.device(device), steps, 64)(model)
    assert isinstance(forward, compilation.Compiled) is compiles
    assert compiles or forward is model


def test_checkpoint_comes_back_as_it_was(tmp_path):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    weights, others = checkpoints.weights(model), {"epoch": 3, "settings": {"lr": 0.1, "note": "é"}}
    checkpoints.save(tmp_path / "best.pt", {"model": weights, **others})
    nn.init.zeros_(model[0].weight)  # what was taken stays as it was
    loaded = checkpoints.load(tmp_path / "best.pt", CPU)
    for name, tensor in loaded.pop("model").items():
        assert torch.equal(tensor, weights[name])
    assert weights["0.weight"].all()
    assert loaded == others


class Code:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def test_checkpoint_with_code_in_it_is_refused_and_does_not_run(tmp_path):
    content = {"model": Code(f"touch '{tmp_path}/ran'")}
    torch.save(content, tmp_path / "plain.pt")
    with pytest.raises(checkpoints.Damaged):
        checkpoints.load(tmp_path / "plain.pt", CPU)
    checkpoints.save(tmp_path / "sealed.pt", content)
    with pytest.raises(JobError, match=r"holds more than data and was not opened: delete it$"):
        checkpoints.load(tmp_path / "sealed.pt", CPU)
    assert not (tmp_path / "ran").exists()


def test_failed_write_leaves_the_old_checkpoint_whole(tmp_path):
    old, new = tmp_path / "old.pt", tmp_path / "new.pt"
    checkpoints.save(old, {"epoch": 1})
    for path in (old, new):
        with pytest.raises(Exception, match=r"pickle|local object"):
            checkpoints.save(path, {"model": torch.ones(1000), "hook": lambda: None})
    assert checkpoints.load(old, CPU) == {"epoch": 1}
    assert not new.exists()


WRITING = """
import sys, threading, torch
from pathlib import Path
from engine.training_state import Writer

weights = torch.ones(10_000_000)
before = weights.isfinite().all()  # training's own threads
count = lambda: len(list(Path("/proc/self/task").iterdir()))
alone = count()
with Writer() as writer:
    writer.write(Path(sys.argv[1]), {"model": {"w": weights, "half": weights.bfloat16()[:9]}})
    writer.act(lambda: print(count() - alone))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
def test_writing_a_checkpoint_starts_no_threads_beside_those_of_training(tmp_path):
    env = os.environ | {"OMP_NUM_THREADS": "4"}
    command = [sys.executable, "-c", WRITING, tmp_path / "last.pt"]
    done = subprocess.run(command, cwd=PROJECT, env=env, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("1\n", "")  # the one that writes
    assert (tmp_path / "last.pt").exists()
