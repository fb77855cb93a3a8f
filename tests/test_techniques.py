"""Training with the techniques that are options of the template, by their commands."""

import pytest
from faults import one_line, same, some

SHORT = ("--steps", "12", "--eval-every", "4", "--log-every", "1", "--quiet")

TOGETHER = {
    "muon": (
        *("--model", "convnet", "--optimizer", "muon", "--weight-decay", "0.1"),
        *("--schedule", "one-cycle", "--augment", "alternating-flip", "--clip-norm", "1"),
    ),
    "averaged": (
        *("--ema", "0.9", "--compare-ema", "--schedule", "wsd", "--warmup", "3"),
        *("--init", "class-prior", "--lr-for-batch", "256", "--test-time-flip"),
    ),
}
"""Options that are tried together."""


@pytest.mark.parametrize("name", some(TOGETHER, "averaged"))
def test_interrupted_and_continued_it_is_the_same(project, name, tmp_path_factory):
    other = project.copy(tmp_path_factory.mktemp("other") / "project")
    flags = TOGETHER[name]
    job = project.finish(*SHORT, *flags)
    paused = other.run(*SHORT, *flags, "--pause-after", "6")
    assert paused.returncode == 0 and " paused: " in paused.stdout, paused
    assert other.finish(*SHORT, *flags) == job
    assert same(project.tensors(job)["best"], other.tensors(job)["best"])
    assert project.journalled(job) == other.journalled(job)


def test_the_rates_that_are_logged_are_the_schedules(project):
    """Linear to zero after three steps of warm-up."""
    flags = ("--schedule", "linear", "--warmup", "3", "--lr", "0.01")
    logged = dict(project.journalled(project.finish(*SHORT, *flags))["lr"])
    rising = {step: 0.01 * step / 4 for step in (1, 2, 3)}
    falling = {step: 0.01 * (1 - (step - 4) / 9) for step in range(4, 13)}
    assert logged == pytest.approx(rising | falling)


def test_the_weights_beside_their_ema_are_those_of_a_job_without_one(project):
    averaged = project.journalled(project.finish(*SHORT, "--ema", "0.9", "--compare-ema"))
    plain = project.journalled(project.finish(*SHORT))
    assert averaged["val_weights_loss"] == plain["val_loss"] != averaged["val_loss"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--compare-ema",), "--compare-ema: needs --ema"),
        (("--optimizer", "muon", "--precision", "fp16"), "--optimizer muon: does not work with"),
        (("--recompute",), "--recompute: mlp has no blocks"),
        (("--pretrained", "--init", "dirac"), "--init dirac: "),
        (("--model", "resnet18", "--batch-size", "1"), "--batch-size 1: batch norm needs at least"),
    ],
)
def test_what_cannot_be_is_refused(project, flags, said):
    before = {*project.root.glob("runs/*")}
    assert said in one_line(project.run(*SHORT, *flags, "--device", "cpu"), 2)
    assert {*project.root.glob("runs/*")} == before
