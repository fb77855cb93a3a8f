"""What a job ran with is kept whole: years later it can be run again, with the same results."""

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from faults import Project, curves_in, job_of

pytestmark = pytest.mark.full

FLAGS = ("--epochs", "1", "--quiet")
TOKEN = "hunter2-Tr0ub4dor"


@pytest.fixture(scope="module")
def project(make: Callable[..., Path]) -> Project:
    """A project whose job has run with two versions of the code."""
    project = Project(make())
    (project.root / ".env").write_text(f"TOKEN={TOKEN}\n")
    (project.root / "notes.txt").write_text("a file of the student's own")
    (project.root / "runs").mkdir()
    (project.root / "runs").chmod(0o1777)
    assert project.run(*FLAGS).returncode == 0
    models = project.root / "models.py"
    models.write_text(models.read_text().replace("256", "128"))
    assert project.run(*FLAGS, "--force").returncode == 0
    return project


def test_each_attempt_s_copy_of_the_code_gives_its_results_again(
    project: Project, tmp_path: Path
) -> None:
    found = list(project.root.glob("runs/*/*/"))
    assert len(found) == 2
    for attempt in found:
        kept = json.loads((attempt / "settings.json").read_text())
        again = Project(tmp_path / attempt.name)
        with tarfile.open(project.root / "runs" / kept["code_copy"]) as archive:
            archive.extractall(again.root, filter="data")
        assert (again.root / "notes.txt").exists()
        done = again.run(*FLAGS)
        assert done.returncode == 0, done
        repeated = again.folder(job_of(done))
        assert repeated.name == attempt.name
        assert curves_in(repeated) == curves_in(attempt)


def test_what_is_the_same_is_kept_once_and_secrets_never(project: Project) -> None:
    codes = list(project.root.glob("runs/.code/*"))
    assert len(codes) == 2 and len(list(project.root.glob("runs/.installed/*"))) == 1
    for copy in codes:
        with tarfile.open(copy) as archive:
            contents = [archive.extractfile(each) for each in archive]
            assert not any(content and TOKEN.encode() in content.read() for content in contents)


def test_which_examples_are_in_which_part_is_kept_once_for_all_jobs(project: Project) -> None:
    (kept,) = project.root.glob("runs/.splits/*.npz")
    with np.load(kept) as split:
        parts = {name: split[name].tolist() for name in split}
    assert {*parts} == {"train", "val", "test"}
    assert sorted(chain(*parts.values())) == list(range(1797))
    for attempt in project.root.glob("runs/*/*/"):
        about = json.loads((attempt / "split.json").read_text())
        assert about["split"] == f".splits/{kept.name}"
        assert about["examples"] == {name: len(part) for name, part in parts.items()}


def test_who_may_write_jobs_may_write_copies(project: Project) -> None:
    runs = project.root / "runs"
    for copies in (runs / ".code", runs / ".installed", runs / ".splits"):
        assert copies.stat().st_mode == runs.stat().st_mode


def test_the_list_of_what_is_installed_is_one_that_pip_reads(project: Project) -> None:
    (installed,) = project.root.glob("runs/.installed/*.txt")
    command = (sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--no-deps")
    done = subprocess.run(
        [*command, "-r", installed],
        capture_output=True,
        text=True,
        env=os.environ | {"PIP_CONFIG_FILE": os.devnull},  # which may restrict versions
    )
    assert done.returncode == 0, done.stderr
    assert "torch==" in installed.read_text()


def test_jobs_show_says_where_they_are(project: Project) -> None:
    (job,) = (path.name for path in project.root.glob("runs/[0-9a-f]*"))
    said = project.do("python", "jobs.py", "show", job).stdout
    for copy in project.root.glob("runs/.[cis]*/*"):
        assert str(copy.relative_to(project.root)) in said
