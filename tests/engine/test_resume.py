"""A job that is interrupted and continued ends as if nothing had happened, bit for bit."""

import math
import random

import numpy as np
import pytest
import torch
from attempts import At
from labjobs.settings import Span
from labjobs.training.meters import UNKNOWN
from labjobs.training.optim import clip_gradients
from labjobs.training.progress import TIMED, WARM_UP
from torch import nn
from toy import STEPS, Loop

ALL = {"accumulate": 3, "ema": 0.9, "clip_norm": 0.5, "precision": "bf16", "schedule": "linear"}
VAL_BATCHES = 3


def assert_continues(toy, *stops, loop=None, runtime=None, **settings):
    """Stop a job at these moments in turn, and hold its end against an undisturbed one."""
    whole = toy.done("whole", loop, runtime=runtime, **settings)
    for stop in stops:
        stopped = toy.run("parts", loop, stop=stop, runtime=runtime, **settings)
        assert stopped.status == 143, stopped.said
    parts = toy.done("parts", loop, runtime=runtime, **settings)
    assert parts.content() == whole.content()


@pytest.mark.parametrize("step", range(1, 2 * STEPS + 1))
def test_at_any_step(toy, step):
    assert_continues(toy, At("step", step), runtime={"log_every": 4}, epochs=2, **ALL)


@pytest.mark.parametrize("batch", range(1, 3 * VAL_BATCHES + 1))
def test_at_any_batch_of_an_evaluation(toy, batch):
    """The last evaluation is that of the test examples."""
    assert_continues(toy, At("batch", batch), epochs=2, ema=0.9, monitor="val_accuracy")


@pytest.mark.parametrize(
    "stop", [At("step", 5), At("step", 20), *(At("batch", n) for n in (1, 4, 9))]
)
def test_with_evaluation_in_the_background(toy, stop):
    assert_continues(toy, stop, background=True, runtime={"log_every": 4}, **ALL)


@pytest.mark.parametrize("loader", ["resident", "workers"])
@pytest.mark.parametrize("eval_every", ["1", "5", "10", "0.5e", "2e", "100e"])
def test_however_often_it_evaluates(toy, loader, eval_every):
    stops = At("step", 3), At("step", 9)
    runtime = {"loader": loader, "workers": 0}
    assert_continues(toy, *stops, eval_every=Span(eval_every), runtime=runtime)


@pytest.mark.parametrize("length", [{"epochs": 3}, {"steps": 17}])
def test_in_the_order_of_the_data(toy, length):
    """How long an epoch is, a job then knows from its first step on only."""
    stops = At("step", 3), At("batch", 2), At("step", 9)
    assert_continues(toy, *stops, loop=Loop(shuffle=False), **length)


def test_minutes_become_a_number_of_steps_that_an_interruption_does_not_change(toy):
    """The first attempt has measured it; the job is that of so many steps."""
    stopped = toy.run("parts", stop=At("step", WARM_UP + TIMED), minutes=0.01)
    assert stopped.status == 143, stopped.said
    total = stopped.checkpoint("last.pt")["parts"]["job.length"]["_measured"]
    whole = toy.done("parts", minutes=0.01)
    steps = toy.run("steps", steps=total, runtime={"log_every": UNKNOWN})
    assert whole.curves() == steps.curves()
    assert whole.curves()["train_loss"][0][0] == UNKNOWN
    assert whole.content()[0]["models"] == steps.content()[0]["models"]


@pytest.mark.parametrize("patience", [1, 3])
def test_with_early_stopping(toy, patience):
    settings = {"epochs": 20, "lr": 0.5, "patience": patience}
    assert_continues(toy, At("step", 9), At("batch", 2), **settings)
    assert toy.run("whole", **settings).checkpoint("last.pt")["parts"]["job.position"]["step"] < 140


def test_between_checkpoints_by_time(toy):
    """Each as soon as the last is written; steps after it are taken again, and logged once."""
    runtime = {"checkpoint_minutes": 1e-9}
    assert_continues(toy, At("step", 3), At("step", 8), runtime=runtime)


@pytest.mark.parametrize("pause", ["4", "7", "0.5e", "1e", "1.5e"])
def test_paused_and_continued(toy, pause):
    whole = toy.run("whole", epochs=2)
    paused = toy.run("parts", runtime={"pause_after": Span(pause)}, epochs=2)
    steps = Span(pause).steps(STEPS)
    assert paused.status == 0
    assert f"paused: after {steps} steps, as --pause-after asked" in paused.said
    assert paused.checkpoint("last.pt")["parts"]["job.position"]["step"] == steps
    assert toy.run("parts", epochs=2).content() == whole.content()


class Draws(Loop):
    """Steps and evaluations that draw from torch's, Python's and NumPy's random numbers."""

    def step(self, job, forward, model, batch, optimizer):
        points, labels = batch
        noise = torch.rand(points.shape) + random.random() + np.random.rand()
        super().step(job, forward, model, (points + 0.01 * noise, labels), optimizer)

    def evaluate(self, *args):
        metrics = super().evaluate(*args)
        return {name: value * random.random() for name, value in metrics.items()}


@pytest.mark.parametrize("stop", [At("step", 9), At("batch", 2), At("batch", 8)])
def test_random_numbers_go_on(toy, stop):
    assert_continues(toy, stop, loop=Draws())


class Scaled(Loop):
    """A loss that is scaled, as fp16 needs it."""

    def take(self, job, scaler, optimizer, model):
        """Do something between the backward pass and the step."""

    def train(self, job, forward, model, batches, val):
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=5)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        job.resume(model=model, optimizer=optimizer, scaler=scaler)
        for _ in job.epochs():
            for batch in job.steps(batches):
                self.hook("step", job)
                scaler.scale(forward(model, batch, job.settings)[0]).backward()
                self.take(job, scaler, optimizer, model)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            job.keep_best({}, model=model)


def test_scale_of_the_loss(toy):
    assert_continues(toy, At("step", 9), loop=Scaled())
    last = toy.run("whole", Scaled()).checkpoint("last.pt")
    assert last["parts"]["scaler"]["scale"] == 8.0 * 2 ** (3 * STEPS // 5)


class Overflowing(Scaled):
    """The gradients of the first step are not finite, so it is skipped."""

    def take(self, job, scaler, optimizer, model):
        if not job.step:
            model[0].weight.grad.fill_(math.inf)
        scaler.unscale_(optimizer)
        job.log(norm=clip_gradients(model.parameters(), 1.0))


def test_steps_that_the_scaler_skips_are_not_in_the_mean_of_the_gradients_norm(toy):
    done = toy.done(loop=Overflowing(), runtime={"log_every": STEPS}, epochs=2)
    points = [value for _, value in done.curves()["train_norm"]]
    assert points and all(map(math.isfinite, points))


def test_steps_that_are_taken_again_are_not_logged_again(toy):
    """As after a power cut, which loses the checkpoints and not the journal."""
    whole = toy.run("whole")
    parts = toy.run("parts")
    journal = parts.folder / "metrics.jsonl"
    for name in ("last.pt", "outcome.json"):
        (parts.folder / name).unlink()
    before = journal.read_text()
    again = toy.run("parts")
    assert '"step"' not in journal.read_text().removeprefix(before)
    assert again.content() == whole.content()


def test_half_a_line_is_cut_off(toy):
    """As a killed job leaves it."""
    whole = toy.run("whole")
    left = toy.run("parts", stop=At("step", 5))
    (left.folder / "outcome.json").unlink()
    with (left.folder / "metrics.jsonl").open("ab") as file:
        file.write(b'{"line": 99, "st')
    assert toy.run("parts").content() == whole.content()


def test_a_journal_whose_end_the_checkpoint_alone_knows_of_is_refused(toy):
    left = toy.run(stop=At("step", 5))
    (left.folder / "outcome.json").unlink()
    path = left.folder / "metrics.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:4]))
    refused = toy.run()
    assert refused.status == 1
    assert "failed: the end of metrics.jsonl is lost; --force starts the job over" in refused.said


def test_a_curve_keeps_the_spacing_of_its_first_attempt(toy):
    toy.run("parts", stop=At("step", 9), runtime={"log_every": 4})
    again = toy.run("parts", runtime={"log_every": 1})
    assert "--log-every stays 4" in again.said
    assert again.curves() == toy.run("whole", runtime={"log_every": 4}).curves()
    assert [step for step, _ in again.curves()["train_loss"]] == [4, 8, 12, 16, 20, 21]


class WithPart(Loop):
    """A loop with a part that it did not have before."""

    def train(self, job, forward, model, batches, val):
        self.extra = nn.Linear(2, 2)
        resume = job.resume
        job.resume = lambda **parts: resume(**parts, extra=self.extra)
        super().train(job, forward, model, batches, val)


def test_a_part_that_an_older_checkpoint_lacks_begins_anew_and_says_so(toy):
    toy.run("parts", stop=At("step", 9))
    again = toy.done("parts", WithPart())
    assert "the checkpoint has no extra" in again.said
    assert "extra" in again.checkpoint("last.pt")["parts"]


class Larger(Loop):
    def train(self, job, forward, model, batches, val):
        super().train(job, forward, nn.Sequential(model, nn.Linear(3, 3)), batches, val)


def test_a_checkpoint_that_does_not_fit_the_code_is_said_in_one_line(toy):
    toy.run("parts", stop=At("step", 9))
    again = toy.run("parts", Larger())
    assert again.status == 1
    (line,) = [line for line in again.said.splitlines() if "failed: " in line]
    assert "its checkpoint does not fit the code (model: " in line and "--force starts over" in line


class Forgetful(Loop):
    """A loop that names a part without a state, or none at all."""

    def train(self, job, forward, model, batches, val):
        job.resume(model=model, lr=0.1)


def test_a_part_without_a_state_is_refused(toy):
    done = toy.run(loop=Forgetful())
    assert done.status == 1
    assert "job.resume: lr needs state_dict() and load_state_dict()" in done.said
