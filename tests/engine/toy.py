"""A project of the tests' own: settings, data, a network and a loop with all that there is.

attempts.py runs its jobs; tests vary the loop.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from labjobs.settings import Metric, Span, Weights, setting
from labjobs.training.init_from import Timing
from labjobs.training.loop import Job
from labjobs.training.meters import Means
from labjobs.training.optim import EMA, EarlyStopping, clip_gradients
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Subset, TensorDataset

METRICS = {"loss": Metric(better="lower"), "accuracy": Metric(better="higher", range=(0, 1))}
EXAMPLES, FEATURES, CLASSES = 51, 6, 3
STEPS = 7
"""Steps in an epoch: batches of 8, the last of 3."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the engine reads of a project's settings, and what this loop does."""

    epochs: int = 3
    steps: int = setting(0, replaces="epochs")
    minutes: float = setting(0.0, replaces="epochs")
    eval_every: Span = Span("1e")
    batch_size: int = 8
    accumulate: int = 1
    lr: float = 0.05
    momentum: float = 0.9
    schedule: str = "constant"
    ema: float = 0.0
    clip_norm: float = 0.0
    precision: str = "fp32"
    background: bool = False
    monitor: str = "val_loss"
    patience: int = 0
    seed: int = 0
    init_from: Weights | None = None


Hook = Callable[[str, Job[Settings]], None]
"""Called at each "step", and each "batch" of an evaluation."""


def examples(count: int, seed: int = 0) -> TensorDataset:
    """Return points (FEATURES,) and their classes, which a line separates."""
    random = torch.Generator().manual_seed(seed)
    points = torch.randn(count, FEATURES, generator=random)
    return TensorDataset(points, (points[:, :CLASSES] + points[:, CLASSES:]).argmax(1))


DATA = examples(EXAMPLES + 20)
TRAIN = Subset(DATA, range(EXAMPLES))
VAL = Subset(DATA, range(EXAMPLES, EXAMPLES + 20))


def network() -> nn.Module:
    """Return a network with all that has a state: weights, buffers, random numbers."""
    return nn.Sequential(
        nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, CLASSES)
    )


def forward(model: nn.Module, batch: Any, settings: Settings) -> tuple[Tensor, dict[str, Any]]:
    """Return the loss, and what is measured, one in each of the forms that there are."""
    points, labels = batch
    logits = model(points).float()
    losses = cross_entropy(logits, labels, reduction="none")
    right = logits.argmax(-1) == labels
    measured = {
        "loss": losses,  # (B,)
        "accuracy": right[:, None],  # (B, 1)
        "confidence": logits.softmax(-1).amax(-1).mean(),  # a single number
        "recall": ((right & (labels == 0)).sum(), (labels == 0).sum()),  # numerator and denominator
        "precision": (right.sum(), torch.tensor(float(len(labels)))),  # one of them on the CPU
        "smoothing": 0.1,  # a number that the host knows
    }
    return losses.mean(), measured


def factor(settings: Settings, at: Timing, plateaus: int) -> float:
    """Return what the learning rate is multiplied by in the next step."""
    stable = {"linear": 0.0, "stable-linear": 0.5, "constant": 1.0}[settings.schedule]
    return 1.0 - max(0.0, at.fraction_done - stable)


@dataclass
class Loop:
    """A training loop in the form of the template's, for tests to vary."""

    forward: Any = forward
    train_on: Any = TRAIN
    val_on: Any = VAL
    hook: Hook = lambda what, job: None
    network: Any = network
    shuffle: bool = True

    def main(self, job: Job[Settings]) -> Mapping[str, float]:
        settings = job.settings
        model = self.network().to(job.device)
        job.init(model=model)
        batches = self.batches(job)
        val = job.batches(self.val_on, settings.batch_size)
        prepared = job.prepare(self.forward, settings.precision)
        self.train(job, prepared, model, batches, val)
        job.load_best(model=model)
        return self.evaluate(model, job, prepared, val, "test")

    def batches(self, job: Job[Settings]) -> Any:
        """Return what there is to train on."""
        return job.batches(self.train_on, job.settings.batch_size, shuffle=self.shuffle)

    def train(self, job: Job[Settings], forward: Any, model: Any, batches: Any, val: Any) -> None:
        settings = job.settings
        optimizer = torch.optim.SGD(model.parameters(), settings.lr, settings.momentum, fused=True)
        ema = EMA(model, settings.ema)
        stopping = EarlyStopping(METRICS, settings.monitor, settings.patience)
        job.resume(model=model, optimizer=optimizer, ema=ema, stopping=stopping)
        for _ in job.epochs():
            model.train()
            for batch in job.steps(batches):
                self.hook("step", job)
                self.step(job, forward, model, batch, optimizer)
                ema.update()
            for metrics, weights in self.evaluations(job, ema.model, forward, val):
                job.log_epoch(metrics)
                if stopping.improved(metrics):
                    job.keep_best(metrics, model=weights)
                if stopping.due:
                    break
            if stopping.due:
                break

    def step(
        self, job: Job[Settings], forward: Any, model: Any, batch: Any, optimizer: Any
    ) -> None:
        settings = job.settings
        scale = factor(settings, job, 0)
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * scale
        for part, fraction in job.parts(batch):
            loss, measured = forward(model, part, settings)
            loss.backward(fraction)
            job.log(measured, lr=settings.lr * scale)
        if settings.clip_norm:
            clip_gradients(model.parameters(), settings.clip_norm)
        optimizer.step()
        optimizer.zero_grad()

    def evaluations(
        self, job: Job[Settings], model: Any, forward: Any, val: Any
    ) -> Iterator[tuple[dict[str, float], nn.Module]]:
        """Yield the evaluations that are due, with the weights that they are of."""
        if job.settings.background:
            yield from job.in_background(
                lambda weights: self.evaluate(weights, job, forward, val, "val"), model
            )
        else:
            yield self.evaluate(model, job, forward, val, "val"), model

    @torch.no_grad()
    def evaluate(
        self, model: Any, job: Job[Settings], forward: Any, batches: Any, part: str
    ) -> dict[str, float]:
        model.eval()
        means = Means()
        for batch in batches or ():
            self.hook("batch", job)
            means.add(forward(model, batch, job.settings)[1])
            if part == "test":
                job.keep_outputs(label=batch[1])
        return {f"{part}_{name}": value for name, value in means.read().items()}
