"""One job: load, train, evaluate, save.

    python run.py                                      # a small network on scikit-learn's digits
    python run.py --model convnet --lr 3e-3 --seed 1
    python run.py --dataset cifar10 --model resnet18 --augment crop-flip --precision bf16
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

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import data
import models
import optimizers
from labjobs import EMA, Batches, EarlyStopping, Forward, Job, Means, clip_gradients

Metrics = dict[str, float]


def forward(
    model: nn.Module, batch: data.Batch, settings: Settings
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean loss, and measurements by name: a value for each example.

    Runs under autocast; with --compile it is compiled together with the model. In evaluation the
    measurements include the predicted classes, which evaluate() takes out.
    """
    inputs, labels = batch
    logits = model(inputs).float()
    if settings.test_time_flip and not model.training:
        logits = (logits + model(inputs.flip(-1)).float()) / 2
    smoothing = settings.label_smoothing if model.training else 0.0
    losses = cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
    predicted = logits.argmax(-1)
    measured = {"loss": losses, "accuracy": predicted == labels}
    if not model.training:
        measured["predicted"] = predicted
    return losses.mean(), measured


def load(job: Job[Settings]) -> tuple[nn.Module, Batches, Batches | None, Batches | None]:
    """Return the model, on the CPU, and the batches to train, validate and test on.

    A split that the data does not have is None.
    """
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
    job: Job[Settings], forward: Forward, model: nn.Module, batches: Batches, val: Batches | None
) -> None:
    """Fit the model; the weights of the best evaluation are kept in best.pt.

    `forward` is the function above, as job.prepare() returns it.
    """
    settings = job.settings
    augment = data.augmentation(settings, job)
    optimizer = optimizers.make(model, settings)
    scaler = torch.amp.GradScaler(job.device.type, enabled=settings.precision == "fp16")
    ema = EMA(model, settings.ema)  # with --ema 0, ema.model is model
    stopping = EarlyStopping(METRICS, settings.monitor, settings.patience)
    # What a checkpoint holds. If there is one, training continues from there.
    job.resume(model=model, optimizer=optimizer, scaler=scaler, ema=ema, stopping=stopping)

    for _ in job.epochs():  # each ends with an evaluation: --eval-every
        model.train()
        for batch in job.steps(batches):  # saves checkpoints, stops at Ctrl-C, profiles
            lr = optimizers.set_lr(optimizer, settings, job, stopping)
            for part, fraction in job.parts(augment(batch)):  # --accumulate of them
                loss, measured = forward(model, part, settings)
                scaler.scale(loss).backward(fraction)  # as (loss * fraction).backward()
                job.log(measured, lr=lr)  # stays on the device and is written later
            if settings.clip_norm:
                scaler.unscale_(optimizer)
                norm = clip_gradients(model.parameters(), settings.clip_norm)
                job.log(gradient_norm=norm)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            ema.update()

        metrics = evaluate(job, forward, ema.model, val, "val")
        if settings.compare_ema:
            metrics |= evaluate(job, forward, model, val, "val_weights")
        job.log_epoch(metrics)
        if stopping.improved(metrics):
            job.keep_best(metrics, model=ema.model)
        if stopping.due:
            break


@torch.no_grad()
def evaluate(
    job: Job[Settings], forward: Forward, model: nn.Module, batches: Batches | None, split: str
) -> Metrics:
    """Return the means over all examples of what forward() measures, such as `val_loss`.

    Waits for the device once, at the end. Of each test example, the label, the predicted class and
    what was measured are kept in predictions.npz; tables need these for their intervals.
    """
    if batches is None:
        return {}
    model.eval()
    means = Means()
    for batch in batches:
        _, measured = forward(model, batch, job.settings)
        predicted = measured.pop("predicted")
        means.add(measured)
        if split == "test":
            job.keep_outputs(measured, label=batch[1], predicted=predicted)
    return {f"{split}_{name}": value for name, value in means.read().items()}


def main(job: Job[Settings]) -> Metrics:
    """Train, and return the test results of the best weights, the only use of the test data."""
    model, batches, val, test = load(job)
    job.init(model=model)  # --init-from
    model.to(job.device)
    prepared = job.prepare(forward, job.settings.precision)  # with autocast and --compile
    train(job, prepared, model, batches, val)
    job.load_best(model=model)
    return evaluate(job, prepared, model, test, "test")


def check(job: Job[Settings]) -> None:
    """Raise SettingsError if the job could not run; run.sh checks all jobs before it starts one."""
    job.prepare(forward, job.settings.precision)
    job.check_schedule(optimizers.factor)
    spec = data.load(job.settings, job.runtime.data_root).spec
    with torch.device("meta"):  # shapes only: no weights are made
        job.init(model=models.make(job.settings, spec))


if __name__ == "__main__":
    sys.exit(command.run(main, check))
