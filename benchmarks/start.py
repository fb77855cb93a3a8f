"""From `python run.py` to its first step, beside a script by hand and `import torch` alone.

    python benchmarks/start.py > benchmarks/start.md

The script imports torch and torchvision, reads the digits, makes the same network and optimizer,
and takes one step. run.py also parses its flags, asks the store whether the job has run, takes its
lock, notes the code's version and opens its journal; the courier imports MLflow beside all that.
"""

import argparse
import tempfile
import time
from importlib.metadata import distribution
from pathlib import Path

from pages import machine, page, spread
from projects import journal, make, run

BY_HAND = """
import numpy as np
import torch
import torchvision
from torch import nn
from torch.nn.functional import cross_entropy

rows = np.loadtxt("{digits}", delimiter=",")
images = torch.tensor(rows[:64, :-1], dtype=torch.float32)
labels = torch.tensor(rows[:64, -1], dtype=torch.int64)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.Adam(model.parameters(), fused=True)
cross_entropy(model(images), labels).backward()
optimizer.step()
"""


def seconds(way: str, project: Path, number: int) -> float:
    """Seconds until torch is imported, until the script ends, or until run.py's first step."""
    begun = time.time()
    if way == "torch":
        run(project, "-c", "import torch, os; os._exit(0)")
        return time.time() - begun
    if way == "by hand":
        run(project, "-c", f"{BY_HAND.format(digits=digits())}\nimport os; os._exit(0)")
        return time.time() - begun
    flags = ("--epochs", "1", "--log-every", "1", "--device", "cpu", "--seed", str(number))
    run(project, "run.py", *flags)
    first = next(point for point in journal(project) if "train_loss" in point["metrics"])
    return first["time"] / 1000 - begun


def digits() -> str:
    """The path of the digits that come with scikit-learn."""
    return str(distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz"))


WAYS = {
    "torch": "`import torch` alone",
    "by hand": "a script by hand, to its first step",
    "run.py": "`python run.py`, to its first step",
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        project = make(folder)
        rounds = [
            {way: seconds(way, project, number) for way in WAYS}
            for number in range(arguments.rounds + 1)
        ][1:]  # the first makes the store and the compiled files
    about = (
        f"{machine('torch', 'mlflow')}; n = {len(rounds)} rounds, in turn. Time as a ratio to the "
        "script by hand in the same round: median (least to most). `python benchmarks/start.py` "
        "makes this page."
    )
    rows = [
        [text, spread([each[way] / each["by hand"] for each in rounds])]
        for way, text in WAYS.items()
    ]
    page("From the command to the first step", about, ["", "ratio"], rows)


if __name__ == "__main__":
    main()
