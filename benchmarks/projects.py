"""A project to measure, and its commands."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

TEMPLATE = Path(__file__).resolve().parents[1]


def make(folder: str, example: str = "classification", commit: str = "HEAD") -> Path:
    """A project in a folder, from the template as it is committed, with the engine as a folder."""
    clone = Path(folder) / "template"
    subprocess.run(["git", "clone", "--quiet", TEMPLATE, clone], check=True)
    subprocess.run(["git", "-C", clone, "checkout", "--quiet", commit], check=True)
    flags = ["--no-input", "--default-config", "--output-dir", folder]
    answers = [f"example={example}", "engine=source"]
    command = [sys.executable, "-m", "cookiecutter", str(clone), *flags, *answers]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # a page goes to stdout
    return Path(folder) / "my_project"


def add(project: Path, **texts: str) -> None:
    """Add code to a project's files: `models="…"` to models.py."""
    for name, text in texts.items():
        with (project / f"{name}.py").open("a") as file:
            file.write(text)


def run(project: Path, *words: str) -> str:
    """What a Python process prints, in a project, on a machine that keeps its compiled files."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env |= {"PYTHONPATH": str(project), "TORCHINDUCTOR_CACHE_DIR": str(project / ".cache")}
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def journal(project: Path) -> list[dict[str, Any]]:
    """The points of the project's one job, which is removed."""
    (path,) = project.glob("runs/*/*/metrics.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    shutil.rmtree(path.parent)
    return [line for line in lines if "metrics" in line]
