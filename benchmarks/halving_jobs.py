"""The jobs of the searches that halving.py compares: a small network on digits, and a small GPT.

A job trains for 27 epochs, and its validation loss is measured after each. `curves` trains all jobs
of both problems once, which takes a quarter of an hour, so that searches can ask for what a job
measures as often as they like.
"""

import json
import math
import shlex
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "{{cookiecutter.project_slug}}"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples/language"))

from pydoc_data import topics

import torch
from labjobs.sweeps import search
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F

sys.dont_write_bytecode = True  # into the example
torch.set_num_threads(1)

EPOCHS = 27
WORST = 10.0
"""The loss that counts for one that is greater or not a number."""

Losses = Callable[[dict[str, str]], Iterator[float]]
"""Trains a job with these flags; yields its validation loss after each epoch."""


class Problem(NamedTuple):
    """The ranges of a search, how many different jobs these have, and what they do."""

    ranges: str
    count: int
    losses: Losses

    def drawn(self, seed: int) -> list[str]:
        """All jobs by their arguments, in the order in which `search` draws them."""
        ranges = search.ranges(shlex.split(self.ranges), [])
        return [" ".join(job) for job, _ in search.draws(self.count, str(seed), ranges, [])]

    def measured(self, job: str) -> list[float]:
        """What a job measures after each epoch, trained now."""
        losses = self.losses(search.flags(job.split()))
        return [min(loss, WORST) if math.isfinite(loss) else WORST for loss in losses]


@cache
def _digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    return x[order], y[order]


def digits(given: dict[str, str]) -> Iterator[float]:
    """A network with one hidden layer, trained with momentum; 300 digits are for validation."""
    x, y = _digits()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    rate = 10 ** (-3.5 + int(given["--rate"]) / 6)
    optimizer = torch.optim.SGD(model.parameters(), rate, float(given["--momentum"]))
    for _ in range(EPOCHS):
        for batch in (300 + torch.randperm(len(x) - 300)).split(int(given["--batch-size"])):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            yield F.cross_entropy(model(x[:300]), y[:300]).item()


CONTEXT, WINDOWS = 32, 512


@cache
def _text() -> Tensor:
    text = "\n\n".join(topics.topics[name] for name in sorted(topics.topics))
    return torch.tensor(list(text.encode()))


def gpt(given: dict[str, str]) -> Iterator[float]:
    """The language example's network with two layers, on Python's documentation; the last tenth of
    the text is for validation. An epoch is 512 windows of 32 bytes."""
    from models import GPT  # of the example

    torch.manual_seed(0)
    train, val = _text().split([size := len(_text()) * 9 // 10, len(_text()) - size])
    model = GPT(CONTEXT, 256, int(given["--width"]), layers=2, heads=2)
    rate = 10 ** (-4 + int(given["--rate"]) / 8)
    optimizer = torch.optim.AdamW(model.parameters(), rate, fused=True)
    held_out = val[: 256 * (CONTEXT + 1)].view(256, CONTEXT + 1)

    def loss(windows: Tensor) -> Tensor:
        return F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())

    for _ in range(EPOCHS):
        places = torch.randint(len(train) - CONTEXT, (WINDOWS, 1)) + torch.arange(CONTEXT + 1)
        for windows in train[places].split(int(given["--batch-size"])):
            optimizer.zero_grad()
            loss(windows).backward()
            optimizer.step()
        with torch.no_grad():
            yield loss(held_out).item()


PROBLEMS = {
    "digits": Problem(
        "--rate 'int 0 26' --momentum 'choice 0 0.9 0.99' --batch-size 'choice 16 64 256'",
        243,
        digits,
    ),
    "small GPT": Problem(
        "--rate 'int 0 26' --width 'choice 16 32 48' --batch-size 'choice 32 64'", 162, gpt
    ),
}
"""Their rates are powers of 10, six or eight to the next."""

Curves = dict[str, list[float]]
"""What each job measures, by its arguments."""


def curves(path: Path) -> dict[str, Curves]:
    """Return what the jobs of each problem measure, from a file, or trained now and written
    there."""
    if path.exists():
        return dict(json.loads(path.read_text()))
    found: dict[str, Curves] = {}
    for name, problem in PROBLEMS.items():
        found[name] = {}
        for job in problem.drawn(0):
            found[name][job] = problem.measured(job)
            print(name, len(found[name]), job, found[name][job][-1], file=sys.stderr, flush=True)
    path.write_text(json.dumps(found))
    return found
