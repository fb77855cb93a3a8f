"""Damage to a tracking store, and what `jobs.py sync` makes of it.

    python scripts/damaged_stores.py

Prints a table of docs/damage.md.
"""

import sys
import tempfile
from itertools import count
from pathlib import Path

from cookiecutter.main import cookiecutter

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY / name) for name in ("tests", "{{cookiecutter.project_slug}}")]

import repository  # noqa: E402, F401  # isort: skip  # before others import the engine
import stores  # noqa: E402
from faults import Project, succeeded  # noqa: E402


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as temporary:
        how = {"no_input": True, "default_config": True, "extra_context": {"engine": "source"}}
        project = Project(Path(cookiecutter(str(REPOSITORY), output_dir=temporary, **how)))
        stores.prepare(project)
        numbers = count()

        def prepared() -> Project:
            copy = project.clone(Path(temporary, str(next(numbers))))
            succeeded(copy.do("python", "jobs.py", "sync"))
            return copy

        for line in stores.table(prepared):
            print(line, flush=True)


if __name__ == "__main__":
    main()
