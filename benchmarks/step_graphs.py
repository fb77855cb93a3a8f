"""A training step as it is, compiled, and recorded as one CUDA graph.

    python benchmarks/step_graphs.py > benchmarks/gpu/step-graphs.md

Each way is a job of the same project, whose run.py gives its step to job.graphed as the recipe
says. The jobs run one after another in each round; a job's speed is that of its last epoch.
"""

import argparse
import re
import sys
import tempfile
from pathlib import Path

import torch
from buildup import IMAGES
from pages import machine, page, spread
from projects import TEMPLATE, add, journal, make, run

RECIPES = TEMPLATE / "{{cookiecutter.project_slug}}" / "labjobs" / "docs" / "recipes.md"
NETWORKS = {
    "perceptron": "--epochs 40",
    "convnet": "--model convnet --epochs 40",
    "resnet18": "--model resnet18 --dataset random-images --epochs 2 --optimizer sgd",
}
"""The flags of the jobs; 64 examples a step."""

WAYS = {
    "as it is": "--compile off --graph off",
    "one graph": "--compile off --graph on",
    "compiled": "--compile on --graph off",
    "compiled, one graph": "--compile on --graph on",
    "reduce-overhead": "--compile reduce-overhead --graph off",
}


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


def speed(project: Path, network: str, way: str) -> float:
    """Examples a second, in the last epoch."""
    words = [*NETWORKS[network].split(), *WAYS[way].split(), "--force", "--quiet"]
    run(project, "run.py", *words)
    found = [point["metrics"].get("examples_per_second") for point in journal(project)]
    last = float([each for each in found if each][-1])
    print(f"{network}, {way}: {last:,.0f}", file=sys.stderr, flush=True)
    return last


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    arguments = parser.parse_args()
    every = [(network, way) for network in arguments.networks for way in arguments.ways]
    with tempfile.TemporaryDirectory() as folder:
        project = make(folder)
        add(project, data=IMAGES)
        record_step(project)
        rounds = [{each: speed(project, *each) for each in every} for _ in range(arguments.rounds)]
    about = (
        f"{machine('torch', 'mlflow', gpu=torch.cuda.get_device_name())}; n = {len(rounds)} "
        "rounds, all in turn; median (least to most). 64 examples a step; a job's speed is that of "
        "its last epoch, data and all. The first way is the ratio's denominator. `python "
        "benchmarks/step_graphs.py` makes this page."
    )
    first = arguments.ways[0]
    rows = [
        [
            network,
            way,
            spread([each[network, way] / 1000 for each in rounds], 1),
            spread([each[network, way] / each[network, first] for each in rounds]),
        ]
        for network, way in every
    ]
    head = ["network", "step", "thousand examples a second", f"to {first}"]
    page("A step as one CUDA graph", about, head, rows)


if __name__ == "__main__":
    main()
