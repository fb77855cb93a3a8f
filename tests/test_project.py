"""Inside a project: all that its workflow on GitHub runs passes; a mistake in it is one line."""

import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml
from faults import one_line
from repository import PROJECT, REPOSITORY

INNER = PROJECT.name
WORKFLOW = yaml.safe_load((PROJECT / ".github" / "workflows" / "tests.yml").read_text())
STEPS = [step.get("run", "") for step in WORKFLOW["jobs"]["tests"]["steps"]]
COMMANDS = [step.removeprefix("uv run ") for step in STEPS if step.startswith("uv run ")]

CACHES = {"RUFF_NO_CACHE": "true", "MYPY_CACHE_DIR": str(REPOSITORY / ".mypy_cache")}
"""ruff leaves nothing in a folder that cookiecutter copies; mypy checks torch once for all."""

CHECKING = Path(tempfile.gettempdir()) / "mypy-of-tests.lock"
"""mypy runs once at a time: projects have modules of the same names, which it caches in one
place."""


def check(command, folder):
    """Run a command in a folder with this environment's tools."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path} | CACHES
    with CHECKING.open("w") as lock:
        if "mypy" in command:
            fcntl.flock(lock, fcntl.LOCK_EX)
        how = {"shell": True, "cwd": folder, "env": env, "capture_output": True, "text": True}
        done = subprocess.run(command, **how)
    assert done.returncode == 0, done.stdout + done.stderr


SLOW = {"mypy": pytest.mark.long, "pytest": pytest.mark.full}
"""Commands that take minutes; mypy finds below what it would find here."""


@pytest.mark.parametrize(
    "command",
    [pytest.param(each, marks=SLOW.get(each, ())) for each in COMMANDS],
)
def test_checks(make, command):
    """With odd answers: the project's name is its experiment in the store."""
    odd = "O'Neil's \"quoted\" \\ 北京 🙂"
    assert SLOW.keys() < {*COMMANDS}
    check(command, make(project_name=odd, description=odd, author=odd))


def test_run_py_says_in_one_line_what_is_wrong_in_settings_py(project):
    project.edit("settings.py", "lr: float = setting(1e-3, above=0)", "lr: float")
    assert one_line(project.run(), 2) == "run.py: Settings.lr: needs a default"


@pytest.mark.parametrize(
    ("folder", "command"),
    [
        (".", "ruff check"),
        (".", "ruff format --check"),
        (".", f"shellcheck *.sh .ci/run '{INNER}'/labjobs/sweeps/*.sh"),
        (".", f"shfmt -i 2 -ci -d *.sh .ci/run '{INNER}'"),
        (INNER, "lint-imports --no-cache ../pyproject.toml"),
        pytest.param(INNER, "mypy --config-file ../pyproject.toml", marks=pytest.mark.full),
    ],
)
def test_the_template_is_clean(template, folder, command):
    check(command, template / folder)
