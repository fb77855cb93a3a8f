"""The training loop: how long it goes on, when it evaluates, and what its body may do."""

import re

import labjobs
import pytest
import torch
from attempts import steps_of
from labjobs import devices
from labjobs.files import PROJECT
from labjobs.job.terminal import duration
from labjobs.settings import Span
from labjobs.training import progress
from labjobs.training.loop import Job
from labjobs.training.progress import TIMED, WARM_UP
from toy import STEPS, VAL, Loop


@pytest.mark.parametrize(
    ("settings", "evaluated"),
    [
        ({"epochs": 3}, [7, 14, 21]),
        ({"epochs": 3, "eval_every": "2e"}, [14, 21]),
        ({"epochs": 2, "eval_every": "0.5e"}, [4, 7, 10, 14]),
        ({"epochs": 2, "eval_every": "5"}, [5, 10, 14]),
        ({"epochs": 1, "eval_every": "0.01e"}, [1, 2, 3, 4, 5, 6, 7]),
        ({"epochs": 1, "eval_every": "100e"}, [7]),
        ({"steps": 9}, [7, 9]),
        ({"steps": 9, "eval_every": "3"}, [3, 6, 9]),
        ({"steps": 2}, [2]),
    ],
)
def test_when_it_evaluates_and_ends(toy, settings, evaluated):
    settings = settings | {"eval_every": Span(settings.get("eval_every", "1e"))}
    done = toy.done(**settings, monitor="none")
    assert steps_of(done, "val_loss") == evaluated
    assert [epoch for _, epoch in done.curves()["epoch"]] == [step / STEPS for step in evaluated]
    assert steps_of(done, "train_loss")[-1] == evaluated[-1]
    assert {line["of"] for line in done.journal() if "val_loss" in line.get("metrics", {})} == {
        evaluated[-1]
    }
    (results,) = [line for line in done.journal() if "test_loss" in line.get("metrics", {})]
    assert results["metrics"]["best_step"] == results["step"] == evaluated[-1]


def test_minutes_are_measured_and_kept(toy):
    done = toy.done(minutes=0.005, eval_every=Span("10"))
    totals = [line.get("of") for line in done.journal() if "val_loss" in line.get("metrics", {})]
    assert totals[0] is None
    assert steps_of(done, "val_loss")[-1] == totals[-1] >= WARM_UP + TIMED


class Fractions(Loop):
    """Notes what schedules go by."""

    def train(self, job, forward, model, batches, val):
        self.seen = []
        self.span = job.span(Span("2e")), job.span(Span("3"))
        super().train(job, forward, model, batches, val)

    def step(self, job, *others):
        self.seen.append((job.step, job.total_steps, job.fraction_done))
        super().step(job, *others)


def test_schedules_go_by_the_fraction_that_is_done(toy):
    loop = Fractions()
    toy.run(loop=loop, epochs=2)
    assert loop.seen == [(step, 14, step / 14) for step in range(14)]
    assert loop.span == (14, 3)


@pytest.mark.parametrize("background", [False, True])
def test_early_stopping_ends_the_job_with_the_best_weights(toy, background):
    settings = {"epochs": 30, "lr": 0.5, "patience": 2, "background": background}
    done = toy.run(**settings)
    losses = done.curves()["val_loss"]
    best_step, best = min(losses, key=lambda point: point[1])
    assert len(losses) < 30
    assert "training ended early, after " in done.log
    assert losses.index((best_step, best)) == len(losses) - 3
    assert done.curves()["best_val_loss"] == [(best_step, best)]
    assert done.checkpoint("best.pt")["step"] == best_step


@pytest.mark.parametrize("settings", [{}, {"lr": 0.5, "patience": 1, "epochs": 30}])
def test_evaluation_in_the_background_has_the_results_of_synchronous_evaluation(toy, settings):
    runs = [toy.run(name, background=name == "b", ema=0.5, **settings) for name in "ab"]
    models, curves = zip(*((run.content()[0]["models"], run.curves()) for run in runs), strict=True)
    assert models[0] == models[1]
    for name in ("val_loss", "val_accuracy", "best_val_loss", "test_loss"):
        assert curves[0][name] == curves[1][name]


class Fails(Loop):
    """An evaluation that fails in its thread."""

    def evaluate(self, *others):
        raise ValueError("no such class")


def test_a_failed_evaluation_in_the_background_fails_the_job_in_one_line(toy):
    done = toy.run(loop=Fails(), background=True)
    assert done.status == 1
    assert "failed: ValueError: no such class (full trace: " in done.said.splitlines()[-1]


@pytest.mark.parametrize("metric", ["val_loss", "val_accuracy"])
def test_the_best_is_the_lowest_or_the_highest_as_declared(toy, metric):
    done = toy.run(epochs=9, lr=0.5, monitor=metric)
    best = {"val_loss": min, "val_accuracy": max}[metric]
    values = [value for _, value in done.curves()[metric]]
    assert values.index(best(values)) < len(values) - 1  # or it would be the last by chance
    assert done.checkpoint("best.pt")["metrics"][metric] == best(values)


def test_nothing_monitored_keeps_the_last_weights(toy):
    done = toy.run(epochs=9, lr=0.5, monitor="none")
    assert done.checkpoint("best.pt")["step"] == 9 * STEPS


def test_without_validation_data(toy):
    done = toy.done(loop=Loop(val_on=None), monitor="none")
    assert done.checkpoint("best.pt")["step"] == 3 * STEPS
    assert not any(name.startswith("val_") for name in done.curves())


def test_a_metric_that_is_not_measured_cannot_be_monitored(toy):
    done = toy.run(loop=Loop(val_on=None))
    assert done.status == 1
    assert "failed: --monitor val_loss: evaluate() returned no such metric, only none" in done.said


class Timed:
    """A clock by which a step takes 1 s, the first one 100 s, and an evaluation 30 s."""

    now, steps = 0.0, 0

    def hook(self, what, job):
        self.steps += what == "step"
        self.now += {"step": 1 if self.steps > 1 else 100, "batch": 10}[what]

    def monotonic(self):
        return self.now


def test_the_time_left_counts_evaluations_and_not_the_warm_up(toy, monkeypatch):
    monkeypatch.setattr(progress, "time", clock := Timed())
    done = toy.run(loop=Loop(hook=clock.hook), epochs=6)
    said = re.findall(r"epoch (\d).*?(?:, ([0-9 a-z]+) left)?$", done.said, re.MULTILINE)
    each = STEPS + 30
    left = ["", "", *(duration(epochs * each) for epochs in (3, 2, 1)), ""]
    assert said == [(str(epoch), text) for epoch, text in enumerate(left, 1)]


def test_the_docs_name_all_that_scripts_may_use():
    page = (PROJECT / "labjobs" / "docs" / "job.md").read_text()
    of_the_engine = {"start", "stop", "finish", "close", "end_training"}
    of_the_engine |= {"check_end", "check_finite"}
    of_scripts = {name for name in dir(Job) if name[0] != "_"} - of_the_engine
    used = {f"job.{name}" for name in of_scripts} | {*labjobs._homes()} - {"Job"}
    assert used == {name for name in used if re.search(rf"`{re.escape(name)}\b", page)}


def test_fraction_of_minutes_is_that_of_the_time_until_the_steps_are_known(toy):
    loop = Fractions()
    toy.run(loop=loop, minutes=0.01)
    unknown = [fraction for _, total, fraction in loop.seen if not total]
    assert len(unknown) == WARM_UP + TIMED
    assert 0 <= unknown[0] < unknown[-1] <= 1 and unknown == sorted(unknown)
    assert all(fraction == step / total for step, total, fraction in loop.seen if total)


class Silent(Loop):
    """A loop that measures nothing."""

    def train(self, job, *others):
        job.log = lambda *measured, **more: None
        super().train(job, *others)


def test_an_interval_is_over_once_the_device_has_done_it(toy, monkeypatch):
    """Or its speed would be the host's."""
    waits = []
    monkeypatch.setattr(devices, "wait_for_stream", waits.append)
    toy.done(loop=Silent(), epochs=2)
    assert waits == [torch.device("cpu")] * 2


class TwoSets(Loop):
    """Has a second, shorter set of shuffled batches, made before or after the one to train on, and
    reads its first batch, or one more at each step."""

    def __init__(self, first, across):
        super().__init__()
        self.first, self.across = first, across

    def batches(self, job):
        parts = [VAL, self.train_on] if self.first else [self.train_on, VAL]
        made = {part: job.batches(part, 8, shuffle=True) for part in parts}
        self.others = iter(made[VAL])
        next(self.others)
        return made[self.train_on]

    def step(self, job, forward, model, batch, optimizer):
        if self.across:
            next(self.others)
        super().step(job, forward, model, batch, optimizer)


@pytest.mark.parametrize(
    ("first", "across", "said"),
    [
        (False, False, ""),
        (True, False, "an epoch has 7 steps, but job.total_steps went by 3"),
        (False, True, "batches are read from step to step outside of job.steps"),
    ],
    ids=["looked at", "made first", "read across steps"],
)
def test_what_a_second_set_of_batches_may_do(toy, first, across, said):
    done = toy.run(loop=TwoSets(first, across), epochs=1)
    assert said in done.said and done.status == bool(said)
