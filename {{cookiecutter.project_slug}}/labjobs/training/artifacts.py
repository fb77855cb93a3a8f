"""Images, texts, tables and files that a loop logs, each a plain file in the job's `logged` folder.

Their names end with the optimizer step. The journal names them, and the courier copies them to the
job's run.
"""

import csv
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

from labjobs import files
from labjobs.errors import JobError
from labjobs.job.journal import Journal

FOLDER = "logged"

IN_ROW = 8
"""Images side by side in a grid."""

GAP = 1
"""Black pixels around each image of a grid."""


class Artifacts:
    """Writes the files that a job logs."""

    def __init__(self, folder: Path, journal: Journal) -> None:
        self._folder, self._journal = folder, journal

    def image(self, name: str, step: int, image: Any) -> None:
        """Log an image, (H, W), (C, H, W) or (H, W, C), or several in a grid, (N, C, H, W).

        Pixels are uint8, or floats in [0, 1].
        """
        from PIL import Image

        png = BytesIO()
        Image.fromarray(_pixels(name, image)).save(png, "png")
        self._write(name, step, "png", png.getvalue())

    def text(self, name: str, step: int, text: str) -> None:
        """Log a text."""
        self._write(name, step, "txt", text.encode())

    def table(self, name: str, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log a table, as CSV: a dictionary for each row."""
        text = StringIO()
        columns = list(dict.fromkeys(column for row in rows for column in row))
        writer = csv.DictWriter(text, columns)
        writer.writeheader()
        writer.writerows(rows)
        self._write(name, step, "csv", text.getvalue().encode())

    def file(self, path: Path, step: int) -> None:
        """Log a copy of a file."""
        target = self._target(path.stem, step, path.suffix.removeprefix("."))
        shutil.copy(path, target)
        self._journal.files([f"{FOLDER}/{target.name}"])

    def _write(self, name: str, step: int, kind: str, content: bytes) -> None:
        target = self._target(name, step, kind)
        files.write(target, lambda file: file.write(content))
        self._journal.files([f"{FOLDER}/{target.name}"])

    def _target(self, name: str, step: int, kind: str) -> Path:
        if not re.fullmatch(r"[\w. -]+", name) or name.startswith("."):
            raise JobError(
                f"{name!r} is not a valid file name: use letters, digits, dots and dashes"
            )
        folder = self._folder / FOLDER
        folder.mkdir(exist_ok=True)
        return folder / f"{name}-{step:08d}.{kind}"


def _pixels(name: str, image: Any) -> Any:
    """An image as uint8, (H, W) or (H, W, C)."""
    array = image.detach().float().cpu().numpy() if _is_float(image) else np.asarray(_host(image))
    if array.ndim == 4:
        array = _grid(array)
    if array.ndim == 3 and array.shape[0] in (1, 3, 4) and array.shape[2] not in (3, 4):
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3):
        wanted = "(H, W), (C, H, W) or (N, C, H, W)"
        raise JobError(f"image {name!r}: has the shape {array.shape}, not {wanted}")
    if array.dtype != np.uint8:
        array = (np.clip(array, 0, 1) * 255).round().astype(np.uint8)
    return array


def _grid(images: Any) -> Any:
    """Images (N, C, H, W) in rows of eight: (C, H, W)."""
    count, channels, height, width = images.shape
    columns = min(count, IN_ROW)
    rows = math.ceil(count / columns)
    padded = np.pad(images, ((0, rows * columns - count), (0, 0), (GAP, GAP), (GAP, GAP)))
    height, width = height + 2 * GAP, width + 2 * GAP
    grid = padded.reshape(rows, columns, channels, height, width).transpose(2, 0, 3, 1, 4)
    return grid.reshape(channels, rows * height, columns * width)


def _is_float(image: Any) -> bool:
    return isinstance(image, torch.Tensor) and image.is_floating_point()


def _host(image: Any) -> Any:
    return image.cpu().numpy() if isinstance(image, torch.Tensor) else image
