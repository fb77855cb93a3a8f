"""What a model made of the test examples, kept for figures: a plain file beside best.pt.

with numpy.load("runs/<job id>/predictions.npz") as kept:
    kept["labels"], kept["guesses"], kept["classes"]    # (N,), (N,), (K,)
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

FILE = "predictions.npz"


class Predictions:
    """Classes and guesses of single examples; those of tokens, one each, are not kept."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._batches: list[Tensor] = []

    def add(self, labels: Tensor, guesses: Tensor) -> None:
        """Take in a batch: labels and guesses (B,), which stay on the device."""
        if labels.ndim == 1:
            self._batches.append(torch.stack([labels, guesses]))

    def save(self, classes: Sequence[str]) -> list[str]:
        """Write the file, whole or not at all, with the names of the classes; the files written."""
        if not self._batches:
            return []
        labels, guesses = torch.cat(self._batches, dim=1).cpu().numpy()
        part = self._path.with_suffix(".part")
        with part.open("wb") as file:
            np.savez_compressed(file, labels=labels, guesses=guesses, classes=np.array(classes))
            file.flush()
            os.fsync(file.fileno())
        part.replace(self._path)
        return [FILE]
