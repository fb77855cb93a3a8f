"""A copy of the project for each module of tests, used as its owner would: by its scripts."""

import os
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from settings import Settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run side by side, each with torch in it

HERE = Path(__file__).resolve().parent.parent
LEFT_BEHIND = (
    "runs",
    ".sweeps",
    ".cache",
    "mlflow.db*",
    "mlruns",
    "figures",
    ".venv",
    ".git",
    ".*_cache",
)

UNSET = ("MLFLOW", "CUDA", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")
"""What the commands of a project are not told by the environment, since a user's does not."""


class Project:
    """A project's folder and its commands."""

    def __init__(self, root: Path) -> None:
        self.root = root
        kept = {k: v for k, v in os.environ.items() if not k.startswith(UNSET)}
        self.env = {**kept, "PYTHON": sys.executable}

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        """Start a command in the project, in a process group of its own."""
        return subprocess.Popen(
            words,
            cwd=self.root,
            env=self.env | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *flags: str, **env: str) -> subprocess.CompletedProcess[str]:
        """`python run.py` with flags, to its end; data are read where this project has them."""
        return self._job("run.py", *flags, **env)

    def _job(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        process = self.start(sys.executable, *words, "--data-root", str(HERE / "data"), **env)
        out, err = process.communicate(timeout=600)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


KNOWN = {field.name for field in fields(Settings)}


def short(steps: int) -> list[str]:
    """Return the flags of a job of so many steps, or of an epoch, where there is such a setting."""
    flags = [f"--steps={steps}"] if "steps" in KNOWN else []
    flags += ["--epochs=1"] if {"steps", "epochs"} & KNOWN == {"epochs"} else []
    return flags + ([f"--eval-every={steps // 2}"] if "eval_every" in KNOWN else [])


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A fresh copy of the project: no runs, no store."""
    root = tmp_path_factory.mktemp("copy") / "project"
    shutil.copytree(HERE, root, ignore=shutil.ignore_patterns(*LEFT_BEHIND))
    return Project(root)
