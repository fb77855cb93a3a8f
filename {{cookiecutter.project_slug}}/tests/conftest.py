"""A copy of the project for each module of tests, used as its owner would: by its scripts."""

import os
import shutil
import socket
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import data
from labjobs.errors import SettingsError
from settings import Settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run side by side, each with torch in it

HERE = Path(__file__).resolve().parent.parent
LEFT_BEHIND = {"data", "runs", ".sweeps", "mlruns", "figures", "exported", ".venv", ".git"}
LEFT_BEHIND |= {path.name for pattern in ("mlflow[.-]*", ".*cache") for path in HERE.glob(pattern)}
UNSET = ("MLFLOW", "CUDA", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")
"""What the commands of a project are not told by the environment, since a user's does not."""

LIMIT = 600
"""Seconds that a command may take in these tests. Give it more if your jobs are slow."""

KNOWN = {field.name for field in fields(Settings)}
LOADS = hasattr(data, "load")  # not where the loop makes its data


def missing_data():
    """Return why the data of the default settings is not here, as on a machine that only tests;
    empty if it is, or if the loop makes its data."""
    if not LOADS:
        return ""
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket, "getaddrinfo", refuse)
            data.load(Settings(), HERE / "data")
    except SettingsError as error:
        return str(error)
    return ""


def refuse(*_args, **_kwargs):
    """Let nothing be fetched."""
    raise OSError("no network in tests")


MISSING = missing_data()
needs_data = pytest.mark.skipif(bool(MISSING), reason=f"no data to train on: {MISSING}")
"""For tests that train: where the data is not, they tell nothing."""


def short(steps):
    """Return the flags of a job of so many steps, or of an epoch, where there is such a setting."""
    flags = [f"--steps={steps}"] if "steps" in KNOWN else []
    flags += ["--epochs=1"] if {"steps", "epochs"} & KNOWN == {"epochs"} else []
    return flags + ([f"--eval-every={steps // 2}"] if "eval_every" in KNOWN else [])


class Project:
    """A project's folder and its commands."""

    def __init__(self, root):
        self.root = root
        kept = {k: v for k, v in os.environ.items() if not k.startswith(UNSET)}
        self.env = {**kept, "PYTHON": sys.executable}

    def do(self, *words, **env):
        """Run a command in the project, to its end."""
        how = {"cwd": self.root, "env": self.env | env, "timeout": LIMIT}
        return subprocess.run(words, **how, capture_output=True, text=True)

    def run(self, *flags, **env):
        """`python run.py` with flags; data are read where this project has them."""
        return self.do(sys.executable, "run.py", *flags, "--data-root", str(HERE / "data"), **env)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A fresh copy of the project: no runs, no store."""
    root = tmp_path_factory.mktemp("copy") / "project"
    left = {str(HERE): LEFT_BEHIND}
    return Project(shutil.copytree(HERE, root, ignore=lambda folder, _: left.get(str(folder), ())))
