"""What `jobs.py find` suggests, and how training fares with it and with a tenth and ten times it.

    python benchmarks/finding.py > benchmarks/finding.md
    python benchmarks/finding.py --draw                    # finding.pdf and .png, from that page
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
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "{{cookiecutter.project_slug}}"))

from labjobs.results import figures, print_check
from labjobs.results.style import COLOURS, DEFAULT, MARKERS, VENUES, number
from pages import machine, page, spread
from projects import make, run

HERE = Path(__file__).resolve().parent
PAGE = HERE / "finding.md"
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


def rates(project: Path) -> list[list[str]]:
    """Rows of the page: for each job the rate found, and the losses with FACTORS of it."""
    rows = []
    for name, words in RATES.items():
        rate = found(project, "lr", *words, *LENGTH)["suggestion"]["lr"]
        grid = [
            (*words, *LENGTH, "--lr", f"{factor * rate:g}", "--seed", str(seed))
            for factor in FACTORS
            for seed in SEEDS
        ]
        losses = [job.get("best_val_loss", math.inf) for job in sweep(project, grid)]
        by_factor = [losses[i : i + len(SEEDS)] for i in range(0, len(losses), len(SEEDS))]
        rows.append([name, f"{rate:g}", *(spread(each, 3) for each in by_factor)])
    return rows


def races(project: Path) -> tuple[dict[str, Any], list[list[str]]]:
    """What was found of the noise scale, and rows of the page: for each batch size the rate found
    for it, and the steps and the examples to the target."""
    answer = found(project, "noise-scale", *NOISE, "--batch-size", str(MEASURED), "--lr", "0.03")
    size = answer["suggestion"]["batch_size"]
    rows = []
    for factor in SIZES:
        batch = round(factor * size)
        flags = (*NOISE, "--batch-size", str(batch))
        rate = found(project, "lr", *flags)["suggestion"]["lr"]
        steps, every = str(EXAMPLES // batch), str(max(1, round(size / batch)))
        length = ("--steps", steps, "--eval-every", every, "--lr", f"{rate:g}")
        jobs = sweep(project, [(*flags, *length, "--seed", str(seed)) for seed in SEEDS])
        took = [job.get("reached", math.inf) for job in jobs]
        examples = [batch * each for each in took]
        rows.append([str(batch), f"{rate:g}", spread(took, 0), spread(examples, 0)])
    return answer, rows


def draw() -> None:
    """Draw what the page says: the median, the least and the most of three jobs are all of them."""
    figures.use(VENUES[DEFAULT])
    fig, (left, right) = figures.figure("full", 2.6, ncols=2)
    tables = [line[2:-2].split(" | ") for line in PAGE.read_text().splitlines() if line[:1] == "|"]
    of_rates = [row for row in tables if row[0] in RATES]
    of_races = [row for row in tables if row[0].isdecimal()]
    for place, (name, _, *spreads) in enumerate(of_rates):
        aside = 1.12 ** (place - (len(of_rates) - 1) / 2)
        look = {"color": COLOURS[place], "marker": MARKERS[place]}
        losses = [numbers(each) for each in spreads]
        places = [factor * aside for factor in FACTORS]
        left.plot(places, [middle for middle, *_ in losses], label=name, **look)
        for at, each in zip(places, losses, strict=True):
            left.plot([at] * len(each), each, linestyle="none", alpha=0.5, **look)
    left.set(xscale="log", yscale="log", xlabel="learning rate, to the one suggested")
    left.set_ylabel("best validation loss (nats)")
    left.set_xticks(FACTORS, [f"{factor:g}" for factor in FACTORS])
    left.set_xticks([], minor=True)
    left.legend()
    for place, (batch, _, steps, examples) in enumerate(of_races):
        look = {"color": COLOURS[place], "marker": MARKERS[place], "linestyle": "none"}
        right.plot(numbers(steps), numbers(examples), label=f"batches of {batch}", **look)
    right.set(xscale="log", yscale="log", xlabel="steps to the target", ylabel="examples to it")
    right.legend()
    for axis in (left.yaxis, right.xaxis, right.yaxis):
        figures.log_scale(axis)
    problems = print_check.check(fig, VENUES[DEFAULT])
    assert not problems, problems
    for name, metadata in FILES.items():
        fig.savefig(HERE / name, metadata=metadata)


def numbers(spread: str) -> list[float]:
    """The median, the least and the most that a cell of the page has."""
    return [float(word) for word in re.findall(r"inf|[\d.]+", spread)]


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
    parser.add_argument("--draw", action="store_true")
    arguments = parser.parse_args()
    if arguments.draw:
        draw()
        return
    with tempfile.TemporaryDirectory() as folder:
        project = make(folder)
        if arguments.speeds:
            speeds(project)
            return
        os.environ["OMP_NUM_THREADS"] = "1"  # several would wait for each other on a busy machine
        of_rates = rates(project)
        answer, of_races = races(project)
    about = (
        f"{machine('torch')}; scikit-learn's digits. For each job, `jobs.py find lr` suggests a "
        f"rate; then jobs of {LENGTH[1]} epochs are trained with a tenth of it, with it and with "
        f"ten times it, with {len(SEEDS)} seeds each: the best validation loss, median (least to "
        "most), inf for one that diverged. `python benchmarks/finding.py` makes this page."
    )
    head = ["", "suggested", "with a tenth of it", "with it", "with ten times it"]
    page("What jobs.py find suggests", about, head, of_rates)
    scale = re.sub(r"; job \w+$", "", answer["why"])
    text = (
        f"The {NOISE[1]} with {NOISE[3]} and a constant rate, in batches of {MEASURED}: {scale}. "
        "The table has jobs with an eighth of the suggested batch size, with the suggested one and "
        "with eight times it. Each has the learning rate that `find lr` suggests for its batch "
        f"size, and trains until its validation loss is first at most {number(TARGET)}. If the "
        "suggested size were the noise scale all the time, McCandlish et al. 2018 predict steps as "
        "9 : 2 : 1.1, and examples as 1.1 : 2 : 9."
    )
    print(f"\n{textwrap.fill(text, 100)}\n")
    for row in (["batch size", "rate", "steps", "examples"], ["---"] * 4, *of_races):
        print("|", " | ".join(row), "|")
    print("\n![Both tables as figures](finding.png)")


if __name__ == "__main__":
    main()
