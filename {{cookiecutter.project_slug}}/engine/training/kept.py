"""What a job has kept, read back: its best weights, and what they belong to."""

from pathlib import Path
from typing import Any

import torch

from engine.errors import JobError
from engine.paths import shown
from engine.training import checkpoints

CPU = torch.device("cpu")


def best(folder: Path) -> dict[str, Any]:
    """Return what is in a job's best.pt: settings, spec, step, metrics and models.

    Raises JobError if there is none or it is damaged.
    """
    path = folder / "best.pt"
    if not path.exists():
        raise JobError(f"{shown(path)}: there is no such file; the job has kept no weights")
    try:
        return checkpoints.load(path, CPU)
    except checkpoints.Damaged as error:
        raise JobError(f"{shown(path)} is damaged; --force makes the job start over") from error
