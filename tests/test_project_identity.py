"""A project is itself: whatever its name, wherever it lies, whoever else uses the store."""

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import Project, one_line, succeeded

SHORT = ("--epochs", "1", "--quiet")
PLACES = "SELECT artifact_uri FROM runs UNION SELECT artifact_location FROM experiments"
NAMES = "SELECT name FROM experiments WHERE name != 'Default'"


@pytest.fixture
def project(make, tmp_path):
    """A project of its own, that has made no job yet."""
    return Project(make(project_name="Alpha")).copy(tmp_path / "alpha")


def ran(project: Project, *flags: str) -> str:
    done = succeeded(project.run(*SHORT, *flags))
    return done.stdout


@pytest.mark.full
def test_another_project_of_the_same_name_is_refused_and_renamed_it_runs(project, make, tmp_path):
    ran(project)
    other = Project(make(project_name="Alpha")).copy(tmp_path / "other")
    store = {"MLFLOW_TRACKING_URI": f"sqlite:///{project.root}/mlflow.db"}
    for words in (
        ("python", "run.py", *SHORT),
        ("python", "plot.py"),
        ("bash", "run.sh", "--list"),
    ):
        said = one_line(other.do(*words, **store), 2)
        assert "the experiment 'alpha' in the tracking store belongs to another project" in said
        assert "change the name in pyproject.toml" in said
    assert not (other.root / "runs").exists()
    other.edit("pyproject.toml", '\nname = "alpha"\n', '\nname = "gamma"\n')
    done = other.run(*SHORT, **store)
    assert (done.returncode, "already" in done.stdout) == (0, False), done
    assert sorted(project.ask(NAMES)) == [("alpha",), ("gamma",)]


@pytest.mark.full
def test_a_deleted_experiment_is_named_with_the_ways_out(project):
    ran(project)
    project.write("UPDATE experiments SET lifecycle_stage = 'deleted' WHERE name = 'alpha'")
    project.write("UPDATE runs SET lifecycle_stage = 'deleted'")
    for words in (("run.py", *SHORT), ("jobs.py", "sync")):
        said = one_line(project.do("python", *words), 2)
        assert "the experiment 'alpha' in the tracking store was deleted" in said
        assert "change the name in pyproject.toml" in said
    assert "was deleted" in one_line(project.do("python", "plot.py"), 2)
    command = said.split("`")[1].split()
    succeeded(project.do("python", "-m", *command))
    assert "already finished" in ran(project)


@pytest.mark.full
def test_renamed_it_still_has_its_results(project):
    ran(project)
    project.edit("pyproject.toml", '\nname = "alpha"\n', '\nname = "beta"\n')
    assert "already finished" in ran(project)
    assert project.ask(NAMES) == [("beta",)]


@pytest.mark.full
def test_moved_it_finds_its_files_and_writes_none_in_the_old_place(project, tmp_path):
    ran(project)
    moved = Project(Path(shutil.move(project.root, tmp_path / "moved to")))
    assert "already finished" in ran(moved)
    ran(moved, "--seed", "1")
    shutil.rmtree(moved.root / "runs")  # what is left is with the runs
    succeeded(moved.do("python", "plot.py", "--format", "png"))
    assert (moved.root / "figures" / "confusion.png").exists()
    assert not project.root.exists()
    for (place,) in moved.ask(f"{PLACES} WHERE name = 'alpha'"):
        assert str(place).startswith((moved.root / "mlruns").as_uri())


def test_jobs_that_start_together_make_one_id(project):
    (project.root / ".project-id").unlink()
    code = "from labjobs.job.identity import project_id; print(project_id())"
    command = [sys.executable, "-c", code]
    several = [
        subprocess.Popen(command, cwd=project.root, stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    ids = {process.communicate()[0].strip() for process in several}
    assert ids == {(project.root / ".project-id").read_text().strip()}
    assert not [*project.root.glob(".project-id.*")]


def committed(project: Project) -> Callable[..., object]:
    """Make the project a repository with one commit, without an id; returns a function for git."""

    def git(*words: str) -> object:
        return succeeded(project.do("git", "-c", "user.name=A", "-c", "user.email=a@b.c", *words))

    (project.root / ".project-id").unlink(missing_ok=True)
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "one")
    return git


def test_the_id_that_the_first_job_writes_is_no_change_of_the_code(project):
    committed(project)
    ran(project)
    assert (project.root / ".project-id").exists()
    (job,) = project.listed()
    said = succeeded(project.do("python", "jobs.py", "show", job)).stdout
    assert "commit " in said and "with changes" not in said


@pytest.mark.full
def test_git_may_take_the_id_away(project):
    """By an older commit, or `stash -u`; another folder of the same repository has no runs/."""
    git = committed(project)
    ran(project)
    for away, back in (
        (("stash", "-u"), ("stash", "pop")),
        (("checkout", "-q", "HEAD~1"), ("checkout", "-q", "-")),
    ):
        git(*away)
        assert not (project.root / ".project-id").exists()
        assert "already finished" in ran(project)
        assert "finished" in succeeded(project.do("python", "jobs.py", "list")).stdout
        git(*back)
        known = (project.root / ".project-id").read_text().strip()
        git("add", ".project-id")
        git("commit", "-qm", "two", "--allow-empty")
    git("worktree", "add", "-q", "../older", "HEAD~2")
    older = Project(project.root.parent / "older")
    said = one_line(older.run(*SHORT, MLFLOW_TRACKING_URI=f"sqlite:///{project.root}/mlflow.db"), 2)
    assert "git has taken .project-id away" in said and f"`echo {known} > .project-id`" in said
    assert not (older.root / ".project-id").exists() and not (older.root / "runs").exists()


@pytest.mark.full
def test_a_lost_id_is_found_again_in_the_project_s_own_store(project):
    ran(project)
    known = (project.root / ".project-id").read_text().strip()
    (project.root / ".project-id").unlink()
    shutil.rmtree(project.root / "runs")
    assert "already finished" in ran(project)
    assert known in (project.root / "runs/.project-id").read_text()


def test_an_id_that_is_damaged_is_said_in_one_line(project):
    (project.root / ".project-id").write_bytes(b"\xff\x00")
    assert ".project-id: " in one_line(project.run(*SHORT), 2)
    (project.root / ".project-id").write_text("<<<<<<< HEAD\n")
    said = one_line(project.run(*SHORT), 2)
    assert ".project-id: has no project id in it; restore it from version control" in said


@pytest.mark.full
def test_in_a_folder_shared_by_a_group_its_members_can_write_each_other_s_files(project):
    runs = project.root / "runs"
    runs.mkdir(mode=0o770)
    runs.chmod(0o2770)
    before = os.umask(0o022)
    try:
        ran(project)
    finally:
        os.umask(before)
    made = [*runs.rglob("*")]
    assert made
    for path in made:
        assert path.stat().st_mode & stat.S_IWGRP, path
