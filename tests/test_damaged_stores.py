"""`python jobs.py sync` compares the tracking store with what jobs have on disk, whatever has
happened to the store; docs/damage.md has a table of all cases."""

import random
import shutil

import pytest
import stores
from faults import Project, succeeded
from stores import DAMAGES, EDITS, ROWS, Trial

pytestmark = pytest.mark.full

ALL = "the tracking store has all"


@pytest.fixture(scope="module")
def prepared(make):
    project = Project(make())
    stores.prepare(project)
    return project


@pytest.fixture
def project(prepared, tmp_path):
    copy = prepared.clone(tmp_path / "project")
    succeeded(copy.do("python", "jobs.py", "sync"))
    return copy


CHOSEN = (
    *("the store is deleted", "a copy from the middle of a job is put back", "a run is deleted"),
    *("a file of a run is deleted", "a run is marked as killed", *[*ROWS][:3]),
)
"""Of the cases; ROWS are also drawn at random below."""


@pytest.mark.parametrize("name", CHOSEN)
def test_what_the_store_has_lost_is_sent_and_nothing_twice(project, name):
    trial = Trial(project, DAMAGES[name])
    assert (trial.still_lost, trial.still_added) == (0, 0)
    assert trial.said[-1].endswith("attempts sent")
    assert succeeded(project.do("python", "jobs.py", "sync")).stdout.splitlines() == [ALL]


def test_what_people_have_written_stays(project):
    trial = Trial(project, EDITS["a run is renamed"])
    assert trial.said == [ALL]
    assert (trial.still_lost, trial.still_added) == (trial.lost, trial.added) != (0, 0)


def test_a_job_whose_results_are_lost_is_unsent(project):
    stores.delete(project)
    listed = succeeded(project.do("python", "jobs.py", "list")).stdout
    assert listed.splitlines()[-1] == "3 jobs: 1 paused, 2 unsent"
    drawn = project.do("python", "plot.py")
    assert drawn.returncode == 1
    assert "the tracking store does not have 3 jobs that ran here" in drawn.stderr


def test_captions_say_how_many_jobs_the_store_lacks(project):
    DAMAGES["a run is deleted"](project)
    drawn = succeeded(project.do("python", "plot.py", "--format", "png"))
    assert "the tracking store does not have 1 job that ran here" in drawn.stderr
    caption = (project.root / "figures" / "learning-curves.tex").read_text()
    assert "1 job that ran here is not in the store, and so not counted." in caption


def test_random_changes_of_the_store_are_undone(project, pytestconfig):
    before, chance = stores.content(project), random.Random(0)
    for _ in range(pytestconfig.getoption("store_changes") // 20):
        for change in chance.choices([*ROWS.values()], k=20):
            change(project)
        succeeded(project.do("python", "jobs.py", "sync"))
        assert stores.content(project) == before
    assert succeeded(project.do("python", "jobs.py", "sync")).stdout.splitlines() == [ALL]


def test_files_that_cannot_be_uploaded_are_named(project):
    folder = next(project.root.glob("mlruns/*/artifacts"))
    shutil.rmtree(folder)
    folder.write_text("a file where a folder should be")
    done = project.do("python", "jobs.py", "sync")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    said, summary = done.stderr.splitlines()
    assert "was sent without" in said and said.endswith("the tag `files` says why")
    assert summary == "0 of 1 attempts sent"
    folder.unlink()
    succeeded(project.do("python", "jobs.py", "sync"))
    assert succeeded(project.do("python", "jobs.py", "sync")).stdout.splitlines() == [ALL]
    assert not project.ask("SELECT value FROM tags WHERE key = 'files'")
