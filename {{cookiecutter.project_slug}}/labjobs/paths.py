"""The folders from which everything else is found."""

import os
from pathlib import Path

CODE = Path(__file__).resolve().parent.parent
"""The folder that this code lies in: the project's, or a sweep's copy of it."""

PROJECT = Path(os.environ.get("PROJECT_FOLDER", CODE))
"""The project's folder: runs, data and the default tracking store lie in it."""


def portable(path: Path) -> str:
    """Return an absolute path as a text to be stored: `PROJECT / text` is the path again, even if
    the project has been moved or copied."""
    return str(path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path)


def shown(path: Path) -> str:
    """Return a path as short as it can be typed from the current folder."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
