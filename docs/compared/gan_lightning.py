"""A GAN on scikit-learn's digits, in Lightning.

    python gan_lightning.py --lr 1e-3 --seed 1

The same command goes on from the last checkpoint, if there is one.
"""

import lightning as L
import torch
from jsonargparse import auto_cli
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import MLFlowLogger
from networks import discriminator, generator
from sklearn.datasets import load_digits
from torch import cdist
from torch.nn.functional import softplus
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset, random_split
from torchvision.utils import make_grid


class GAN(L.LightningModule):
    """The networks, their losses, the metric and the optimizers."""

    def __init__(self, lr, latent, ema):
        super().__init__()
        self.automatic_optimization = False
        self.lr, self.latent = lr, latent
        self.generator, self.discriminator = generator(latent), discriminator()
        average = get_ema_multi_avg_fn(ema)
        self.ema = AveragedModel(self.generator, multi_avg_fn=average, use_buffers=True)

    def training_step(self, batch, _):
        """Take a step of each network."""
        (real,) = batch
        schedules = self.lr_schedulers()
        for optimizer, loss_of in zip(self.optimizers(), (self.d_loss, self.g_loss), strict=True):
            loss = loss_of(real)
            self.manual_backward(loss)
            optimizer.step()
            self.zero_grad()
            self.log(loss_of.__name__, loss, on_step=False, on_epoch=True)
        for schedule in schedules:
            schedule.step()
        self.ema.update_parameters(self.generator)

    def d_loss(self, real):
        """Return how badly the discriminator tells real images from generated ones."""
        with torch.no_grad():
            fake = self.generator(torch.randn(len(real), self.latent, device=self.device))
        return (softplus(-self.discriminator(real)) + softplus(self.discriminator(fake))).mean()

    def g_loss(self, real):
        """Return how easily the discriminator tells generated images from real ones."""
        fake = self.generator(torch.randn(len(real), self.latent, device=self.device))
        return softplus(-self.discriminator(fake)).mean()

    def generated(self, count):
        """Return images from the same noise each time."""
        random = torch.Generator(self.device).manual_seed(0)
        return self.ema(torch.randn(count, self.latent, generator=random, device=self.device))

    def distance(self, real):
        """Return the energy distance between real and generated images."""
        real, fake = real.flatten(1), self.generated(1000).flatten(1)
        return 2 * cdist(real, fake).mean() - cdist(real, real).mean() - cdist(fake, fake).mean()

    def validation_step(self, batch, _):
        """Measure the distance, and log some images."""
        self.log("val_distance", self.distance(batch[0]), prog_bar=True)
        image = make_grid(self.generated(64)).permute(1, 2, 0).cpu().numpy()
        run, step = self.logger.run_id, self.global_step
        self.logger.experiment.log_image(run, image, key="samples", step=step)

    def test_step(self, batch, _):
        """Measure the distance."""
        self.log("test_distance", self.distance(batch[0]))

    def configure_optimizers(self):
        """Return Adam for each network, and a cosine schedule by step."""
        steps = self.trainer.max_epochs * self.trainer.num_training_batches
        optimizers = [
            torch.optim.Adam(network.parameters(), self.lr, betas=(0.5, 0.999))
            for network in (self.discriminator, self.generator)
        ]
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR
        return optimizers, [cosine(optimizer, steps) for optimizer in optimizers]


def main(
    lr: float = 2e-3,
    latent: int = 32,
    ema: float = 0.995,
    epochs: int = 60,
    batch_size: int = 64,
    seed: int = 0,
    split_seed: int = 0,
):
    """Train, and test the last weights."""
    settings = locals()
    L.seed_everything(seed)
    images = torch.from_numpy(load_digits().images).float().unsqueeze(1) / 16
    random = torch.Generator().manual_seed(split_seed)
    train, val, test = random_split(TensorDataset(images), [0.72, 0.08, 0.2], random)
    folder = "runs/" + ",".join(f"{name}={value}" for name, value in settings.items())
    logger = MLFlowLogger("gan", tracking_uri="sqlite:///mlflow.db", log_model=True)
    logger.log_hyperparams(settings)
    trainer = L.Trainer(
        max_epochs=epochs,
        check_val_every_n_epoch=5,
        logger=logger,
        callbacks=[ModelCheckpoint(folder, save_last=True), LearningRateMonitor()],
        log_every_n_steps=1,
    )
    gan = GAN(lr, latent, ema)
    loaders = DataLoader(train, batch_size, shuffle=True), DataLoader(val, len(val))
    trainer.fit(gan, *loaders, ckpt_path="last")
    trainer.test(gan, DataLoader(test, len(test)), ckpt_path="last")


if __name__ == "__main__":
    auto_cli(main)
