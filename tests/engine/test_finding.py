"""What `jobs.py find` reads from measurements: planted results are found, noise is not."""

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from attempts import plain, steps_of
from labjobs.commands.find import smallest_good, valley
from labjobs.errors import JobError
from labjobs.job import identity, journal
from labjobs.training import probes
from labjobs.training.probes import NoiseScale
from torch import Tensor

RATES = 10 * 10 ** (6 * (np.arange(150) / 151 - 1))


def planted(
    noise: float, seed: int, falls_at: float = 1e-3, rises_at: float = 0.3, tests: int = 3
) -> list[np.ndarray]:
    """Losses that fall from 2.3 to 0.5 around one rate and rise without end around another."""
    random = np.random.default_rng(seed)
    down = 1 / (1 + (RATES / falls_at) ** 3)
    loss = 0.5 + 1.8 * down + (RATES / rises_at) ** 4
    return [loss + noise * random.standard_normal(len(RATES)) for _ in range(tests)]


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("falls_at", [1e-4, 1e-2])
def test_the_rate_is_in_the_middle_of_a_planted_valley(noise, falls_at):
    for seed in range(5):
        rate, _ = valley(RATES, planted(noise, seed, falls_at))
        assert rate == pytest.approx(np.sqrt(falls_at * 0.3), rel=0.6)


def test_noise_alone_gives_no_rate():
    random = np.random.default_rng(0)
    for _ in range(100):
        rate, why = valley(RATES, 2.3 + 0.1 * random.standard_normal((3, len(RATES))))
        assert rate is None
        assert "standard deviations of its noise" in why


def test_a_loss_that_does_not_rise_again_gives_no_rate():
    rate, why = valley(RATES, planted(0.1, seed=0, rises_at=1e9))
    assert rate is None and "has not risen again at 8.3" in why


def test_what_a_test_measured_before_it_diverged_counts():
    losses = planted(0.05, seed=0)
    whole, _ = valley(RATES, losses)
    losses[1] = np.append(losses[1][:118], np.nan)
    cut, _ = valley(RATES, losses)
    assert cut == pytest.approx(whole, rel=0.2)
    none = valley(RATES, [np.append(losses[0][:9], np.inf)])
    assert none == (None, "the loss has only 9 finite values")


D, SPREAD = 6, 0.5
"""Features of a linear model, and the standard deviation of its targets around it."""


def gradients_of_parts(sizes: Sequence[int], steps: int):
    """Return what NoiseScale logs of a linear model at fixed weights, with new data each time."""
    torch.manual_seed(0)
    weights = torch.nn.Parameter(torch.full((D,), 0.3))  # the true ones are 0
    logged: dict[str, list[float]] = {journal.SIGNAL: [], journal.NOISE: []}

    def log(measured: dict[str, Tensor]) -> None:
        for name, value in measured.items():
            logged[name].append(float(value))

    watcher = NoiseScale(lambda: [torch.optim.SGD([weights], 0.1)], log)
    count = sum(sizes)

    def batch():
        inputs = torch.randn(count, D)
        targets = SPREAD * torch.randn(count)
        return list(zip(inputs.split(list(sizes)), targets.split(list(sizes)), strict=True))

    stream = ((batch(), count) for _ in range(steps))
    for parts, _ in watcher.steps(stream, None):
        with_fractions = [(part, torch.tensor(len(part[1]) / count)) for part in parts]
        for (inputs, targets), fraction in watcher.parts(with_fractions):
            loss = (inputs @ weights - targets).square().mean() / 2
            loss.backward(fraction)
        weights.grad = None
    return {name: np.array(values) for name, values in logged.items()}


@pytest.mark.full
@pytest.mark.parametrize("sizes", [(3, 5, 16)])
def test_the_noise_scale_of_a_linear_model_is_estimated_without_bias(sizes):
    squared = D * 0.3**2  # of w - w*, which is the expectation of the gradient
    noise = (D + 1) * squared + D * SPREAD**2  # E |x|² (x·d)² = (D + 2) |d|²
    steps = 4000
    found = gradients_of_parts(sizes, steps)
    for name, truth in ((journal.SIGNAL, squared), (journal.NOISE, noise)):
        error = found[name].std() / np.sqrt(steps)
        assert abs(found[name].mean() - truth) < 4 * error < 0.1 * truth


def test_of_speeds_the_smallest_that_is_nearly_the_highest():
    good, why = smallest_good({8: [50, 51, 50], 16: [96, 97, 95], 32: [100, 99, 101]})
    assert good == 16
    assert "96 examples/s, 96% of the highest speed, which 32 has" in why


@pytest.fixture
def quick(monkeypatch):
    """Windows of two steps."""
    monkeypatch.setattr(probes, "WARM_UP_SECONDS", 0.0)
    monkeypatch.setattr(probes, "WINDOW_SECONDS", 0.0)


def test_a_job_whose_speed_is_measured_pauses_and_goes_on_as_if_it_had_not(toy, quick, monkeypatch):
    whole = toy.run()
    monkeypatch.setenv(identity.PURPOSE, identity.FIND_BATCH_SIZE)
    paused = toy.run("measured")
    assert paused.status == 0 and "paused: after 10 steps" in paused.said
    assert steps_of(paused, journal.RATE) == [6, 7, 8, 9, 10]
    metrics = (line.get("metrics", {}) for line in paused.journal())
    first = next(measured for measured in metrics if journal.RATE in measured)
    assert first[journal.EXAMPLES] == 8
    assert first[journal.MEMORY] > 2**20
    monkeypatch.delenv(identity.PURPOSE)
    after = toy.run("measured")
    for name in ("best.pt", "last.pt"):
        assert plain(after.checkpoint(name)) == plain(whole.checkpoint(name))


def test_the_noise_scale_is_measured_in_each_step_and_changes_nothing(toy, monkeypatch):
    whole = toy.run(accumulate=3, clip_norm=0.1)
    monkeypatch.setenv(identity.PURPOSE, identity.FIND_NOISE_SCALE)
    measured = toy.run("measured", accumulate=3, clip_norm=0.1)
    for name in ("best.pt", "last.pt"):
        kept = measured.checkpoint(name)
        assert plain(kept["models" if name == "best.pt" else "best"]) == plain(
            whole.checkpoint(name)["models" if name == "best.pt" else "best"]
        )
    steps = steps_of(measured, f"train_{journal.NOISE}")
    assert steps == [step for step in range(1, 22) if step % 7]  # the 7th has 3 examples: one part


def test_two_optimizers_have_no_noise_scale():
    weights = torch.zeros(2, requires_grad=True)
    both = [torch.optim.SGD([weights], 0.1), torch.optim.SGD([weights], 0.1)]
    watcher = NoiseScale(lambda: both, SimpleNamespace)
    with pytest.raises(JobError, match="needs one optimizer among what job"):
        next(iter(watcher.parts([])))
