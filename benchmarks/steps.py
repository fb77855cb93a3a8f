"""What a training step costs on the host: run.py's loop, a loop by hand, and other people's.

    pip install lightning accelerate
    python benchmarks/steps.py > benchmarks/steps.md

A network so small that the host is all there is to wait for: 64 → 128 → 10, batches of 64 from
memory, fused Adam, one thread. Every way trains the same network on the same data in a process of
its own, one after another in each round.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from projects import make

HERE = Path(__file__).resolve().parent

NETWORK = """

MODELS["small"] = lambda shape, classes, _settings: nn.Sequential(
    nn.Flatten(), nn.Linear(prod(shape), 128), nn.ReLU(), nn.Linear(128, classes)
)
"""
DATASET = """

def _random(_root: Path, _size: int | None) -> Source:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (66_000, 1, 8, 8), dtype=torch.uint8, generator=generator)
    labels = torch.randint(10, (66_000,), generator=generator)
    return Source(in_memory(images, labels), None, [str(label) for label in range(10)])


DATASETS["random"] = _random
"""
JOB = ["--model", "small", "--dataset", "random", "--val-fraction", "0.03", "--log-every", "1"]
LOOP = ["--clip-norm", "1", "--ema", "0.999", "--schedule", "cosine", "--patience", "50"]
WAYS = {
    "bare": ("a loop by hand", "bare"),
    "ours": ("run.py: its loader, every step's loss logged", "bare"),
    "bare-clip": ("a loop by hand that clips", "bare"),
    "ours-all": ("run.py: also clipping, EMA, schedule, early stopping, checkpoints", "bare-clip"),
    "accelerate": ("Accelerate, nothing logged", "bare"),
    "lightning": ("Lightning, barebones", "bare"),
    "lightning-csv": ("Lightning, every step's loss to CSV", "bare"),
    "mlflow-async": ("a loop by hand, every step's loss to MLflow, asynchronously", "bare"),
    "mlflow-sync": ("a loop by hand, every step's loss to MLflow", "bare"),
    "lightning-mlflow": ("Lightning, every step's loss to MLflow", "bare"),
}
"""What each way is, and which it is compared to."""

SLOW = {"mlflow-async", "mlflow-sync", "lightning-mlflow"}
"""Ways of which fewer steps are timed."""


def make_project(folder: str) -> Path:
    """A project with the network and the data."""
    project = make(folder)
    for name, text in (("models.py", NETWORK), ("data.py", DATASET)):
        with (project / name).open("a") as file:
            file.write(text)
    return project


def seconds(project: Path, way: str, epochs: int) -> float:
    """Median seconds of a step over the epochs but the first."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(project)}
    env["MLFLOW_TRACKING_URI"] = f"sqlite:///{project}/{way}.db"
    if way.startswith("ours"):
        words = [*JOB, "--epochs", str(epochs), "--force", *(LOOP if way == "ours-all" else [])]
        run([sys.executable, "run.py", *words, "--note", way], project, env)
        (journal,) = project.glob("runs/*/metrics.jsonl")
        lines = [json.loads(line) for line in journal.read_text().splitlines()]
        rates = [line["metrics"].get("examples_per_second") for line in lines if "metrics" in line]
        run(["rm", "-r", str(journal.parent)], project, env)
        return 64 / statistics.median([rate for rate in rates if rate][1:])
    words = [str(HERE / "other_loops.py"), way, "2" if way in SLOW else str(epochs)]
    return float(run([sys.executable, *words], project, env).splitlines()[-1])


def run(command: list[str], folder: Path, env: dict[str, str]) -> str:
    """What a command prints."""
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        project = make_project(folder)
        rounds = [
            {way: seconds(project, way, arguments.epochs) for way in WAYS}
            for _ in range(arguments.rounds)
        ]
    packages = ("torch", "mlflow", "lightning", "accelerate")
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    print("# What a training step costs on the host\n")
    print(f"CPU, one thread of {os.cpu_count()} cores, {platform.machine()}; {versions};")
    print(
        f"{datetime.date.today()}; n = {len(rounds)} rounds, in turn. A step's time is the median"
    )
    print(
        "of its epochs' means; the ratio is to the loop by hand in the same round, for the fourth"
    )
    print("line to the one that clips: median (least to most). `python benchmarks/steps.py` makes")
    print("this page.\n\n| | ratio |\n|---|---|")
    for way, (text, other) in WAYS.items():
        ratios = [each[way] / each[other] for each in rounds]
        print(
            f"| {text} | {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |"
        )


if __name__ == "__main__":
    main()
