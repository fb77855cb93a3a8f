"""Random grids of made jobs, with all that was stored of each in a row of a table: the truth that
figures and tables are compared with.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from labjobs.settings import CONFIRMING, Metric
from stored import Store

SETTINGS = (
    "lr: float",
    'momentum: float = setting(0.9, when={"optimizer": "sgd"})\n\n    lr: float',
)
"""What takes the place of what in settings.py, which declares what does not always count."""

WORDS = ["mlp", "convnet", "vit_b", "50% & more"]
STATES = {"finished": 0.8, "diverged": 0.07, "failed": 0.05, "paused": 0.05, "unknown": 0.03}
"""What becomes of jobs; the results of `unknown` ones are no numbers."""

OTHERS = [0.7, 0.15, 0.15]  # how often each learning rate is tested on other examples, and how

STATUS = {"finished": "FINISHED", "unknown": "FINISHED", "paused": "KILLED"}
DEVICES = ["CPU", "NVIDIA H100"]


@dataclass(frozen=True)
class Grid:
    """Jobs, a row for each: settings, `state`, results by their stored names, `curve`, the values
    of the metric that is shown, by step, `times`, and `examples`, the results of test examples."""

    jobs: pd.DataFrame
    settings: Sequence[str]
    metrics: Mapping[str, Metric]
    monitored: str
    shown: str
    flags: Sequence[str]


def grid(store: Store, experiment: str, drawn: np.random.Generator) -> Grid:
    """Store jobs of a random shape, and return them."""
    metrics = _metrics(drawn)
    tasks = [f"set {n}" for n in range(drawn.choice([1, 2, 6], p=[0.7, 0.2, 0.1]))]
    axes: dict[str, list[Any]] = {
        "model": drawn.permutation(WORDS)[: drawn.integers(1, 4)].tolist(),
        "lr": (10.0 ** -np.arange(1, drawn.integers(2, 6))).tolist(),
    }
    if (more := drawn.random()) > 0.9:
        axes = {"model": ["mlp"], "lr": (10 ** -drawn.uniform(1, 5, 24)).tolist()}
    elif more < 0.4:
        axes["weight_decay"] = [0, 1e-4, 0.01][: drawn.integers(2, 4)]
    elif more < 0.7:
        axes |= {"optimizer": ["adam", "sgd"], "momentum": [0.5, 0.9, None]}
    repeats = drawn.choice(["seeds", "folds", "splits"], p=[0.7, 0.15, 0.15])
    tested, kept = drawn.random() < 0.8, drawn.random() < 0.5
    monitored = str(drawn.choice([*metrics]))
    shown = str(drawn.choice([*metrics])) if drawn.random() < 0.3 else ""
    devices = DEVICES[: drawn.choice([1, 2], p=[0.8, 0.2])]
    chances = [*STATES.values()] if drawn.random() < 0.7 else [1, 0, 0, 0, 0]
    counts = [200 + int(drawn.integers(9)), 40]
    labels, tells = drawn.integers(0, 3, counts[1]), drawn.choice(["", "index", "label"], p=OTHERS)
    rows, names = list[dict[str, Any]](), dict[str, None]()
    for task, *values in product(tasks, *axes.values()):
        if ("adam" in values) != (None in values) and "momentum" in axes:
            continue  # momentum counts with sgd alone
        level, confirmed = drawn.uniform(0.4, 0.95), drawn.random() < 0.1
        for repeat in _repeats(repeats, drawn, confirmed):
            state = str(drawn.choice([*STATES], p=chances))
            settings = {"dataset": task, "monitor": f"val_{monitored}"}
            settings |= {n: v for n, v in zip(axes, values, strict=True) if v is not None} | repeat
            folder = store.folder / f"job-{experiment}-{len(rows)}"
            row = {**settings, "state": state, "device": str(drawn.choice(devices))}
            other = axes["lr"].index(values[1])  # examples, which only one of the two tells
            row |= {"index": np.arange(counts[1]) + other * (tells == "index")}
            row |= {"label": (labels + other * (tells == "label")) % 3}
            row |= {"lasts": 1, "seconds": 1.0 + drawn.integers(3), "job_id": f"job{len(rows):03}"}
            row |= _results(drawn, metrics, level, state, row["label"], tested)
            _store(store, experiment, row, settings, metrics, folder, kept, counts)
            row |= {"momentum": None} if "adam" in values else {}
            names |= dict.fromkeys(settings)
            rows.append(row | {"kept": kept and tested, "sizes": counts})
    flags = ["--metric", shown] if shown else []
    table = pd.DataFrame(rows)
    for name in {"momentum"} & {*table}:
        table[name] = pd.Series([row[name] for row in rows], dtype=object)
    return Grid(table, sorted(names), metrics, monitored, shown or monitored, flags)


def _metrics(drawn: np.random.Generator) -> dict[str, Metric]:
    scale = "percent" if drawn.random() < 0.3 else "linear"
    found = {"accuracy": Metric(better="higher", range=(0, 1), scale=scale, target=0.6)}
    if drawn.random() < 0.7:
        scale = "log" if drawn.random() < 0.4 else "linear"
        about: Any = {"unit": "nats", "label": "cross-entropy", "range": (0, None)}
        found["loss"] = Metric(better="lower", scale=scale, target=0.3, **about)
    return found


def _repeats(kind: str, drawn: np.random.Generator, confirmed: bool) -> list[dict[str, Any]]:
    seeds = [{"seed": seed} for seed in range(drawn.integers(0, 6))]
    if kind == "seeds":
        more = [{"seed": CONFIRMING + seed} for seed in range(3)] if confirmed else []
        return seeds + more
    name, places = ("fold", range(1, 6)) if kind == "folds" else ("split_seed", range(4))
    places = [*places][: drawn.integers(2, 6)]
    held_out = {} if kind == "folds" else {"val_fraction": 0.2}
    few = range(drawn.integers(1, 3))
    return [{name: place, "seed": seed, **held_out} for place in places for seed in few]


def _results(
    drawn: np.random.Generator,
    metrics: Mapping[str, Metric],
    level: float,
    state: str,
    label: Any,
    tested: bool,
) -> dict[str, Any]:
    """The curves and results of a job around a level of accuracy."""
    rises = drawn.integers(3, 7) if drawn.random() < 0.3 else 4
    found: dict[str, Any] = {"curves": {}, "tests": {}}
    own = np.clip(level + drawn.normal(0, 0.03), 0.05, 0.99)
    right = drawn.random(len(label)) < own
    found["predicted"] = np.where(right, label, (label + 1) % 3)
    for name in metrics:
        value = float(own if name == "accuracy" else -np.log(own) * drawn.lognormal(0, 0.1))
        gap = -0.3 * value if name == "accuracy" else 2 * value
        curve = [value + gap * float(np.exp(-step)) for step in range(rises - 1)] + [value]
        if state == "unknown":
            curve = [np.nan] * rises
        found["curves"][f"val_{name}"] = curve
        found[f"best_val_{name}"] = curve[-1]
        lost = state == "unknown" or int(1000 * own) % 20 == 0  # 5% have no number on test data
        test = float(right.mean() if name == "accuracy" else value * drawn.lognormal(0, 0.1))
        found["tests"] |= {f"test_{name}": np.nan if lost else test} if tested else {}
    return found | found["tests"]


def _store(
    store: Store,
    experiment: str,
    row: Mapping[str, Any],
    settings: Mapping[str, Any],
    metrics: Mapping[str, Metric],
    folder: Path,
    kept: bool,
    counts: Sequence[int],
) -> None:
    folder.mkdir()
    sizes = dict(zip(("train", "val", "test"), [*counts, counts[1]], strict=False))
    (folder / "settings.json").write_text(json.dumps({"examples": sizes}))
    if kept:
        same = row["label"] == row["predicted"]
        arrays = {"label": row["label"], "predicted": row["predicted"], "accuracy": same}
        np.savez(folder / "predictions.npz", index=row["index"], **arrays)
    status = STATUS.get(row["state"], "FAILED")
    store.job(
        experiment,
        row["curves"],
        metrics,
        tests=row["tests"],
        status=status,
        mark=row["state"] not in ("failed", "paused"),
        seconds=row["seconds"],
        tags={"job_id": row["job_id"], "job_folder": str(folder), "device": row["device"]},
        **settings,
    )
