"""The training loop: how long it goes on, when it evaluates, and what its body may do."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from engine.cli import Span
from engine.training.length import TIMED, WARM_UP
from toy import STEPS, At, Loop


def steps_of(done, metric):
    """Return the steps under which a metric was logged."""
    return [step for step, _ in done.curves().get(metric, [])]


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
    done = toy.run(**settings, monitor="none")
    assert done.status == 0, done.said
    assert steps_of(done, "val_loss") == evaluated
    assert [epoch for _, epoch in done.curves()["epoch"]] == [step / STEPS for step in evaluated]
    assert steps_of(done, "train_loss")[-1] == evaluated[-1]
    assert {line["of"] for line in done.journal() if "val_loss" in line.get("metrics", {})} == {
        evaluated[-1]
    }
    (results,) = [line for line in done.journal() if "test_loss" in line.get("metrics", {})]
    assert results["metrics"]["best_step"] == results["step"] == evaluated[-1]


def test_minutes_are_measured_and_kept(toy):
    done = toy.run(minutes=0.005, eval_every=Span("10"))
    assert done.status == 0, done.said
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


def test_fraction_of_minutes_is_that_of_the_time_until_the_steps_are_known(toy):
    loop = Fractions()
    toy.run(loop=loop, minutes=0.01)
    unknown = [fraction for _, total, fraction in loop.seen if not total]
    assert len(unknown) == WARM_UP + TIMED
    assert 0 <= unknown[0] < unknown[-1] <= 1 and unknown == sorted(unknown)
    assert all(fraction == step / total for step, total, fraction in loop.seen if total)


@pytest.mark.parametrize("background", [False, True])
def test_early_stopping_ends_the_job_with_the_best_weights(toy, background):
    settings = {"epochs": 30, "lr": 0.5, "patience": 2, "background": background}
    done = toy.run(**settings)
    losses = done.curves()["val_loss"]
    best_step, best = min(losses, key=lambda point: point[1])
    assert len(losses) < 30
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
    done = toy.run(loop=Loop(val_on=None), monitor="none")
    assert done.status == 0, done.said
    assert done.checkpoint("best.pt")["step"] == 3 * STEPS
    assert not any(name.startswith("val_") for name in done.curves())


def test_a_metric_that_is_not_measured_cannot_be_monitored(toy):
    done = toy.run(loop=Loop(val_on=None))
    assert done.status == 1
    assert "failed: --monitor val_loss: evaluate() returned no such metric, only none" in done.said


class Continuing(Loop):
    """Skips a third of the batches, and the evaluation of every second interval."""

    def train(self, job, forward, model, batches, val):
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        job.resume(model=model, optimizer=optimizer)
        for epoch in job.epochs():
            model.train()
            for batch in job.steps(batches):
                if job.step % 3 == 0:
                    continue
                self.step(job, forward, model, batch, optimizer)
            if epoch % 2:
                continue
            metrics = self.evaluate(model, job, forward, val, "val")
            job.log_epoch(metrics)
            job.keep_best(metrics, model=model)


def test_continue_in_the_body(toy):
    done = toy.run(loop=Continuing(), epochs=4, runtime={"log_every": 1})
    assert done.status == 0, done.said
    assert steps_of(done, "val_loss") == [14, 28]
    assert steps_of(done, "train_loss") == [step for step in range(1, 29) if step % 3 != 1]


class BeforeTraining(Loop):
    """Evaluates once before it trains."""

    def train(self, job, forward, model, batches, val):
        resume = job.resume

        def resume_and_evaluate(**parts):
            resume(**parts)
            if job.step == 0:
                job.log_epoch(self.evaluate(model, job, forward, val, "val"))

        job.resume = resume_and_evaluate
        super().train(job, forward, model, batches, val)


def test_an_evaluation_before_training(toy):
    done = toy.run(loop=BeforeTraining())
    assert done.status == 0, done.said
    assert steps_of(done, "val_loss") == [0, 7, 14, 21]


class Wrong(Loop):
    """A loop with one mistake, by its name."""

    def __init__(self, mistake):
        super().__init__()
        self.mistake = mistake

    def train(self, job, forward, model, batches, val):
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        if self.mistake == "two calls":
            job.resume(model=model)
        if self.mistake != "no resume":
            job.resume(model=model, optimizer=optimizer)
        for _ in job.epochs():
            if self.mistake == "no steps":
                continue
            for batch in job.steps(batches):
                if self.mistake == "break" and job.step == 2:
                    break
                self.step(job, forward, model, batch, optimizer)
            if self.mistake == "other batches":
                list(job.steps(val))
            metrics = self.evaluate(model, job, forward, val, "val")
            job.log_epoch(metrics)
            if self.mistake != "nothing kept":
                job.keep_best(metrics, network=model)


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("no resume", "job.resume(…) has to be called first, with all that has a state"),
        ("no steps", "job.epochs(): its body has to run job.steps(batches) to the end"),
        ("break", "job.epochs(): its body has to run job.steps(batches) to the end"),
        ("other batches", "job.steps(batches): a job has one set of training batches"),
        ("two calls", "job.resume: was called before; name all parts in one call"),
        ("nothing kept", "no best weights of model: call job.keep_best(metrics, model=…)"),
        ("another name kept", "no best weights of model: call job.keep_best(metrics, model=…)"),
    ],
)
def test_a_loop_that_cannot_be_right_is_refused_in_one_line(toy, mistake, said):
    done = toy.run(loop=Wrong(mistake))
    assert done.status == 1
    assert f"failed: {said} (full trace: " in done.said.splitlines()[-1]


class Spoiled(Loop):
    """A loop in which something is not finite from its ninth step on."""

    def __init__(self, what):
        super().__init__()
        self.what, self.other = what, torch.nn.Linear(2, 2)

    def train(self, job, forward, model, batches, val):
        resume, keep_best = job.resume, job.keep_best
        job.resume = lambda **parts: resume(**parts, other=self.other)
        job.keep_best = lambda metrics, model: keep_best(metrics, model=model, other=self.other)
        super().train(job, forward, model, batches, val)

    def step(self, job, forward, model, batch, optimizer):
        super().step(job, forward, model, batch, optimizer)
        if job.step >= 8 and self.what != "loss":
            {"model": model, "other": self.other}[self.what].weight.data.fill_(math.inf)

    def spoiled(self, model, batch, settings):
        loss, measured = Loop.forward(model, batch, settings)
        return loss * math.nan, measured | {"loss": measured["loss"] * math.nan}


@pytest.mark.parametrize("what", ["other"])
def test_weights_of_each_model_are_finite_in_every_checkpoint(toy, what):
    done = toy.run(loop=Spoiled(what), runtime={"checkpoint_minutes": 1e-9}, monitor="none")
    assert done.status == 1
    assert f"diverged: weights of {what} are no longer finite (weight); lower --lr" in done.said
    for file in done.folder.glob("*.pt"):
        parts = torch.load(file, weights_only=True)
        weights = parts.get("parts", parts.get("models"))[what]["weight"]
        assert weights.isfinite().all()


class Loss(Loop):
    """A declared metric, the loss, or another one is NaN from the ninth step on."""

    def __init__(self, name):
        super().__init__()
        self.name = name

    def step(self, job, forward, model, batch, optimizer):
        super().step(job, forward, model, batch, optimizer)
        job.log({self.name: torch.tensor(math.nan if job.step >= 8 else 1.0)})


def test_a_declared_metric_that_is_not_finite_ends_the_job_with_its_step(toy):
    done = toy.run(loop=Loss("loss"), runtime={"log_every": 1})
    assert done.status == 1
    assert "diverged: train_loss was not finite by optimizer step 9; lower --lr" in done.said
    again = toy.run(loop=Loss("loss"))
    assert again.status == 1
    assert steps_of(done, "train_loss")[-1] >= 9


def test_another_metric_may_be_anything(toy):
    done = toy.run(loop=Loss("extra"), runtime={"log_every": 1})
    assert done.status == 0, done.said
    assert math.isnan(done.curves()["train_extra"][8][1])


class NotFinite(Loop):
    """Validation results are not finite in the second evaluation."""

    def evaluate(self, model, job, *others):
        metrics = super().evaluate(model, job, *others)
        return metrics if job.step < 14 else dict.fromkeys(metrics, math.nan)


def test_a_monitored_metric_that_is_not_finite_ends_the_job(toy):
    done = toy.run(loop=NotFinite())
    assert done.status == 1
    assert "diverged: val_loss was not finite; lower --lr" in done.said


class OtherNumbers(Loop):
    """Logs numbers of other libraries."""

    def step(self, job, forward, model, batch, optimizer):
        super().step(job, forward, model, batch, optimizer)
        job.log(beta=np.float32(0.5), rounds=3, norm=torch.tensor(2.0), ok=np.int64(1))

    def evaluate(self, *args):
        metrics = super().evaluate(*args)
        return metrics | {"val_other": np.float32(0.25), "val_tensor": torch.tensor(0.5)}


def test_numbers_of_other_kinds_are_logged_as_numbers(toy):
    done = toy.run(loop=OtherNumbers(), epochs=1, runtime={"log_every": 7})
    assert done.status == 0, done.said
    curves = done.curves()
    assert (
        curves["beta"] == [(7, 0.5)] and curves["rounds"] == [(7, 3)] and curves["ok"] == [(7, 1)]
    )
    assert curves["train_norm"] == [(7, 2.0)]
    assert curves["val_other"] == [(7, 0.25)] and curves["val_tensor"] == [(7, 0.5)]


class Clock:
    """A part whose state is a number, first of one kind, then of another."""

    def __init__(self, first, then):
        self.value, self.then = first, then

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


@dataclass
class WithState(Loop):
    """A loop with a part of the student's own."""

    part: Any = None

    def train(self, job, forward, model, batches, val):
        resume = job.resume
        job.resume = lambda **parts: resume(**parts, part=self.part)
        super().train(job, forward, model, batches, val)

    def step(self, *others):
        super().step(*others)
        self.part.value = self.part.then


def test_a_part_may_hold_numpys_numbers(toy):
    part = Clock(np.float64(1.0), np.float32(0.5))
    stopped = toy.run(loop=WithState(part=part), stop=At("step", 5))
    assert stopped.status == 143, stopped.said
    again = WithState(part=Clock(0.0, 0.0))
    assert toy.run(loop=again).status == 0
    assert toy.run(loop=again).checkpoint("last.pt")["parts"]["part"] == {"value": 0.0}


@pytest.mark.parametrize(
    ("first", "then", "kind"),
    [({"a": [slice(1)]}, 0, "slice"), (0, slice(1), "slice"), (0, np.zeros(2), "ndarray")],
)
def test_a_state_that_could_not_be_read_again_is_refused(toy, first, then, kind):
    """At once, or when it comes up."""
    part = Clock(first, then)
    done = toy.run(loop=WithState(part=part), runtime={"checkpoint_minutes": 1e-9})
    assert done.status == 1
    said = f"the state of part holds a {kind}; only tensors and plain values can be read again"
    assert f"failed: job.resume: {said} (full trace: " in done.said
