"""One job: load, train, evaluate, save.

    python run.py                           # a small GAN on scikit-learn's digits
    python run.py --model mlp --lr 1e-3 --seed 1
    python run.py --dataset fashion-mnist --epochs 20 --precision bf16
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
from torch import Tensor, cdist
from torch.nn.functional import interpolate, softplus

import data
import models
import optimizers
from labjobs import EMA, Batches, EarlyStopping, Job, clip_gradients

Metrics = dict[str, float]
Loss = tuple[Tensor, dict[str, Tensor]]  # and what is measured: a value for each example


def d_loss(model: models.GAN, batch: data.Batch, settings: Settings) -> Loss:
    """Return the discriminator's loss: how badly it tells real images from generated ones.

    Runs under autocast; with --compile it is compiled together with the models.
    """
    real, _ = batch
    with torch.no_grad():
        fake = model.generator.draw(len(real))
    real_logits, fake_logits = model.discriminator(real), model.discriminator(fake)
    losses = softplus(-real_logits.float()) + softplus(fake_logits.float())
    return losses.mean(), {"discriminator_loss": losses}


def g_loss(model: models.GAN, batch: data.Batch, settings: Settings) -> Loss:
    """Return the generator's loss: how easily the discriminator tells its images from real ones.

    It does not saturate (Goodfellow et al. 2014, arxiv.org/abs/1406.2661).
    """
    fake = model.generator.draw(len(batch[0]))
    losses = softplus(-model.discriminator(fake).float())
    return losses.mean(), {"generator_loss": losses}


def load(job: Job[Settings]) -> tuple[models.GAN, Batches, Batches | None, Batches | None]:
    """Return the networks, on the CPU, and the batches to train, validate and test on.

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


def train(job: Job[Settings], model: models.GAN, batches: Batches, val: Batches | None) -> None:
    """Fit both networks; their weights of the best evaluation are kept in best.pt."""
    settings = job.settings
    augment = data.augmentation(settings)
    losses = [job.prepare(loss, settings.precision) for loss in (d_loss, g_loss)]
    networks = [model.discriminator, model.generator]
    d_optimizer, g_optimizer = (optimizers.make(network, settings) for network in networks)
    players = [*zip(losses, networks, (d_optimizer, g_optimizer), strict=True)]
    scaler = torch.amp.GradScaler(job.device.type, enabled=settings.precision == "fp16")
    ema = EMA(model.generator, settings.ema)  # with --ema 0, ema.model is the generator
    stopping = EarlyStopping(METRICS, settings.monitor, settings.patience)
    # What a checkpoint holds. If there is one, training continues from there.
    job.resume(
        discriminator=model.discriminator,
        generator=model.generator,
        discriminator_optimizer=d_optimizer,
        generator_optimizer=g_optimizer,
        scaler=scaler,
        ema=ema,
        stopping=stopping,
    )

    for _ in job.epochs():  # each ends with an evaluation: --eval-every
        model.train()
        for batch in map(augment, job.steps(batches)):  # saves checkpoints, profiles
            for forward, network, optimizer in players:
                lr = optimizers.set_lr(optimizer, settings, job, stopping)
                for part, fraction in job.parts(batch):  # --accumulate of them
                    loss, measured = forward(model, part, settings)
                    scaler.scale(loss).backward(fraction)  # as (loss * fraction).backward()
                    job.log(measured, lr=lr)  # stays on the device and is written later
                if settings.clip_norm:
                    scaler.unscale_(optimizer)
                    clip_gradients(network.parameters(), settings.clip_norm)
                scaler.step(optimizer)
                model.zero_grad()  # the generator's loss has gradients for the discriminator, too
            scaler.update()
            ema.update()

        metrics = evaluate(ema.model, val, "val")
        job.log_epoch(metrics)
        job.log_image("samples", generated(ema.model, 64))
        if stopping.improved(metrics):
            job.keep_best(metrics, generator=ema.model, discriminator=model.discriminator)
        if stopping.due:
            break


@torch.no_grad()
def generated(generator: models.Generator, count: int) -> Tensor:
    """Return images (B, C, H, W) with pixels in [0, 1], made from the same noise each time.

    The noise does not come from torch's global random numbers, which only training uses.
    """
    generator.eval()
    device = next(generator.parameters()).device
    return generator.draw(count, torch.Generator(device).manual_seed(0)) / 255


def evaluate(generator: models.Generator, batches: Batches | None, split: str) -> Metrics:
    """Return the energy distance between real images and 1,000 generated ones, 0 if they are alike.

    Source: Székely & Rizzo 2013, doi.org/10.1016/j.jspi.2013.03.018.
    """
    if batches is None:
        return {}
    fake = generated(generator, 1000)
    pixels = torch.cat([images for images, _ in batches]) / 255
    real = interpolate(pixels, fake.shape[-2:], mode="bilinear", antialias=True).flatten(1)
    fake = fake.flatten(1)
    distance = 2 * cdist(real, fake).mean() - cdist(real, real).mean() - cdist(fake, fake).mean()
    return {f"{split}_distance": distance.item()}


def main(job: Job[Settings]) -> Metrics:
    """Train, and return the test results of the best weights, the only use of the test data."""
    model, batches, val, test = load(job)
    job.init(generator=model.generator, discriminator=model.discriminator)  # --init-from
    model.to(job.device)
    train(job, model, batches, val)
    job.load_best(generator=model.generator)
    return evaluate(model.generator, test, "test")


def check(job: Job[Settings]) -> None:
    """Raise SettingsError if the job could not run; run.sh checks all jobs before it starts one."""
    job.prepare(g_loss, job.settings.precision)
    job.check_schedule(optimizers.factor)
    spec = data.load(job.settings, job.runtime.data_root).spec
    with torch.device("meta"):  # shapes only: no weights are made
        model = models.make(job.settings, spec)
        job.init(generator=model.generator, discriminator=model.discriminator)


if __name__ == "__main__":
    sys.exit(command.run(main, check))
