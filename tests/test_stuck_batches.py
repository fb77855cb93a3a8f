"""A batch that cannot be passed on by a loader's process: one line and status 1, and no hang."""

import shutil
import signal
import subprocess

import pytest
from faults import Project, ended, one_line, succeeded, wait_until

FLAGS = ("--epochs", "1", "--loader", "workers", "--workers", "2", "--batch-size", "512")

STUCK = """
    here = Path(__file__).parent
    if (here / "stuck").exists():
        (here / "waiting").touch()
        __import__("time").sleep(10_000)
    return torch.utils.data.default_collate(examples)
"""
NO_PICKLE = """
    images, labels = torch.utils.data.default_collate(examples)
    return images, labels, lambda: 0
"""


def collated(project: Project, body: str) -> Project:
    """Have a project make its training batches by a function."""
    with (project.root / "data.py").open("a") as file:
        file.write(f"\n\ndef collated(examples):{body}")
    project.edit("run.py", "shuffle=True)", "shuffle=True, collate=data.collated)")
    return project


@pytest.mark.full
def test_a_temporary_folder_with_a_long_path(project, tmp_path):
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    said = one_line(project.run(*FLAGS, TMPDIR=str(folder)), 1)
    assert "set TMPDIR to a shorter one" in said and str(folder) in said


@pytest.mark.full
def test_a_small_dev_shm(project):
    mount = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=64k x /dev/shm && exec "$@"', "x")
    if not shutil.which("unshare") or subprocess.run([*mount, "true"]).returncode:
        pytest.skip("this user may not mount a file system")
    said = one_line(project.behind(*mount).run(*FLAGS), 1)
    assert "/dev/shm is too small for a batch" in said and "--ipc=host" in said


@pytest.mark.long
def test_a_signal_ends_the_wait_for_a_batch_that_never_comes(project, tmp_path):
    """Then the same command goes on."""
    stuck = collated(project.copy(tmp_path / "stuck"), STUCK)
    (stuck.root / "stuck").touch()
    job = stuck.start(*FLAGS)
    wait_until((stuck.root / "waiting").exists)
    job.terminate()
    done = ended(job)
    assert done.returncode == 128 + signal.SIGTERM, done
    assert "interrupted: by SIGTERM; the same command continues it" in done.stderr
    (stuck.root / "stuck").unlink()
    succeeded(stuck.run(*FLAGS))


@pytest.mark.full
def test_what_cannot_be_pickled(project, tmp_path):
    said = one_line(collated(project.copy(tmp_path / "copy"), NO_PICKLE).run(*FLAGS), 1)
    assert "a batch cannot be passed from a loader's process" in said and "lambda" in said


@pytest.mark.full
def test_processes_of_the_students_own_end_with_their_pool_and_with_the_job(fresh):
    """They do not handle the signals of the job."""
    pool = "    with multiprocessing.Pool(2) as pool:\n        pool.map(abs, [1, 2])\n"
    sleep = "multiprocessing.Process(target=time.sleep, args=(1000,), daemon=True).start()"
    fresh.edit("run.py", "import sys\n", "import multiprocessing\nimport sys\nimport time\n")
    fresh.edit("run.py", "    model.eval()\n", f"    model.eval()\n{pool}    {sleep}\n")
    for seed in "012":
        done = succeeded(fresh.run("--epochs", "3", "--quiet", "--seed", seed))
        assert "interrupted" not in done.stdout + done.stderr and "Traceback" not in done.stderr
