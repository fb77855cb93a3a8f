"""The loops of steps.py: `loops.py WAY EPOCHS`, in a project whose network and data all use.

Prints, for each epoch except the first, a step's time divided by the time of a step in the loop by
hand. The two take turns in one process, of 50 steps each if possible, else of an epoch.
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

import data
import models
import run
import torch
from labjobs.attempt import Attempt
from labjobs.cli.parser import parse
from labjobs.data.batches import Batches
from labjobs.data.order import underlying
from labjobs.job.folder import JobFolder
from labjobs.job.runtime import Runtime
from labjobs.training.loop import Job
from settings import METRICS, Settings
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
    """A loop and the loop by hand take turns with the same number of steps; `ratios` has, for each
    epoch, its time divided by the time of the same number of steps by hand."""

    def __init__(self, epochs: int, clip: bool, measure: bool) -> None:
        self.ratios: list[float] = []
        self.epochs = epochs
        self._by_hand = by_hand(clip, measure=measure)
        self._own = self._other = 0.0

    def begin(self) -> None:
        """The loop takes its turn."""
        self._begun = time.perf_counter()

    def end(self, steps: int) -> None:
        """The loop has taken this many steps; now the loop by hand takes as many."""
        self._own += time.perf_counter() - self._begun
        with torch.enable_grad():
            self._other += sum(next(self._by_hand) for _ in range(steps // TURN)) * TURN

    def end_epoch(self) -> None:
        """An epoch is over."""
        if not self._other:
            return
        self.ratios.append(self._own / self._other)
        self._own = self._other = 0.0


def parts() -> tuple[nn.Module, Tensor, Tensor]:
    """The network, the images and the labels."""
    settings = Settings(model="small", dataset="random", val_fraction=0.03)
    loaded = data.load(settings, Path.cwd())
    dataset, indices = underlying(loaded.train)
    images, labels = dataset.tensors
    return models.make(settings, loaded.spec), images[indices], labels[indices]


def by_hand(clip: bool = False, log: Log | None = None, measure: bool = False) -> Iterator[float]:
    """Yield the mean seconds of a step of a plain loop, once for every 50 steps.

    With `measure` the mean loss and accuracy of each step are read, together, at the end.
    """
    model, images, labels = parts()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    step = 0
    while True:
        batches = torch.randperm(len(images)).split(BATCH)
        for first in range(0, len(batches) - TURN, TURN):
            begun = time.perf_counter()
            measured = []
            for batch in batches[first : first + TURN]:
                logits = model(images[batch])
                if measure:
                    losses = cross_entropy(logits, labels[batch], reduction="none")
                    measured += losses.detach(), (logits.argmax(1) == labels[batch]).float()
                    loss = losses.mean()
                else:
                    loss = cross_entropy(logits, labels[batch])
                loss.backward()
                if clip:
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                if log:
                    log(loss, step)
            if measured:
                torch.stack(measured).mean(1).tolist()
            yield (time.perf_counter() - begun) / TURN


class InTurn:
    """Training batches; after every 50 of them, the loop by hand takes its turn."""

    def __init__(self, batches: Batches, turns: Turns) -> None:
        self.batches, self.turns = batches, turns

    endless = Batches.endless

    def __getattr__(self, name: str) -> object:
        return getattr(self.batches, name)

    def epoch(self, number: int, done: int) -> Iterator[object]:
        """The batches of an epoch, with those turns between them."""
        self.turns.begin()
        for taken, each in enumerate(self.batches.epoch(number, done), start=1):
            yield each
            if taken % TURN == 0:
                self.turns.end(TURN)
                self.turns.begin()
        self.turns.end_epoch()


def ours(turns: Turns, *flags: str) -> None:
    """run.py's own loop in a job, with its courier and its store."""

    def main(job: Job[Settings]) -> dict[str, float]:
        model, batches, val, _ = run.load(job)
        forward = job.prepare(run.forward, job.settings.precision)
        run.train(job, forward, model, InTurn(batches, turns), val)
        turns.end_epoch()  # the last epoch's batches are never asked for once more
        return {}

    words = [*JOB, *flags, "--epochs", str(turns.epochs)]
    folder = JobFolder(*parse(Settings, Runtime, words), METRICS)
    with terminal():
        assert Attempt(folder).run(main, run.check) == 0


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
    "ours-measured": lambda turns: ours(turns, *EVERY),
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
    turns = Turns(epochs, clip=way == "ours-all", measure=way == "ours-measured")
    WAYS[way](turns)
    print(json.dumps(turns.ratios[1:]), flush=True)


if __name__ == "__main__":
    main()
