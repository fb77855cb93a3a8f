"""What a training step costs on the host: run.py's loop, a loop by hand, and other people's.

    pip install lightning accelerate
    python benchmarks/steps.py > benchmarks/steps.md

A network so small that the host is all there is to wait for: 64 → 128 → 10, batches of 64 from
memory, fused Adam, one thread. Every way (loops.py) trains the same network on the same data in a
process of its own, in turn with the loop by hand.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from pages import machine, page, spread
from projects import add, make, run

LOOPS = Path(__file__).resolve().parent / "loops.py"

NETWORK = """

MODELS["small"] = lambda settings, spec: nn.Sequential(
    nn.Flatten(), nn.Linear(prod(spec.shape), 128), nn.ReLU(), nn.Linear(128, len(spec.classes))
)
"""
DATASET = """

def _random(_root: Path, _size: int | None) -> Source:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (66_000, 1, 8, 8), dtype=torch.uint8, generator=generator)
    labels = torch.randint(10, (66_000,), generator=generator)
    return Source(TensorDataset(images, labels), [str(label) for label in range(10)])


DATASETS["random"] = _random
"""
WAYS = {
    "ours": "run.py: its loader, its progress bar, every step's loss and accuracy logged",
    "ours-measured": "the same, to a loop by hand that measures both too",
    "ours-all": "run.py: also clipping, EMA, schedule, early stopping, a checkpoint every 3 s",
    "accelerate": "Accelerate, nothing logged",
    "lightning": "Lightning, barebones",
    "lightning-csv": "Lightning, every step's loss to CSV",
    "mlflow-async": "a loop by hand, every step's loss to MLflow, asynchronously",
    "mlflow-sync": "a loop by hand, every step's loss to MLflow",
    "lightning-mlflow": "Lightning, every step's loss to MLflow",
}
SLOW = ("mlflow-async", "mlflow-sync", "lightning-mlflow")


def ratio(project: Path, way: str, epochs: int) -> float:
    """A step's time divided by the time in the loop by hand: the median over a process's epochs."""
    printed = run(project, str(LOOPS), way, str(3 if way in SLOW else epochs))
    ratios: list[float] = json.loads(printed.splitlines()[-1])
    return statistics.median(ratios)


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        project = make(folder)
        add(project, models=NETWORK, data=DATASET)
        rounds = [
            {way: ratio(project, way, arguments.epochs) for way in arguments.ways}
            for _ in range(arguments.rounds)
        ]
    about = (
        f"{machine('torch', 'mlflow', 'lightning', 'accelerate')}; one thread; n = {len(rounds)} "
        "rounds, all ways in turn. Each is a process in which it takes turns with a loop by hand: "
        "run.py every 50 steps, the others every epoch. The ratio of a step's time to that loop's "
        "is the median over the "
        f"process's {arguments.epochs} epochs but the first (3 where MLflow is called in each "
        "step), here over the rounds: median (least to most). All have the same network, data and "
        "fused Adam; the loop by hand clips where run.py does. `python benchmarks/steps.py` makes "
        "this page."
    )
    rows = [["a loop by hand", "1"]]
    rows += [[WAYS[way], spread([each[way] for each in rounds])] for way in arguments.ways]
    page("What a training step costs on the host", about, ["", "ratio"], rows)


if __name__ == "__main__":
    main()
