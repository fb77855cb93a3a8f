"""One job: act, train, evaluate, save.

    python run.py                                        # PPO keeps a pole on a cart upright
    python run.py --environment swing-up --steps 3000
    python run.py --passes 1 --lr 3e-4 --seed 1
    python run.py --help

A job is identified by its settings. If you run it again with the same ones, it continues where it
was interrupted, or says that it has finished. Its files are in runs/<job id>/, its metrics in
MLflow.
"""

import sys

from labjobs import launch
from settings import METRICS, Settings

if __name__ == "__main__":
    # Before torch is imported, which is slow: --help, wrong flags and finished jobs end here.
    command = launch.begin(Settings, METRICS)

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import data
import models
import optimizers
from labjobs import EMA, Batches, EarlyStopping, Forward, Job, Means, clip_gradients

Metrics = dict[str, float]


def forward(
    model: nn.Module, batch: data.Batch, settings: Settings
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean loss, and by name what is measured: a value for each step in the environment.

    With --compile it is compiled together with the model.
    Source: Schulman et al. 2017, arxiv.org/abs/1707.06347.
    """
    logits, values = model(batch.observation)
    log_probabilities = logits.log_softmax(-1)
    chosen = log_probabilities.gather(1, batch.action[:, None]).squeeze(1)
    ratio = (chosen - batch.log_probability).exp()  # 1 before the first step on a rollout
    clipped = ratio.clamp(1 - settings.ratio_clip, 1 + settings.ratio_clip)
    gains = torch.minimum(ratio * batch.advantage, clipped * batch.advantage)
    errors = (values - batch.value).square()
    entropies = -(log_probabilities.exp() * log_probabilities).sum(-1)
    losses = settings.value_weight * errors - gains - settings.entropy_weight * entropies
    return losses.mean(), {
        "value_loss": errors,
        "entropy": entropies,
        "clipped": (ratio - 1).abs() > settings.ratio_clip,
    }


def load(job: Job[Settings]) -> tuple[data.Environment, nn.Module, Batches, Batches]:
    """Return the environment, the policy (on the CPU), and the initial states of the episodes for
    validation and testing."""
    settings = job.settings
    parts = data.load(settings, job.runtime.data_root)
    job.save_spec(parts.spec)  # with it, jobs.load() makes the policy without the environment
    return (
        parts.environment,
        models.make(settings, parts.spec),
        job.batches(parts.val, data.EPISODES),
        job.batches(parts.test, data.EPISODES),
    )


def train(
    job: Job[Settings],
    forward: Forward,
    model: nn.Module,
    environment: data.Environment,
    val: Batches,
) -> None:
    """Fit the policy; the weights of the best evaluation are kept in best.pt.

    `forward` is the function above, as job.prepare() returns it.
    """
    settings = job.settings
    experience = data.Experience(environment, settings, job.device)
    optimizer = optimizers.make(model, settings)
    ema = EMA(model, settings.ema)  # with --ema 0, ema.model is model
    stopping = EarlyStopping(METRICS, settings.monitor, settings.patience)
    # What a checkpoint holds. If there is one, training continues from there.
    job.resume(model=model, optimizer=optimizer, experience=experience, ema=ema, stopping=stopping)

    for _ in job.epochs():  # each ends with an evaluation: --eval-every
        model.train()
        for _ in job.steps(examples=settings.batch_size):  # saves checkpoints, stops at Ctrl-C
            if experience.used:
                job.log(experience.collect(model))
            lr = optimizers.set_lr(optimizer, settings, job, stopping)
            for part, fraction in job.parts(experience.batch()):  # --accumulate of them
                loss, measured = forward(model, part, settings)
                loss.backward(fraction)  # as (loss * fraction).backward()
                job.log(measured, lr=lr)  # stays on the device and is written later
            if settings.clip_norm:
                norm = clip_gradients(model.parameters(), settings.clip_norm)
                job.log(gradient_norm=norm)
            optimizer.step()
            optimizer.zero_grad()
            ema.update()

        metrics = evaluate(environment, ema.model, val, "val")
        job.log_epoch({**metrics, "environment_steps": experience.steps})
        if stopping.improved(metrics):
            job.keep_best(metrics, model=ema.model)
        if stopping.due:
            break


def evaluate(
    environment: data.Environment,
    model: nn.Module,
    batches: Batches,
    split: str,
    keep: Callable[..., Any] | None = None,
) -> Metrics:
    """Return the mean return and length of the episodes that start in the states of `batches`, with
    the most probable actions. Waits for the device once, at the end.

    `keep` is handed the return, the length and the states of each episode.
    """
    model.eval()
    means = Means()
    for (start,) in batches:
        seen = data.episodes(environment, data.greedy(environment, model), start)
        means.add({"return": seen.gained, "length": seen.length})
        if keep:
            keep(gained=seen.gained, length=seen.length, states=seen.states)
    return {f"{split}_{name}": value for name, value in means.read().items()}


def references(environment: data.Environment, batches: Batches, split: str) -> Metrics:
    """Return the mean returns of two policies that have learned nothing, in the same episodes."""
    means = Means()
    for (start,) in batches:
        policies = {
            "random": data.random(environment, start.device),
            "heuristic": environment.heuristic,
        }
        for name, policy in policies.items():
            means.add({name: data.episodes(environment, policy, start).gained})
    return {f"{split}_return_{name}": value for name, value in means.read().items()}


def main(job: Job[Settings]) -> Metrics:
    """Train, and return the test results of the best weights; the test episodes have no other use.

    The results of policies that have learned nothing are included, for figures.
    """
    environment, model, val, test = load(job)
    job.init(model=model)  # --init-from
    model.to(job.device)
    train(job, job.prepare(forward), model, environment, val)
    job.load_best(model=model)
    return {
        **evaluate(environment, model, test, "test", keep=job.keep_outputs),
        **references(environment, val, "val"),
        **references(environment, test, "test"),
    }


def check(job: Job[Settings]) -> None:
    """Raise SettingsError if the job could not run; run.sh checks all jobs before it starts one."""
    job.prepare(forward)
    job.check_schedule(optimizers.factor)
    spec = data.load(job.settings, job.runtime.data_root).spec
    with torch.device("meta"):  # shapes only: no weights are made
        job.init(model=models.make(job.settings, spec))


if __name__ == "__main__":
    sys.exit(command.run(main, check))
