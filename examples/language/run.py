"""One job: load, train, evaluate, save.

    python run.py                                      # a small GPT on Python's documentation
    python run.py --context 128 --epochs 30 --seed 1
    python run.py --dataset files --text book.txt --tokenizer gpt2/tokenizer.json
    python run.py --help

A job is identified by its settings. If you run it again with the same ones, it continues where it
was interrupted, or says that it has finished. Its files are in runs/<job id>/, its metrics in
MLflow.
"""

import math
import sys
from functools import partial
from typing import Any

from labjobs import launch
from settings import METRICS, Settings

if __name__ == "__main__":
    # Before torch is imported, which is slow: --help, wrong flags and finished jobs end here.
    command = launch.begin(Settings, METRICS)

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

import data
import models
import optimizers
import texts
from labjobs import EMA, Batches, EarlyStopping, Forward, Job, Means, clip_gradients

Metrics = dict[str, float]

KEPT = 100  # test batches whose losses are kept
SAMPLE = 200  # tokens of text that each evaluation writes


def forward(
    model: nn.Module, batch: data.Batch, settings: Settings
) -> tuple[Tensor, dict[str, Any]]:
    """Return the mean loss, and measurements by name: a value for each token, (B, T), or a pair of
    values to be divided.

    Runs under autocast; with --compile it is compiled together with the model.
    """
    tokens, *sizes = map(texts.unsigned, batch)
    head = partial(in_chunks, following=tokens[:, 1:], at_once=settings.loss_chunk)
    loss, measured = model(tokens[:, :-1], head)
    bits = measured["loss"] / math.log(2)
    return loss, {**measured, "bits_per_byte": (bits, sizes[0][:, 1:]) if sizes else bits}


def in_chunks(
    features: Tensor, matrix: Tensor, following: Tensor, at_once: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean loss, and what is measured of features (B, T, width) and the tokens that
    follow (B, T).

    The logits of only `at_once` tokens are in memory at once.
    """
    rows, wanted = features.flatten(0, 1), following.flatten()
    if 0 < at_once < len(wanted):
        training = torch.is_grad_enabled()
        loss, *values = ChunkedLoss.apply(rows, matrix, wanted, at_once, training)
        names = measure(linear(rows[:0], matrix).float(), wanted[:0])
        measured = dict(zip(names, values, strict=True))
    else:
        measured = measure(linear(rows, matrix).float(), wanted)
        loss = measured["loss"].mean()
    return loss, {name: value.view_as(following) for name, value in measured.items()}


def measure(logits: Tensor, following: Tensor) -> dict[str, Tensor]:
    """Return by name what is measured of logits (N, K) and the tokens that follow (N,)."""
    return {"loss": cross_entropy(logits, following, reduction="none")}


class ChunkedLoss(torch.autograd.Function):
    """The mean loss, whose gradient is computed with it: chunk by chunk, so that no logits are kept
    for the backward pass, and none are computed twice.

    Source: Hsu et al. 2024, arxiv.org/abs/2410.10989.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, matrix: Tensor, wanted: Tensor, at_once: int, training: bool
    ) -> Any:
        """Return the loss (), and each of what is measured (N,), of rows (N, width)."""

        def summed(
            rows: Tensor, matrix: Tensor, wanted: Tensor
        ) -> tuple[Tensor, dict[str, Tensor]]:
            measured = measure(linear(rows, matrix).float(), wanted)
            return measured["loss"].sum(), measured

        gradients = torch.func.grad(summed, argnums=(0, 1), has_aux=True)
        found, of_rows, of_matrix = [], [rows[:0]], torch.zeros_like(matrix)
        for chunk in zip(rows.split(at_once), wanted.split(at_once), strict=True):
            if training:
                (of_some, of_all), measured = gradients(chunk[0], matrix, chunk[1])
                of_rows.append(of_some)
                of_matrix += of_all
            else:
                _, measured = summed(chunk[0], matrix, chunk[1])
            found.append(measured)
        ctx.save_for_backward(torch.cat(of_rows), of_matrix)
        values = [torch.cat([each[name] for each in found]) for name in found[0]]
        ctx.mark_non_differentiable(*values)
        return torch.cat([each["loss"] for each in found]).mean(), *values

    @staticmethod
    def backward(ctx: Any, slope: Tensor, *_: Tensor) -> Any:
        """Return the gradients of the rows and of the matrix."""
        of_rows, of_matrix = ctx.saved_tensors
        each = slope / len(of_rows)  # here, since fp16 has no numbers as small
        return of_rows * each, of_matrix * each, None, None, None


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
    optimizer = optimizers.make(model, settings)
    scaler = torch.amp.GradScaler(job.device.type, enabled=settings.precision == "fp16")
    ema = EMA(model, settings.ema)  # with --ema 0, ema.model is model
    flops = model.flops if isinstance(model, models.GPT) else 0.0  # of an example
    stopping = EarlyStopping(METRICS, settings.monitor, settings.patience)
    # What a checkpoint holds. If there is one, training continues from there.
    job.resume(model=model, optimizer=optimizer, scaler=scaler, ema=ema, stopping=stopping)

    for _ in job.epochs():  # each ends with an evaluation: --eval-every
        model.train()
        # Saves checkpoints, stops at Ctrl-C, profiles, and logs tokens/s and the MFU.
        for batch in job.steps(batches, tokens=settings.context, flops=flops):
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
        job.log_text("sample", sample(job, ema.model))
        if stopping.improved(metrics):
            job.keep_best(metrics, model=ema.model)
        if stopping.due:
            break


@torch.no_grad()
def evaluate(
    job: Job[Settings], forward: Forward, model: nn.Module, batches: Batches, split: str
) -> Metrics:
    """Return the means over all tokens, or bytes, of what forward() measures, and the perplexity.

    Waits for the device once, at the end. The loss of each token of the first test windows is kept
    in predictions.npz.
    """
    model.eval()
    means = Means()
    for number, batch in enumerate(batches):
        _, measured = forward(model, batch, job.settings)
        means.add(measured)
        if split == "test" and number < KEPT:
            job.keep_outputs(loss=measured["loss"])
    metrics = means.read()
    metrics["perplexity"] = torch.tensor(metrics["loss"]).double().exp().item()  # may be infinite
    return {f"{split}_{name}": value for name, value in metrics.items()}


@torch.no_grad()
def sample(job: Job[Settings], model: nn.Module) -> str:
    """Return a text of SAMPLE tokens that the model writes after an empty line.

    It draws from a generator of its own, so training is the same without it.
    """
    model.eval()
    settings, root = job.settings, job.runtime.data_root.expanduser()
    tokenizer = data.tokenizer(settings.tokenizer, root)
    begin, _ = tokenizer.encode(b"\n")
    tokens = torch.tensor([begin.tolist() or [0]], device=job.device)
    chance = torch.Generator(job.device).manual_seed(settings.seed)
    for _ in range(SAMPLE):
        logits = model(tokens[:, -settings.context :])[0, -1].float()
        drawn = torch.multinomial(logits.softmax(0), 1, generator=chance)
        tokens = torch.cat([tokens, drawn.view(1, 1)], 1)
    return tokenizer.decode(tokens[0].tolist())


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
