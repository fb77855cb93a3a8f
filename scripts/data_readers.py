"""Changes of data, over 26 readers: which of them a finished job notices.

    python scripts/data_readers.py [READER …]

Prints the table of docs/data-readers.md. Readers whose packages are not installed are left out, as
is the image for those who are not root.
"""

import sys
import tempfile
from pathlib import Path

from cookiecutter.main import cookiecutter

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY / name) for name in ("tests", "{{cookiecutter.project_slug}}")]

import repository  # noqa: E402, F401  # isort: skip  # before others import the engine
from data_readers import CHANGES, available, row, rows  # noqa: E402
from faults import Project  # noqa: E402


def main(names: list[str]) -> None:
    """Print the rows of each reader."""
    with tempfile.TemporaryDirectory() as temporary:
        how = {"no_input": True, "default_config": True, "extra_context": {"engine": "source"}}
        project = Project(Path(cookiecutter(str(REPOSITORY), output_dir=temporary, **how)))
        print(row("reader", CHANGES), row("---", ["---"] * len(CHANGES)), sep="\n")
        for number, name in enumerate(names or available()):
            for line in rows(project, name, Path(temporary, str(number))):
                print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
