"""Drawing all figures of 2,000 jobs with 500 points each, and reading as much through MLflow.

    python benchmarks/drawing.py > benchmarks/drawing.md
    python benchmarks/drawing.py --server > benchmarks/drawing-server.md    # needs PostgreSQL
    python benchmarks/drawing.py --before COMMIT    # plot.py as it was takes turns
    python benchmarks/drawing.py --before COMMIT --rates 250 --seeds 4      # tables of 500 rows

`python plot.py` is timed as a command, with all its imports, reading, checks and files. The other
way only reads: `mlflow.search_runs`, and `get_metric_history` of one metric of each run.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import numpy as np
from pages import machine, page, spread
from projects import make

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

MODELS = ("mlp", "convnet")
METRICS = ("val_accuracy", "elapsed_seconds")

BY_MLFLOW = """
import mlflow

runs = mlflow.search_runs(experiment_names=["my_project"], max_results=50_000)
client = mlflow.MlflowClient()
for run_id in runs["run_id"]:
    for metric in {metrics}:
        client.get_metric_history(run_id, metric)
"""
WAYS = {
    "plot.py": "`python plot.py`: all figures",
    "mlflow": "`search_runs` and `get_metric_history`: reading alone",
    "same": "`python plot.py`: what it drew then, alone",
    "before": "`python plot.py` as it was",
}
ALL_ROWS = ("ROWS: list[str] = []", 'ROWS: list[str] = ["model", "lr"]')


def fill(uri: str, folder: str, rates: int, seeds: int, points: int) -> None:
    """Store jobs as their couriers do: a grid of models, learning rates and seeds."""
    labels = np.arange(360) % 10
    kept = {"index": np.arange(360), "label": labels, "predicted": labels}
    np.savez(f"{folder}/predictions.npz", **kept)
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, RunTag

    client = MlflowClient(uri)
    experiment = client.create_experiment("my_project")
    lrs = [10 ** -(1 + 5 * place / rates) for place in range(rates)]
    for model, lr, seed in product(MODELS, lrs, range(seeds)):
        run_id = client.create_run(experiment).info.run_id
        epochs = range(1, points // len(METRICS) + 1)
        accuracy = [0.9 + 0.0001 * seed - 0.5 / (1 + epoch) for epoch in epochs]
        seconds = [(1.0 + 0.01 * seed) * epoch for epoch in epochs]
        values = {"val_accuracy": accuracy, "elapsed_seconds": seconds}
        history = [
            Metric(metric, value, epoch, epoch)
            for metric, of_epoch in values.items()
            for epoch, value in zip(epochs, of_epoch, strict=True)
        ]
        last = [
            Metric(name, value, epochs[-1], epochs[-1])
            for name, value in (
                ("test_accuracy", accuracy[-1]),
                ("best_val_accuracy", accuracy[-1]),
                ("examples_per_second", 1e4 + seed),
            )
        ]
        settings = {"model": model, "lr": lr, "seed": seed, "monitor": "val_accuracy"}
        names = {"job_id": f"{model} {lr} {seed}", "finished": "true", "job_folder": folder}
        names["metrics"] = json.dumps({"accuracy": {"better": "higher", "target": 0.9}})
        client.log_batch(
            run_id,
            history + last,
            [Param(key, str(value)) for key, value in settings.items()],
            [RunTag(key, value) for key, value in names.items()],
        )
        client.set_terminated(run_id)


def draw_as(project: Path, before: Path) -> None:
    """Take away from a project's plot.py the figures and tables that another's does not draw."""
    script, had = project / "plot.py", (before / "plot.py").read_text()
    text = script.read_text()
    for line in re.findall(r'^    "[\w-]+": \w+,\n', text, re.MULTILINE):
        text = text if line in had else text.replace(line, "")
    if "TABLES" not in had:
        text = re.sub(r"^TABLES = .*", "TABLES = {}", text, flags=re.MULTILINE)
    script.write_text(text)


@contextmanager
def store(server: bool, folder: str) -> Iterator[tuple[str, str]]:
    """A store's address to fill it by, and that to read it by."""
    if not server:
        uri = f"sqlite:///{folder}/mlflow.db"
        yield uri, uri
        return
    from servers import mlflow_server, postgres

    with postgres() as database, mlflow_server(database.uri) as at:
        yield database.uri, at.uri


def cost(way: str, project: Path) -> tuple[float, float]:
    """Of one process: the seconds from its start to its end, and its memory at most, in MB."""
    reading = way == "mlflow"
    words = ["-c", BY_MLFLOW.format(metrics=METRICS)] if reading else ["plot.py", "--unchecked"]
    begun = time.perf_counter()
    env = os.environ | {"PYTHONPATH": str(project)}
    process = subprocess.Popen(
        [sys.executable, *words], cwd=project, env=env, stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0, way
    return time.perf_counter() - begun, used.ru_maxrss / 1024


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--points", type=int, default=500)
    parser.add_argument("--rates", type=int, default=10)
    parser.add_argument("--before", default="", metavar="COMMIT")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, store(arguments.server, folder) as (into, uri):
        projects = dict.fromkeys(("plot.py", "mlflow"), make(f"{folder}/now"))
        if arguments.before:
            before = make(f"{folder}/before", commit=arguments.before)
            projects = {"plot.py": projects["plot.py"], "same": make(f"{folder}/same")}
            draw_as(projects["same"], before)
            projects["before"] = before
        for project in {*projects.values()} if arguments.rates > 20 else ():
            script = project / "plot.py"
            script.write_text(script.read_text().replace(*ALL_ROWS))
        fill(into, folder, arguments.rates, arguments.seeds, arguments.points)
        os.environ["MLFLOW_TRACKING_URI"] = uri
        rounds = [
            {way: cost(way, project) for way, project in projects.items()}
            for _ in range(arguments.rounds)
        ]
    kind = "a server on PostgreSQL" if arguments.server else "sqlite"
    settings = len(MODELS) * arguments.rates
    jobs = settings * arguments.seeds
    flags = " --server" * arguments.server
    if arguments.before:
        flags += f" --before {arguments.before}"
    if arguments.rates > 20:
        flags += f" --rates {arguments.rates} --seeds {arguments.seeds}"
    base = "before" if arguments.before else "plot.py"
    about = (
        f"{machine('torch', 'mlflow', 'matplotlib')}; {jobs:,} jobs of {settings} settings and "
        f"{arguments.points} points in {kind}; n = {len(rounds)} rounds, in turn: median (least to "
        f"most). The ratio is to that of {WAYS[base]} in the same round; memory is the process's "
        "largest. "
        f"`python benchmarks/drawing.py{flags}` makes this page."
    )
    rows = [
        [
            WAYS[way],
            spread([each[way][0] / each[base][0] for each in rounds]),
            spread([each[way][0] for each in rounds], 1),
            spread([each[way][1] for each in rounds], 0),
        ]
        for way in projects
    ]
    page("Drawing the figures of many jobs", about, ["", "ratio", "seconds", "memory, MB"], rows)


if __name__ == "__main__":
    main()
