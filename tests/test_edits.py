"""Edits of the first week: each project trains, is killed and goes on, is checked and drawn.

All of them change a student's own files, never the engine.
"""

import pytest
from edits import EDITS, SHORT
from faults import assert_as_undisturbed, chosen, succeeded

pytestmark = pytest.mark.full


@pytest.fixture
def edited(of_example, tmp_path, request):
    edit = EDITS[request.param]
    project = of_example(edit.example).copy(tmp_path / "edited")
    edit.make(project)
    return edit, project


@pytest.mark.parametrize("edited", chosen(EDITS, "own data by default"), indirect=True)
def test_it_trains_is_killed_and_goes_on_and_is_drawn(edited, tmp_path):
    edit, whole = edited
    parts = whole.copy(tmp_path / "parts")
    flags = (*SHORT, *edit.flags)
    job = whole.finish(*flags)
    parts.killed(*flags)
    assert parts.finish(*flags) == job
    assert_as_undisturbed(parts, job, whole, job)
    succeeded(parts.do("python", "plot.py", "--format", "png"))
    assert (parts.root / "figures/learning-curves.png").exists()
    done = succeeded(parts.run("--check", *edit.flags))
    assert done.stdout.endswith("check finished: nothing found\n"), done
    edit.check(whole, job)
