"""What `jobs.py find` suggests, and how training fares with it and with a tenth and ten times it.

    python benchmarks/finding.py > benchmarks/finding.md            # and finding.pdf and .png
    python benchmarks/finding.py --speeds > benchmarks/finding-speeds.md

Everything is done by a fresh project's own commands, on scikit-learn's digits. The first page has
the learning rate and the noise scale; it measures losses and steps, which a busy machine does not
change. The second has the batch size, by speed, and needs a machine that does nothing else.
"""

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "{{cookiecutter.project_slug}}"))

from engine.results import figures, print_check
from engine.results.style import COLOURS, MARKERS, number
from engine.results.venues import DEFAULT, VENUES
from pages import machine, page, spread
from projects import make, run

HERE = Path(__file__).resolve().parent
SEEDS = (0, 1, 2)

RATES = {
    "mlp, adam": ("--model", "mlp"),
    "mlp, sgd": ("--model", "mlp", "--optimizer", "sgd"),
    "convnet, adam": ("--model", "convnet"),
}
"""The jobs that a learning rate is found for."""

FACTORS = (0.1, 1, 10)
LENGTH = ("--epochs", "20")

NOISE = ("--model", "mlp", "--optimizer", "sgd", "--schedule", "constant")
"""The job whose noise scale is measured, in batches of MEASURED."""
MEASURED = 256
SIZES = (1 / 8, 1, 8)
TARGET = 0.3
"""The validation loss whose first evaluation below it ends a race."""
EXAMPLES = 64_000
"""Examples that a job of a race trains on at most."""

Words = tuple[str, ...]
FILES: dict[str, dict[str, None]] = {"finding.pdf": {"CreationDate": None}, "finding.png": {}}
"""With the metadata that keeps the time of drawing out of them."""


def found(project: Path, what: str, *words: str) -> dict[str, Any]:
    """What `jobs.py find` prints, of a job with these flags."""
    return dict(json.loads(run(project, "jobs.py", "find", what, "--json", "--", *words)))


def sweep(project: Path, grid: list[Words]) -> list[dict[str, float]]:
    """The metrics of jobs, as last logged, in the order of the grid; none of one that diverged."""
    lines = "\n".join(f"  job {' '.join(words)}" for words in grid)
    script = project / "run.sh"
    text = re.sub(r"grid\(\) \{.*?\n\}", f"grid() {{\n{lines}\n}}", script.read_text(), flags=re.S)
    script.write_text(text)
    env = os.environ | {"PYTHON": sys.executable}
    for flags in ((), ("--list", "--json")):
        command = ["bash", "run.sh", *flags]
        done = subprocess.run(command, cwd=project, env=env, capture_output=True)
    listed = {job["id"]: job for job in json.loads(done.stdout)}
    assert len(listed) == len(grid), done
    assert {job["state"] for job in listed.values()} <= {"finished", "diverged"}, done
    return [metrics(Path(job["folder"])) for job in listed.values()]


def points(folder: Path) -> list[dict[str, float]]:
    """The points in the journal of an attempt."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [{"step": line["step"], **line["metrics"]} for line in lines if "metrics" in line]


def metrics(folder: Path) -> dict[str, float]:
    """An attempt's metrics, and as `reached` the step of the first validation loss below TARGET."""
    last: dict[str, float] = {}
    for point in points(folder):
        last |= {name: value for name, value in point.items() if name != "step"}
        if point.get("val_loss", math.inf) <= TARGET:
            last.setdefault("reached", point["step"])
    return last


def rates(project: Path) -> tuple[list[list[str]], dict[str, list[list[float]]]]:
    """Rows of the page, and the validation losses of each job by factor and seed."""
    rows, losses = [], {}
    for name, words in RATES.items():
        rate = found(project, "lr", *words, *LENGTH)["suggestion"]["lr"]
        grid = [
            (*words, *LENGTH, "--lr", f"{factor * rate:g}", "--seed", str(seed))
            for factor in FACTORS
            for seed in SEEDS
        ]
        each = [job.get("best_val_loss", math.inf) for job in sweep(project, grid)]
        by_factor = [each[i : i + len(SEEDS)] for i in range(0, len(each), len(SEEDS))]
        rows.append([name, f"{rate:g}", *(spread(found, 3) for found in by_factor)])
        losses[name] = by_factor
    return rows, losses


def races(project: Path) -> tuple[dict[str, Any], list[list[str]], dict[int, list[list[float]]]]:
    """What was found of the noise scale, rows of the page, and by batch size the steps and the
    examples to the target, of each seed."""
    answer = found(project, "noise-scale", *NOISE, "--batch-size", str(MEASURED), "--lr", "0.03")
    size = answer["suggestion"]["batch_size"]
    rows, reached = [], {}
    for factor in SIZES:
        batch = round(factor * size)
        flags = (*NOISE, "--batch-size", str(batch))
        rate = found(project, "lr", *flags)["suggestion"]["lr"]
        steps = EXAMPLES // batch
        every = max(1, round(size / batch))
        length = ("--steps", str(steps), "--eval-every", str(every), "--lr", f"{rate:g}")
        jobs = sweep(project, [(*flags, *length, "--seed", str(seed)) for seed in SEEDS])
        took = [job.get("reached", math.inf) for job in jobs]
        reached[batch] = [took, [batch * each for each in took]]
        rows.append([str(batch), f"{rate:g}", *(spread(each, 0) for each in reached[batch])])
    return answer, rows, reached


def draw(losses: dict[str, list[list[float]]], reached: dict[int, list[list[float]]]) -> None:
    """Draw both results."""
    figures.use(VENUES[DEFAULT])
    fig, (left, right) = figures.figure("full", 2.6, ncols=2)
    for place, (name, by_factor) in enumerate(losses.items()):
        aside = 1.12 ** (place - (len(losses) - 1) / 2)
        look = {"color": COLOURS[place], "marker": MARKERS[place]}
        middle = [statistics.median(each) for each in by_factor]
        left.plot([factor * aside for factor in FACTORS], middle, label=name, **look)
        for factor, each in zip(FACTORS, by_factor, strict=True):
            left.plot([factor * aside] * len(each), each, linestyle="none", alpha=0.5, **look)
    left.set(xscale="log", yscale="log", xlabel="learning rate, to the one suggested")
    left.set_ylabel("best validation loss (nats)")
    left.set_xticks(FACTORS, [f"{factor:g}" for factor in FACTORS])
    left.legend()
    for batch, (steps, examples) in reached.items():
        right.plot(steps, examples, "o", label=f"batches of {batch}", markersize=5)
    right.set(xscale="log", yscale="log", xlabel="steps to the target", ylabel="examples to it")
    right.legend()
    for axis in (left.yaxis, right.xaxis, right.yaxis):
        figures.log_scale(axis)
    problems = print_check.check(fig, VENUES[DEFAULT])
    assert not problems, problems
    for name, metadata in FILES.items():
        fig.savefig(HERE / name, metadata=metadata)


def speeds(project: Path) -> None:
    """Print the page of batch sizes."""
    rows = []
    for model in ("mlp", "convnet"):
        answer = found(project, "batch-size", "--model", model)
        chosen = answer["suggestion"]["batch_size"]
        sizes = [row["batch_size"] for row in answer["rows"]]
        sizes = sorted({sizes[0], max(sizes[0], chosen // 8), chosen, sizes[-1]})
        words = ("--model", model, "--epochs", "20", "--eval-every", "20e")
        for batch in sizes:
            row = next(row for row in answer["rows"] if row["batch_size"] == batch)
            grid = [(*words, "--batch-size", str(batch), "--seed", str(seed)) for seed in SEEDS]
            for each in grid:
                run(project, "run.py", *each, "--quiet")
            took = [job["elapsed_seconds"] for job in sweep(project, grid)]
            name = f"{batch} (suggested)" if batch == chosen else str(batch)
            memory = f"{row['memory (MiB)']:,}"
            rows.append([model, name, f"{row['examples/s']:,.0f}", memory, spread(took, 1)])
    about = (
        f"{machine('torch')}. `jobs.py find batch-size` on scikit-learn's digits, and then jobs of "
        f"20 epochs, one at a time, with {len(SEEDS)} seeds: median (least to most). `python "
        "benchmarks/finding.py --speeds` makes this page, on a machine that does nothing else."
    )
    head = ["model", "batch size", "examples/s, as found", "MiB, as found", "20 epochs (s)"]
    page("A batch size by speed", about, head, rows)


def main() -> None:
    """Print a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--speeds", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        project = make(folder)
        if arguments.speeds:
            speeds(project)
            return
        os.environ["OMP_NUM_THREADS"] = "1"  # several would wait for each other on a busy machine
        of_rates, losses = rates(project)
        answer, of_races, reached = races(project)
    draw(losses, reached)
    about = (
        f"{machine('torch')}; scikit-learn's digits. For each job, `jobs.py find lr` suggests a "
        f"rate; then jobs of {LENGTH[1]} epochs are trained with a tenth of it, with it and with "
        f"ten times it, with {len(SEEDS)} seeds each: the best validation loss, median (least to "
        "most). "
        "`python benchmarks/finding.py` makes this page."
    )
    head = ["", "suggested", *(f"{factor:g} of it" for factor in FACTORS)]
    page("What jobs.py find suggests", about, head, of_rates)
    scale = re.sub(r"; job \w+$", "", answer["why"])
    print(
        f"\nThe {NOISE[1]} with {NOISE[3]} and a constant rate, in batches of {MEASURED}: {scale}. "
        f"Jobs with an eighth of the suggested batch size, with it and with eight times it, each "
        "with the learning rate that `find lr` suggests for its batch size, until their validation "
        f"loss is first at most {number(TARGET)}. By McCandlish et al. 2018 they would take steps "
        "as 9 : 2 : 1.1, and examples as 1.1 : 2 : 9, if the size suggested were the noise scale "
        "all the time.\n"
    )
    for row in (["batch size", "rate", "steps", "examples"], ["---"] * 4, *of_races):
        print("|", " | ".join(row), "|")


if __name__ == "__main__":
    main()
