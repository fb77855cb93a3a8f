"""How close do 40 jobs come to the best settings: drawn by `search`, and proposed by `propose`,
eight at a time, by itself and with the samplers of Optuna (its group: optuna and cmaes)?

    python benchmarks/proposals.py > benchmarks/proposals.md

Proposals are made by the function that run.sh calls. Instead of jobs, it is given the values of
functions whose least value is known, and validation losses of small networks, trained here.
"""

import argparse
import math
import random
import shlex
import statistics
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "{{cookiecutter.project_slug}}"))

import torch
from labjobs.commands.propose import propose
from labjobs.sweeps import proposals, search
from pages import machine, page
from sklearn.datasets import load_digits
from torch.nn import functional as F

COUNT, GENERATIONS = 8, 5

Values = dict[str, str]


def branin(given: Values, _: int) -> float:
    """Of two numbers; least value 0.398."""
    x, y = float(given["--x"]), float(given["--y"])
    curve = y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6
    return curve**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10


ALPHA = (1.0, 1.2, 3.0, 3.2)
A = ((10, 3, 17, 3.5, 1.7, 8), (0.05, 10, 17, 0.1, 8, 14), (3, 3.5, 1.7, 10, 17, 8))
A = (*A, (17, 8, 0.05, 10, 0.1, 14))
P = ((1312, 1696, 5569, 124, 8283, 5886), (2329, 4135, 8307, 3736, 1004, 9991))
P = (*P, (2348, 1451, 3522, 2883, 3047, 6650), (4047, 8828, 8732, 5743, 1091, 381))


def hartmann(given: Values, _: int) -> float:
    """Of six numbers; least value -3.322."""
    x = [float(given[f"--x{number}"]) for number in range(6)]
    each = zip(ALPHA, A, P, strict=True)
    square = [
        (al, sum(a * (v - p / 1e4) ** 2 for a, v, p in zip(aa, x, pp, strict=True)))
        for al, aa, pp in each
    ]
    return -sum(alpha * math.exp(-far) for alpha, far in square)


def tuned(given: Values, seed: int | None) -> float:
    """As a loss depends on a learning rate, a momentum, a width and a choice that matters little;
    with noise if there is a seed, and infinite for rates that are too large. Least value 0.1."""
    rate, sgd = math.log10(float(given["--lr"])), given["--optimizer"] == "sgd"
    if rate > (-0.5 if sgd else -1.5):
        return math.inf
    loss = 0.1 + 0.2 * (rate - (-1.5 if sgd else -2.8)) ** 2 + 0.02 * sgd
    loss += 0.5 * (float(given["--momentum"]) - 0.92) ** 2 * 10 if sgd else 0
    loss += 0.02 * (math.log2(int(given["--width"]) / 128)) ** 2
    return loss if seed is None else loss + 0.01 * random.Random(f"{seed} {given}").gauss(0, 1)


@cache
def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    data = load_digits()
    return torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)


def digits(given: Values, seed: int) -> float:
    """The validation loss of a network with one hidden layer after 60 steps on the digits."""
    x, y = _digits()
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(x), generator=generator)
    train, val = order[300:], order[:300]
    torch.manual_seed(seed)
    width = int(given["--width"])
    model = torch.nn.Sequential(
        torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 10)
    )
    rate, decay = float(given["--lr"]), float(given["--weight-decay"])
    if given["--optimizer"] == "sgd":
        moment = float(given["--momentum"])
        optimizer: torch.optim.Optimizer = torch.optim.SGD(
            model.parameters(), rate, moment, weight_decay=decay
        )
    else:
        optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=decay)
    for _ in range(60):
        batch = train[torch.randint(len(train), (int(given["--batch-size"]),), generator=generator)]
        optimizer.zero_grad()
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    with torch.no_grad():
        loss = F.cross_entropy(model(x[val]), y[val]).item()
    return loss if math.isfinite(loss) else math.inf


HARTMANN = " ".join(f"--x{number} 'uniform 0 1'" for number in range(6))
MOMENTUM = "--momentum 'uniform 0.5 0.999 if --optimizer=sgd'"

PROBLEMS: dict[str, tuple[str, Callable[[Values, int], float], float | None]] = {
    "Branin, 2 flags": ("--x 'uniform -5 10' --y 'uniform 0 15'", branin, 0.397887),
    "Hartmann, 6 flags": (HARTMANN, hartmann, -3.32237),
    "like a loss, 4 flags": (
        f"--lr 'log 1e-5 1' --optimizer 'choice adam sgd' {MOMENTUM} --width 'logint 8 1024'",
        tuned,
        0.1,
    ),
    "digits, 6 flags": (
        f"--lr 'log 1e-5 1' --optimizer 'choice adamw sgd' {MOMENTUM} --width 'logint 8 256' "
        "--batch-size 'choice 16 64 256' --weight-decay 'log 1e-6 1e-1'",
        digits,
        None,
    ),
}
"""What is drawn, the function, and its least value if that is known."""

METHODS = {"search": None, "propose": "", **{f"with={each}": each for each in proposals.SAMPLERS}}


def best(problem: str, method: str, seed: int) -> float:
    """The value of the best of 40 jobs, without the noise by which it was found."""
    ranges, function, _ = PROBLEMS[problem]
    words, drawn = shlex.split(ranges), METHODS[method]
    sampler = [f"with={drawn}"] if drawn else []
    line = ["benchmark", str(COUNT), "x", str(GENERATIONS), f"seed={seed}", *sampler, *words]
    asked = proposals.read(line)
    count = COUNT * GENERATIONS if drawn is None else COUNT
    tried = [job for job, _ in search.draws(count, asked.seed, asked.ranges, [])]
    for generation in range(1, GENERATIONS) if drawn is not None else ():
        scores = [function(search.flags(job), seed) for job in tried]
        tried = [*tried, *propose(asked, tried, scores, generation)]
    scores = [function(search.flags(job), seed) for job in tried]
    chosen = search.flags(tried[scores.index(min(scores))])
    return tuned(chosen, None) if function is tuned else min(scores)


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    seeds = range(parser.parse_args().seeds)
    torch.set_num_threads(1)
    rows = []
    for problem, (_, _, least) in PROBLEMS.items():
        only_numbers = "choice" not in PROBLEMS[problem][0]  # as CMA-ES needs
        methods = [each for each in METHODS if only_numbers or each != "with=cmaes"]
        found = {method: [best(problem, method, seed) for seed in seeds] for method in methods}
        lowest = least if least is not None else min(map(min, found.values()))
        cells = []
        for values in filter(None, map(found.get, METHODS)):
            lower, middle, upper = statistics.quantiles([v - lowest for v in values], n=4)
            cells.append(f"{middle:.3g} ({lower:.2g} to {upper:.2g})")
        rows.append([problem, *cells, *["-"] * (len(METHODS) - len(cells))])
        print(rows[-1], file=sys.stderr, flush=True)
    about = (
        f"{machine('numpy', 'scipy', 'torch', 'optuna', 'cmaes')}. How far the best of "
        f"{COUNT * GENERATIONS} jobs is from the least value, median (quartiles) of {len(seeds)} "
        f"seeds: drawn by search, and in {GENERATIONS} generations of {COUNT} by propose and by "
        "samplers of Optuna. The first two functions are usual test functions; the third is made "
        "like a loss, with noise and with rates that diverge. The digits are validation losses of "
        "a small network after 60 steps; their least value is the least that was found here. "
        "`python benchmarks/proposals.py` makes this page."
    )
    page("Proposals against random search", about, ["", *METHODS], rows)


if __name__ == "__main__":
    main()
