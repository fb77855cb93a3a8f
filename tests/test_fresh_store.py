"""Many jobs at once on a store that does not exist yet: none crashes, none is lost."""

import subprocess

import pytest
from faults import ended, job_of, one_line, wait_until

pytestmark = pytest.mark.full

PROCESSES = 8

FINISHED = """
SELECT id.value, status, mark.value FROM runs
JOIN tags AS id ON id.run_uuid = runs.run_uuid AND id.key = 'job_id'
JOIN tags AS mark ON mark.run_uuid = runs.run_uuid AND mark.key = 'finished'
ORDER BY id.value
"""


@pytest.fixture
def times(request):
    return int(request.config.getoption("--fresh-stores"))


def test_jobs_on_a_fresh_store(project, times, tmp_path):
    """All finish, and the store has each of them once, with the same points as its journal."""
    for number in range(max(1, times // 5)):
        fresh = project.copy(tmp_path / str(number))
        jobs = [
            fresh.start("--epochs", "1", "--log-every", "1", "--quiet", "--seed", str(seed))
            for seed in range(PROCESSES)
        ]
        ids = [finished(job) for job in jobs]
        wait_until(lambda fresh=fresh: len(fresh.ask(FINISHED)) == PROCESSES)
        assert fresh.ask(FINISHED) == [(job, "FINISHED", "true") for job in sorted(ids)]
        assert fresh.ask("SELECT count(*) FROM runs") == [(PROCESSES,)]
        for job in ids:
            assert fresh.stored(job) == fresh.journalled(job)


def finished(job: subprocess.Popen[str]) -> str:
    """A finished job's id; where couriers wait for each other its own may outlive it (status 3)."""
    done = ended(job)
    assert done.returncode == 0 or one_line(done, 3), done
    assert "Traceback" not in done.stderr
    return job_of(done)
