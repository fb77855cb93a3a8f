"""One job: load, train, evaluate, save.

    python run.py                                      # a tiny BERT with random weights
    python run.py --model distilbert-tiny --lr 3e-3 --seed 1
    python run.py --dataset files --model bert-base-uncased --lr 3e-5 --head-lr 1e-3
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
from models import Classifier

Metrics = dict[str, float]


def forward(
    model: nn.Module, batch: data.Batch, settings: Settings
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean loss, and measurements by name: a value for each example.

    Runs under autocast; with --compile it is compiled together with the model. In evaluation the
    measurements include the predicted classes, which evaluate() takes out.
    """
    labels = batch["labels"]
    logits = model(batch["input_ids"], batch["attention_mask"]).float()
    losses = cross_entropy(logits, labels, reduction="none")
    predicted = logits.argmax(-1)
    measured = {"loss": losses, "accuracy": predicted == labels}
    if not model.training:
        measured["predicted"] = predicted
    return losses.mean(), measured


def load(job: Job[Settings]) -> tuple[Classifier, Batches, Batches | None, Batches | None]:
    """Return the model, on the CPU, and the batches to train, validate and test on.

    A split that the data does not have is None.
    """
    settings = job.settings
    splits = data.load(settings, job.runtime.data_root)
    job.save_spec(splits.spec)  # with it, jobs.load() makes the model without the data
    job.save_split(train=splits.train, val=splits.val, test=splits.test)
    model = models.make(settings, splits.spec)
    models.start(model, settings, job.runtime.data_root)
    collate = splits.collate
    return (
        model,
        job.batches(splits.train, settings.batch_size, shuffle=True, collate=collate),
        job.batches(splits.val, settings.batch_size, collate=collate),
        job.batches(splits.test, settings.batch_size, collate=collate),
    )


def train(
    job: Job[Settings], forward: Forward, model: Classifier, batches: Batches, val: Batches | None
) -> None:
    """Fit the model; the weights of the best evaluation are kept in best.pt.

    `forward` is the function above, as job.prepare() returns it.
    """
    settings = job.settings
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
            for part, fraction in job.parts(batch):  # --accumulate of them
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
    job: Job[Settings], forward: Forward, model: Classifier, batches: Batches | None, split: str
) -> Metrics:
    """Return the means over all examples of what forward() measures, and the macro F1.

    Waits for the device once, at the end. Of each test example, the label, the predicted class and
    what was measured are kept in predictions.npz; tables need these for their intervals.
    """
    if batches is None:
        return {}
    model.eval()
    means, names = Means(), [f"f1_{number}" for number in range(model.classes)]
    for batch in batches:
        _, measured = forward(model, batch, job.settings)
        labels, predicted = batch["labels"], measured.pop("predicted")
        means.add(measured | dict(zip(names, f1_parts(labels, predicted, len(names)), strict=True)))
        if split == "test":
            job.keep_outputs(measured, label=labels, predicted=predicted)
    metrics = means.read()
    found = [f1 for name in names if (f1 := metrics.pop(name)) >= 0]  # NaN: no such class occurs
    metrics["macro_f1"] = sum(found) / len(found)
    return {f"{split}_{name}": value for name, value in metrics.items()}


def f1_parts(labels: Tensor, predicted: Tensor, classes: int) -> list[tuple[Tensor, Tensor]]:
    """Return the numerator () and the denominator () of each class's F1, of labels (N,) and
    predictions (N,); both add up over batches."""
    numbers = torch.arange(classes, device=labels.device).view(-1, 1)
    true, found = labels == numbers, predicted == numbers  # (K, N)
    return [*zip(2 * (true & found).sum(1), true.sum(1) + found.sum(1), strict=True)]


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
