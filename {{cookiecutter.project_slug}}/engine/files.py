"""Small files that are written whole or not at all, and read whatever is in them."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO


def write(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    """Write a file whole or not at all: next to it, onto the disk, then renamed over it.

    `fill` writes the content into an open binary file. Raises OSError, and leaves the old file as
    it was, if the new one cannot be written.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        part.unlink(missing_ok=True)  # what a killed process left, or a link to somewhere else
        with part.open("xb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8, whole or not at all."""
    write(path, lambda file: file.write(text.encode()))


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a dictionary as JSON, whole or not at all; other types become their text."""
    write_text(path, json.dumps(content, indent=2, default=str) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Return the dictionary in a JSON file; an empty one if the file is missing or holds anything
    else."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
