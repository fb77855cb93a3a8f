"""One job: load, train, evaluate, save.

    python run.py                                      # a small network on scikit-learn's digits
    python run.py --augment shift --temperature 1 --seed 1
    python run.py --dataset cifar10 --model resnet18 --augment crop-flip-colour --batch-size 512
    python run.py --help

A job is identified by its settings. If you run it again with the same ones, it continues where it
was interrupted, or says that it has finished. Its files are in runs/<job id>/, its metrics in
MLflow.
"""

import math
import sys
from collections.abc import Callable

from labjobs import launch
from settings import METRICS, Settings

if __name__ == "__main__":
    # Before torch is imported, which is slow: --help, wrong flags and finished jobs end here.
    command = launch.begin(Settings, METRICS)

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize, one_hot

import data
import models
import optimizers
from labjobs import EMA, Batches, EarlyStopping, Forward, Job, Means, clip_gradients

Metrics = dict[str, float]

RIDGE = 30.0  # penalty of the linear probe's squared weights, with features of unit variance


def forward(
    model: models.Contrastive, views: data.Views, settings: Settings
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean loss, NT-Xent (Chen et al. 2020, arxiv.org/abs/2002.05709), and by name what
    is measured: a value for each view, or one for the batch.

    Each view is to find the other view of its image among all views in the batch. Alignment and
    uniformity are defined as in Wang & Isola 2020, arxiv.org/abs/2005.10242. Runs under autocast;
    with --compile it is compiled together with the model.
    """
    count = len(views[0])
    points = normalize(model(torch.cat(views)).float())  # (2B, P), on the unit sphere
    with torch.autocast(points.device.type, enabled=False):
        cosines = points @ points.T
    index = torch.arange(2 * count, device=points.device)
    other = index.roll(count)  # view of the same image
    itself = index[:, None] == index
    logits = (cosines / settings.temperature).masked_fill(itself, -torch.inf)
    losses = cross_entropy(logits, other, reduction="none")
    squares = 2 - 2 * cosines.detach()  # of distances
    measured = {
        "loss": losses,
        "matched": logits.argmax(1) == other,
        "alignment": squares[index, other],
    }
    if count > 1:
        same = itself | itself[other]
        pairs = 2 * count * (2 * count - 2)
        kernel = (-2 * squares).masked_fill(same, -torch.inf)
        measured["uniformity"] = kernel.flatten().logsumexp(0) - math.log(pairs)
    return losses.mean(), measured


def load(
    job: Job[Settings],
) -> tuple[models.Contrastive, Batches, Batches, Batches | None, Batches | None]:
    """Return the model, on the CPU, and the batches to train, fit the probes, validate and test on.

    The last two are None if the data does not have that split.
    """
    settings = job.settings
    splits = data.load(settings, job.runtime.data_root)
    job.save_spec(splits.spec)  # with it, jobs.load() makes the model without the data
    job.save_split(train=splits.train, val=splits.val, test=splits.test)
    return (
        models.make(settings, splits.spec),
        job.batches(splits.train, settings.batch_size, shuffle=True),
        job.batches(splits.labelled, 1),
        job.batches(splits.val, settings.batch_size),
        job.batches(splits.test, settings.batch_size),
    )


def train(
    job: Job[Settings],
    forward: Forward,
    model: models.Contrastive,
    batches: Batches,
    labelled: Batches,
    val: Batches | None,
) -> None:
    """Fit the model; the weights of the best evaluation are kept in best.pt.

    `forward` is the function above, as job.prepare() returns it.
    """
    settings = job.settings
    views = data.augmentation(settings)
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
            # No job.parts(): in a part of the batch, each image would be compared with fewer
            # others.
            loss, measured = forward(model, views(batch), settings)
            scaler.scale(loss).backward()
            job.log(measured, lr=lr)  # stays on the device and is written later
            if settings.clip_norm:
                scaler.unscale_(optimizer)
                norm = clip_gradients(model.parameters(), settings.clip_norm)
                job.log(gradient_norm=norm)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            ema.update()

        metrics = evaluate(job, forward, ema.model, labelled, val, "val")
        job.log_epoch(metrics)
        if stopping.improved(metrics):
            job.keep_best(metrics, model=ema.model)
        if stopping.due:
            break


@torch.no_grad()
def evaluate(
    job: Job[Settings],
    forward: Forward,
    model: models.Contrastive,
    labelled: Batches,
    batches: Batches | None,
    split: str,
) -> Metrics:
    """Return the means over all examples of what forward() measures, with the same views each time,
    and the accuracies of probes of the features, averaged over the random choices of labelled
    images. Uniformity is measured per batch, and each batch counts the same.

    Probes get features in fp32, whatever the --precision. The label and the features of each test
    example, and the fraction of the linear probes that classify it correctly, are kept in
    predictions.npz.
    """
    if batches is None:
        return {}
    model.eval()
    drawn = [(model.features(images[0]), labels[0]) for images, labels in labelled]
    features, labels = (torch.stack(each) for each in zip(*drawn, strict=True))
    linear, nearest = linear_probe(features, labels), nearest_neighbour(features, labels)
    views, means = data.augmentation(job.settings), Means()
    random = torch.Generator(job.device).manual_seed(0)  # leaves training's numbers alone
    for batch in batches:
        images, true = batch
        _, measured = forward(model, views(batch, random), job.settings)
        features = model.features(images)
        right = linear(features) == true
        means.add(measured | {"probe_accuracy": right, "knn_accuracy": nearest(features) == true})
        if split == "test":
            job.keep_outputs(label=true, features=features, probes_right=right.float().mean(0))
    return {f"{split}_{name}": value for name, value in means.read().items()}


Classifier = Callable[[Tensor], Tensor]


def linear_probe(features: Tensor, labels: Tensor) -> Classifier:
    """Return a function from features (B, F) to the classes (D, B) that linear probes predict, each
    fitted to one of D draws of labelled features (D, N, F), with as many of each class.

    The probes are ridge regressions of the one-hot classes on the features, minus their mean and
    divided by one common standard deviation. As all classes have the same number of examples, an
    intercept would be the same for all.
    """
    mean = features.mean(1, keepdim=True)
    std = (features - mean).square().mean((1, 2), keepdim=True).sqrt().clamp_min(1e-6)
    x, y = (features - mean) / std, one_hot(labels).float()
    penalty = RIDGE * torch.eye(x.shape[-1], device=x.device)
    weights = torch.linalg.solve(x.mT @ x + penalty, x.mT @ y)  # (D, F, K)
    return lambda queries: ((queries - mean) / std @ weights).argmax(-1)


def nearest_neighbour(features: Tensor, labels: Tensor) -> Classifier:
    """Return a function from features (B, F) to the class (D, B) of the most similar, by cosine, of
    the labelled features (D, N, F) in each draw."""
    known = normalize(features, dim=-1)
    return lambda queries: labels.gather(1, (normalize(queries) @ known.mT).argmax(-1))


def main(job: Job[Settings]) -> Metrics:
    """Train, and return the test results of the best weights; the test data has no other use."""
    model, batches, labelled, val, test = load(job)
    job.init(model=model)  # --init-from
    model.to(job.device)
    prepared = job.prepare(forward, job.settings.precision)  # with autocast and --compile
    train(job, prepared, model, batches, labelled, val)
    job.load_best(model=model)
    return evaluate(job, prepared, model, labelled, test, "test")


def check(job: Job[Settings]) -> None:
    """Raise SettingsError if the job could not run; run.sh checks all jobs before it starts one."""
    job.prepare(forward, job.settings.precision)
    job.check_schedule(optimizers.factor)
    spec = data.load(job.settings, job.runtime.data_root).spec
    with torch.device("meta"):  # shapes only: no weights are made
        job.init(model=models.make(job.settings, spec))


if __name__ == "__main__":
    sys.exit(command.run(main, check))
