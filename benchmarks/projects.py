"""A project to measure."""

import subprocess
import sys
from pathlib import Path

TEMPLATE = Path(__file__).resolve().parents[1]


def make(folder: str) -> Path:
    """A project in a folder, from the template as it is committed."""
    clone = Path(folder) / "template"
    subprocess.run(["git", "clone", "--quiet", TEMPLATE, clone], check=True)
    flags = ["--no-input", "--default-config", "--output-dir", folder]
    command = [sys.executable, "-m", "cookiecutter", str(clone), *flags]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # a page goes to stdout
    return Path(folder) / "my_project"
