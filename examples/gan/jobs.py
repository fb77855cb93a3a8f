"""Looks after jobs, and loads finished ones in scripts and notebooks.

    python jobs.py list             # all jobs: their state, their results, their settings
    python jobs.py show 1872aa      # one job; the beginning of its id will do
    python jobs.py stale --diff     # which jobs other code has made, and what has changed since
    python jobs.py accept --verify --because "train() split in two"  # no result has changed
    python jobs.py --help

In a script:

    import jobs

    job = jobs.load("1872aa178ea7")
    job.settings, job.spec, job.metrics
    job.model.draw(64)  # images (64, C, H, W) of the best generator
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from labjobs import jobs_command
from settings import Settings

if __name__ == "__main__":
    sys.exit(jobs_command())  # before torch is imported, which is slow

from torch import Tensor, nn

import models
from labjobs import best_weights

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Loaded:
    """A job's settings, what its network knows of the data, and its best weights by model name."""

    settings: Settings
    spec: models.Spec
    weights: dict[str, Weights]
    metrics: dict[str, float]
    model: nn.Module


def load(job_id: str, runs_root: Path | None = None) -> Loaded:
    """Return a job with the model of its best evaluation, on the CPU.

    Needs neither the data nor run.py. Raises JobError if there is no such job or it has kept no
    weights.
    """
    best = best_weights(job_id, Settings, runs_root)
    spec = models.Spec(**best.spec)
    model = models.make(best.settings, spec).generator
    model.load_state_dict(best.weights["generator"])
    return Loaded(best.settings, spec, best.weights, best.metrics, model.eval())
