"""What a job keeps of each test example, such as the predicted class, in a plain file.

with numpy.load("runs/<job id>/<attempt>/predictions.npz") as kept:
    kept["label"], kept["predicted"]  # (N,) each, in the order of the examples
"""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from engine import files

FILE = "predictions.npz"


class Outputs:
    """Values of single examples, by name, over many batches."""

    def __init__(self) -> None:
        self._batches: defaultdict[str, list[Tensor]] = defaultdict(list)

    def add(self, values: Mapping[str, Tensor]) -> None:
        """Add a batch: tensors (B, …), which stay on the device."""
        for name, value in values.items():
            self._batches[name].append(value.detach())

    def save(self, folder: Path) -> list[str]:
        """Write the file, whole or not at all; returns the names of the files written."""
        if not self._batches:
            return []
        arrays = {name: torch.cat(parts).cpu().numpy() for name, parts in self._batches.items()}
        files.write(folder / FILE, lambda file: np.savez_compressed(file, **arrays))  # type: ignore
        return [FILE]
