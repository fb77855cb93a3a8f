"""One stitch: a linear map from the features of one network to those of another, fitted by L-BFGS.

    python stitch.py --front 1872aa178ea7 --back 6481210abf0b --layer layers.2
    python stitch.py --front 1872aa178ea7 --back 6481210abf0b --optimizer adam --lr 1e-3
    python stitch.py --help

The ids are ids of run.py's jobs. The network of --front up to --layer, the map, and the network
of --back from there on are a classifier, of which only the map is trained. stitching.py has the
parts, plot_stitch.py the figures.
"""

import copy
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from labjobs import launch
from settings import STITCH_METRICS, Settings, StitchSettings

if __name__ == "__main__":
    command = launch.begin(StitchSettings, STITCH_METRICS)

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import LBFGS, Adam, Optimizer

import data
import jobs
import stitching
from labjobs import Batches, EarlyStopping, Forward, Job, JobError, Means

Metrics = dict[str, float]

SPLIT = ("dataset", "val_fraction", "fold", "split_seed")
"""Settings that say which examples a network is trained on."""

HISTORY = 20
"""Steps from which L-BFGS knows the curvature; it keeps two vectors of all weights for each."""

Parts = list[data.Batch]
"""The training examples in parts: features as they leave the first half, and labels."""


class Evaluations:
    """How often the gradient over all training examples has been computed."""

    count = 0

    def state_dict(self) -> dict[str, int]:
        """Return the count."""
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore the count."""
        self.count = state["count"]


def forward(
    model: nn.Module, batch: data.Batch, settings: StitchSettings
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean loss, and measurements by name: a value for each example.

    The model is a classifier of images, or the map and what follows it, for features.
    """
    inputs, labels = batch
    logits = model(inputs).float()
    losses = cross_entropy(logits, labels, reduction="none")
    predicted = logits.argmax(-1)
    return losses.mean(), {"loss": losses, "accuracy": predicted == labels, "predicted": predicted}


def networks(settings: StitchSettings) -> tuple[jobs.Loaded, jobs.Loaded]:
    """Return both jobs. Raises JobError unless they were trained on the same examples."""
    front, back = jobs.load(settings.front), jobs.load(settings.back)
    for name in SPLIT:
        one, other = getattr(front.settings, name), getattr(back.settings, name)
        if one != other:
            raise JobError(
                f"--front, --back: {name} is {one} and {other}; both must have been trained on the "
                "same examples"
            )
    return front, back


def named(settings: Settings) -> str:
    """Return a network's name in figures: its model and the settings that are not the default."""
    usual = asdict(Settings())
    others = {
        name: value
        for name, value in asdict(settings).items()
        if value != usual[name] and name not in ("model", "seed")
    }
    return ", ".join([settings.model, *(f"{name} {value}" for name, value in others.items())])


def load(
    job: Job[StitchSettings], like: jobs.Loaded
) -> tuple[Batches, Batches | None, Batches | None]:
    """Return the batches to fit, validate and test on: the splits that the networks have."""
    splits = data.load(like.settings, job.runtime.data_root)
    job.save_split(train=splits.train, val=splits.val, test=splits.test)
    if splits.val is None and job.settings.monitor != "none":
        raise JobError("--front: that job had no validation examples; add --monitor none")
    size = job.settings.batch_size
    return (
        job.batches(splits.train, size),
        job.batches(splits.val, size),
        job.batches(splits.test, size),
    )


@torch.no_grad()
def regressed(
    job: Job[StitchSettings], front: nn.Module, back: nn.Module, train: Batches
) -> stitching.Stitch:
    """Return the map that a ridge regression gives, from the features of one first half to those
    of another. Raises JobError if no map can lead from one to the other."""
    images, _ = next(iter(train))
    stitching.check_fit(front(images), back(images))
    pairs = ((front(images), back(images)) for images, _ in train)
    weight, bias = stitching.ridge(pairs, job.settings.ridge)
    stitch = stitching.Stitch(weight.shape[1], weight.shape[0])
    stitch.weight.copy_(weight)
    stitch.bias.copy_(bias)
    return stitch.to(job.device)


def optimizer_of(stitch: nn.Module, settings: StitchSettings) -> tuple[Optimizer, int]:
    """Return the optimizer, and how often it is called in a step.

    A call of L-BFGS makes as many evaluations of the gradient as its line searches need, up to
    --evaluations; the last line search may go a little beyond. Its history goes on from call to
    call. A call of Adam makes one.
    """
    weights, count, lr = stitch.parameters(), settings.evaluations, settings.lr
    if settings.optimizer == "adam":
        return Adam(weights, 0.01 if lr == "auto" else lr, fused=True), count
    first = 1.0 if lr == "auto" else lr
    search = "strong_wolfe"
    return LBFGS(weights, first, count, count, history_size=HISTORY, line_search_fn=search), 1


def terms(
    forward: Forward, model: stitching.Stitched, parts: Parts, settings: StitchSettings
) -> Iterator[Tensor]:
    """Yield the terms of the training loss: the penalty on the map's weights, and of each part of
    the examples its loss, by the part's fraction of the examples."""
    count = sum(len(labels) for _, labels in parts)
    yield settings.weight_decay / 2 * model.stitch.weight.square().sum()
    for part in parts:
        loss, _ = forward(model.rest, part, settings)
        yield loss * (len(part[1]) / count)


def train(
    job: Job[StitchSettings],
    forward: Forward,
    model: stitching.Stitched,
    parts: Parts,
    val: Batches | None,
) -> None:
    """Fit the map; the weights of the best evaluation are kept in best.pt.

    `forward` is the function above, as job.prepare() returns it.
    """
    settings, stitch = job.settings, model.stitch
    optimizer, calls = optimizer_of(stitch, settings)
    evaluations = Evaluations()
    stopping = EarlyStopping(STITCH_METRICS, settings.monitor, settings.patience)
    # What a checkpoint holds. If there is one, training continues from there.
    job.resume(stitch=stitch, optimizer=optimizer, evaluations=evaluations, stopping=stopping)

    def closure() -> Any:  # which torch takes for a float
        """Return the loss () over all training examples, with its gradient in the weights."""
        optimizer.zero_grad()
        loss = torch.zeros((), device=job.device)
        for term in terms(forward, model, parts, settings):
            term.backward()
            loss += term.detach()
        evaluations.count += 1
        return loss

    def evaluated() -> None:
        """Evaluate the map, and keep it if it is the best so far."""
        metrics = evaluate(job, forward, model, val, "val")
        with torch.no_grad():
            objective = float(sum(terms(forward, model, parts, settings)))
        job.log_epoch({**metrics, "objective": objective, "evaluations": evaluations.count})
        if stopping.improved(metrics):
            job.keep_best(metrics, stitch=stitch)

    if not stopping.evaluations:  # the initial map may already be the best
        evaluated()
    for _ in job.epochs():  # each ends with an evaluation: --eval-every
        for _ in job.steps():  # saves checkpoints, stops at Ctrl-C, profiles
            for _ in range(calls):
                loss = optimizer.step(closure)  # waits: a line search reads the loss
            job.log(objective=loss)  # the loss before that call
        evaluated()
        if stopping.due:
            break


@torch.no_grad()
def evaluate(
    job: Job[StitchSettings],
    forward: Forward,
    model: nn.Module,
    batches: Batches | None,
    split: str,
    keep: Callable[..., None] | None = None,
) -> Metrics:
    """Return the means over all examples of what forward() measures, such as `val_loss`; none
    without batches.

    Waits for the device once, at the end. `keep` is handed the label and the predicted class of
    each example.
    """
    means = Means()
    for batch in batches or ():
        _, measured = forward(model, batch, job.settings)
        predicted = measured.pop("predicted")
        means.add(measured)
        if keep:
            keep(label=batch[1], predicted=predicted)
    return {f"{split}_{name}": value for name, value in means.read().items()}


def main(job: Job[StitchSettings]) -> Metrics:
    """Fit the map, and return the test results of the best map, of both networks and of the ridge
    regression; the test data has no other use."""
    settings = job.settings
    front, back = networks(settings)
    fit, val, test = load(job, front)
    first, _ = stitching.halves(front.model, settings.layer, "--layer")
    back_layer = settings.back_layer or settings.layer
    like, second = stitching.halves(back.model, back_layer, "--back-layer")
    for half in (first, like, second, front.model, back.model):
        half.to(job.device)
    prepared = job.prepare(forward)
    ridge = regressed(job, first, like, fit)
    model = stitching.Stitched(first, copy.deepcopy(ridge), second)
    if settings.start == "random":
        model.stitch.reset_parameters()
    with torch.no_grad():
        parts = [(first(images), labels) for images, labels in fit]
    train(job, prepared, model, parts, val)
    job.load_best(stitch=model.stitch)

    if test is None:
        return {}
    results = evaluate(job, prepared, model, test, "test", keep=job.keep_outputs)
    results |= evaluate(job, prepared, stitching.Stitched(first, ridge, second), test, "test_ridge")
    results |= evaluate(job, prepared, front.model, test, "test_front")
    results |= evaluate(job, prepared, back.model, test, "test_back")
    job.log_table("networks", [{"front": named(front.settings), "back": named(back.settings)}])
    return {**results, "test_penalty": results["test_back_accuracy"] - results["test_accuracy"]}


def check(job: Job[StitchSettings]) -> None:
    """Raise SettingsError if the job could not run; its inputs may not have run yet."""
    job.prepare(forward)


if __name__ == "__main__":
    sys.exit(command.run(main, check))
