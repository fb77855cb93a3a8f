"""The loops that steps.py compares run.py's to: `other_loops.py WAY EPOCHS` prints seconds a step.

Run in a project, whose network and data all of them use.
"""

import logging
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from run import Settings, load
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

warnings.filterwarnings("ignore")
CPU = torch.device("cpu")
BATCH = 64
Log = Callable[[Tensor, int], object]


def parts() -> tuple[nn.Module, Tensor, Tensor]:
    """The network, the images and the labels."""
    settings = Settings(model="small", dataset="random", val_fraction=0.03, loader="resident")
    batches, _, _, model = load(settings, CPU)
    images, labels = zip(*batches.epoch(0), strict=True)
    return model, torch.cat(images), torch.cat(labels)


def by_hand(epochs: int, clip: bool = False, log: Log | None = None) -> Iterator[float]:
    """Seconds of a step, epoch by epoch."""
    model, images, labels = parts()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    step = 0
    for _ in range(epochs):
        begun = time.perf_counter()
        order = torch.randperm(len(images))
        for batch in order.split(BATCH)[: 200 if log else None]:
            loss = cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if log:
                log(loss, step)
        steps = 200 if log else len(order.split(BATCH))
        yield (time.perf_counter() - begun) / steps


def mlflow_log(synchronous: bool) -> Log:
    """MLflow's own call, once a step."""
    import mlflow

    mlflow.set_experiment("steps")
    mlflow.start_run()
    return lambda loss, step: mlflow.log_metric(
        "train_loss", loss.item(), step=step, synchronous=synchronous
    )


def accelerate(epochs: int) -> Iterator[float]:
    """Hugging Face's Accelerate, with the loader that it prepares."""
    from accelerate import Accelerator

    model, images, labels = parts()
    accelerator = Accelerator(cpu=True)
    data = torch.utils.data.TensorDataset(images, labels)
    loader = torch.utils.data.DataLoader(data, BATCH, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(epochs):
        begun = time.perf_counter()
        for batch, target in loader:
            loss = cross_entropy(model(batch), target)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        yield (time.perf_counter() - begun) / len(loader)


def lightning(epochs: int, logger: str) -> Iterator[float]:
    """Lightning's trainer: barebones, or with a logger of each step's loss."""
    import lightning as pl
    from lightning.pytorch.loggers import CSVLogger, MLFlowLogger

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    network, images, labels = parts()
    times: list[float] = []

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def training_step(self, batch: tuple[Tensor, Tensor], _index: int) -> Tensor:
            loss = cross_entropy(self.network(batch[0]), batch[1])
            if logger:
                self.log("train_loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)

        def on_train_epoch_start(self) -> None:
            times.append(time.perf_counter())

        def on_train_epoch_end(self) -> None:
            times.append(time.perf_counter())

    uri = os.environ["MLFLOW_TRACKING_URI"]
    loggers = {
        "csv": lambda: CSVLogger(Path.cwd()),
        "mlflow": lambda: MLFlowLogger(tracking_uri=uri),
    }
    how = {"logger": loggers[logger](), "log_every_n_steps": 1} if logger else {"barebones": True}
    limit = 200 if logger == "mlflow" else 1.0
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        limit_train_batches=limit,
        **how,
        **({"enable_progress_bar": False, "enable_checkpointing": False} if logger else {}),
    )
    data = torch.utils.data.TensorDataset(images, labels)
    loader = torch.utils.data.DataLoader(data, BATCH, shuffle=True)
    trainer.fit(Module(), loader)
    steps = 200 if logger == "mlflow" else len(loader)
    yield from (
        (after - before) / steps for before, after in zip(times[::2], times[1::2], strict=True)
    )


def main() -> None:
    """Print the median of the epochs but the first."""
    way, epochs = sys.argv[1], int(sys.argv[2])
    ways: dict[str, Callable[[], Iterator[float]]] = {
        "bare": lambda: by_hand(epochs),
        "bare-clip": lambda: by_hand(epochs, clip=True),
        "mlflow-sync": lambda: by_hand(epochs, log=mlflow_log(True)),
        "mlflow-async": lambda: by_hand(epochs, log=mlflow_log(False)),
        "accelerate": lambda: accelerate(epochs),
        "lightning": lambda: lightning(epochs, ""),
        "lightning-csv": lambda: lightning(epochs, "csv"),
        "lightning-mlflow": lambda: lightning(epochs, "mlflow"),
    }
    print(statistics.median(list(ways[way]())[1:]))


if __name__ == "__main__":
    main()
