"""A job has one owner: in its folder by a lock, between folders by a lease in the store."""

import signal
import subprocess

import pytest
from faults import Project, courier_of, kill, one_line, wait_until
from labjobs.files import read_record

pytestmark = pytest.mark.full

LONG = ("--epochs", "1000000", "--log-every", "1000")


@pytest.fixture
def jobs():
    """Jobs that are to be gone at the end of a test."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for job in started:
        kill(job.pid)
        job.communicate()


def begun(project: Project, job: subprocess.Popen[str]) -> str:
    """The id of a job, once it has a run with a heartbeat; from then on it takes no time."""
    assert job.stdout
    job_id = next(job.stdout).split()[1].rstrip(":")
    folder = project.folder(job_id)
    (folder / "sent.json").unlink(missing_ok=True)  # an earlier attempt's
    wait_until(lambda: read_record(folder / "sent.json").get("run"))
    kill(job.pid, signal.SIGSTOP)
    return job_id


def test_a_second_process_is_told_who_has_the_job(project, jobs, tmp_path):
    """In the same folder by its lock, which dies with its owner; in another one by the store."""
    other = project.copy(tmp_path / "other")
    store = f"sqlite:///{project.root}/mlflow.db"
    flags = (*LONG, "--note", "owner")
    jobs.append(project.start(*flags))
    job_id = begun(project, jobs[0])
    said = one_line(project.run(*flags), 4)
    assert said.startswith(f"job {job_id} is already running (process {jobs[0].pid} on ")
    end(jobs[0])
    jobs.append(project.start(*flags))
    assert begun(project, jobs[1]) == job_id

    def is_refused() -> bool:
        said = one_line(other.run(*flags, MLFLOW_TRACKING_URI=store), 4)
        return f"job {job_id} is already running (on " in said

    assert is_refused()
    end(jobs[1])
    assert [status for _, status in project.runs(job_id)] == ["RUNNING"]
    assert is_refused()
    project.write("UPDATE tags SET value = value - 150 WHERE key = 'heartbeat'")
    jobs.append(other.start(*flags, MLFLOW_TRACKING_URI=store))
    assert begun(other, jobs[2]) == job_id
    ((run, status),) = project.runs(job_id)
    assert status == "RUNNING"
    folder = project.ask("SELECT value FROM tags WHERE run_uuid = ? AND key = 'job_folder'", run)
    assert folder == [(str(other.folder(job_id)),)]


def end(job: subprocess.Popen[str]) -> None:
    """Kill a job as a power cut does: no one is left to say that it is dead."""
    courier = courier_of(job)
    assert courier
    kill(courier)
    kill(job.pid)
    job.wait()


def test_of_two_that_start_at_once_one_gives_way(project, jobs, tmp_path):
    other = project.copy(tmp_path / "other")
    store = f"sqlite:///{project.root}/mlflow.db"
    flags = (*LONG, "--note", "at once")
    jobs += [folder.start(*flags, MLFLOW_TRACKING_URI=store) for folder in (project, other)]
    wait_until(lambda: sum(job.poll() is None for job in jobs) == 1)
    (loser,) = (job for job in jobs if job.poll() is not None)
    (winner,) = (job for job in jobs if job.poll() is None)
    _, err = loser.communicate()
    assert " is already running (on " in err and len(err.splitlines()) == 1
    assert loser.returncode == 4
    job_id = err.split()[1]
    place = project if winner is jobs[0] else other
    ((run, status),) = project.runs(job_id)
    assert status == "RUNNING" and winner.poll() is None
    folder = project.ask("SELECT value FROM tags WHERE run_uuid = ? AND key = 'job_folder'", run)
    assert folder == [(str(place.folder(job_id)),)]


OVERTAKEN = """
import runpy, subprocess, sys
from labjobs.job.folder import JobFolder
make = JobFolder.make
def late(job):
    subprocess.run([sys.executable, *sys.argv], check=True)
    make(job)
JobFolder.make = late
sys.argv[0] = "run.py"
runpy.run_path("run.py", run_name="__main__")
"""
"""Has another process do the job between this one's look at it and its lock."""


def test_a_job_that_another_process_finishes_meanwhile_is_not_done_again(project):
    flags = ("--epochs", "1", "--batch-size", "256", "--note", "overtaken")
    both = project.do("python", "-c", OVERTAKEN, *flags)
    assert (both.returncode, both.stderr) == (0, "")
    *_, first, again = both.stdout.splitlines()
    assert " finished: best_val_loss " in first
    assert again == first.replace("finished", "already finished")
    log = (project.folder(again.split()[1]) / "log.txt").read_text()
    assert log.count("epoch 1/1") == 1
