"""Locks of GPUs, which the users of a machine share and must not misuse, of jobs and of stores."""

import errno
import fcntl
import os
import shlex
import stat
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest
from faults import job_of, one_line, silent, succeeded
from labjobs import locks as file_locks
from labjobs.commands.disk import Useless
from sweeps import Lab, light, write_grid

QUICK = ("--epochs", "1", "--batch-size", "256")


GPUS = 1


@pytest.fixture
def lab(lab):
    lab.write_grid(light()(0))
    return lab


@pytest.fixture
def home(tmp_path):
    """A folder that only its owner may write in, with one file."""
    path = tmp_path / "home"
    path.mkdir()
    (path / "precious").write_text("precious")
    return path


def plan(lab: Lab, *before: str) -> subprocess.CompletedProcess[str]:
    """Have run.sh look for GPUs, make their locks and find nothing to run."""
    return lab.project.behind(*before).do("bash", "run.sh", "--only", "failed")


TRAPS = {
    "folder is a link": lambda locks, home: locks.symlink_to(home),
    "others may rename": lambda locks, home: [locks.mkdir(), locks.chmod(0o777)],
    "a link": lambda locks, home: [
        locks.mkdir(),
        (locks / "GPU-0.1").symlink_to(home / "precious"),
    ],
    "a link to nothing": lambda locks, home: [
        locks.mkdir(),
        (locks / "GPU-0.0").symlink_to(home / "made"),
    ],
    "a pipe": lambda locks, home: [locks.mkdir(), os.mkfifo(locks / "GPU-0.0")],
}


@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS)
def test_gpu_locks_lead_nowhere_else(lab, home, trap):
    trap(lab.machine / "locks", home)
    before = (home / "precious").stat()
    line = one_line(plan(lab), 2)
    assert line.startswith(f"run.sh: no lock for GPU GPU-0: {lab.machine}/locks")
    assert line.endswith("; GPU_LOCKS can name another folder")
    assert [path.name for path in home.iterdir()] == ["precious"]
    assert (home / "precious").stat() == before


@pytest.mark.parametrize("umask", ["000", "077"])
def test_gpu_locks_are_for_all_users_but_only_to_take(lab, umask):
    silent(plan(lab, "sh", "-c", f'umask {umask}; exec "$@"', "sh"))
    locks = lab.machine / "locks"
    assert stat.S_IMODE(locks.stat().st_mode) == 0o1777
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in locks.iterdir()}
    assert modes == {"GPU-0.0": 0o644, "GPU-0.1": 0o644}


@pytest.mark.full
def test_a_gpu_lock_that_becomes_a_link_is_not_taken(lab, home):
    """While a sweep waits for the GPU: it says so, and goes on when the lock is back."""
    lock = lab.machine / "locks" / "GPU-0.0"
    assert plan(lab).returncode == 0
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        sweep = lab.start()
        assert "a job of another sweep" in line_with("GPU-0", sweep)
        lock.rename(lab.machine / "kept")
        lock.symlink_to(home / "precious")
    assert f"GPU-0 has lost its lock {lock.parent}/GPU-0; the next run.sh" in line_with(
        "GPU-0", sweep
    )
    with (home / "precious").open() as precious:
        fcntl.flock(precious, fcntl.LOCK_EX | fcntl.LOCK_NB)
    (lab.machine / "kept").replace(lock)
    out, err = sweep.communicate(timeout=300)
    assert (sweep.returncode, err) == (0, "")
    assert "1 of 1 jobs finished" in out.splitlines()[-1]


def line_with(word: str, process: subprocess.Popen[str]) -> str:
    """The next line that a process prints with a word in it."""
    assert process.stdout
    for line in process.stdout:
        if word in line:
            return line
    raise AssertionError(process.communicate())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.root
def test_a_folder_of_gpu_locks_in_which_its_owner_sets_traps_is_refused(lab, home):
    locks = lab.machine / "locks"
    locks.mkdir()
    os.chown(locks, 65534, 65534)
    assert "other users can replace files in it" in one_line(plan(lab), 2)
    assert list(locks.iterdir()) == []
    locks.chmod(0o1777)
    (locks / "GPU-0.0").symlink_to(home / "made")
    os.chown(locks / "GPU-0.0", 65534, 65534, follow_symlinks=False)
    assert "other than a plain file" in one_line(plan(lab), 2)
    assert not (home / "made").exists()


@pytest.mark.full
def test_locks_of_jobs_and_stores_lead_nowhere_else(project, home):
    flags = (*QUICK, "--seed", "72")
    done = succeeded(project.run(*flags))
    job, store = project.folder(job_of(done)), project.root / "mlflow.db.lock"
    links = {job / "courier.lock": home / "precious", store: home / "made"}
    for lock, target in links.items():
        lock.unlink(missing_ok=True)
        lock.symlink_to(target)
    line = one_line(project.run(*flags, "--force"), 3)
    assert "other than a plain file" in line
    for lock in links:
        lock.unlink()
    (job / "lock").unlink()
    (job / "lock").symlink_to(home / "precious")
    line = one_line(project.run(*flags, "--force"), 2)
    assert str(job) in line and "other than a plain file" in line
    assert (home / "precious").read_text() == "precious"
    assert [path.name for path in home.iterdir()] == ["precious"]


NO_LOCKS = """
import fcntl, os

def refused(*given):
    raise OSError({number}, os.strerror({number}))

fcntl.lockf = fcntl.flock = refused
"""


def test_a_file_system_without_locks_is_named_with_the_way_out(project):
    site = project.root / "sitecustomize.py"
    site.write_text(NO_LOCKS.format(number=errno.ENOLCK))
    try:
        write_grid(project.root, shlex.join(QUICK))
        for words in (("python", "run.py", *QUICK), ("bash", "run.sh")):
            said = one_line(project.do(*words, PYTHONPATH=str(project.root)), 1)
            assert "this file system has no locks" in said and "--runs-root" in said
    finally:
        site.unlink()


def test_an_attempt_that_is_removed_is_locked_until_it_is_gone(tmp_path):
    """A job could otherwise begin there while the store is asked."""
    attempt, held = tmp_path / "0123456789ab" / "01234567", list[int]()
    attempt.mkdir(parents=True)
    (attempt / "lock").touch()

    class Store:
        problem, runs = "", dict[str, object]()

        def of(self, *_: str) -> list[object]:
            if not (other := os.fork()):
                os._exit(file_locks.held(attempt / "lock"))
            held.append(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
            return []

    project: Any = SimpleNamespace(view=SimpleNamespace(known=Store()), runs_root=tmp_path)
    job: Any = SimpleNamespace(id=attempt.parent.name)
    Useless(attempt, "", [attempt], job).remove(project)
    assert held == [1] and not attempt.exists()
