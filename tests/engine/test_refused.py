"""What a loop cannot be right with: said in one line, and in no checkpoint."""

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from toy import Loop


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
        ("no resume", "call job.resume(…) first, with everything that has a state"),
        ("no steps", "job.epochs(): its body must run job.steps(batches) to the end"),
        (
            "other batches",
            "job.steps(batches): a job trains on one set of batches; where they change, give "
            "job.batches a function that chooses them (`python jobs.py docs recipes`)",
        ),
        ("two calls", "job.resume: was already called; pass all parts in one call"),
        ("nothing kept", "no best weights of model: call job.keep_best(metrics, model=…)"),
    ],
)
def test_a_loop_that_cannot_be_right_is_refused_in_one_line(toy, mistake, said):
    done = toy.run(loop=Wrong(mistake))
    assert done.status == 1
    assert f"failed: {said} (full trace: " in done.said.splitlines()[-1]


class Spoiled(Loop):
    """A loop with a second model, whose weights are not finite from the ninth step on."""

    def train(self, job, forward, model, batches, val):
        self.other = torch.nn.Linear(2, 2)
        resume, keep_best = job.resume, job.keep_best
        job.resume = lambda **parts: resume(**parts, other=self.other)
        job.keep_best = lambda metrics, model: keep_best(metrics, model=model, other=self.other)
        super().train(job, forward, model, batches, val)

    def step(self, job, *others):
        super().step(job, *others)
        if job.step >= 8:
            self.other.weight.data.fill_(math.inf)


@pytest.mark.parametrize("minutes", [1e-9, 10])
def test_weights_of_each_model_are_finite_in_every_checkpoint(toy, minutes):
    done = toy.run(loop=Spoiled(), runtime={"checkpoint_minutes": minutes}, monitor="none")
    assert done.status == 1
    said = "diverged: weights of other are no longer finite (weight); lower the learning rate"
    assert said in done.said
    for file in done.folder.glob("*.pt"):
        kept = torch.load(file, weights_only=True)
        assert kept.get("parts", kept.get("models"))["other"]["weight"].isfinite().all()


class Raising(Loop):
    """A loop with a loss like binary_cross_entropy, which raises an error for NaN; what is not
    finite is spoiled in the fifth step."""

    def __init__(self, spoiled):
        super().__init__()
        self.spoiled = spoiled

    def train(self, job, *others):
        scaler, resume = torch.amp.GradScaler("cpu", enabled=False), job.resume
        job.resume = lambda **parts: resume(**parts, scaler=scaler)  # as without --precision fp16
        super().train(job, *others)

    def step(self, job, forward, model, batch, optimizer):
        super().step(job, forward, model, batch, optimizer)
        if job.step == 4:
            weight = next(model.parameters())
            if self.spoiled == "weights":
                weight.data.fill_(math.nan)
            elif self.spoiled == "gradients":
                weight.grad = torch.full_like(weight, math.inf)
            elif self.spoiled == "loss":
                job.log({"loss": torch.tensor(math.nan)})
            raise RuntimeError("all elements of input should be between 0 and 1")


@pytest.mark.parametrize("spoiled", ["weights", "gradients", "loss", "nothing"])
def test_an_error_of_what_is_not_finite_is_a_divergence(toy, spoiled):
    done = toy.run(loop=Raising(spoiled), runtime={"log_every": 1})
    assert done.status == 1
    last = done.said.splitlines()[-1]
    assert "RuntimeError: all elements of input should be between 0 and 1" in last
    assert ("failed: " if spoiled == "nothing" else "diverged: ") in last
    assert spoiled == "nothing" or spoiled in last
    outcome = json.loads((done.folder / "outcome.json").read_bytes())
    assert outcome["status"] == ("failed" if spoiled == "nothing" else "diverged")
    points = [json.loads(line) for line in (done.folder / "metrics.jsonl").open(encoding="utf-8")]
    assert 4 in [point.get("step") for point in points]


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


@pytest.mark.parametrize(
    ("first", "then", "kind"),
    [({"a": [slice(1)]}, 0, "slice"), (0, slice(1), "slice"), (0, np.zeros(2), "ndarray")],
)
def test_a_state_that_could_not_be_read_again_is_refused(toy, first, then, kind):
    """At once, or when it comes up."""
    part = Clock(first, then)
    done = toy.run(loop=WithState(part=part), runtime={"checkpoint_minutes": 1e-9})
    assert done.status == 1
    said = f"the state of part holds a {kind}; only tensors and plain values can be restored"
    assert f"failed: job.resume: {said} (full trace: " in done.said


class Evaluated(Loop):
    """Returns something more from each evaluation."""

    def __init__(self, **more):
        super().__init__()
        self.more = more

    def evaluate(self, model, job, *others):
        return super().evaluate(model, job, *others) | self.more


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"a/../b": 1.0}, "metric 'a/../b': its name must be letters, digits, '_', '-' and '.'"),
        ({"x": torch.zeros(3)}, "metric x: must be a number ("),
        ({"val_loss": math.nan}, "diverged: val_loss was not finite; lower the learning rate"),
        ({"val_accuracy": 2.2}, "val_accuracy is 2.2, which is outside of its range (0, 1)"),
        ({"train_loss": 1.0}, "train_loss: job.log has logged that of the same steps; log the"),
    ],
)
def test_results_that_cannot_be_logged_are_refused_at_once(toy, more, said):
    done = toy.run(loop=Evaluated(**more))
    assert done.status == 1
    assert said in done.said
