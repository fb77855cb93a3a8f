"""A tracking store with made jobs in it, as couriers leave them: written by MLflow's own client."""

import json
import math
import random
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from labjobs.settings import Metric, as_plain
from mlflow import MlflowClient
from mlflow import entities as mlflow

STEPS = 23
"""Optimizer steps between two evaluations."""

CLASSIFIER = {
    "loss": Metric(better="lower", label="cross-entropy", unit="nats", range=(0, None)),
    "accuracy": Metric(better="higher", range=(0, 1), target=0.9),
}
REGRESSION = {
    "loss": Metric(better="lower", label="squared error", range=(0, None)),
    "mae": Metric("lower", "mean absolute error", "mmHg", (0, None), target=5.0),
    "r2": Metric(better="higher", label="R²", range=(None, 1)),
}
GAN = {"distance": Metric(better="lower", label="energy distance", range=(0, None))}


@cache
def empty() -> Path:
    """Return a store with MLflow's tables alone, which take seconds to make."""
    path = Path(tempfile.mkdtemp()) / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


def fresh(folder: Path) -> "Store":
    return Store(f"sqlite:///{shutil.copy(empty(), folder)}", folder)


class Store:
    """A store, with as many experiments as are asked for; its jobs' folder is the same for all."""

    def __init__(self, uri: str, folder: Path) -> None:
        self.uri, self.folder = uri, folder
        self.client = MlflowClient(uri)

    def job(
        self,
        experiment: str,
        curves: Mapping[str, Sequence[float]],
        metrics: Mapping[str, Metric] = CLASSIFIER,
        *,
        tests: Mapping[str, float] | None = None,
        status: str = "FINISHED",
        mark: bool = True,
        seconds: float = 2.0,
        tags: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> str:
        """Store one job, with a value of each curve for each evaluation; returns its run's id."""
        if found := self.client.get_experiment_by_name(experiment):
            place = found.experiment_id
        else:
            place = self.client.create_experiment(experiment, self.folder.as_uri() + "/artifacts")
        about = {
            "job_id": name(settings),
            "commit": "abc",
            "job_folder": str(self.folder),
            "device": "CPU",
            "metrics": json.dumps(as_plain(metrics)),
            "neutral": "{}",
        }
        if mark:
            about["diverged" if status == "FAILED" else "finished"] = "true"
        run = self.client.create_run(place, tags={**about, **(tags or {})}).info.run_id
        last = STEPS * max(map(len, curves.values()), default=1)
        times = [seconds * (place + 1) for place in range(last // STEPS)]
        results = {"examples_per_second": 1000 / seconds, "cpu_hours": seconds / 3600}
        if status == "FINISHED":
            results |= best(curves, metrics, settings.get("monitor", "none")) | dict(tests or {})
        points = [
            mlflow.Metric(key, value, STEPS * (place + 1), STEPS * (place + 1))
            for key, values in {**curves, "elapsed_seconds": times}.items()
            for place, value in enumerate(values)
        ]
        points += [mlflow.Metric(key, value, last, last) for key, value in results.items()]
        params = [mlflow.Param(key, str(value)) for key, value in settings.items()]
        self.client.log_batch(run, metrics=points, params=params)
        if status != "RUNNING":
            self.client.set_terminated(run, status)
        return str(run)

    def classifiers(
        self,
        experiment: str,
        *,
        models: Iterable[str] = ("mlp", "convnet"),
        lrs: Iterable[float] = (1e-3, 1e-2),
        seeds: int = 3,
        **more: Iterable[Any],
    ) -> None:
        """Store a grid of classifiers; `more` are further settings, each with its values."""
        for model, lr, *others, seed in product(models, lrs, *more.values(), range(seeds)):
            settings = {"dataset": "digits", "epochs": 20, "monitor": "val_accuracy", "note": ""}
            settings |= {"model": model, "lr": lr, **dict(zip(more, others, strict=True))}
            settings |= {"seed": seed}
            final = random.Random(name(settings)).uniform(0.9, 0.99)
            accuracy = [final - 0.6 * math.exp(-(i + 1) / 3) for i in range(20)]
            loss = [3 * (1 - value) for value in accuracy]
            self.job(
                experiment,
                {"train_loss": loss, "val_loss": loss, "val_accuracy": accuracy},
                tests={"test_accuracy": final - 0.01, "test_loss": 3 - 3 * final},
                seconds=(2.0 + seed) * (1 if model == "mlp" else 2),
                **settings,
            )

    def regressions(self, experiment: str, *, unit: float = 1.0, **declared: Any) -> None:
        """Store a grid of regressions, with errors of so many times 4 to 13; `declared` is what is
        declared otherwise of the error."""
        metrics = REGRESSION | {"mae": replace(REGRESSION["mae"], **declared)}
        for lr, decay, seed in product((1e-4, 1e-3, 1e-2), (0.0, 0.01), range(3)):
            settings = {"lr": lr, "weight_decay": decay, "monitor": "val_mae", "seed": seed}
            final = 4 + 4 * abs(math.log10(lr) + 3) + 50 * decay
            final += random.Random(name(settings)).random()
            mae = [unit * (final + 30 * math.exp(-i / 5)) for i in range(30)]
            curves = {"val_mae": mae, "val_r2": [1 - value / unit / 40 for value in mae]}
            self.job(experiment, curves, metrics, tests={"test_mae": 1.1 * mae[-1]}, **settings)

    def gans(self, experiment: str, *, validated: bool = True) -> None:
        """Store a few jobs that monitor nothing, with or without validation."""
        for lr, seed in product((1e-4, 2e-4), range(2)):
            settings = {"lr": lr, "monitor": "none", "seed": seed}
            final = random.Random(name(settings)).uniform(0.05, 0.1)
            distance = [final + 2 * math.exp(-i / 10) for i in range(40)]
            part = "val" if validated else "train"
            self.job(experiment, {f"{part}_distance": distance}, GAN, **settings)

    def keep_predictions(self) -> None:
        """Have all jobs keep the classes that they predicted: 36 threes were taken for eights."""
        label = np.arange(360) % 10
        predicted = np.where(label == 3, 8, label)
        np.savez(self.folder / "predictions.npz", label=label, predicted=predicted)


def name(settings: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in settings.items())


def best(
    curves: Mapping[str, Sequence[float]], metrics: Mapping[str, Metric], monitor: str
) -> dict[str, float]:
    """Return the validation metrics at the best evaluation, the last if nothing is monitored."""
    place = -1
    if monitor != "none":
        choose = min if metrics[monitor.removeprefix("val_")].better == "lower" else max
        place = curves[monitor].index(choose(curves[monitor]))
    return {
        f"best_{key}": values[place] for key, values in curves.items() if key.startswith("val_")
    }
