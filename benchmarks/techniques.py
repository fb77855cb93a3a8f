"""What each technique of docs/techniques.md brings, on digits and on resnet18 with made images.

    python benchmarks/techniques.py > benchmarks/techniques.md

Every technique is added by itself to the same job, with the same seeds, and compared seed by seed.
All jobs are one sweep, in which the seeds take turns.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

from pages import machine, page, spread
from projects import add, make

MADE = """

def _patterns(_root: Path, _size: int | None) -> Source:
    \"\"\"Ten patterns (3, 16, 16), each under noise of four times its contrast.\"\"\"
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randn(10, 3, 16, 16, generator=generator)
    labels = torch.randint(10, (2400,), generator=generator)
    noise = torch.randn(2400, 3, 16, 16, generator=generator)
    images = ((patterns[labels] + 4 * noise) * 15 + 128).clamp(0, 255).to(torch.uint8)
    return Source(TensorDataset(images, labels), [str(label) for label in range(10)])


DATASETS["patterns"] = _patterns
"""

TASKS = {
    "digits": "--model convnet --epochs 6 --lr 3e-3 --val-fraction 0.3",
    "patterns": "--dataset patterns --model resnet18 --steps 30 --eval-every 15 --batch-size 16",
}
"""The job that each technique is added to, by the name of its data."""

TECHNIQUES = {
    "adamw": "--optimizer adamw --weight-decay 0.05",
    "sgd": "--optimizer sgd --lr 0.1",
    "muon": "--optimizer muon",
    "constant": "--schedule constant",
    "linear": "--schedule linear",
    "one-cycle": "--schedule one-cycle",
    "wsd": "--schedule wsd",
    "exponential": "--schedule exponential",
    "step": "--schedule step",
    "warmup": "--warmup 10",
    "batch-size": "--batch-size 256 --lr-for-batch 64",
    "accumulate": "--accumulate 4",
    "label-smoothing": "--label-smoothing 0.1",
    "clip-norm": "--clip-norm 1",
    "ema": "--ema 0.95",
    "crop": "--augment crop",
    "crop-flip": "--augment crop-flip",
    "alternating-flip": "--augment alternating-flip",
    "test-time-flip": "--test-time-flip",
    "kaiming": "--init kaiming",
    "orthogonal": "--init orthogonal",
    "dirac": "--init dirac",
    "class-prior": "--init class-prior",
    "recompute": "--recompute",
    "separable": "--model convnet-separable",
    "squeeze": "--model convnet-se",
}
"""The flags that are added, by what the rows are called."""

NOT_FOR_RESNET = ("separable", "squeeze")


class Result:
    """What a job came to."""

    def __init__(self, attempt: Path) -> None:
        lines = map(json.loads, (attempt / "metrics.jsonl").read_text().splitlines())
        points = [line["metrics"] for line in lines if "metrics" in line]
        last = {name: value for point in points for name, value in point.items()}
        rates = [p["examples_per_second"] for p in points if "examples_per_second" in p]
        self.loss, self.accuracy = last["best_val_loss"], last["best_val_accuracy"]
        self.seconds = 1 / statistics.median(rates)


def grid(task: str, seeds: int) -> str:
    """The jobs of a task, as run.sh has them."""
    names = [name for name in ("", *TECHNIQUES) if task == "digits" or name not in NOT_FOR_RESNET]
    jobs = [
        f"  job {TASKS[task]} {TECHNIQUES.get(name, '')} --note '{task} {name}' --seed {seed}"
        for seed in range(seeds)
        for name in names
    ]
    return "\n".join(jobs)


def results(project: Path) -> dict[str, dict[str, dict[int, Result]]]:
    """Results by task, technique and seed."""
    found: dict[str, dict[str, dict[int, Result]]] = defaultdict(lambda: defaultdict(dict))
    for path in project.glob("runs/*/*/settings.json"):
        settings = json.loads(path.read_text())["settings"]
        task, name = settings["note"].split(" ")
        if (path.parent / "outcome.json").exists():  # none has diverged
            found[task][name][settings["seed"]] = Result(path.parent)
    return found


def row(name: str, mine: dict[int, Result], plain: dict[int, Result]) -> list[str]:
    """A technique's row: what it changes, seed by seed."""
    pairs = [(mine[seed], plain[seed]) for seed in sorted(mine)]
    return [
        f"`{TECHNIQUES[name]}`",
        spread([one.loss / other.loss for one, other in pairs]),
        spread([100 * (one.accuracy - other.accuracy) for one, other in pairs], 1),
        spread([one.seconds / other.seconds for one, other in pairs]),
    ]


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", nargs="+", default=[*TASKS], choices=TASKS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        project = make(folder)
        add(project, data=MADE)
        jobs = "\n".join(grid(task, arguments.seeds) for task in arguments.tasks)
        script = (project / "run.sh").read_text()
        first, last = script.index("grid() {\n"), script.index("\n}\n")
        (project / "run.sh").write_text(f"{script[:first]}grid() {{\n{jobs}{script[last:]}")
        env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        subprocess.run(
            ["bash", "run.sh"], cwd=project, env=env, check=True, stdout=subprocess.DEVNULL
        )
        found = results(project)
    about = (
        f"{machine('torch', 'torchvision')}; n = {arguments.seeds} seeds, each beside the same job "
        "without the technique: median (least to most). Loss and accuracy are those of the best "
        "evaluation on validation data; a loss below 1 and more points of accuracy are better. "
        "With label smoothing, validation measures the plain loss. Time is that of a training "
        "example. One technique at a time, at one learning rate, in short jobs: this shows that "
        "the options work and roughly what they cost, and not what is best for another task. "
        "`python benchmarks/techniques.py` makes this page."
    )
    head = ["", "validation loss, ratio", "accuracy, points", "time, ratio"]
    print_tasks(found, arguments.tasks, about, head)


def print_tasks(
    found: dict[str, dict[str, dict[int, Result]]], tasks: list[str], about: str, head: list[str]
) -> None:
    """Print a table for each task, under one heading."""
    page(
        "What each technique brings",
        about,
        ["data", "the job that is compared with"],
        [
            [
                task,
                f"`{TASKS[task]}`: loss {spread([r.loss for r in found[task][''].values()])}, "
                f"accuracy {spread([r.accuracy for r in found[task][''].values()], 3)}",
            ]
            for task in tasks
        ],
    )
    for task in tasks:
        print(f"\n## {task}\n")
        rows = [row(n, found[task][n], found[task][""]) for n in TECHNIQUES if n in found[task]]
        for each in (head, ["---"] * len(head), *rows):
            print("|", " | ".join(each), "|")


if __name__ == "__main__":
    main()
