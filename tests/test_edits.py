"""Twelve edits of the first week: each project runs, is killed and continued, and is drawn.

All of them change a student's own files, never the engine; edits.py has them.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from edits import BEFORE, EDITS
from faults import Project, ended, job_of, kill, learnt, same, wait_until

pytestmark = pytest.mark.full

OFTEN = ("--checkpoint-minutes", "0.0001")
GRID = "third setting in the grid"

FIRST = ("own loss", "steps for epochs")
"""Edits that .ci/run makes too; each takes most of a minute."""

EACH = [
    pytest.param(name, marks=() if name in FIRST else pytest.mark.alike)
    for name in EDITS
    if name != GRID
]


@pytest.fixture(scope="module")
def base(make: Callable[..., Path]) -> tuple[Project, str]:
    """A project as it was generated, and the job that ran in it."""
    project = Project(make())
    done = project.run(*BEFORE, "--quiet")
    assert done.returncode == 0, done
    return project, job_of(done)


def edited(base: Project, name: str, root: Path) -> Project:
    """Return a copy of the project, without jobs, in which an edit was made."""
    project = base.copy(root)
    EDITS[name].make(project)
    return project


def killed(project: Project, *flags: str) -> None:
    """Kill a job after its first checkpoint."""
    job = project.start(*flags, *OFTEN)
    wait_until(lambda: job.poll() is not None or any(project.root.glob("runs/*/*/last.pt")))
    kill(job.pid)
    assert ended(job).returncode == -9, job.communicate()


def assert_drawn(project: Project, *figures: str) -> None:
    """Draw the figures; those that are named are among them."""
    drawn = project.do("python", "plot.py", "--format", "png")
    assert drawn.returncode == 0, drawn
    found = {path.stem for path in (project.root / "figures").glob("*.png")}
    assert {*figures} <= found


@pytest.mark.parametrize("name", EACH)
def test_edited_it_runs_is_killed_continues_and_is_drawn(
    base: tuple[Project, str], tmp_path: Path, name: str
) -> None:
    edit, (original, before) = EDITS[name], base
    whole, parts = (edited(original, name, tmp_path / each) for each in ("whole", "parts"))
    undisturbed = whole.start(*edit.flags)
    killed(parts, *edit.flags)
    done = ended(undisturbed)
    assert done.returncode == 0, done
    job = job_of(done)
    edit.check(whole, job, before)

    again = parts.run(*edit.flags)
    assert again.returncode == 0, again
    assert f"job {job}" in again.stdout and "continuing from " in again.stdout
    assert same(learnt(parts, job), learnt(whole, job))
    assert parts.journalled(job) == whole.journalled(job) == parts.stored(job)
    assert_drawn(parts, "learning-curves")


def test_a_third_setting_in_the_grid(base: tuple[Project, str], tmp_path: Path) -> None:
    project = edited(base[0], GRID, tmp_path / "project")
    sweep = project.command("bash", "run.sh")
    wait_until(lambda: any(project.root.glob("runs/*/*/best.pt")))
    kill(-sweep.pid)
    assert ended(sweep).returncode == -9
    done = project.do("bash", "run.sh")
    assert done.returncode == 0, done
    assert "4 of 4 jobs finished" in done.stdout.splitlines()[-1]
    assert_drawn(project, "learning-curves", "metric-vs-setting")
    caption = (project.root / "figures" / "metric-vs-setting.tex").read_text()
    assert "weight" in caption or "2 seeds" in caption
