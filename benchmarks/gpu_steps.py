"""A training step on a GPU: run.py's, compiled or not, or one CUDA graph, beside loops by hand.

    python benchmarks/gpu_steps.py > benchmarks/gpu/steps.md

The loops by hand are in gpu_loops.py.
"""

import argparse
import json
import re
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from best_steps import IMAGES, TOKENS
from pages import machine, page, spread
from projects import TEMPLATE, add, make, run
from steps import DATASET, NETWORK

LOOPS = Path(__file__).resolve().parent / "gpu_loops.py"
RECIPES = TEMPLATE / "{{cookiecutter.project_slug}}" / "labjobs" / "docs" / "recipes.md"

RESNET = "--model resnet18 --dataset random-images --precision"
JOBS = {
    "perceptron": "--model small --dataset random --val-fraction 0.03 --batch-size 64 --precision",
    "resnet18, 64 images": f"--batch-size 64 {RESNET}",
    "resnet18, 512 images": f"--batch-size 512 {RESNET}",
    "GPT-2": "--model gpt2 --context 1024 --batch-size 16 --dataset random-tokens --loss-chunk 0 "
    "--warmup 0 --precision",
}
"""The flags of the jobs, without the precision."""

TURNS = {
    "perceptron": (20, 100),
    "resnet18, 64 images": (20, 25),
    "resnet18, 512 images": (12, 10),
    "GPT-2": (10, 4),
}
"""The turns of each loop, and the steps of a turn."""

ALL = "bf16 --compile on --clip-norm 1 --ema 0.999 --log-every 1"
FORMATS = ("fp32 --compile off", "tf32 --compile off", "bf16 --compile off", "bf16 --compile on")
WAYS: dict[str, Sequence[str]] = {
    "perceptron": (FORMATS[0], *FORMATS[2:]),
    "resnet18, 64 images": FORMATS[2:],
    "resnet18, 512 images": (*FORMATS, ALL),
    "GPT-2": (*FORMATS, ALL),
}
"""The precision and flags of run.py that are compared."""

GRAPHS = ("bf16 --compile off --graph on", "bf16 --compile on --graph on")
GRAPHED: dict[str, Sequence[str]] = {
    "perceptron": ("fp32 --compile off --graph on", *GRAPHS),
    "resnet18, 64 images": GRAPHS,
    "resnet18, 512 images": (),
    "GPT-2": (),
}
"""The same for a run.py that gives its step to job.graphed."""


def project(folder: Path, name: str, graphed: bool) -> Path:
    """A project with a job's data."""
    folder.mkdir()
    made = make(str(folder), "language" if name == "GPT-2" else "classification")
    if name == "GPT-2":
        add(made, data=TOKENS.replace("200_000", "2_000_000"))
    else:
        add(made, models=NETWORK, data=DATASET + IMAGES.replace("2_000", "20_000"))
    if graphed:
        record_step(made)
    return made


def record_step(project: Path) -> None:
    """Edit run.py as the recipe says."""
    _, _, recipe = RECIPES.read_text().partition("\n## A step as one CUDA graph\n")
    step, loop, *_ = re.findall(r"```python\n(.*?)```", recipe, re.DOTALL)
    path = project / "run.py"
    before, _, rest = path.read_text().partition("        for batch in job.steps(")
    _, _, after = rest.partition("            ema.update()\n")
    head, epochs, training = before.partition("    for _ in job.epochs():")
    blocks = indented(step, 1), indented(loop, 2)
    path.write_text(f"{head}{blocks[0]}\n{epochs}{training}{blocks[1]}{after}")


def indented(text: str, times: int) -> str:
    """Return some lines further to the right."""
    return "".join(f"{'    ' * times}{line}" for line in text.splitlines(True))


def measured(project: Path, name: str, ways: Sequence[str]) -> list[dict[str, Any]]:
    """The seconds of a step by loop, turn by turn, for each of run.py's ways."""
    turns, steps = TURNS[name]
    jobs = [["--", *JOBS[name].split(), *way.split()] for way in ways]
    words = [str(turns), str(steps), *(word for job in jobs for word in job)]
    found: list[dict[str, Any]] = json.loads(run(project, str(LOOPS), *words).splitlines()[-1])
    return found


class Loop(NamedTuple):
    """A loop, and how long its steps took."""

    name: str
    seconds: list[float]

    @property
    def median(self) -> float:
        """The seconds of a step."""
        return statistics.median(self.seconds)


def rows(name: str, found: dict[str, dict[str, Any]]) -> Iterator[list[str]]:
    """A job's rows: each of run.py's ways, then the loops by hand, the slowest first."""
    ours = [Loop(f"run.py, `{way}`", each["seconds"]["run.py"]) for way, each in found.items()]
    by_hand = [
        Loop(f"by hand, beside `{way}`: {loop}", seconds)
        for way, each in found.items()
        if "--graph" not in way
        for loop, seconds in each["seconds"].items()
        if loop != "run.py"
    ]
    operations = max(each["operations"] for each in found.values())
    best = min(each.median for each in by_hand)
    measuring = min(each.median for each in by_hand if "measuring" in each.name)
    for loop in (*ours, *sorted(by_hand, key=lambda each: -each.median)):
        seconds = loop.median
        ratios = [f"{seconds / other:.2f}" for other in (measuring, best)]
        milliseconds = spread([1000 * each for each in loop.seconds], 3)
        yield [name, loop.name, milliseconds, *ratios, f"{operations / seconds / 1e12:.1f}"]


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", nargs="+", default=list(JOBS), choices=JOBS)
    arguments = parser.parse_args()
    table: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(arguments.jobs):
            found: dict[str, dict[str, Any]] = {}
            for graphed, ways in ((False, WAYS[name]), (True, GRAPHED[name])):
                if ways:
                    made = project(Path(folder) / f"{number}-{graphed}", name, graphed)
                    found |= zip(ways, measured(made, name, ways), strict=True)
            print(json.dumps([name, found]), file=sys.stderr, flush=True)
            table += rows(name, found)
    about = (
        f"{machine('torch', 'mlflow', gpu=torch.cuda.get_device_name())}. run.py's loop and loops "
        "by hand take turns in one process "
        f"({', '.join(f'{name}: {TURNS[name][0]} of {TURNS[name][1]} steps' for name in JOBS)}). "
        "A loop's time is the median over its turns, without the first two (least to most). run.py "
        "measures two numbers in each step, as the loops by hand named measuring do; the others "
        "compute the loss alone. A ratio is that of medians. The last column has the operations of "
        "the forward and the backward pass, as torch counts them, over the time. Jobs: "
        f"{'; '.join(f'{name}, `{JOBS[name]}`' for name in arguments.jobs)}. `python "
        "benchmarks/gpu_steps.py` makes this page."
    )
    head = ["", "loop", "ms a step", "to the best that measures", "to the best", "TFLOP/s"]
    page("Training steps on a GPU", about, head, table)


if __name__ == "__main__":
    main()
