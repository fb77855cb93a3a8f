"""Disks that are full or cannot be written: one clear line, nothing torn, nothing lost."""

import json
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from faults import assert_as_undisturbed, assert_nothing_torn, attempt_in, job_of, one_line
from labjobs.job.journal import Journal

pytestmark = pytest.mark.full

JOB = ("--epochs", "5", "--log-every", "1", "--checkpoint-minutes", "0.0001")

SIZES = ("4k", "300k", "4000k")
"""Room for the lock, for the journal, for two checkpoints: none for what comes next."""

FULL = "the disk is full; free some space and give the same command again"


PAGE = 4096
"""Bytes of the smallest disk."""


class Disk:
    """A small file system, seen only by commands that begin with `within`: a mount, which any user
    may make where there are user namespaces."""

    def __init__(self, at: Path, size: str) -> None:
        at.mkdir()
        mount = f'mount -t tmpfs -o size={size} small "$0" && echo made && exec cat'
        self._keeper = subprocess.Popen(
            ["unshare", "-rm", "sh", "-c", mount, str(at)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._keeper.stdout and self._keeper.stderr
        made = self._keeper.stdout.readline()
        assert made, f"`unshare -rm` has to work for these tests: {self._keeper.stderr.read()}"
        self.at = at
        self.seen = Path(f"/proc/{self._keeper.pid}/root{at}")
        into = (f"--target={self._keeper.pid}", "--user", "--mount", "--preserve-credentials")
        self.within = ("nsenter", *into, "env", f"--chdir={at.parent}")

    def remount(self, options: str) -> None:
        command = [*self.within, "mount", "-o", f"remount,{options}", str(self.at)]
        subprocess.run(command, check=True)

    def close(self) -> None:
        """Let go of it: the last command that has it takes it away."""
        self._keeper.communicate()


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Within, no file of this process grows above a size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def disk(tmp_path):
    """A disk with room for one page, until it is mounted otherwise."""
    disk = Disk(tmp_path / "disk", str(PAGE))
    yield disk
    disk.close()


def test_full_disk(project, disk):
    """During the lock, the journal and each checkpoint: with space again it goes on to the end.
    Then nothing can be written, whether the job has a folder there or not."""
    reference = project.finish(*JOB)
    flags = (*JOB, "--runs-root", str(disk.at / "runs"))
    ballast = disk.seen / "ballast"
    ballast.write_bytes(bytes(PAGE))
    within = project.behind(*disk.within)
    assert one_line(within.run(*flags, "--note", "full"), 1).endswith(FULL)
    ballast.unlink()
    for size in SIZES:
        disk.remount(f"size={size}")
        done = within.run(*flags, "--note", "full")
        assert f"failed: {FULL}" in one_line(done, 1)
        job = disk.seen / "runs" / job_of(done)
        assert_nothing_torn(attempt_in(job))
    assert {"last.pt", "previous.pt"} < {path.name for path in attempt_in(job).iterdir()}
    disk.remount("size=50m")
    assert "continuing from last.pt" in within.run(*flags, "--note", "full").stdout
    shutil.copytree(job, project.root / "runs" / job.name)
    assert_as_undisturbed(project, job.name, project, reference)
    disk.remount("ro")
    for note in ("full", "none"):
        line = one_line(within.run(*flags, "--force", "--note", note), 2)
        assert line.startswith("run.py: --runs-root: cannot write in")
        assert line.endswith("Read-only file system")


def test_publish_and_adopt_leave_nothing_where_there_is_no_space(project, disk, tmp_path):
    job, jobs = project.finish(*JOB), str(project.root / "jobs.py")
    within, runs = project.behind(*disk.within), disk.seen / "runs"
    assert project.do("python", jobs, "publish", job, str(tmp_path / "all")).returncode == 0
    for size in ("4k", "200k"):
        disk.remount(f"size={size}")
        done = within.do("python", jobs, "publish", job, str(disk.at / "all"))
        assert one_line(done, 1) == f"jobs.py: {FULL}" and not [*disk.seen.iterdir()]
        runs.mkdir()
        flags = ("--runs-root", str(disk.at / "runs"))
        done = within.do("python", jobs, "adopt", str(tmp_path / "all"), *flags)
        assert one_line(done, 1).endswith(FULL) and not [*runs.iterdir()]
        runs.rmdir()


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
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "step" in line] == list(range(100))
    assert lines[-1]["end"] == "FAILED"
