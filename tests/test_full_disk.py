"""Disks that are full or cannot be written: one clear line, nothing torn, nothing lost."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from disks import PAGE, POWERLESS, Disk, largest_file
from faults import (
    Project,
    assert_as_undisturbed,
    assert_nothing_torn,
    assert_whole_lines,
    attempt_in,
    courier_of,
    ended,
    job_of,
    kill,
    one_line,
    succeeded,
    wait_until,
)
from labjobs.job.journal import Journal

pytestmark = pytest.mark.full

JOB = ("--epochs", "5", "--log-every", "1")
OFTEN = ("--checkpoint-minutes", "0.0001")

SIZES = ("4k", "300k", "4000k")
"""Room for the lock, for the journal, for two checkpoints: none for what comes next."""

FULL = "the disk is full; free some space and give the same command again"


def place(folder: Path) -> tuple[tuple[str, ...], dict[str, str]]:
    """Flags and environment of a job whose files and store lie in a folder of their own."""
    store = f"sqlite:///{folder / 'mlflow.db'}"
    return ("--runs-root", str(folder / "runs")), {"MLFLOW_TRACKING_URI": store}


@pytest.fixture(scope="module")
def reference(project):
    """The job that nothing disturbs."""
    return project.finish(*JOB, *OFTEN)


@pytest.fixture
def disk(tmp_path):
    """A disk with room for one page, until it is mounted otherwise."""
    disk = Disk(tmp_path / "disk", str(PAGE))
    yield disk
    disk.close()


@pytest.fixture(scope="module")
def stopped(project, reference, tmp_path_factory):
    """The folder of a job that a full disk stopped, from the start and at each size."""
    at = tmp_path_factory.mktemp("stopped")
    disk = Disk(at / "disk", SIZES[0])
    flags = (*JOB, *OFTEN, "--note", "full", "--runs-root", str(disk.at / "runs"))
    ballast = disk.seen / "ballast"
    ballast.write_bytes(bytes(PAGE))
    assert one_line(project.behind(*disk.within).run(*flags), 1).endswith(FULL)
    ballast.unlink()
    for size in SIZES:
        disk.remount(f"size={size}")
        done = project.behind(*disk.within).run(*flags)
        line = one_line(done, 1)
        print(f"{size}: {line}")
        assert f"failed: {FULL}" in line
        assert_nothing_torn(attempt_in(disk.seen / "runs" / job_of(done)))
    job = job_of(done)
    left = Path(shutil.copytree(disk.seen / "runs" / job, at / job))
    disk.remount("size=50m")
    assert "continuing from last.pt" in project.behind(*disk.within).run(*flags).stdout
    shutil.copytree(disk.seen / "runs" / job, project.root / "runs" / job)
    disk.close()
    return left


def test_full_disk(project, reference, stopped):
    """During the lock, the journal and each checkpoint: with space again it goes on to the end."""
    assert {"last.pt", "previous.pt"} < {path.name for path in attempt_in(stopped).iterdir()}
    assert_as_undisturbed(project, stopped.name, project, reference)


def test_full_disk_under_the_journal(project, reference, disk, tmp_path):
    """The journal alone has no room; with space again it goes on where it was cut off."""
    where, env = place(tmp_path)
    flags = (*JOB, *OFTEN, "--note", "journal", *where)
    job = job_of(project.run(*flags, "--pause-after", "1", **env))
    folder = attempt_in(tmp_path / "runs" / job)
    for path in folder.iterdir():
        path.unlink()
    (folder / "metrics.jsonl").symlink_to(disk.at / "metrics.jsonl")

    disk.remount(f"size={2 * PAGE}")
    assert FULL in one_line(project.behind(*disk.within).run(*flags, **env), 1)
    assert_whole_lines(disk.seen / "metrics.jsonl")
    assert (disk.seen / "metrics.jsonl").stat().st_size == 2 * PAGE
    disk.remount("size=1m")
    succeeded(project.behind(*disk.within).run(*flags, **env))
    assert_whole_lines(disk.seen / "metrics.jsonl")
    assert_as_undisturbed(Project(tmp_path), job, project, reference)


def test_a_journal_goes_on_with_the_byte_that_did_not_fit(tmp_path):
    """Also where space is free again before the job has ended."""
    journal = Journal(tmp_path, 1)
    size = (tmp_path / "metrics.jsonl").stat().st_size
    for step in range(100):
        journal.metrics(step, {"train_loss": 1.0})
    with largest_file(size + 1234), pytest.raises(OSError):
        journal.flush()
    assert (tmp_path / "metrics.jsonl").stat().st_size == size + 1234
    journal.close("FAILED")
    assert_whole_lines(tmp_path / "metrics.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "step" in line] == list(range(100))
    assert lines[-1]["end"] == "FAILED"


def test_read_only_disk(project, stopped, disk):
    """Nothing can be written, whether the job has a folder there or not."""
    disk.remount("size=10m")
    shutil.copytree(stopped, disk.seen / "runs" / stopped.name)
    disk.remount("ro")
    for note in ("full", "none"):
        flags = (*JOB, "--force", "--note", note, "--runs-root", str(disk.at / "runs"))
        line = one_line(project.behind(*disk.within).run(*flags), 2)
        assert line.startswith("run.py: --runs-root: cannot write in")
        assert line.endswith("Read-only file system")


def test_folder_of_someone_else(project, stopped, tmp_path):
    folder = attempt_in(Path(shutil.copytree(stopped, tmp_path / "runs" / stopped.name)))
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    where, env = place(tmp_path)
    done = project.behind(*POWERLESS).run(*JOB, "--note", "full", *where, **env)
    folder.chmod(0o755)
    line = one_line(done, 2)
    assert line.startswith(f"run.py: --runs-root: cannot write in {folder}")
    assert line.endswith("Permission denied")


@pytest.fixture
def apart(project, reference, tmp_path):
    """A copy of the project, with no jobs and no store yet."""
    return project.copy(tmp_path / "apart")


def without_store(project: Project, **env: str) -> tuple[str, str]:
    """A job whose store takes nothing, while its courier tries, and why sync fails after that."""
    job = project.start(*JOB, "--note", "kept", **env)
    wait_until(lambda: courier_of(job) is not None)
    courier = courier_of(job)
    done = ended(job)
    assert courier
    kill(courier)
    line = one_line(done, 3)
    assert "finished: best_val_loss" in line
    assert line.endswith("python jobs.py sync uploads what is left")
    return job_of(done), one_line(project.do(*sync(project), **env), 3)


def test_store_in_a_read_only_file(project, reference, apart):
    """The results wait on disk; `jobs.py sync` uploads them when the file can be written."""
    store = Path(shutil.copy(project.root / "mlflow.db", apart.root))
    store.chmod(0o444)
    job, why = without_store(apart.behind(*POWERLESS))
    assert why.startswith("0 of 1 jobs ") and "attempt to write a readonly database" in why
    assert_nothing_torn(apart.folder(job))
    assert apart.runs(job) == []
    store.chmod(0o644)
    assert uploaded(apart.do(*sync(apart)), job)
    assert_as_undisturbed(apart, job, project, reference)


def sync(project: Project) -> tuple[str, ...]:
    """Return the command that uploads what is left; its path is absolute."""
    return "python", str(project.root / "jobs.py"), "sync"


def uploaded(done: subprocess.CompletedProcess[str], job: str) -> bool:
    """Whether `jobs.py sync` has uploaded one job and says so."""
    assert done.returncode == 0, done
    return re.fullmatch(rf"job {job} \w+\n1 of 1 jobs \w+\n", done.stdout) is not None
