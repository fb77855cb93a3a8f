"""The grid of run.sh, whatever its jobs are."""

import json

from conftest import Project


def test_the_grid_names_jobs_that_can_be_read(project: Project) -> None:
    """All flags and values are known; nothing of it has run in a fresh copy."""
    process = project.start("bash", "run.sh", "--list", "--json")
    out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, "")
    jobs = json.loads(out)
    assert jobs and {job["state"] for job in jobs} == {"pending"}
