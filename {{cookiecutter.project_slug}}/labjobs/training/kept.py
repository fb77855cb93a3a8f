"""What a job has kept, read back: its best weights, and what they belong to."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from labjobs.errors import JobError
from labjobs.evidence import Fingerprint
from labjobs.job import attempts, code, data, inputs, lines
from labjobs.job.identity import restore
from labjobs.job.scripts import DEFAULT
from labjobs.paths import shown
from labjobs.training import checkpoints

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

    Of several attempts it is the one with the present code and data, or else the last one that
    finished.
    Raises JobError if it has kept no weights or they are damaged, and within a job if it is not one
    of that job's inputs or from other code or data; SettingsError if today's settings cannot say
    what the job's were.
    """
    _, settings, kept, change = _chosen(job_id, kind, runs_root)
    inputs.refuse(job_id, change)
    if change:
        warnings.warn(f"job {job_id} is from {change}", stacklevel=3)
    return Best(settings, kept["spec"], kept["models"], kept["metrics"])


def attempt(job_id: str, kind: type[Any], runs_root: Path | None = None) -> Path:
    """Return the folder of the attempt that `best` reads. Raises as `best` does."""
    return _chosen(job_id, kind, runs_root)[0]


def _chosen(
    job_id: str, kind: type[S], runs_root: Path | None
) -> tuple[Path, S, dict[str, Any], str]:
    """The attempt whose weights count, the job's settings, what best.pt holds, and how the code or
    the data has changed since."""
    job = (runs_root or inputs.runs_root()) / job_id
    found = [path for path in attempts.all_of(job) if (path / "best.pt").exists()]
    if not found:
        line = f"{shown(job)}/*/best.pt: not found; the job has kept no weights"
        raise JobError(line + _until_when(job))
    found.sort(key=lambda path: attempts.status(path) == "finished")
    kept = _opened(found[-1])
    settings = restore(kind, kept["settings"])
    script = lines.record_of(found[-1], "settings.json").get("script", DEFAULT)
    present = inputs.present(settings, script, job.parent)
    changes = [_change(path, present) for path in found]
    of_present = [path for path, change in zip(found, changes, strict=True) if not change]
    if not of_present or of_present[-1] == found[-1]:
        return found[-1], settings, kept, changes[-1]
    return of_present[-1], settings, _opened(of_present[-1]), ""


def _until_when(job: Path) -> str:
    """When a job that has kept no weights will do so; empty if it has finished, or never begun."""
    begun = attempts.all_of(job)
    if not begun or attempts.status(begun[-1]) == "finished":
        return ""
    command = f"`python jobs.py show {job.name}` prints the command that goes on"
    return f" yet, and does so at its first evaluation; {command}"


def _change(attempt: Path, present: Fingerprint) -> str:
    """How the code or the data has changed since an attempt; empty if they have not."""
    if change := code.difference(attempt, present):
        return f"other code ({change})"
    change = data.difference(attempt, data.last_places(attempt))
    return f"other data ({change})" if change else ""


def _opened(attempt: Path) -> dict[str, Any]:
    path = attempt / "best.pt"
    try:
        return checkpoints.load(path, CPU)
    except checkpoints.Damaged as error:
        raise JobError(f"{shown(path)} is damaged; --force makes the job start over") from error
