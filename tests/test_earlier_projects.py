"""Projects of earlier versions with today's engine: their jobs count, continue and are drawn.

`tests/earlier/` has one of each version, made by make.py there.
"""

import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import Project
from repository import REPOSITORY

pytestmark = pytest.mark.full

EARLIER = sorted((REPOSITORY / "tests" / "earlier").glob("*.tar.xz"))


@pytest.fixture(params=EARLIER, ids=lambda archive: archive.name.removesuffix(".tar.xz"))
def project(request: pytest.FixtureRequest, make: Callable[..., Path], tmp_path: Path) -> Project:
    """A project of an earlier version, updated to today's engine."""
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    shutil.copytree(make() / "engine", tmp_path / "my_project" / "engine")
    return Project(tmp_path / "my_project")


def listed(project: Project) -> list[dict[str, str]]:
    """The jobs, as `jobs.py list` has them, without where they are."""
    jobs = json.loads(project.do("python", "jobs.py", "list", "--json").stdout)
    return [{k: v for k, v in job.items() if k != "folder"} for job in jobs]


def test_its_jobs_count_continue_and_are_drawn(project: Project) -> None:
    before = json.loads((project.root / "states.json").read_text())
    for job in before:
        del job["folder"]
    assert listed(project) == before
    paused, finished = (
        next(job for job in before if job["state"] == state) for state in ("paused", "finished")
    )

    done = project.run(f"--epochs={finished['settings']['epochs']}")
    assert (done.returncode, "already finished" in done.stdout) == (0, True)
    done = project.run(f"--epochs={paused['settings']['epochs']}")
    assert done.returncode == 0, done
    points = project.journalled(paused["id"])
    assert [step for step, _ in points["val_loss"]] == [21, 42, 63]
    assert project.stored(paused["id"]) == points

    drawn = project.do("python", "plot.py", "--any-code")
    assert drawn.returncode == 0, drawn
    assert list(project.root.glob("figures/*.pdf"))
    read = f"import jobs; print(len(jobs.load('{finished['id']}').metrics))"
    assert project.do("python", "-c", read).stdout.strip() != "0"
