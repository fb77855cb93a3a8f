"""Which files are the project's code: in a git repository, the tracked files and new files that are
not ignored; otherwise, the files next to the scripts and the folders that contain Python files."""

from collections.abc import Iterator
from pathlib import Path

from labjobs.job import provenance
from labjobs.paths import CODE


def paths() -> set[Path]:
    """Return the paths of the code's files, from its folder."""
    listed = provenance.names("ls-files", "--cached", "--others", "--exclude-standard")
    found = {Path(name) for name in listed}
    if Path("run.py") not in found:  # no repository, or one that ignores the project
        found = set(_without_git())
    return {path for path in found if (CODE / path).exists()}


def _without_git() -> Iterator[Path]:
    for path in CODE.iterdir():
        if path.name.startswith(".") or path.name.startswith("mlflow.db"):
            continue
        if path.is_dir() and any(path.glob("*.py")):
            yield from (file.relative_to(CODE) for file in path.rglob("*") if file.is_file())
        else:
            yield path.relative_to(CODE)
