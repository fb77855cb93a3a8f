"""Many jobs at once on a store that does not exist yet: none crashes, none is lost."""

import subprocess
import sys
import time

import pytest
from faults import Project, ended, job_of, one_line, wait_until

pytestmark = pytest.mark.full

PROCESSES = 8

MAKER = """
import os, sys
import mlflow
from labjobs.tracking import mlflow_client
print("ready", flush=True)
for uri in sys.stdin:
    os.environ["MLFLOW_TRACKING_URI"] = uri.strip()
    print(mlflow_client.prepare(), flush=True)
"""
"""Makes one store after another, each when it is told to."""

FINISHED = """
SELECT id.value, status, mark.value FROM runs
JOIN tags AS id ON id.run_uuid = runs.run_uuid AND id.key = 'job_id'
JOIN tags AS mark ON mark.run_uuid = runs.run_uuid AND mark.key = 'finished'
ORDER BY id.value
"""


@pytest.fixture
def times(request):
    """How many stores there are to make."""
    return int(request.config.getoption("--fresh-stores"))


@pytest.fixture
def makers(project):
    """Processes that have imported MLflow and wait for a store's address."""
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", MAKER],
            cwd=project.root,
            env=project.env | {"MLFLOW_LOGGING_LEVEL": "WARNING"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(PROCESSES)
    ]
    assert [answer(maker) for maker in makers] == ["ready"] * PROCESSES
    yield makers
    for maker in makers:
        maker.communicate()


def answer(maker: subprocess.Popen[str]) -> str:
    """The next line that a process prints; its errors if it has ended instead."""
    assert maker.stdout and maker.stderr
    return maker.stdout.readline().strip() or maker.stderr.read()


def test_store_that_many_make(makers, project, times, tmp_path):
    """All get the same experiment, and there is one of that name."""
    began = time.monotonic()
    for number in range(times):
        store = Project(tmp_path / str(number))
        store.root.mkdir()
        for maker in makers:
            assert maker.stdin
            print(f"sqlite:///{store.root}/mlflow.db", file=maker.stdin, flush=True)
        made = {answer(maker) for maker in makers}
        rows = store.ask("SELECT experiment_id FROM experiments WHERE name != 'Default'")
        assert made == {str(row[0]) for row in rows}
        assert len(rows) == 1
    for maker in makers:
        _, errors = maker.communicate()
        assert (maker.returncode, errors) == (0, "")
    print(
        f"{times} stores by {PROCESSES} processes each: {time.monotonic() - began:.0f} s, no crash"
    )


def test_jobs_on_a_fresh_store(project, times, tmp_path):
    """All finish, and the store has each of them once, with the same points as its journal."""
    for number in range(max(1, times // 5)):
        began = time.monotonic()
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
        print(f"{PROCESSES} jobs on a fresh store: {time.monotonic() - began:.0f} s, no crash")


def finished(job: subprocess.Popen[str]) -> str:
    """A finished job's id; where couriers wait for each other its own may outlive it (status 3)."""
    done = ended(job)
    assert done.returncode == 0 or one_line(done, 3), done
    assert "Traceback" not in done.stderr
    return job_of(done)
