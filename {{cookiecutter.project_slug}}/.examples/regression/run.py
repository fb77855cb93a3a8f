"""One job: load, train, evaluate, save.

    python run.py                                  # a small network on scikit-learn's diabetes data
    python run.py --model linear --lr 1e-2 --seed 1
    python run.py --help

The same settings are the same job: its files lie in runs/<job id>/, its metrics in MLflow.
"""

import sys

from engine import launch
from settings import METRICS, Settings

if __name__ == "__main__":
    command = launch.begin(Settings, METRICS)  # --help, wrong flags, finished jobs end here, fast

import torch
from torch import Tensor, nn

import data
import models
import optimizers
from engine.loop import EMA, Batches, EarlyStopping, Forward, Job, Means, clip_gradients

Metrics = dict[str, float]


def forward(
    model: nn.Module, batch: data.Batch, settings: Settings
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss to train on, and what is measured: a value for each example.

    Runs under autocast, and with --compile as one region with the model.
    """
    features, targets = batch
    predicted = model(features)
    errors = predicted - targets
    losses = errors.square()
    measured = {"loss": losses, "mae": errors.abs()}
    if not model.training:
        measured["predicted"] = predicted
    return losses.mean(), measured


def load(job: Job[Settings]) -> tuple[nn.Module, Batches, Batches | None, Batches | None]:
    """Return the model, on the CPU, and the training, validation and test batches, or None."""
    settings = job.settings
    parts = data.load(settings, job.runtime.data_root)
    job.save_spec(parts.spec)
    return (
        models.make(settings, parts.spec),
        job.batches(parts.train, settings.batch_size, shuffle=True),
        job.batches(parts.val, settings.batch_size),
        job.batches(parts.test, settings.batch_size),
    )


def train(
    job: Job[Settings], forward: Forward, model: nn.Module, batches: Batches, val: Batches | None
) -> None:
    """Fit the model; the weights of the best evaluation are kept in best.pt."""
    settings = job.settings
    augment = data.augmentation(settings)
    optimizer = optimizers.make(model, settings)
    scaler = torch.amp.GradScaler(job.device.type, enabled=settings.precision == "fp16")
    ema = EMA(model, settings.ema)  # ema.model is the model itself if that is 0
    stopping = EarlyStopping(METRICS, settings.monitor, settings.patience)
    job.resume(model=model, optimizer=optimizer, scaler=scaler, ema=ema, stopping=stopping)

    for _ in job.epochs():  # once for each evaluation
        model.train()
        for batch in job.steps(batches):  # between steps: checkpoints, Ctrl-C, --profile
            lr = optimizers.set_lr(optimizer, settings, job, stopping)
            for part, fraction in job.parts(augment(batch)):  # --accumulate
                loss, measured = forward(model, part, settings)
                scaler.scale(loss).backward(fraction)
                job.log(measured, lr=lr)  # nothing here waits for the device
            if settings.clip_norm:
                scaler.unscale_(optimizer)
                clip_gradients(model.parameters(), settings.clip_norm)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            ema.update()

        metrics = evaluate(job, forward, ema.model, val, "val")
        job.log_epoch(metrics)
        if stopping.improved(metrics):
            job.keep_best(metrics, model=ema.model)
        if stopping.due:
            break


@torch.no_grad()
def evaluate(
    job: Job[Settings], forward: Forward, model: nn.Module, batches: Batches | None, part: str
) -> Metrics:
    """Return the means over all examples of what forward() measures, and R², which is no mean.

    The target and the prediction of each test example are kept.
    """
    model.eval()
    means, targets = Means(), []
    for batch in batches or ():
        _, measured = forward(model, batch, job.settings)
        predicted = measured.pop("predicted")
        means.add(measured)
        targets.append(batch[1])
        if part == "test":
            job.keep_outputs(target=batch[1], predicted=predicted)
    metrics = means.read()
    if targets:
        metrics["r2"] = 1 - metrics["loss"] / torch.cat(targets).var(correction=0).item()
    return {f"{part}_{name}": value for name, value in metrics.items()}


def main(job: Job[Settings]) -> Metrics:
    """Return the results of one job: those of its best weights on the test examples, used once."""
    model, batches, val, test = load(job)
    prepared = job.prepare(forward, job.settings.precision)  # autocast, and compiled if it pays
    train(job, prepared, model.to(job.device), batches, val)
    job.load_best(model=model)
    return evaluate(job, prepared, model, test, "test")


def check(job: Job[Settings]) -> None:
    """Raise SettingsError for a job that cannot run. run.sh asks for all before it starts one."""
    job.prepare(forward, job.settings.precision)
    spec = data.load(job.settings, job.runtime.data_root).spec
    with torch.device("meta"):  # shapes alone, which take neither time nor memory
        models.make(job.settings, spec)


if __name__ == "__main__":
    sys.exit(command.run(main, check))
