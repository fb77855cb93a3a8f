"""Regression on scikit-learn's diabetes data, in Lightning.

    python regression_lightning.py --model linear --lr 1e-2 --seed 1

The same command goes on from the last checkpoint, if there is one.
"""

from typing import Literal

import lightning as L
import torch
from jsonargparse import auto_cli
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import MLFlowLogger
from networks import Scaled
from sklearn.datasets import load_diabetes
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset, random_split
from torchmetrics import MeanAbsoluteError, MeanSquaredError, MetricCollection, R2Score


class Regression(L.LightningModule):
    """The network, its loss, its metrics and its optimizer."""

    def __init__(self, network, lr):
        super().__init__()
        self.network, self.lr = network, lr
        metrics = {"loss": MeanSquaredError(), "mae": MeanAbsoluteError(), "r2": R2Score()}
        self.train_metrics = MetricCollection(metrics, prefix="train_")
        self.val_metrics = self.train_metrics.clone(prefix="val_")
        self.test_metrics = self.train_metrics.clone(prefix="test_")

    def training_step(self, batch, _):
        """Return the loss of a batch."""
        features, targets = batch
        predicted = self.network(features)
        self.train_metrics.update(predicted, targets)
        self.log_dict(self.train_metrics, on_step=False, on_epoch=True)
        return mse_loss(predicted, targets)

    def validation_step(self, batch, _):
        """Measure a batch."""
        features, targets = batch
        self.val_metrics.update(self.network(features), targets)
        self.log_dict(self.val_metrics)

    def test_step(self, batch, _):
        """Measure a batch."""
        features, targets = batch
        self.test_metrics.update(self.network(features), targets)
        self.log_dict(self.test_metrics)

    def configure_optimizers(self):
        """Return Adam, and a cosine schedule by step."""
        optimizer = torch.optim.Adam(self.parameters(), self.lr)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def main(
    model: Literal["mlp", "linear"] = "mlp",
    lr: float = 1e-3,
    epochs: int = 30,
    batch_size: int = 64,
    patience: int = 10,
    seed: int = 0,
    split_seed: int = 0,
):
    """Train, and test the best weights."""
    settings = locals()
    L.seed_everything(seed)
    arrays = load_diabetes(return_X_y=True, scaled=False)
    dataset = TensorDataset(*(torch.from_numpy(array).float() for array in arrays))
    random = torch.Generator().manual_seed(split_seed)
    train, val, test = random_split(dataset, [0.64, 0.16, 0.2], random)
    folder = "runs/" + ",".join(f"{name}={value}" for name, value in settings.items())
    checkpoints = ModelCheckpoint(folder, monitor="val_mae", save_last=True)
    stopping = EarlyStopping("val_mae", patience=patience)
    logger = MLFlowLogger("regression", tracking_uri="sqlite:///mlflow.db", log_model=True)
    logger.log_hyperparams(settings)
    trainer = L.Trainer(
        max_epochs=epochs,
        logger=logger,
        callbacks=[checkpoints, stopping, LearningRateMonitor()],
        log_every_n_steps=1,
    )
    regression = Regression(Scaled(model, *train[:]), lr)
    loaders = DataLoader(train, batch_size, shuffle=True), DataLoader(val, batch_size)
    trainer.fit(regression, *loaders, ckpt_path="last")
    trainer.test(regression, DataLoader(test, batch_size), ckpt_path="best")


if __name__ == "__main__":
    auto_cli(main)
