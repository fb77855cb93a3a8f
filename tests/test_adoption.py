"""docs/adopt.md: its script, and its steps one after the other, with the package from the wheel."""

import re
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from faults import Project, ended, job_of, same, succeeded, wait_until
from repository import REPOSITORY

pytestmark = pytest.mark.full

PAGE = (REPOSITORY / "docs" / "adopt.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


PLAIN, SETTINGS, JOBS = blocks("python")
FIRST, SECOND = blocks("diff")
_, RUN = blocks("bash")
(PYPROJECT,) = blocks("toml")


def lines(diff: str, *signs: str) -> str:
    """The lines of a part of a diff that have one of the signs; empty lines have none."""
    kept = [line for line in diff.splitlines() if line[:1] in signs or not line]
    return "".join(f"{line[1:]}\n" for line in kept)


def patched(text: str, diff: str) -> str:
    """A text after the changes of a diff, whose parts are found by what they replace."""
    for part in diff.split("@@\n"):
        old = lines(part, " ", "-")
        assert text.count(old) == 1, old
        text = text.replace(old, lines(part, " ", "+"))
    return text


@pytest.fixture(scope="module")
def package(make, tmp_path_factory):
    folder = tmp_path_factory.mktemp("package")
    (wheel,) = (make(engine="package") / "vendor").iterdir()
    with ZipFile(wheel) as packed:
        packed.extractall(folder)
    return folder


def adopted(root: Path, package: Path, script: str, **files: str) -> Project:
    """Somebody's repository, with the package on Python's path."""
    root.mkdir()
    always = {"train.py": script, "settings.py": SETTINGS, "pyproject.toml": PYPROJECT}
    for name, text in (always | files).items():
        (root / name).write_text(text)
    project = Project(root)
    project.env["PYTHONPATH"] = str(package)
    return project


def test_the_second_step_continues_after_a_kill(package, tmp_path):
    script = patched(patched(PLAIN, FIRST), SECOND)
    adopter, undisturbed = (adopted(tmp_path / name, package, script) for name in ("one", "other"))
    words = ("train.py", "--epochs", "20", "--checkpoint-minutes", "0.0001", "--threads", "1")
    killed = adopter.command(sys.executable, *words)
    wait_until(lambda: any(adopter.root.glob("runs/*/*/last.pt")))
    killed.kill()
    ended(killed)
    continued = succeeded(adopter.do("python", *words))
    assert "continuing from last.pt" in continued.stdout and "epoch 20/20" in continued.stdout
    job = job_of(succeeded(undisturbed.do("python", *words)))
    assert same(adopter.weights(job), undisturbed.weights(job))
    curves = adopter.journalled(job)["val_accuracy"]
    assert curves == undisturbed.journalled(job)["val_accuracy"] and len(curves) == 20


@pytest.mark.long
def test_the_third_step_runs_a_grid(package, tmp_path):
    script = patched(patched(PLAIN, FIRST), SECOND)
    more = {"run.sh": RUN.replace("epochs 3", "epochs 1"), "jobs.py": JOBS}
    adopter = adopted(tmp_path / "digits", package, script, **more)
    for now in (4, 0):
        done = succeeded(adopter.do("bash", "run.sh"))
        assert f"4 of 4 jobs finished, {now} of them now" in done.stdout
    assert adopter.do("python", "jobs.py", "list").stdout.endswith("4 jobs: 4 finished\n")
