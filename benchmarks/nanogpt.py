"""run.py's loop beside one in nanoGPT's manner: tokens per second, and the curve of the loss.

    python benchmarks/nanogpt.py > benchmarks/nanogpt.md

On the embedded text with the example's GPT, on the CPU. The loop by hand is in nanogpt_loops.py.
"""

import argparse
import json
import math
import os
import statistics
import tempfile
from pathlib import Path

from pages import machine, page, spread
from projects import journal, make, run
from scipy.stats import t

LOOPS = Path(__file__).resolve().parent / "nanogpt_loops.py"

JOB = "--model gpt-small --context 64 --batch-size 32 --lr 3e-3 --warmup 50"
STEPS = 10
"""Steps of a turn."""

LENGTH, EVERY = 200, 50
"""Steps of a curve, and steps between two evaluations."""


def ratios(project: Path, turns: int) -> list[float]:
    """Tokens per second of run.py's loop divided by those of the loop by hand, turn by turn."""
    words = (str(LOOPS), "speed", str(turns), str(STEPS), *JOB.split())
    seconds = json.loads(run(project, *words).splitlines()[-1])
    journal(project)  # which removes the job
    pairs = zip(seconds["by hand"], seconds["run.py"], strict=True)
    return [by_hand / ours for by_hand, ours in pairs]


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """The geometric mean of ratios, and its 95% t interval."""
    logs = [math.log(each) for each in ratios]
    mean, error = statistics.mean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    reach = float(t.ppf(0.975, len(logs) - 1)) * error
    return math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)


def curves(project: Path, seed: int) -> tuple[list[float], list[float]]:
    """The validation losses of run.py and of the loop by hand with a seed."""
    words = (*JOB.split(), "--seed", str(seed))
    length = ("--steps", str(LENGTH), "--eval-every", str(EVERY))
    run(project, "run.py", *words, *length, "--quiet", "--threads", "1")
    ours = [p["metrics"]["val_loss"] for p in journal(project) if "val_loss" in p["metrics"]]
    by_hand = run(project, str(LOOPS), "curve", str(LENGTH), str(EVERY), *words)
    return ours, json.loads(by_hand.splitlines()[-1])


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--beside", default="nothing else", help="what else the machine was doing")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        project = make(folder, "language")
        load = os.getloadavg()[0]
        measured = ratios(project, arguments.turns)
        middle, low, high = interval(measured)
        loads = f"{load:.1f} before and {os.getloadavg()[0]:.1f} after"
        found = [curves(project, seed) for seed in range(arguments.seeds)]
    about = (
        f"{machine('torch', 'mlflow')}, beside {arguments.beside} (load average {loads}). The loop "
        "by hand is written as nanoGPT's train.py is: batches from random places of the mapped "
        "tokens, the same network, optimizer and schedule, and the loss printed every ten steps. "
        f"Both train `{JOB}` on the embedded text. run.py's tokens per second are "
        f"{middle:.3f} times those of the loop by hand (95% interval {low:.3f} to {high:.3f}, n = "
        f"{len(measured)} turns of {STEPS} steps, in which the two alternate in one process with "
        "one thread; geometric mean of the turns' ratios). The table has the loss on the "
        f"validation text (nats): median (least to most) of {arguments.seeds} seeds, which are "
        "other initial weights and other batches in each loop. `python benchmarks/nanogpt.py` "
        "makes this page."
    )
    rows = []
    for place in range(LENGTH // EVERY):
        losses = ([pair[way][place] for pair in found] for way in (0, 1))
        rows.append([str(EVERY * (1 + place)), *(spread(each, 3) for each in losses)])
    page("The loop beside nanoGPT's", about, ["step", "run.py", "by hand"], rows)


if __name__ == "__main__":
    main()
