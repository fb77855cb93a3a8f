"""One job: load, train, evaluate, save.

    python run.py                          # a perceptron on scikit-learn's digits
    python run.py --lr 3e-3 --seed 1
    python run.py --help

A job is identified by its settings. If you run it again with the same ones, it continues where it
was interrupted, or says that it has finished. Its files are in runs/<job id>/, its metrics in
MLflow.
"""

import math
import sys

from labjobs import launch
from settings import METRICS, Settings

if __name__ == "__main__":
    # Before torch is imported, which is slow: --help, wrong flags and finished jobs end here.
    command = launch.begin(Settings, METRICS)

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Adam

import data
import models
from labjobs import Batches, EarlyStopping, Forward, Job, Means

Metrics = dict[str, float]


def forward(
    model: nn.Module, batch: data.Batch, settings: Settings
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean loss, and measurements by name: a value for each example.

    Runs under autocast; with --compile it is compiled together with the model.
    """
    inputs, labels = batch
    logits = model(inputs).float()
    losses = cross_entropy(logits, labels, reduction="none")
    return losses.mean(), {"loss": losses, "accuracy": logits.argmax(-1) == labels}


def load(job: Job[Settings]) -> tuple[nn.Module, Batches, Batches, Batches]:
    """Return the model, on the CPU, and the batches to train, validate and test on."""
    settings = job.settings
    splits = data.load(settings, job.runtime.data_root)
    job.save_spec(splits.spec)  # with it, jobs.load() makes the model without the data
    job.save_split(train=splits.train, val=splits.val, test=splits.test)
    return (
        models.make(settings, splits.spec),
        job.batches(splits.train, settings.batch_size, shuffle=True),
        job.batches(splits.val, settings.batch_size),
        job.batches(splits.test, settings.batch_size),
    )


def train(
    job: Job[Settings], forward: Forward, model: nn.Module, batches: Batches, val: Batches
) -> None:
    """Fit the model; the weights of the best evaluation are kept in best.pt.

    `forward` is the function above, as job.prepare() returns it.
    """
    settings = job.settings
    optimizer = Adam(model.parameters(), settings.lr, fused=True)
    stopping = EarlyStopping(METRICS, settings.monitor, settings.patience)
    # What a checkpoint holds. If there is one, training continues from there.
    job.resume(model=model, optimizer=optimizer, stopping=stopping)

    for _ in job.epochs():  # each ends with an evaluation: --eval-every
        model.train()
        for batch in job.steps(batches):  # saves checkpoints, stops at Ctrl-C, profiles
            lr = settings.lr * (1 + math.cos(math.pi * job.fraction_done)) / 2
            optimizer.param_groups[0]["lr"] = lr
            loss, measured = forward(model, batch, settings)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            job.log(measured, lr=lr)  # stays on the device and is written later

        metrics = evaluate(job, forward, model, val, "val")
        job.log_epoch(metrics)
        if stopping.improved(metrics):
            job.keep_best(metrics, model=model)
        if stopping.due:
            break


@torch.no_grad()
def evaluate(
    job: Job[Settings], forward: Forward, model: nn.Module, batches: Batches, split: str
) -> Metrics:
    """Return the means over all examples of what forward() measures, such as `val_loss`.

    Waits for the device once, at the end. What is measured of each test example is kept in
    predictions.npz.
    """
    model.eval()
    means = Means()
    for batch in batches:
        _, measured = forward(model, batch, job.settings)
        means.add(measured)
        if split == "test":
            job.keep_outputs(measured, label=batch[1])
    return {f"{split}_{name}": value for name, value in means.read().items()}


def main(job: Job[Settings]) -> Metrics:
    """Train, and return the test results of the best weights, the only use of the test data."""
    model, batches, val, test = load(job)
    model.to(job.device)
    prepared = job.prepare(forward, job.settings.precision)  # with autocast and --compile
    train(job, prepared, model, batches, val)
    job.load_best(model=model)
    return evaluate(job, prepared, model, test, "test")


def check(job: Job[Settings]) -> None:
    """Raise SettingsError if the job could not run; run.sh checks all jobs before it starts one."""
    job.prepare(forward, job.settings.precision)
    spec = data.load(job.settings, job.runtime.data_root).spec
    with torch.device("meta"):  # shapes only: no weights are made
        models.make(job.settings, spec)


if __name__ == "__main__":
    sys.exit(command.run(main, check))
