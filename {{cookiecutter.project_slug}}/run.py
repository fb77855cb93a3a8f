"""Train one model: load, train, save.

    python run.py                                      # a small network on the digits inside
    python run.py --model convnet --lr 3e-3 --seed 1
    python run.py --dataset cifar10 --model resnet18 --augment crop-flip --precision bf16
    python run.py --help

The same settings are the same job: its files lie in runs/<job id>/, its metrics in MLflow.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from engine.cli.settings import JobSettings, identity
from engine.launch import begin


@dataclass(frozen=True, kw_only=True)
class Settings(JobSettings):
    """Your own"""

    # A field here is a flag, a parameter in MLflow and part of the job's identity. One that comes
    # after the first jobs names the value that changes nothing, and old jobs keep their ids:
    #
    #     dropout: float = added(0.1, neutral=0.0)  # from engine.settings import added
    #     """Share of activations set to zero."""


if __name__ == "__main__":
    command = begin(Settings)  # help, wrong flags and finished jobs need no torch: they end here

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import data
import models
from engine.data import loaders
from engine.data.augmentation import Augmentation
from engine.data.loaders import Batches
from engine.data.splits import split
from engine.job.folder import Job
from engine.job.interruption import Interruption
from engine.job.terminal import Progress, as_line, log
from engine.profiling.profile import Profile
from engine.results.predictions import Predictions
from engine.training import checkpoints, devices, networks, optimizers
from engine.training.compilation import compiler
from engine.training.early_stopping import EarlyStopping
from engine.training.ema import Average
from engine.training.evaluation import Evaluations
from engine.training.meters import Stopwatch, TrainMeter
from engine.training.precision import Precision, resolve
from engine.training.schedules import Schedule
from engine.training.seeding import GlobalStreams
from engine.training.training_state import TrainingState


def check(settings: Settings) -> None:
    """Raise SettingsError for what else can be wrong with a job; takes nothing on a GPU."""
    resolve(settings.precision, devices.choose(settings.device))
    source = data.load(settings.dataset, settings.data_root, settings.image_size)
    networks.check(models, settings, source)


def load(
    settings: Settings, device: torch.device
) -> tuple[Batches, Batches, Batches, Sequence[str], nn.Module]:
    """The training, validation and test batches, the names of the classes, and a model that fits
    them, on the device."""
    source = data.load(settings.dataset, settings.data_root, settings.image_size)
    parts = split(source, settings.val_fraction, settings.split_seed)
    model = networks.make(models, settings, source, parts)
    how = (device, settings.batch_size, settings.loader, settings.workers)
    train_batches = loaders.make(parts.train, *how, seed=settings.seed)
    val_batches, test_batches = loaders.make(parts.val, *how), loaders.make(parts.test, *how)
    return train_batches, val_batches, test_batches, source.classes, model.to(device)


def train(
    job: Job[Settings],
    batches: Batches,
    val_batches: Batches,
    model: nn.Module,
    precision: Precision,
    streams: GlobalStreams,
) -> int:
    """Fit the model and keep its best weights in best.pt; the epoch they are from."""
    settings, device = job.settings, precision.device
    steps = settings.epochs * len(batches)
    warmup = round(settings.warmup * len(batches))
    augment = Augmentation(settings.augment, settings.seed, device)
    compile = compiler(settings.compile, device, steps, settings.batch_size)
    forward = compile(model)
    optimizer = optimizers.make(model, settings.optimizer, settings.lr, settings.weight_decay)
    schedule = Schedule(optimizer, settings.schedule, settings.lr, steps, warmup)
    scaler = precision.scaler()
    average = Average(model, settings.ema)  # the model itself, without --ema
    on_val = partial(evaluate, "val", val_batches, precision, job.interruption)
    evaluations = Evaluations(average.model, on_val, compile, settings.eval_beside)
    stopping = EarlyStopping(settings.monitor, settings.patience)
    meter = TrainMeter(job.journal, settings.log_every, steps, device)
    watch = Stopwatch()
    profile = Profile(job, batches, forward, optimizer, precision)
    state = TrainingState(
        job,
        settings.checkpoint_minutes,
        model=model,
        optimizer=optimizer,
        schedule=schedule,
        scaler=scaler,
        average=average,
        evaluations=evaluations,
        stopping=stopping,
        meter=meter,
        watch=watch,
        augment=augment,
        streams=streams,
    )

    with state, profile, evaluations:  # goes on from last.pt, and leaves one behind
        progress = Progress(steps, settings.quiet, done=meter.steps)
        for epoch in range(evaluations.epoch + 1, settings.epochs + 1):
            if stopping.due:
                break
            model.train()
            watch.start()
            done = meter.steps - evaluations.epoch * len(batches)
            waited = watch.waiting(batches.epoch(epoch, done))
            for inputs, labels in job.interruption.between(profile.steps(waited)):
                inputs = augment(inputs)
                with precision.autocast():
                    logits = forward(inputs)
                    loss = loss_of(logits, labels, label_smoothing=settings.label_smoothing)
                scaler.scale(loss).backward()
                optimizers.clip(optimizer, scaler, settings.clip_norm)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                average.update()
                meter.update(loss, logits, labels, schedule.lr)
                schedule.step()
                progress.step()
                state.step()

            meter.flush()  # waits for the device, once an epoch
            watch.trained()
            last = epoch == settings.epochs
            for of_epoch, evaluated, metrics in evaluations.after(epoch, meter.end_epoch(), last):
                improved = stopping.improved(metrics)
                if improved:
                    best = {"settings": identity(settings), "epoch": of_epoch, **metrics}
                    state.keep_best({"model": checkpoints.weights(evaluated), **best})
                schedule.epoch(improved)
                log.info("epoch %d/%d: %s", of_epoch, settings.epochs, as_line(metrics))
                job.journal.metrics(of_epoch, metrics)
                if stopping.due:
                    break
            job.journal.metrics(epoch, watch.end_epoch(batches.examples))
        meter.close()
        progress.close()
    return stopping.best_epoch


def loss_of(logits: Tensor, labels: Tensor, **how: Any) -> Tensor:
    """Cross-entropy of logits (B, ..., K) and labels (B, ...)."""
    return cross_entropy(logits.flatten(0, -2), labels.flatten(), **how)


@torch.no_grad()
def evaluate(
    name: str,
    batches: Batches,
    precision: Precision,
    interruption: Interruption,
    model: nn.Module,
    kept: Predictions | None = None,
) -> dict[str, float]:
    """Loss and accuracy over all labels; the device is read once, at the end."""
    model.eval()
    totals, count = torch.zeros(2, device=precision.device), 0
    for inputs, labels in interruption.between(batches.epoch()):
        with precision.autocast():
            logits = model(inputs)
        guesses = logits.argmax(-1)
        totals[0] += loss_of(logits.float(), labels, reduction="sum")
        totals[1] += (guesses == labels).sum()
        count += labels.numel()
        if kept:
            kept.add(labels, guesses)
    loss, accuracy = (totals / count).tolist()
    return {f"{name}_loss": loss, f"{name}_accuracy": accuracy}


def save(
    job: Job[Settings],
    batches: Batches,
    classes: Sequence[str],
    model: nn.Module,
    best_epoch: int,
    precision: Precision,
) -> dict[str, float]:
    """Test the best weights, once, and write down the results."""
    best = checkpoints.load(job.folder / "best.pt", precision.device)
    model.load_state_dict(best["model"])
    predictions = Predictions(job.folder)
    results = evaluate("test", batches, precision, job.interruption, model, predictions)
    results["best_epoch"] = best_epoch
    job.journal.files(predictions.save(classes))
    job.journal.metrics(best_epoch, results)
    return results


def main(job: Job[Settings]) -> dict[str, float]:
    """One job; its results."""
    settings, device = job.settings, devices.choose(job.settings.device)
    devices.use(device, settings.deterministic)
    streams = GlobalStreams(settings.seed, device)
    precision = Precision(settings.precision, device)
    job.journal.tags(devices.tags(device) | {"precision": precision.name})
    train_batches, val_batches, test_batches, classes, model = load(settings, device)
    best_epoch = train(job, train_batches, val_batches, model, precision, streams)
    return save(job, test_batches, classes, model, best_epoch, precision)


if __name__ == "__main__":
    sys.exit(command.run(check, main))
