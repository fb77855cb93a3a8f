"""One job: load, train, evaluate, save.

    python run.py                        # a message-passing network on a stream of random graphs
    python run.py --model deepsets --seed 1
    python run.py --dataset graph-files --data-root my-graphs --steps 5000
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
    predictions come along, which evaluate() takes out.
    """
    predicted = model(batch.nodes, batch.edges, batch.graph, batch.sizes)
    errors = predicted - batch.target
    losses = errors.square()
    measured = {"loss": losses, "mae": errors.abs()}
    if not model.training:
        measured["predicted"] = predicted
    return losses.mean(), measured


def load(job: Job[Settings]) -> tuple[nn.Module, Batches, list[Batches | None]]:
    """Return the model, on the CPU, the batches to train on, and those to validate, to test and to
    test on larger graphs.

    A split that the data does not have is None.
    """
    settings = job.settings
    splits = data.load(settings, job.runtime.data_root)
    job.save_spec(splits.spec)  # with it, jobs.load() makes the model without the data
    job.save_split(val=splits.val, test=splits.test, larger=splits.larger)
    size, collate = settings.batch_size, data.collate
    return (
        models.make(settings, splits.spec),
        job.batches(splits.train, size, collate=collate),
        [
            job.batches(part, size, collate=collate)
            for part in (splits.val, splits.test, splits.larger)
        ],
    )


def train(
    job: Job[Settings], forward: Forward, model: nn.Module, batches: Batches, val: Batches | None
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
            loss, measured = forward(model, batch, settings)
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
    """Return the means over all graphs of what forward() measures, and R², which is no mean.

    The target, the prediction and the number of nodes of each test graph are kept in
    predictions.npz, together with those of the larger graphs.
    """
    if batches is None:
        return {}
    model.eval()
    means, targets = Means(), []
    for batch in batches:
        _, measured = forward(model, batch, job.settings)
        predicted = measured.pop("predicted")
        means.add(measured)
        targets.append(batch.target)
        if split != "val":
            larger = torch.full_like(batch.sizes, split == "test_larger", dtype=torch.bool)
            job.keep_outputs(
                target=batch.target, predicted=predicted, nodes=batch.sizes, larger=larger
            )
    metrics = means.read()
    if spread := torch.cat(targets).var(correction=0).item():  # else R² has no meaning
        metrics["r2"] = 1 - metrics["loss"] / spread
    return {f"{split}_{name}": value for name, value in metrics.items()}


def main(job: Job[Settings]) -> Metrics:
    """Train, and return the test results of the best weights; the test data has no other use."""
    model, batches, (val, test, larger) = load(job)
    job.init(model=model)  # --init-from
    model.to(job.device)
    prepared = job.prepare(forward, job.settings.precision)  # with autocast and --compile
    train(job, prepared, model, batches, val)
    job.load_best(model=model)
    tested = evaluate(job, prepared, model, test, "test")
    return tested | evaluate(job, prepared, model, larger, "test_larger")


def check(job: Job[Settings]) -> None:
    """Raise SettingsError if the job could not run; run.sh checks all jobs before it starts one."""
    job.prepare(forward, job.settings.precision)
    job.check_schedule(optimizers.factor)
    spec = data.load(job.settings, job.runtime.data_root).spec
    with torch.device("meta"):  # shapes only: no weights are made
        job.init(model=models.make(job.settings, spec))


if __name__ == "__main__":
    sys.exit(command.run(main, check))
