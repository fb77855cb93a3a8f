"""Python with the packages that an attempt ran with, installed by uv in a temporary folder, from
the index that uv is configured for; or the Python that runs this code."""

import os
import platform
import re
import shutil
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from labjobs.errors import JobError
from labjobs.paths import PROJECT
from labjobs.repeating import processes

PYTHON = "# Python "
"""Beginning of the first line of a list of packages."""

LONGEST = 300
"""Characters of uv's reason."""

NOT_PASSED_ON = ("PYTHONPATH", "PYTHONHOME")
"""Variables that would make Python find another environment's packages."""


class Environment(NamedTuple):
    """An interpreter, and the environment variables to start it with."""

    python: Path
    env: Mapping[str, str]


def present() -> Environment:
    """Return the interpreter that runs this code, with its packages."""
    return Environment(Path(sys.executable), dict(os.environ))


def recorded(installed: Path, code: Path, folder: Path) -> Environment:
    """Install what a list of packages names into a new folder, and return its interpreter; of the
    project in the folder `code` itself nothing is installed. Raises JobError if that fails."""
    uv = shutil.which("uv")
    if not uv:
        raise JobError("uv is not installed; install it, or use --versions present")
    packages = installed.read_text().splitlines()
    version = packages[0].removeprefix(PYTHON)
    own = _name(_project_name(code))
    wanted = [line for line in packages if _name(line.partition("==")[0]) != own]
    env = {name: value for name, value in os.environ.items() if name not in NOT_PASSED_ON}
    python = sys.executable if version == platform.python_version() else version
    folder.mkdir()
    requirements = folder / "requirements.txt"
    requirements.write_text("\n".join(wanted) + "\n")
    made = Environment(folder / "venv" / "bin" / "python", env | {"PYTHONNOUSERSITE": "1"})
    install = ["--no-deps", "--python", str(made.python), "--requirements", str(requirements)]
    for words in (
        [uv, "venv", "--quiet", "--python", python, str(folder / "venv")],
        [uv, "pip", "install", "--quiet", *install],
    ):
        status, said = processes.run(words, PROJECT, env)
        if status:
            raise JobError(f"uv cannot install its versions: {_reason(said)}")
    return made


def _project_name(code: Path) -> str:
    """The name of the project, under which `pip install .` has recorded it too."""
    try:
        found = tomllib.loads((code / "pyproject.toml").read_text("utf-8"))
        return str(found["project"]["name"])
    except (OSError, ValueError, KeyError):
        return ""


def _name(package: str) -> str:
    """A package's name in the one form by which packages are told apart (PEP 503)."""
    return re.sub("[-_.]+", "-", package).lower()


def _reason(said: str) -> str:
    """uv's reason in one line, without what draws it as a tree."""
    words = " ".join(re.sub("[×╰─▶├│]", " ", said).split())
    return words if len(words) <= LONGEST else f"{words[:LONGEST]} …"
