"""The loops of steps.py: `loops.py WAY EPOCHS`, in a project whose network and data all use.

Prints, epoch by epoch but for the first, a step's time as a ratio to that of the loop by hand. The
two take turns in one process: of 50 steps each where it can be done, else of an epoch.
"""

import json
import logging
import os
import pty
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import run
import torch
from engine.cli import parser as cli
from engine.data.loaders import Batches
from engine.job.folder import Job
from engine.launch import OneJob
from engine.training.precision import Precision
from engine.training.seeding import GlobalStreams
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
CPU = torch.device("cpu")
BATCH = 64
TURN = 50
"""Steps of a turn."""

FEW = 200
"""Steps of an epoch where a step takes many times as long."""

JOB = ["--model", "small", "--dataset", "random", "--val-fraction", "0.03", "--force"]
EVERY = ["--log-every", "1"]
ALL = ["--clip-norm", "1", "--ema", "0.999", "--schedule", "cosine", "--patience", "50"]
OFTEN = ["--checkpoint-minutes", "0.05"]
Log = Callable[[Tensor, int], object]


class Turns:
    """A loop and the loop by hand in turn, so many steps each; `ratios` is an epoch's time to that
    of as many steps by hand, epoch by epoch."""

    def __init__(self, epochs: int, clip: bool) -> None:
        self.ratios: list[float] = []
        self.epochs = epochs
        self._by_hand = by_hand(clip)
        self._own = self._other = 0.0

    def begin(self) -> None:
        """The loop takes its turn."""
        self._begun = time.perf_counter()

    def end(self, steps: int) -> None:
        """It has taken so many steps; now the loop by hand takes as many."""
        self._own += time.perf_counter() - self._begun
        with torch.enable_grad():
            self._other += sum(next(self._by_hand) for _ in range(steps // TURN)) * TURN

    def end_epoch(self) -> None:
        """An epoch is over."""
        self.ratios.append(self._own / self._other)
        self._own = self._other = 0.0


def parts() -> tuple[nn.Module, Tensor, Tensor]:
    """The network, the images and the labels."""
    settings = run.Settings(model="small", dataset="random", val_fraction=0.03, loader="resident")
    batches, _, _, _, model = run.load(settings, CPU)
    images, labels = zip(*batches.epoch(0), strict=True)
    return model, torch.cat(images), torch.cat(labels)


def by_hand(clip: bool = False, log: Log | None = None) -> Iterator[float]:
    """A loop with nothing around it; seconds of a step, every so many steps."""
    model, images, labels = parts()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    step = 0
    while True:
        batches = torch.randperm(len(images)).split(BATCH)
        for first in range(0, len(batches) - TURN, TURN):
            begun = time.perf_counter()
            for batch in batches[first : first + TURN]:
                loss = cross_entropy(model(images[batch]), labels[batch])
                loss.backward()
                if clip:
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                if log:
                    log(loss, step)
            yield (time.perf_counter() - begun) / TURN


def ours(turns: Turns, *flags: str) -> None:
    """run.py's own loop in a job, with its courier and its store."""

    class InTurn:
        """Training batches; every so many of them the loop by hand has its turn."""

        def __init__(self, batches: Batches) -> None:
            self.batches, self.examples = batches, batches.examples

        def __len__(self) -> int:
            return len(self.batches)

        def epoch(self, *where: int) -> Iterator[tuple[Tensor, Tensor]]:
            """The batches of an epoch, with those turns between them."""
            turns.begin()
            for number, batch in enumerate(self.batches.epoch(*where), start=1):
                yield batch
                if number % TURN == 0:
                    turns.end(TURN)
                    turns.begin()
            turns.end_epoch()

    def main(job: Job[run.Settings]) -> dict[str, float]:
        streams, precision = GlobalStreams(0, CPU), Precision("fp32", CPU)
        train, val, _, _, model = run.load(job.settings, CPU)
        return {"best_epoch": run.train(job, InTurn(train), val, model, precision, streams)}

    words = [*JOB, *flags, "--epochs", str(turns.epochs)]
    with terminal():
        assert OneJob(cli.parse(run.Settings, words)).run(lambda _: None, main) == 0


@contextmanager
def terminal() -> Iterator[None]:
    """Print to a terminal, which a progress bar asks for; another process reads it."""
    reading, writing = pty.openpty()
    with subprocess.Popen(["cat"], stdin=reading, stdout=subprocess.DEVNULL) as reader:
        with os.fdopen(writing, "w") as screen, redirect_stdout(screen):
            yield
        reader.terminate()


def mlflow(turns: Turns, synchronous: bool) -> None:
    """A loop by hand with MLflow's own call in each step."""
    import mlflow

    mlflow.set_experiment("steps")
    mlflow.start_run()
    loop = by_hand(
        log=lambda loss, step: mlflow.log_metric(
            "train_loss", loss.item(), step=step, synchronous=synchronous
        )
    )
    for _ in range(turns.epochs):
        turns.begin()
        for _ in range(FEW // TURN):
            next(loop)
        turns.end(FEW)
        turns.end_epoch()
        mlflow.flush_async_logging()


def accelerate(turns: Turns) -> None:
    """Hugging Face's Accelerate, with the loader that it prepares."""
    from accelerate import Accelerator

    model, images, labels = parts()
    accelerator = Accelerator(cpu=True)
    loader = DataLoader(TensorDataset(images, labels), BATCH, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(turns.epochs):
        turns.begin()
        for batch, target in loader:
            loss = cross_entropy(model(batch), target)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        turns.end(len(loader))
        turns.end_epoch()


def lightning(turns: Turns, logger: str = "") -> None:
    """Lightning's trainer: barebones, or with a logger of each step's loss."""
    import lightning as pl
    from lightning.pytorch.loggers import CSVLogger, MLFlowLogger

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    network, images, labels = parts()
    loader = DataLoader(TensorDataset(images, labels), BATCH, shuffle=True)
    steps = FEW if logger == "mlflow" else len(loader)

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
            turns.begin()

        def on_train_epoch_end(self) -> None:
            turns.end(steps)
            turns.end_epoch()

    uri = os.environ["MLFLOW_TRACKING_URI"]
    loggers = {
        "csv": lambda: CSVLogger(Path.cwd()),
        "mlflow": lambda: MLFlowLogger(tracking_uri=uri),
    }
    logged = {"enable_progress_bar": False, "enable_checkpointing": False, "log_every_n_steps": 1}
    how = {"logger": loggers[logger](), **logged} if logger else {"barebones": True}
    trainer = pl.Trainer(
        max_epochs=turns.epochs, accelerator="cpu", limit_train_batches=steps, **how
    )
    trainer.fit(Module(), loader)


WAYS: dict[str, Callable[[Turns], None]] = {
    "ours": lambda turns: ours(turns, *EVERY),
    "ours-all": lambda turns: ours(turns, *EVERY, *ALL, *OFTEN),
    "accelerate": accelerate,
    "lightning": lightning,
    "lightning-csv": lambda turns: lightning(turns, "csv"),
    "mlflow-async": lambda turns: mlflow(turns, synchronous=False),
    "mlflow-sync": lambda turns: mlflow(turns, synchronous=True),
    "lightning-mlflow": lambda turns: lightning(turns, "mlflow"),
}


def main() -> None:
    """Print the ratios."""
    way, epochs = sys.argv[1], int(sys.argv[2])
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{Path.cwd()}/{way}.db"
    torch.set_num_threads(1)
    turns = Turns(epochs, clip=way == "ours-all")
    WAYS[way](turns)
    print(json.dumps(turns.ratios[1:]), flush=True)


if __name__ == "__main__":
    main()
