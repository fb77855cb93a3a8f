"""Edits of the template's own files: which jobs become stale, and which should."""

import pytest
from code_edits import EDITS, INNER, Edit, changed, student_files, write
from labjobs.evidence.fingerprint import Project
from labjobs.job.identity import identity
from settings import Settings

BASE = identity(Settings())
FILES = student_files()


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """The template's own code, without the engine; read once for all edits."""
    return Project(write(tmp_path_factory.mktemp("template"), FILES))


def digests(project: Project, edit: Edit) -> dict[str, str]:
    return {
        name: project.fingerprint({**BASE, **edit.settings, **settings}).digest
        for name, settings in edit.jobs.items()
    }


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.name)
def test_an_edit_makes_jobs_stale_that_it_can_change(template, tmp_path, edit):
    files = changed(FILES, edit.before)
    before = Project(write(tmp_path / "before", files)) if edit.before else template
    after = Project(write(tmp_path / "after", changed(files, edit.edit)))
    old, new = digests(before, edit), digests(after, edit)
    assert {job for job in old if old[job] != new[job]} == edit.found()


def test_what_is_flagged_needlessly_or_missed_is_on_the_page():
    page = " ".join((INNER / "labjobs" / "docs" / "evidence.md").read_text().split())
    needlessly = [edit.name for edit in EDITS if edit.needlessly]
    missed = [edit.name for edit in EDITS if edit.missed]
    assert [name for name in needlessly + missed if name not in page] == []
    right = len(EDITS) - len({*needlessly, *missed})
    said = f"Of {len(EDITS)} edits, {right} make exactly those jobs stale that they should, "
    assert said + f"{len(needlessly)} too many, {len(missed)} too few." in page
