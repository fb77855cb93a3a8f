"""Which files are the project's code: in git those that it tracks, and new ones that it does not
ignore; elsewhere the files beside the scripts and the folders with Python in them."""

from collections.abc import Iterator
from pathlib import Path

from engine.job import provenance
from engine.paths import CODE


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
