"""A clean copy of the template, and projects made from it."""

import shutil
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from cookiecutter.main import cookiecutter

from repository import REPOSITORY  # isort: skip  # before others import the engine
from faults import Project
from sweeps import Lab

# Under nohup, and in a shell's background, what the tests start would ignore these.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

# What working in the template's inner folder leaves there.
LEFTOVERS = [
    "__pycache__",
    ".*_cache",
    ".venv",
    ".sweeps",
    ".cache",
    "runs",
    "figures",
    "tables",
    "exported",
    "mlruns",
    "mlflow.db*",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    """How much the fault tests do."""
    text = "times that a job is killed (50 for docs/reliability.md's figures)"
    parser.addoption("--kills", type=int, default=2, help=text)
    text = "seconds for which a tracking store is away (30 for docs/reliability.md's figures)"
    parser.addoption("--outage-seconds", type=float, default=5.0, help=text)
    text = "stores that 8 processes make together (20 for docs/reliability.md's figures)"
    parser.addoption("--fresh-stores", type=int, default=1, help=text)
    text = "random figures to plant faults in (160 for docs/figures.md's counts)"
    parser.addoption("--figures", type=int, default=8, help=text)
    parser.addoption("--grids", type=int, default=1, help="random grids of jobs to draw (20)")
    text = "random refactors that are to be accepted (500 at full counts)"
    parser.addoption("--refactors", type=int, default=12, help=text)
    text = "random changes of a store that are undone (1000 at full counts)"
    parser.addoption("--store-changes", type=int, default=40, help=text)
    parser.addoption("--pairs", type=int, default=3, help="pairs of codes to bisect (30)")
    parser.addoption("--schedules", type=int, default=6, help="orders in which a GPU works (20)")
    parser.addoption("--slurm-jobs", type=int, default=4, help="jobs that train under Slurm")
    text = "epochs of the demo's jobs; 0 for as many as it has"
    parser.addoption("--demo-epochs", type=int, default=8, help=text)
    parser.addoption("--host-jobs", type=int, default=3, help="jobs that train on hosts (40)")


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The template as a fresh clone has it."""
    copy = tmp_path_factory.mktemp("template") / "template"
    left = shutil.ignore_patterns(".git", *LEFTOVERS)
    shutil.copytree(REPOSITORY, copy, symlinks=True, ignore=left)
    for datasets in copy.glob("*/data"):  # not labjobs/data
        shutil.rmtree(datasets)
    return copy


@pytest.fixture(scope="session")
def make(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes a project from some answers and the defaults of the others."""

    def make(**answers: str) -> Path:
        folder = cookiecutter(
            str(template),
            no_input=True,
            default_config=True,
            output_dir=str(tmp_path_factory.mktemp("projects")),
            extra_context={"engine": "source"} | answers,
        )
        return Path(folder)

    return make


@pytest.fixture(scope="session")
def of_example(make: Callable[..., Path]) -> Callable[[str], Project]:
    """Makes a project from an example, once; to be copied."""
    return cache(lambda example: Project(make(example=example)))


@pytest.fixture(scope="module")
def project(
    of_example: Callable[[str], Project],
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Project:
    """A project of the module's own, made from its EXAMPLE: no jobs, no store."""
    made = of_example(getattr(request.module, "EXAMPLE", "classification"))
    return made.copy(tmp_path_factory.mktemp("project") / "my_project")


@pytest.fixture
def lab(project: Project, request: pytest.FixtureRequest, tmp_path: Path) -> Lab:
    """A project of the test's own, whose jobs are light, on a machine with as many pretend GPUs as
    the module's GPUS says."""
    return Lab(project, tmp_path, getattr(request.module, "GPUS", 0))


@pytest.fixture
def fresh(project: Project, tmp_path: Path) -> Project:
    """A copy of it for one test, without its jobs and store."""
    return project.copy(tmp_path / "fresh")
