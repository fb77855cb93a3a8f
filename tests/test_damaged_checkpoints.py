"""Checkpoints that are damaged or malicious: never loaded wrong, never opened as code.

bash test.sh --all -rP tests/test_damaged_checkpoints.py
"""

import hashlib
import pickle
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import (
    Project,
    assert_as_undisturbed,
    assert_nothing_torn,
    ended,
    job_of,
    kill,
    one_line,
    wait_until,
)
from labjobs.errors import JobError
from labjobs.training import checkpoints

JOB = ("--epochs", "20", "--log-every", "1", "--checkpoint-minutes", "0.0001")
JOB += ("--schedule", "constant")  # its last.pt stays

TIMES = 100
"""How often a checkpoint is cut short, and how often a bit of it is turned over."""


class Evil:
    """An object whose pickle makes a folder when it is opened."""

    def __init__(self, trap: Path) -> None:
        self._trap = trap

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.mkdir, (self._trap,)


@pytest.fixture(scope="module")
def reference(project: Project) -> str:
    """The job that nothing disturbs."""
    done = project.run(*JOB)
    assert done.returncode == 0, done
    return job_of(done)


@pytest.fixture(scope="module")
def stopped(project: Project, reference: str, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A copy of the project in which the same job was stopped: with two checkpoints."""
    copy = project.copy(tmp_path_factory.mktemp("stopped") / "copy")
    job = copy.start(*JOB)
    wait_until(lambda: (copy.folder(reference) / "previous.pt").exists())
    kill(job.pid, signal.SIGTERM)
    assert ended(job).returncode == 128 + signal.SIGTERM
    return copy


@pytest.fixture
def again(stopped: Project, tmp_path: Path) -> Project:
    """A copy of that copy, with its job and its store."""
    return Project(Path(shutil.copytree(stopped.root, tmp_path / "again")))


def refused(path: Path, content: bytes) -> bool:
    """Whether bytes are not taken for a checkpoint."""
    path.write_bytes(content)
    try:
        checkpoints.load(path, torch.device("cpu"))
    except checkpoints.Damaged:
        return True
    return False


def test_damaged_checkpoints(project: Project, reference: str, tmp_path: Path) -> None:
    """Cut short anywhere, or any one bit turned over: never taken for a checkpoint."""
    chance = random.Random(0)
    whole = (project.folder(reference) / "last.pt").read_bytes()
    path = tmp_path / "last.pt"
    lengths = [chance.randrange(len(whole)) for _ in range(TIMES)]
    bits = [chance.randrange(8 * len(whole)) for _ in range(TIMES)]
    cut = sum(refused(path, whole[:length]) for length in lengths)
    turned = 0
    for bit in bits:
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        turned += refused(path, bytes(content))
    print(f"{cut} of {TIMES} cut short and {turned} of {TIMES} with one bit turned were refused")
    assert (cut, turned) == (TIMES, TIMES)
    assert not refused(path, whole)


def spoil(path: Path) -> None:
    """Turn over one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_continues_from_the_previous_checkpoint(
    project: Project, reference: str, again: Project
) -> None:
    spoil(again.folder(reference) / "last.pt")
    done = again.run(*JOB)
    assert done.returncode == 0, done
    lines = done.stdout.splitlines()
    assert "last.pt is damaged; it was put aside as last.damaged" in lines
    assert "continuing from previous.pt" in lines
    assert_nothing_torn(again.folder(reference))
    assert_as_undisturbed(again, reference, project, reference)


def test_killed_before_its_first_checkpoint_it_says_that_it_starts_over(
    project: Project, reference: str, again: Project
) -> None:
    folder = again.folder(reference)
    for name in ("last.pt", "previous.pt"):
        (folder / name).unlink()
    done = again.run(*JOB)
    assert done.returncode == 0, done
    said = "there was no checkpoint yet (one is made every 0.0001 minutes: --checkpoint-minutes); "
    assert f"{said}starting over" in done.stdout.splitlines()
    assert_as_undisturbed(again, reference, project, reference)


def test_starts_over_without_a_whole_checkpoint(
    project: Project, reference: str, again: Project, tmp_path: Path
) -> None:
    """One is cut short; in the place of the other is a pickle that runs code, without a seal."""
    folder, trap = again.folder(reference), tmp_path / "trap"
    torch.save({"model": Evil(trap)}, folder / "last.pt")
    content = (folder / "previous.pt").read_bytes()
    (folder / "previous.pt").write_bytes(content[: len(content) // 2])
    done = again.run(*JOB)
    assert done.returncode == 0, done
    lines = done.stdout.splitlines()
    assert "last.pt is damaged; it was put aside as last.damaged" in lines
    assert "previous.pt is damaged; it was put aside as previous.damaged" in lines
    assert "no checkpoint is left; starting over" in lines
    assert not trap.exists()
    assert_as_undisturbed(again, reference, project, reference)


def seal(path: Path) -> None:
    """Put the right seal behind any bytes."""
    content = path.read_bytes()
    path.write_bytes(content + checkpoints.MARK + hashlib.sha256(content).hexdigest().encode())


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("form", ["archive", "legacy", "pickle"])
def test_malicious_pickles(tmp_path: Path, form: str, sealed: bool) -> None:
    """In each form that torch.load knows: not opened, and their code does not run."""
    path, trap = tmp_path / "last.pt", tmp_path / "trap"
    if form == "archive" and sealed:
        checkpoints.save(path, {"model": Evil(trap)})
    elif form == "pickle":
        path.write_bytes(pickle.dumps({"model": Evil(trap)}))
    else:
        torch.save({"model": Evil(trap)}, path, _use_new_zipfile_serialization=form == "archive")
    if form != "pickle":
        torch.load(path, weights_only=False)
        trap.rmdir()  # it would have worked
    if form != "archive" and sealed:
        seal(path)
    error = JobError if sealed else checkpoints.Damaged
    with pytest.raises(error, match="holds more than plain data" if sealed else "is damaged"):
        checkpoints.load(path, torch.device("cpu"))
    assert not trap.exists()


def test_malicious_last_checkpoint(again: Project, reference: str, tmp_path: Path) -> None:
    """With the right seal it was put there on purpose: the job does not continue by itself."""
    path, trap = again.folder(reference) / "last.pt", tmp_path / "trap"
    checkpoints.save(path, {"model": Evil(trap)})
    line = one_line(again.run(*JOB), 1)
    shown = path.relative_to(again.root)
    assert f"failed: {shown} holds more than plain data and was not opened" in line
    assert not trap.exists()


LOAD = """
import sys
import jobs
from labjobs.errors import JobError
try:
    jobs.load(sys.argv[1])
except JobError as error:
    print(error)
"""


@pytest.mark.full
def test_best_weights_that_are_damaged_or_run_code_are_not_loaded(
    project: Project, reference: str, tmp_path: Path
) -> None:
    copy = Project(Path(shutil.copytree(project.root, tmp_path / "copy")))
    path, trap = copy.folder(reference) / "best.pt", tmp_path / "trap"
    load = ("python", "-c", LOAD, reference)
    spoil(path)
    said = copy.do(*load).stdout
    shown = path.relative_to(copy.root)
    assert said == f"{shown} is damaged; --force makes the job start over\n"
    checkpoints.save(path, {"models": Evil(trap)})
    assert (
        "best.pt holds more than plain data and was not opened: delete it" in copy.do(*load).stdout
    )
    path.unlink()
    assert "best.pt: not found" in copy.do(*load).stdout
    assert not trap.exists()
