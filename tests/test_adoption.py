"""docs/adopt.md: its script, and its steps one after the other, with the package from the wheel."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch
from faults import succeeded
from repository import REPOSITORY

PAGE = (REPOSITORY / "docs" / "adopt.md").read_text()
TABLE = {
    int(number): cells for number, cells in re.findall(r"^\| (\d) \| (.*)$", PAGE, re.MULTILINE)
}


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


class Adopter:
    """Somebody's repository, with the package on Python's path."""

    def __init__(self, root: Path, package: Path) -> None:
        self.root = root
        left_out = ("MLFLOW_TRACKING_URI", "PROJECT_FOLDER")
        plain = {name: value for name, value in os.environ.items() if name not in left_out}
        self.env = plain | {"PYTHONPATH": str(package)}
        self.env["PATH"] = f"{Path(sys.executable).parent}:{self.env['PATH']}"
        root.mkdir()

    def write(self, **files: str) -> None:
        for name, text in files.items():
            (self.root / name.replace("_", ".")).write_text(text)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        words = (sys.executable, *words) if words[0].endswith(".py") else words
        return subprocess.run(words, cwd=self.root, env=self.env, capture_output=True, text=True)

    def curve(self) -> list[tuple[int, float]]:
        """The validation accuracies of the only job, by step, from its journal."""
        (journal,) = self.root.glob("runs/*/*/metrics.jsonl")
        read = [json.loads(line) for line in journal.read_text().splitlines()]
        return [
            (line["step"], line["metrics"]["val_accuracy"])
            for line in read
            if "val_accuracy" in line.get("metrics", {})
        ]

    def weights(self) -> dict[str, torch.Tensor]:
        (best,) = self.root.glob("runs/*/*/best.pt")
        return dict(torch.load(best, weights_only=True)["models"]["model"])


@pytest.fixture(scope="module")
def package(make, tmp_path_factory):
    """The folder that the wheel of a project is unpacked into."""
    folder = tmp_path_factory.mktemp("package")
    (wheel,) = (make(engine="package") / "vendor").iterdir()
    with ZipFile(wheel) as packed:
        packed.extractall(folder)
    return folder


@pytest.fixture
def adopter(package, tmp_path):
    return Adopter(tmp_path / "digits", package)


def test_the_page_counts_its_lines():
    for number, diff in {1: FIRST, 2: SECOND}.items():
        new, removed = (len(re.findall(rf"^\{sign}", diff, re.MULTILINE)) for sign in "+-")
        assert TABLE[number].startswith(f"{new} new, {removed} removed ")
    for number, name, text in ((1, "settings", SETTINGS), (3, "run.sh", RUN), (3, "jobs", JOBS)):
        assert name in TABLE[number]
        assert f"{len(text.splitlines())} lines" in TABLE[number], name


def test_the_script_runs_without_the_package(adopter):
    adopter.write(train_py=PLAIN)
    assert "test_accuracy 0." in succeeded(adopter.run("train.py", "--epochs", "1")).stdout


def test_the_first_step_makes_it_a_job_that_runs_once(adopter):
    adopter.write(train_py=patched(PLAIN, FIRST), settings_py=SETTINGS, pyproject_toml=PYPROJECT)
    first = succeeded(adopter.run("train.py", "--epochs", "1")).stdout
    again = succeeded(adopter.run("train.py", "--epochs", "1")).stdout
    assert re.search(r"^job (\w+) finished: test_accuracy", first, re.MULTILINE)
    assert re.fullmatch(r"job (\w+) already finished: test_accuracy .*\n", again)
    wrong = adopter.run("train.py", "--lr", "fast")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)


def test_the_second_step_continues_after_a_kill(adopter, package, tmp_path):
    both = adopter, Adopter(tmp_path / "undisturbed", package)
    words = ("train.py", "--epochs", "5", "--checkpoint-minutes", "0.0001", "--threads", "1")
    for each in both:
        each.write(
            train_py=patched(patched(PLAIN, FIRST), SECOND),
            settings_py=SETTINGS,
            pyproject_toml=PYPROJECT,
        )
    with subprocess.Popen(
        [sys.executable, *words], cwd=adopter.root, env=adopter.env, stdout=-1, text=True
    ) as killed:
        assert killed.stdout
        next(line for line in killed.stdout if line.startswith("epoch 2/5"))
        killed.kill()
    continued = succeeded(adopter.run(*words)).stdout
    assert "continuing from last.pt" in continued and "epoch 5/5" in continued
    succeeded(both[1].run(*words))
    assert adopter.curve() == both[1].curve() and len(adopter.curve()) == 5
    mine, other = (each.weights() for each in both)
    assert all(torch.equal(mine[name], other[name]) for name in other) and {*mine} == {*other}


def test_the_third_step_runs_a_grid(adopter):
    adopter.write(
        train_py=patched(patched(PLAIN, FIRST), SECOND),
        settings_py=SETTINGS,
        pyproject_toml=PYPROJECT,
        run_sh=RUN.replace("epochs 3", "epochs 1"),
        jobs_py=JOBS,
    )
    assert "4 of 4 jobs finished, 4 of them now" in succeeded(adopter.run("bash", "run.sh")).stdout
    assert "4 of 4 jobs finished, 0" in succeeded(adopter.run("bash", "run.sh")).stdout
    assert succeeded(adopter.run("jobs.py", "list")).stdout.endswith("4 jobs: 4 finished\n")
