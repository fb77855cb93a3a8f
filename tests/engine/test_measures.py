"""What a loop measures and logs: right means under the right steps, and no step waits for them."""

import threading

import pytest
import torch
from labjobs import devices
from labjobs.settings import Span
from labjobs.training.meters import Means, TrainMeter
from torch import nn
from toy import STEPS, VAL, Loop, forward, network


def mean(pairs):
    """Return the mean over steps of (sum, number of values)."""
    return sum(total for total, _ in pairs) / sum(count for _, count in pairs)


class Noting(Loop):
    """Notes what each step measured, by a way of its own."""

    def __init__(self):
        super().__init__(forward=self.noting)
        self.noted, self.at = [], 0

    def step(self, job, *others):
        self.at = job.step + 1
        super().step(job, *others)

    def noting(self, model, batch, settings):
        loss, measured = forward(model, batch, settings)
        if model.training:
            one = {"loss": 1, "accuracy": 1}
            sums = {k: (measured[k].double().sum().item(), measured[k].numel()) for k in one}
            sums["confidence"] = measured["confidence"].item(), 1
            sums["recall"] = tuple(part.item() for part in measured["recall"])
            self.noted.append((self.at, sums))
        return loss, measured


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("every", [1, 4])
def test_points_are_means_over_values_under_the_last_of_their_steps(toy, every, accumulate):
    """Of tensors (B,) and (B, 1), single numbers, and numerators with denominators."""
    loop = Noting()
    settings = {"epochs": 2, "accumulate": accumulate, "schedule": "linear"}
    done = toy.run(loop=loop, runtime={"log_every": every}, **settings)
    curves = done.curves()
    ends = [*range(every, 2 * STEPS, every), 2 * STEPS]
    for name in ("loss", "accuracy", "confidence", "recall"):
        groups = {
            end: [sums[name] for step, sums in loop.noted if before < step <= end]
            for before, end in zip([0, *ends], ends, strict=False)
        }
        expected = {end: mean(group) for end, group in groups.items() if any(n for _, n in group)}
        assert dict(curves[f"train_{name}"]) == pytest.approx(expected)
        assert len(expected) == len(ends) or (name, every) == ("recall", 1)  # of no such example
    rates = [0.05 * (1 - (step - 1) / (2 * STEPS)) for step in ends]
    assert [value for _, value in curves["lr"]] == pytest.approx(rates)


def test_means_over_an_evaluation_are_weighted_by_values(toy):
    done = toy.run(epochs=1)
    best = done.checkpoint("best.pt")["models"]["model"]
    model = network()
    model.load_state_dict(best)
    points, labels = VAL[:]
    _, measured = forward(model.eval(), (points, labels), None)
    expected = {k: measured[k].double().mean().item() for k in ("loss", "accuracy")}
    assert done.checkpoint("best.pt")["metrics"]["val_loss"] == pytest.approx(expected["loss"])
    assert done.curves()["val_accuracy"][0][1] == pytest.approx(expected["accuracy"])


def test_a_mean_of_nothing_is_not_a_number():
    means = Means()
    assert means.read() == {}
    means.add({"recall": (torch.tensor(0), torch.tensor(0)), "loss": torch.ones(2)})
    read = means.read()
    assert read["recall"] != read["recall"] and read["loss"] == 1


def test_counts_are_exact_beyond_single_precision():
    means = Means()
    for _ in range(5):
        means.add({"right": (torch.tensor(2**24 + 1), torch.tensor(2**24 + 1)), "n": torch.ones(3)})
        means.add({"right": (torch.tensor(1), torch.tensor(2))})
    assert means.read()["right"] == (5 * (2**24 + 2)) / (5 * (2**24 + 3))


class Bare(Loop):
    """Steps that only log."""

    def train(self, job, forward, model, batches, val):
        job.resume(model=model)
        for _ in job.epochs():
            for _batch in job.steps(batches):
                job.log({name: torch.tensor(float(job.step + 1)) for name in "abc"}, beta=job.step)
            job.keep_best({}, model=model)


@pytest.mark.parametrize(("steps", "every"), [(999, 1), (2500, 2)])
def test_auto_makes_about_1000_points_each_written_once(toy, steps, every):
    done = toy.run(loop=Bare(), steps=steps, eval_every=Span("700"))
    ends = [*range(every, steps + 1, every)]
    for name in "abc":
        points = done.curves()[f"train_{name}"]
        assert points == [(step, step - (every - 1) / 2) for step in ends]
    assert done.curves()["beta"] == [(step, step - 1) for step in ends]


class Host(torch.Tensor):
    """Numbers that have arrived on the host, which may be read there."""


class Reads:
    """Fails if the training thread reads a tensor while it is `on`."""

    def __init__(self, monkeypatch):
        self.on = False
        for name in ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__"):
            monkeypatch.setattr(torch.Tensor, name, self._guarded(getattr(torch.Tensor, name)))
        pinned, flush = devices.pinned, TrainMeter.flush
        arrived = lambda *how: pinned(*how).as_subclass(Host)  # noqa: E731
        monkeypatch.setattr(devices, "pinned", arrived)
        monkeypatch.setattr(TrainMeter, "flush", lambda meter: (self._off(), flush(meter)))

    def _off(self):
        """Between the steps of two intervals, and for a checkpoint, the loop waits once."""
        self.on = False

    def _guarded(self, method):
        def read(tensor, *args, **kwargs):
            main = threading.current_thread() is threading.main_thread()
            if self.on and main and not isinstance(tensor, Host):
                raise AssertionError("a step read a tensor on the host")
            return method(tensor, *args, **kwargs)

        return read


class Guarded(Loop):
    """Steps that must not read what is on the device."""

    def __init__(self, reads):
        super().__init__()
        self.reads, self.guarded = reads, 0

    def step(self, job, *others):
        self.reads.on = job.step > 0  # torch may set itself up at first
        self.guarded += self.reads.on
        super().step(job, *others)
        job.log(norm=torch.ones(()), pair=(torch.ones(3), torch.tensor(3)))


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("loader", ["resident", "workers"])
def test_steps_never_read_the_device(toy, monkeypatch, loader, background):
    monkeypatch.setattr("labjobs.training.meters.INTERVAL", 0)  # numbers leave at every step
    loop = Guarded(Reads(monkeypatch))
    settings = {"accumulate": 2, "ema": 0.9, "clip_norm": 0.1, "background": background}
    done = toy.done(loop=loop, runtime={"loader": loader, "workers": 0, "log_every": 1}, **settings)
    assert loop.guarded == 3 * STEPS - 1
    assert len(done.curves()["train_norm"]) == 3 * STEPS


class Linear(Loop):
    """A network whose parts of a batch know nothing of each other."""

    def __init__(self):
        super().__init__(forward=self.of_doubles, network=lambda: nn.Linear(6, 3).double())

    @staticmethod
    def of_doubles(model, batch, settings):
        points, labels = batch
        losses = nn.functional.cross_entropy(model(points.double()), labels, reduction="none")
        return losses.mean(), {"loss": losses}


@pytest.mark.parametrize("accumulate", [3, 8])
def test_gradients_of_parts_add_up_to_that_of_the_batch(toy, accumulate):
    """Of uneven parts too: batches have 8 examples, the last has 3."""
    whole, parts = (toy.run(loop=Linear(), accumulate=n) for n in (1, accumulate))
    ours, theirs = (dict(run.curves()["train_loss"]) for run in (whole, parts))
    assert ours == pytest.approx(theirs, rel=1e-12)
    assert "\nweights are float64\n" in whole.said
    weights = [run.checkpoint("last.pt")["parts"]["model"]["weight"] for run in (whole, parts)]
    assert torch.allclose(*weights, rtol=1e-12, atol=0)


class Masked(Loop):
    """A loss that is a mean over some of the elements, such as the tokens that are not padding."""

    def __init__(self):
        super().__init__(network=lambda: nn.Linear(6, 3).double())

    def step(self, job, forward, model, batch, optimizer):
        for part, fraction in job.parts(batch, elements=lambda batch: (batch[1] > 0).sum()):
            points, labels = part
            losses = nn.functional.cross_entropy(model(points.double()), labels, reduction="none")
            kept = losses[labels > 0]
            kept.mean().backward(fraction)
            job.log({"loss": kept})
        optimizer.step()
        optimizer.zero_grad()

    def evaluate(self, *args):
        return {"val_loss": 1.0}


def test_parts_are_weighted_by_the_elements_that_the_loss_is_a_mean_over(toy):
    whole, parts = (toy.done(loop=Masked(), accumulate=n) for n in (1, 2))
    weights = [run.checkpoint("last.pt")["parts"]["model"]["weight"] for run in (whole, parts)]
    assert torch.allclose(*weights, rtol=1e-6, atol=0)
