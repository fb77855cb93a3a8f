"""The numbers of a training loop on their way into the journal, step by step."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from labjobs import layout
from labjobs.distributed.collectives import Processes
from labjobs.errors import Diverged, JobError
from labjobs.job import journal
from labjobs.job.journal import Journal
from labjobs.settings import Metric
from labjobs.training import meters
from labjobs.training.meters import STEPS, VALUES, TrainMeter

CPU = torch.device("cpu")
DECLARED = {"loss": Metric(better="lower")}


class Training:
    """A meter and its journal."""

    def __init__(self, folder: Path, every: int | str = 1, steps: int | None = 100) -> None:
        self.path = folder / layout.JOURNAL
        self.meter = TrainMeter(Journal(folder, every), CPU, DECLARED, Processes())
        self.meter.choose_spacing(steps)
        self.step = 0

    def take(self, count: int = 1, **measured: object) -> None:
        """Take steps that all measure the same; by default their loss is their number."""
        for _ in range(count):
            self.step += 1
            loss = torch.tensor([float(self.step)])
            self.meter.add(measured or {"loss": loss})
            self.meter.end_step(self.step)

    def points(self) -> list[tuple[int, dict[str, float]]]:
        """Return (step, metrics) of the points in the journal."""
        with self.path.open("rb") as file:
            said = journal.Reader(file).read()
        return [(line["step"], line["metrics"]) for line in said if "metrics" in line]


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still: nothing is written because time has passed."""
    found = SimpleNamespace(now=0.0, monotonic=lambda: found.now)
    monkeypatch.setattr(meters, "time", found)
    return found


def test_points_come_some_steps_late_or_by_time(tmp_path, clock):
    training = Training(tmp_path)
    training.take(2 * STEPS - 1)
    assert training.points() == []
    training.take()  # the second copy is sent, once the first has come
    assert [step for step, _ in training.points()] == [*range(1, STEPS + 1)]
    clock.now += 1.1
    training.take()
    assert len(training.points()) == 2 * STEPS
    training.take(3)
    assert len(training.points()) == 2 * STEPS
    training.meter.flush()
    assert training.points() == [(n, {"train_loss": n}) for n in range(1, training.step + 1)]


def test_what_is_changed_in_place_is_logged_as_it_was(tmp_path, clock):
    training, scale = Training(tmp_path), torch.nn.Parameter(torch.zeros(2))
    for _ in range(3):
        training.take(scale=scale.detach()[0], double=(2 * scale).sum(), both=(scale, 2))
        with torch.no_grad():
            scale += 1
    with torch.inference_mode():
        training.take(scale=scale.detach()[0])
        scale += 1
    training.meter.flush()
    assert [each["train_scale"] for _, each in training.points()] == [0, 1, 2, 3]
    wanted = [{"train_scale": n, "train_double": 4 * n, "train_both": n} for n in range(3)]
    assert [each for _, each in training.points()][:3] == wanted


def test_what_was_changed_unseen_is_refused(tmp_path, clock):
    training, mean = Training(tmp_path), torch.zeros(())
    training.take()
    training.take(mean=mean)
    mean += 1
    with pytest.raises(JobError, match=r"mean was changed in place .*; log mean\.clone\(\)"):
        training.meter.flush()


def test_a_metric_that_is_a_number_of_the_host_is_averaged_and_has_to_be_finite(tmp_path, clock):
    """As it is if it comes as a tensor: losses are often logged as loss.item()."""
    training = Training(tmp_path, every=2)
    for loss in (1.0, 2.0, 3.0, math.nan):
        training.take(loss=loss, lr=loss)
    with pytest.raises(Diverged, match="train_loss was not finite by optimizer step 4"):
        training.meter.flush()
    assert training.points()[0] == (2, {"train_loss": 1.5, "lr": 2.0})


def test_so_many_values_at_most_wait_on_the_device(tmp_path, clock):
    training = Training(tmp_path)
    large = {"loss": torch.ones(VALUES // 2)}
    training.take(2, **large)
    assert training.points() == []
    training.take(4, **large)  # the third and the sixth are too many
    assert [step for step, _ in training.points()] == [1, 2, 3]


def test_a_point_has_the_numbers_and_the_time_of_its_last_step(tmp_path, clock, monkeypatch):
    training = Training(tmp_path, every=2)
    for step in range(1, 6):
        monkeypatch.setattr(meters, "now", lambda step=step: 1000 + step)
        training.take(loss=torch.ones(1), lr=step / 10)
    training.meter.close(5)
    assert [(n, point["lr"]) for n, point in training.points()] == [(2, 0.2), (4, 0.4), (5, 0.5)]
    with training.path.open("rb") as file:
        times = [line["time"] for line in journal.Reader(file).read() if "metrics" in line]
    assert times == [1002, 1004, 1005]


def test_a_number_that_is_logged_later_is_in_no_point_before(tmp_path, clock):
    training = Training(tmp_path)
    training.take()
    training.take(loss=torch.tensor([2.0]), lr=0.5)
    training.meter.flush()
    assert training.points() == [(1, {"train_loss": 1}), (2, {"train_loss": 2, "lr": 0.5})]


def test_means_since_the_last_time(tmp_path, clock):
    """Of the points in between, each by its number of values."""
    training = Training(tmp_path, every=2)
    training.take(loss=torch.tensor([1.0, 1.0, 1.0]), lr=0.1)
    training.take(3, loss=torch.tensor([5.0]), lr=0.2)
    training.meter.flush()
    assert training.meter.since_last() == {"train_loss": 3.0, "lr": 0.2}
    assert training.meter.since_last() == {"lr": 0.2}
    training.take(3, loss=torch.tensor([7.0]), lr=0.3)
    training.meter.flush()
    assert training.meter.since_last() == {"train_loss": 7.0, "lr": 0.3}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_declared_metric_that_is_not_finite_ends_the_job_with_its_point(tmp_path, clock, value):
    training = Training(tmp_path, every=2)
    training.take(3, norm=torch.tensor(value), loss=torch.tensor(1.0))
    training.take(3, norm=torch.tensor(value), loss=torch.tensor(value))
    said = rf"^train_loss was not finite by optimizer step 4; {Diverged.CURE}$"
    with pytest.raises(Diverged, match=said):
        training.meter.flush()
    assert [step for step, _ in training.points()] == [2, 4]


def test_names_and_values_that_nothing_can_log_are_refused(tmp_path):
    meter = Training(tmp_path).meter
    with pytest.raises(JobError, match=r"^metric 'a b': its name must be letters"):
        meter.add({"a b": torch.ones(1)})
    with pytest.raises(JobError, match=r"^a measurement is a tensor, a number or a pair"):
        meter.add({"a": (1, 2, 3)})


def test_a_pair_may_be_a_list_as_in_an_evaluation(tmp_path, clock):
    training = Training(tmp_path)
    training.take(recall=[torch.tensor(1.0), torch.tensor(2.0)])
    training.meter.flush()
    assert training.points() == [(1, {"train_recall": 0.5})]


def test_many_measurements_of_a_step(tmp_path, clock):
    """One copy holds more than the buffer's initial size."""
    training = Training(tmp_path)
    for step in range(1, 4):
        training.meter.add({f"m{n}": torch.tensor(float(n * step)) for n in range(700)})
        training.meter.end_step(step)
    training.meter.flush()
    wanted = [(step, {f"train_m{n}": n * step for n in range(700)}) for step in range(1, 4)]
    assert training.points() == wanted
