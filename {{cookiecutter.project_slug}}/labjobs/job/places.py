"""Where the files are that count as a job's data: below --data-root, and in the project's folder.

The name of an entry says which of the two, and the path within it, such as `data/train/cat/1.png`
or `project/words.txt`; it stays the same wherever the data is copied to.
"""

import os
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from labjobs.paths import CODE, PROJECT

DATA, PROJECTS = "data", "project"
"""The beginnings of names."""

NOT_DATA = (
    "accepted.json",
    "labjobs/",
    "figures/",
    "mlflow.db",
    "mlruns/",
    "paper/",
    "runs/",
    "tests/",
)
"""Folders in the project that are not data."""


@dataclass(frozen=True)
class Places:
    """The folders of a job's data, and what is ignored in them.

    Python files, which are code (labjobs.evidence), hidden files, installed packages and files that
    jobs write are not data.
    """

    data_root: Path
    runs_root: Path

    @cached_property
    def _roots(self) -> tuple[tuple[str, str], ...]:
        data = ((root, DATA) for root in _spellings(self.data_root))
        return (*data, (f"{CODE}/", PROJECTS), (f"{PROJECT}/", PROJECTS))

    @cached_property
    def _not_data(self) -> tuple[str, ...]:
        of_project = (f"{root}/{name}" for root in (CODE, PROJECT) for name in NOT_DATA)
        return (*_spellings(self.runs_root), f"{sys.prefix}/", *of_project)

    def name(self, path: str) -> str:
        """Return the name of a file, or of a folder if its absolute path ends with a slash; empty
        if it is not data."""
        if path.startswith(self._not_data) or path.endswith((".py", ".pyc")):
            return ""
        for root, word in self._roots:
            if path.startswith(root):
                below = path.removeprefix(root)
                counts = word == DATA or not path.endswith("/") or not _is_code(below, path)
                return f"{word}/{below}" if counts and not _is_hidden(below) else ""
        return ""

    def path(self, name: str) -> Path:
        """Return the path at which a file or folder with this name is, or would be."""
        word, _, below = name.partition("/")
        if word == DATA:
            return self.data_root / below
        frozen = CODE / below
        return frozen if frozen.exists() else PROJECT / below

    def at_hand(self, name: str) -> bool:
        """Whether the folder that should contain the file exists."""
        return not name.startswith(f"{DATA}/") or self.data_root.is_dir()


def _spellings(root: Path) -> tuple[str, str]:
    """The beginnings of the paths below a folder, as given and without symbolic links."""
    return f"{root}/", f"{root.resolve()}/"


def _is_hidden(below: str) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in below.split("/"))


def _is_code(below: str, folder: str) -> bool:
    """Whether a folder of the project holds Python's files, which importing them lists."""
    return not below or any(name.endswith(".py") for name in os.listdir(folder))
