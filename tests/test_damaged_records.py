"""Damaged files of a job, by `python run.py`: one clear line each, and no other result.

scripts/mutate_records.py damages them at random, by the thousand.
"""

import subprocess
from pathlib import Path

import pytest
from faults import Project, job_of, one_line

JOB = ("--epochs", "2", "--log-every", "1", "--batch-size", "256", "--quiet")


@pytest.fixture
def unsent(project: Project, tmp_path: Path) -> tuple[Project, Path]:
    """A project whose job finished while the store was away, and the folder of its attempt."""
    fresh = project.copy(tmp_path / "fresh")
    done = fresh.run(*JOB, MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    return fresh, fresh.folder(job_of(done))


def finished(done: subprocess.CompletedProcess[str], project: Project, folder: Path) -> str:
    """What a command printed that finished the job, with one run in the store."""
    assert (done.returncode, done.stderr) == (0, "")
    assert [status for _, status in project.runs(folder.parent.name)] == ["FINISHED"]
    return done.stdout


def test_a_journal(unsent: tuple[Project, Path]) -> None:
    """It is refused in one line that names the way out, and nothing of it is sent."""
    project, folder = unsent
    path = folder / "metrics.jsonl"
    whole = path.read_bytes()
    before = project.journalled(folder.parent.name)
    path.write_bytes(whole.replace(b'"step": 3,', b'"step": 4,', 1))
    sent = project.do("python", "jobs.py", "sync")
    assert sent.returncode == 1
    line, last = sent.stderr.splitlines()
    assert line.startswith(
        f"job {folder.parent.name} cannot be sent: metrics.jsonl is damaged at line "
    )
    assert line.endswith("; --force starts the job over")
    assert last == "0 of 1 jobs sent"
    said = one_line(project.run(*JOB), 1)
    assert "failed: metrics.jsonl is damaged at line " in said
    assert "; --force starts the job over (" in said
    assert project.runs(folder.parent.name) == []
    finished(project.run(*JOB, "--force"), project, folder)
    assert project.stored(folder.parent.name) == before


@pytest.mark.full
def test_all_records_at_once(unsent: tuple[Project, Path]) -> None:
    """They are NUL bytes, or JSON of another type."""
    project, folder = unsent
    before = project.journalled(folder.parent.name)
    for name in ("settings.json", "lock", "courier.lock"):
        (folder / name).write_bytes(b"\0" * 300)
    for name in ("outcome.json", "sent.json"):
        (folder / name).write_bytes(b"[]")
    line, _ = project.do("python", "jobs.py", "sync").stderr.splitlines()
    said = "settings.json is damaged or missing; the job's own command writes it again"
    assert line.endswith(said)
    finished(project.run(*JOB), project, folder)
    log = (folder / "log.txt").read_text()
    assert all(f"{name} was damaged" in log for name in ("settings.json", "outcome.json"))
    assert project.stored(folder.parent.name) == project.journalled(folder.parent.name) == before
    again = project.run(*JOB)
    assert "already finished: best_val_loss" in finished(again, project, folder)
