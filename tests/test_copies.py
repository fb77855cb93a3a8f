"""What a job ran with is kept whole: years later it can be run again, with the same results."""

import json
import os
import sys
import tarfile

import pytest
from faults import Project, curves_in, job_of, succeeded

pytestmark = pytest.mark.full

FLAGS = ("--epochs", "1", "--quiet")


@pytest.fixture(scope="module")
def project(make):
    """A project whose job has run with two versions of the code."""
    project = Project(make())
    (project.root / "notes.txt").write_text("a file of the student's own")
    (project.root / "runs").mkdir()
    (project.root / "runs").chmod(0o1777)
    assert project.run(*FLAGS).returncode == 0
    project.edit("models.py", "256", "128")
    assert project.run(*FLAGS, "--force").returncode == 0
    return project


def test_each_attempt_s_copy_of_the_code_gives_its_results_again(project, tmp_path):
    found = list(project.root.glob("runs/*/*/"))
    assert len(found) == 2
    for attempt in found:
        kept = json.loads((attempt / "settings.json").read_text())
        again = Project(tmp_path / attempt.name)
        for name in ("code_copy", "engine_copy"):
            with tarfile.open(project.root / "runs" / kept[name]) as archive:
                archive.extractall(again.root, filter="data")
        assert (again.root / "notes.txt").exists()
        done = succeeded(again.run(*FLAGS))
        repeated = again.folder(job_of(done))
        assert repeated.name == attempt.name
        assert curves_in(repeated) == curves_in(attempt)


def test_what_is_the_same_is_kept_once(project):
    codes = list(project.root.glob("runs/.code/*"))
    engines = [path for path in codes if path.name.startswith("labjobs-")]
    assert (len(codes), len(engines)) == (3, 1)
    assert len(list(project.root.glob("runs/.installed/*"))) == 1


def test_the_list_of_what_is_installed_is_one_that_pip_reads(project):
    (installed,) = project.root.glob("runs/.installed/*.txt")
    words = ("pip", "install", "--dry-run", "--no-index", "--no-deps", "-r", str(installed))
    # Without a configuration, which may restrict versions.
    succeeded(project.do(sys.executable, "-m", *words, PIP_CONFIG_FILE=os.devnull))
    assert "torch==" in installed.read_text()
