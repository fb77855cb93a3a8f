"""Numbers of a training loop that stay on the device until it has time for them.

They are gathered there as the steps make them. By time they are brought together in a block, which
is copied to pinned memory while training goes on, and read when the copy is done. So a step never
waits for the device, and a loss that is not finite is found soon, not at once: before a checkpoint
is made, which holds finite weights alone (training_state.py).
"""

import math
import time
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from engine.errors import Diverged
from engine.job.journal import Journal, now
from engine.stateful import Stateful

T = TypeVar("T")
_Label = tuple[int, int, float, int]  # optimizer step, time in ms, learning rate, losses added up

POINTS = 1000
"""Points that `auto` aims at for a training curve."""

BLOCK = 256
"""Points that wait on the device at most."""

GUESSES = 2**20
"""Logits that wait there at most, to see which are right: of one step if they are more."""

INTERVAL = 1.0
"""Seconds between two blocks."""


class TrainMeter(Stateful):
    """Training loss by optimizer step, into the journal; training accuracy by epoch.

    A point is the mean loss of `every` steps, under the number of the last of them; `auto` is as
    many as make about POINTS points of the job's steps.
    """

    kept = ("steps", "_in_mean", "_loss", "_correct", "_labels", "_ended")

    def __init__(
        self, journal: Journal, every: int | str, steps: int, device: torch.device
    ) -> None:
        self._journal = journal
        self._every = every if isinstance(every, int) else max(1, steps // POINTS)
        self._loss = torch.zeros((), device=device)
        self._correct = torch.zeros((), dtype=torch.int64, device=device)
        self._labels = 0
        self._ended = False
        self._guesses: list[tuple[Tensor, Tensor]] = []
        self._block = _Block(device)
        self.steps = self._in_mean = 0
        self._lr = 0.0
        self._last_block = time.monotonic()

    def update(self, loss: Tensor, logits: Tensor, labels: Tensor, lr: float) -> None:
        """Take in one optimizer step: loss (), logits (B, ..., K), labels (B, ...).

        Raises Diverged, some steps later, for a loss that is not finite.
        """
        if self._ended:
            self._begin_epoch()
        self._loss = self._loss + loss.detach() if self._in_mean else loss.detach()
        self._guesses.append((logits.detach(), labels))
        self.steps += 1
        self._in_mean += 1
        self._lr = lr
        if self._in_mean == self._every:
            self._add_point()
        if logits.numel() * len(self._guesses) > GUESSES:
            self._count()
        if self._block.full or time.monotonic() - self._last_block > INTERVAL:
            self._count()
            self._write(self._block.exchange(wait=self._block.full))
            self._last_block = time.monotonic()

    def flush(self) -> None:
        """Wait for the device and write every point so far.

        Raises Diverged if a loss was not finite, of a point that is not whole too.
        """
        self._count()
        for _ in range(2):  # what is under way, then what was still on the device
            self._write(self._block.exchange(wait=True))
        if self._in_mean and not math.isfinite(self._loss.item()):
            raise self._not_finite(self.steps)

    def end_epoch(self) -> dict[str, float]:
        """The epoch's accuracy, waiting for the device; the next step begins another epoch."""
        self._ended = True
        return {"train_accuracy": self._correct.item() / self._labels}

    def state_dict(self) -> dict[str, Any]:
        """The sums so far; all points before them are in the journal."""
        self.flush()
        return super().state_dict()

    def close(self) -> None:
        """Write the mean of the last steps too, if they are fewer than `every`."""
        if self._in_mean:
            self._add_point()
            self.flush()

    def _begin_epoch(self) -> None:
        self._correct.zero_()
        self._labels = 0
        self._ended = False

    def _count(self) -> None:
        """See which guesses were right, of many steps at once."""
        if self._guesses:
            logits, labels = zip(*self._guesses, strict=True)
            true = torch.cat([part.flatten() for part in labels])
            guessed = torch.cat([part.flatten(0, -2) for part in logits]).argmax(-1)
            self._correct += (guessed == true).sum()
            self._labels += len(true)
            self._guesses = []

    def _add_point(self) -> None:
        self._block.add(self._loss, (self.steps, now(), self._lr, self._in_mean))
        self._in_mean = 0

    def _write(self, points: list[tuple[float, _Label]]) -> None:
        for losses, (step, at, lr, count) in points:
            self._journal.metrics(step, {"train_loss": losses / count, "lr": lr}, at)
        self._journal.flush()
        bad = next((label[0] for loss, label in points if not math.isfinite(loss)), None)
        if bad:
            raise self._not_finite(bad)

    @staticmethod
    def _not_finite(step: int) -> Diverged:
        return Diverged(f"train_loss was not finite by optimizer step {step}; lower --lr")


class _Block:
    """Numbers on the device, each with a label on the host, brought together a block at a time."""

    def __init__(self, device: torch.device) -> None:
        cuda = device.type == "cuda"
        self._host = torch.zeros(BLOCK, pin_memory=cuda)
        self._values = self._host.numpy()
        self._copied = torch.cuda.Event() if cuda else None
        self._numbers: list[Tensor] = []
        self._labels: list[_Label] = []
        self._under_way: list[_Label] = []

    @property
    def full(self) -> bool:
        return len(self._labels) == BLOCK

    def add(self, number: Tensor, label: _Label) -> None:
        self._numbers.append(number)
        self._labels.append(label)

    def exchange(self, wait: bool) -> list[tuple[float, _Label]]:
        """Take what has arrived on the host and send off what has gathered on the device.

        Nothing happens while a copy is under way, unless it is to be waited for.
        """
        if self._copied and self._under_way:
            if wait:
                self._copied.synchronize()
            elif not self._copied.query():
                return []
        values = self._values[: len(self._under_way)].tolist()
        arrived = list(zip(values, self._under_way, strict=True))
        if self._numbers:
            block = torch.stack(self._numbers)
            self._host[: len(block)].copy_(block, non_blocking=self._copied is not None)
        self._numbers, self._labels, self._under_way = [], [], self._labels
        if self._copied:
            self._copied.record()
        return arrived


class Stopwatch(Stateful):
    """Where the time of an epoch goes, by the host's clock, while the job runs."""

    kept = ("_seconds", "_waited", "_trained")

    def __init__(self) -> None:
        self._seconds = self._waited = self._trained = 0.0
        self._noted = time.monotonic()

    def start(self) -> None:
        """An epoch begins, or goes on."""
        self._noted = time.monotonic()

    def waiting(self, batches: Iterator[T]) -> Iterator[T]:
        """The batches, with the time spent waiting for each of them counted."""
        while True:
            asked = time.monotonic()
            batch = next(batches, None)
            self._waited += time.monotonic() - asked
            if batch is None:
                return
            yield batch

    def trained(self) -> None:
        """Training ends here, evaluation begins, unless it had begun before an interruption; the
        device has done all its steps."""
        self._trained = self._trained or self._elapsed()

    def end_epoch(self, examples: int) -> dict[str, float]:
        """Seconds of the epoch with its evaluation; training examples per second of training; the
        share of the training time spent waiting for data."""
        metrics = {
            "epoch_seconds": self._elapsed(),
            "examples_per_second": examples / self._trained,
            "data_wait_fraction": self._waited / self._trained,
        }
        self._seconds = self._waited = self._trained = 0.0
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """The times so far."""
        self._elapsed()
        return super().state_dict()

    def _elapsed(self) -> float:
        self._seconds += time.monotonic() - self._noted
        self._noted = time.monotonic()
        return self._seconds
