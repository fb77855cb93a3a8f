"""What a job has kept, read back: its best weights, and what they belong to."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from engine.errors import JobError
from engine.job.identity import restore
from engine.paths import PROJECT, shown
from engine.training import checkpoints

S = TypeVar("S")

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Best(Generic[S]):
    """A job's best weights by model name, with its settings, spec and metrics."""

    settings: S
    spec: dict[str, Any]
    weights: dict[str, dict[str, Tensor]]
    metrics: dict[str, float]


def best(job_id: str, kind: type[S], runs_root: Path | None = None) -> Best[S]:
    """Return what a job kept as its best, on the CPU; its settings are of the given kind.

    Raises JobError if it has kept no weights or they are damaged, SettingsError if today's settings
    cannot say what the job's were.
    """
    path = (runs_root or PROJECT / "runs") / job_id / "best.pt"
    if not path.exists():
        raise JobError(f"{shown(path)}: not found; the job has kept no weights")
    try:
        kept = checkpoints.load(path, CPU)
    except checkpoints.Damaged as error:
        raise JobError(f"{shown(path)} is damaged; --force makes the job start over") from error
    settings = restore(kind, kept["settings"])
    return Best(settings, kept["spec"], kept["models"], kept["metrics"])
