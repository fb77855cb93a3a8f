"""The time of run.py's training step, divided by the time of the best of several loops by hand.

    python benchmarks/best_steps.py > benchmarks/best-steps.md

Three networks on the CPU. The loops by hand (hand_loops.py) are written as in nanoGPT: batches are
picked by index from tensors, the optimizer is fused, nothing is read from the device in a step, and
forward pass and loss are compiled together, or not.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from pages import machine, page, spread
from projects import add, make, run
from steps import DATASET, NETWORK

LOOPS = Path(__file__).resolve().parent / "hand_loops.py"

IMAGES = """

def _images(_root: Path, _size: int | None) -> Source:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (2_000, 3, 32, 32), dtype=torch.uint8, generator=generator)
    labels = torch.randint(10, (2_000,), generator=generator)
    return Source(TensorDataset(images, labels), [str(label) for label in range(10)])


DATASETS["random-images"] = _images
"""
TOKENS = """

def _tokens(_settings: Settings, _root: Path) -> list[Text]:
    import random

    return [random.Random(0).randbytes(200_000)]


DATASETS["random-tokens"] = _tokens
"""

NETWORKS = {
    "perceptron": "--model small --dataset random --val-fraction 0.03",
    "resnet18": "--model resnet18 --dataset random-images --batch-size 8",
    "GPT": "--model gpt-small --dataset random-tokens --context 64 --warmup 0",
}
"""The flags of the jobs."""

TURNS = {"perceptron": (100, 50), "resnet18": (20, 3), "GPT": (40, 5)}
"""The turns of each loop, and the steps of a turn."""

WAYS = [(name, way) for name in NETWORKS for way in ("--compile off", "--compile on")]
WAYS += [("perceptron", "--compile off --log-every 1")]
"""The networks and flags of run.py that are compared."""

Seconds = dict[str, list[float]]


def project(folder: Path, name: str) -> Path:
    """A project with a network's data."""
    folder.mkdir()
    made = make(str(folder), "language" if name == "GPT" else "classification")
    if name == "GPT":
        add(made, data=TOKENS)
    else:
        add(made, models=NETWORK, data=DATASET + IMAGES)
    return made


def measure(project: Path, name: str, way: str) -> Seconds:
    """The seconds of a step by loop, turn by turn."""
    words = [*map(str, TURNS[name]), *NETWORKS[name].split(), *way.split()]
    seconds: Seconds = json.loads(run(project, str(LOOPS), *words).splitlines()[-1])
    return seconds


def ratios(seconds: Seconds) -> dict[str, float]:
    """run.py's step to the best loop by hand of all, and of those that measure too."""
    middle = {name: statistics.median(each) for name, each in seconds.items()}
    ours = middle.pop("run.py")
    measuring = [each for name, each in middle.items() if name.startswith("measuring")]
    return {"all": ours / min(middle.values()), "measuring": ours / min(measuring)}


def row(name: str, way: str, rounds: list[Seconds]) -> list[str]:
    """A row: a network with flags of run.py, and which loop by hand was the best."""
    middle = {
        loop: statistics.median(seconds for each in rounds for seconds in each[loop])
        for loop in rounds[0]
    }
    milliseconds = f"{1000 * middle.pop('run.py'):.3g}"
    best = min(middle, key=lambda loop: middle[loop])
    every = [ratios(each) for each in rounds]
    to_measuring, to_all = (spread([each[key] for each in every]) for key in ("measuring", "all"))
    return [name, f"`{way}`", milliseconds, to_measuring, to_all, best]


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    arguments = parser.parse_args()
    rounds: dict[tuple[str, str], list[Seconds]] = {
        (name, way): [] for name, way in WAYS if name in arguments.networks
    }
    with tempfile.TemporaryDirectory() as folder:
        projects = {name: project(Path(folder) / name, name) for name in arguments.networks}
        for _ in range(arguments.rounds):
            for (name, way), measured in rounds.items():
                measured.append(measure(projects[name], name, way))
    about = (
        f"{machine('torch', 'mlflow')}; one thread; n = {arguments.rounds} rounds, all in turn. In "
        "each, run.py's loop and four by hand take turns of some steps each in one process "
        f"({', '.join(f'{name}: {TURNS[name][0]} of {TURNS[name][1]}' for name in NETWORKS)}); a "
        "loop's time is the median over its turns. run.py measures two numbers in each "
        "step (loss and accuracy, or loss and bits per byte) and writes their means down, about "
        "1,000 in a job, or with `--log-every 1` each. Two of the loops by hand measure them too, "
        "two compute the loss alone; in one of each kind forward pass and loss are compiled "
        "together. A ratio is that of run.py's time to the shortest by hand in the same process: "
        "median (least to most) over the rounds. Jobs: "
        f"{'; '.join(f'{name}, `{NETWORKS[name]}`' for name in arguments.networks)}. `python "
        "benchmarks/best_steps.py` makes this page."
    )
    head = ["", "run.py", "ms a step", "to the best that measures", "to the best", "which is"]
    rows = [row(name, way, measured) for (name, way), measured in rounds.items()]
    page("A training step, beside the best by hand", about, head, rows)


if __name__ == "__main__":
    main()
