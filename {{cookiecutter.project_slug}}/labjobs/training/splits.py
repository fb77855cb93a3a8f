"""Records which examples a job trained, validated and tested on, in plain files.

with numpy.load("runs/.splits/<digest>.npz") as kept:
    kept["train"]  # (N,), indices into the dataset that the part was taken from

`split.json` in the attempt's folder names that file, which jobs with the same split share, and has
the number of examples in each part.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from labjobs import files
from labjobs.data.order import whole

FILE = "split.json"
FOLDER = ".splits"


def save(attempt: Path, parts: Mapping[str, Dataset[Any] | None]) -> list[str]:
    """Write down which examples each part has; returns the names of the files written in the
    attempt's folder. Parts that are None, or have no length, are left out."""
    sized = {name: part for name, part in parts.items() if hasattr(part, "__len__")}
    indices = {name: whole(part)[1].numpy() for name, part in sized.items() if part}
    path = Path(FOLDER, f"{_digest(indices)}.npz")
    shared = attempt.parent.parent / path
    if not shared.exists():
        files.write_shared(shared, lambda file: np.savez_compressed(file, **indices))  # type: ignore
    examples = {name: len(part) for name, part in indices.items()}
    about = {"id": attempt.parent.name, "split": path.as_posix(), "examples": examples}
    files.write_record(attempt / FILE, {"schema": 1, **about})
    return [FILE]


def _digest(indices: Mapping[str, Any]) -> str:
    found = hashlib.sha256()
    for name, part in sorted(indices.items()):
        found.update(f"{name} {len(part)}\n".encode() + part.tobytes())
    return found.hexdigest()[:16]
