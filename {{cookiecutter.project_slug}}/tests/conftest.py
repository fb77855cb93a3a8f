"""A copy of the project for each module of tests, used as its owner would: by its scripts."""

import os
import select
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from mlflow import MlflowClient

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run side by side, each with torch in it

HERE = Path(__file__).resolve().parent.parent
LEFT_BEHIND = (
    "runs",
    ".sweeps",
    ".cache",
    "mlflow.db*",
    "mlruns",
    "data",
    "figures",
    ".venv",
    ".*_cache",
    "__pycache__",
)

UNSET = ("MLFLOW", "CUDA", "PYTHONUNBUFFERED")
"""What the commands of a project are not told by the environment, since a user's does not."""


class Project:
    """A project's folder, its commands and its store."""

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
        """`python run.py` with flags, to its end."""
        return self._end(self.start(sys.executable, "run.py", *flags, **env))

    def sweep(self, *jobs: str, **env: str) -> subprocess.CompletedProcess[str]:
        """`bash run.sh` over a grid of these jobs, each given as shell words, to its end."""
        self.write_grid(*jobs)
        return self._end(self.start("bash", "run.sh", **env))

    def write_grid(self, *jobs: str) -> None:
        """Make these jobs the grid of run.sh."""
        script = (HERE / "run.sh").read_text()
        head, rest = script.split("grid() {\n")
        tail = rest.split("\n}\n", 1)[1]
        body = "".join(f"  job {job}\n" for job in jobs) or "  :\n"
        (self.root / "run.sh").write_text(f"{head}grid() {{\n{body}}}\n{tail}")

    def ask(self, query: str, *values: str) -> list[tuple[object, ...]]:
        """Rows of the store."""
        with closing(sqlite3.connect(self.root / "mlflow.db")) as store:
            return store.execute(query, values).fetchall()

    def runs(self, job_id: str) -> list[tuple[object, ...]]:
        """(run id, status) of the runs of a job that are not deleted."""
        return self.ask(
            "SELECT run_uuid, status FROM runs JOIN tags USING (run_uuid) WHERE key = 'job_id' "
            "AND value = ? AND lifecycle_stage = 'active'",
            job_id,
        )

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
        out, err = process.communicate(timeout=300)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def wait_until(true: Callable[[], bool]) -> None:
    """Return as soon as a condition holds; fails if it never does."""
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        select.select([], [], [], 0.05)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with MLflow's tables alone, which take seconds to make."""
    path = tmp_path_factory.mktemp("empty") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Project:
    """A fresh copy of the project: no runs, an empty store."""
    root = tmp_path_factory.mktemp("copy") / "project"
    shutil.copytree(HERE, root, ignore=shutil.ignore_patterns(*LEFT_BEHIND))
    shutil.copy(empty_store, root)
    return Project(root)
