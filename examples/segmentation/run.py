"""One job: load, train, evaluate, save.

    python run.py                              # a small U-Net on scenes of handwritten digits
    python run.py --augment crop --lr 3e-3 --seed 1
    python run.py --dataset voc --image-size 256 --augment crop-flip --precision bf16
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
from torch import Tensor
from torch.nn.functional import cross_entropy

import data
import models
import optimizers
from labjobs import EMA, Batches, EarlyStopping, Forward, Job, Means, clip_gradients

Metrics = dict[str, float]
Measured = dict[str, Tensor | tuple[Tensor, Tensor]]


def forward(
    model: models.Segmenter, batch: data.Batch, settings: Settings
) -> tuple[Tensor, Measured]:
    """Return the mean loss of the labelled pixels, and measurements by name: a value for each pixel
    (0 without a label), and the number of labelled pixels.

    Runs under autocast; with --compile it is compiled together with the model. In evaluation the
    predicted classes (B, H, W) come along, which evaluate() takes out.
    """
    images, masks = batch
    logits = model(images).movedim(1, -1).float()  # (B, H, W, K)
    smoothing = settings.label_smoothing if model.training else 0.0
    losses = cross_entropy(
        logits.flatten(0, -2),  # a row for each pixel: on images it is not deterministic on a GPU
        masks.flatten().long(),
        ignore_index=data.IGNORED,
        reduction="none",
        label_smoothing=smoothing,
    )
    predicted = logits.argmax(-1).to(torch.uint8)
    pixels = data.labelled(batch)
    measured: Measured = {
        "loss": (losses, pixels),
        "pixel_accuracy": (predicted == masks, pixels),
    }
    if not model.training:
        measured["predicted"] = predicted
    return losses.sum() / pixels, measured


def load(
    job: Job[Settings],
) -> tuple[models.Segmenter, Batches, Batches | None, Batches | None]:
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
    job: Job[Settings],
    forward: Forward,
    model: models.Segmenter,
    batches: Batches,
    val: Batches | None,
) -> None:
    """Fit the model; the weights of the best evaluation are kept in best.pt.

    `forward` is the function above, as job.prepare() returns it.
    """
    settings = job.settings
    augment = data.augmentation(settings)
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
            for part, fraction in job.parts(augment(batch), data.labelled):  # --accumulate of them
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
    job: Job[Settings],
    forward: Forward,
    model: models.Segmenter,
    batches: Batches | None,
    split: str,
) -> Metrics:
    """Return the means over all labelled pixels of what forward() measures, and the mean IoU.

    The IoU of a class is the intersection of its true and its predicted pixels over their union,
    both of all images together; on test data, that of each class is returned too. The first batch
    of test images, with their masks and the predicted classes, is kept in predictions.npz.
    """
    if batches is None:
        return {}
    model.eval()
    means, names = Means(), [f"iou_{name}" for name in model.classes]
    for number, batch in enumerate(batches):
        _, measured = forward(model, batch, job.settings)
        predicted = measured.pop("predicted")
        images, masks = batch
        overlaps = zip(*overlap(masks, predicted, len(names)), strict=True)
        means.add(measured | dict(zip(names, overlaps, strict=True)))
        if split == "test" and number == 0:
            job.keep_outputs(image=images, mask=masks, predicted=predicted)
    metrics = means.read()
    # NaN, and left out, if no pixel is of the class or predicted to be.
    ious = {name: iou for name in names if (iou := metrics.pop(name)) >= 0}
    metrics["iou"] = sum(ious.values()) / max(1, len(ious))
    if split == "test":
        metrics |= ious
    return {f"{split}_{name}": value for name, value in metrics.items()}


def overlap(masks: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """Return for each class how many pixels of masks (B, H, W) have the class and are predicted to
    have it, and how many have or are predicted to have it: (2, K). Pixels of no class do not
    count."""
    numbers = torch.arange(classes, device=masks.device).view(-1, 1, 1, 1)
    true = masks == numbers
    found = (predicted == numbers) & (masks != data.IGNORED)
    return torch.stack([(true & found).sum((1, 2, 3)), (true | found).sum((1, 2, 3))])


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
