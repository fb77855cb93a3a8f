"""Checkpoints that are damaged or malicious: never loaded wrong, never opened as code."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import assert_as_undisturbed, assert_nothing_torn, ended, kill, succeeded, wait_until

pytestmark = pytest.mark.full

JOB = ("--epochs", "20", "--log-every", "1", "--checkpoint-minutes", "0.0001")
JOB += ("--schedule", "constant")  # its last.pt stays


class Evil:
    """An object whose pickle makes a folder when it is opened."""

    def __init__(self, trap: Path) -> None:
        self._trap = trap

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.mkdir, (self._trap,)


@pytest.fixture(scope="module")
def reference(project):
    """The job that nothing disturbs."""
    return project.finish(*JOB)


@pytest.fixture(scope="module")
def stopped(project, reference, tmp_path_factory):
    """A copy of the project in which the same job was stopped: with two checkpoints."""
    copy = project.copy(tmp_path_factory.mktemp("stopped") / "copy")
    job = copy.start(*JOB)
    wait_until(lambda: (copy.folder(reference) / "previous.pt").exists())
    kill(job.pid, signal.SIGTERM)
    assert ended(job).returncode == 128 + signal.SIGTERM
    return copy


@pytest.fixture
def again(stopped, tmp_path):
    """A copy of that copy, with its job and its store."""
    return stopped.clone(tmp_path / "again")


def spoil(path: Path) -> None:
    """Turn over one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_continues_from_the_previous_checkpoint(project, reference, again):
    spoil(again.folder(reference) / "last.pt")
    done = succeeded(again.run(*JOB))
    lines = done.stdout.splitlines()
    assert "last.pt is damaged; it was put aside as last.damaged" in lines
    assert "continuing from previous.pt" in lines
    assert_nothing_torn(again.folder(reference))
    assert_as_undisturbed(again, reference, project, reference)


def test_starts_over_without_a_whole_checkpoint(project, reference, again, tmp_path):
    """One is cut short; in the place of the other is a pickle that runs code, without a seal."""
    folder, trap = again.folder(reference), tmp_path / "trap"
    torch.save({"model": Evil(trap)}, folder / "last.pt")
    content = (folder / "previous.pt").read_bytes()
    (folder / "previous.pt").write_bytes(content[: len(content) // 2])
    done = succeeded(again.run(*JOB))
    lines = done.stdout.splitlines()
    assert "last.pt is damaged; it was put aside as last.damaged" in lines
    assert "previous.pt is damaged; it was put aside as previous.damaged" in lines
    assert "no checkpoint is left; starting over" in lines
    assert not trap.exists()
    assert_as_undisturbed(again, reference, project, reference)
