"""A clean copy of the template, and projects made from it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cookiecutter.main import cookiecutter

REPOSITORY = Path(__file__).resolve().parents[1]
# What working in the template's inner folder leaves there.
LEFTOVERS = ["__pycache__", ".*_cache", ".venv", "runs", "figures", "data", "mlruns", "mlflow.*"]


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The template as a fresh clone has it."""
    copy = tmp_path_factory.mktemp("template") / "template"
    return shutil.copytree(REPOSITORY, copy, ignore=shutil.ignore_patterns(".git", *LEFTOVERS))


@pytest.fixture(scope="session")
def make(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes a project from some answers and the defaults of the others."""

    def make(**answers: str) -> Path:
        folder = cookiecutter(
            str(template),
            no_input=True,
            default_config=True,
            output_dir=str(tmp_path_factory.mktemp("projects")),
            extra_context=answers,
        )
        return Path(folder)

    return make
