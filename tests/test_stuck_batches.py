"""A batch that cannot be passed on by a loader's process: one line and status 1, and no hang."""

import shutil
import signal
import subprocess

import pytest
from faults import ended, one_line, succeeded, wait_until

FLAGS = ("--epochs", "1", "--loader", "workers", "--workers", "2", "--batch-size", "512")


def test_a_temporary_folder_with_a_long_path(project, tmp_path):
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    said = one_line(project.run(*FLAGS, TMPDIR=str(folder)), 1)
    assert "set TMPDIR to a shorter one" in said and str(folder) in said


def test_a_small_dev_shm(project):
    mount = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=64k x /dev/shm && exec "$@"', "x")
    if not shutil.which("unshare") or subprocess.run([*mount, "true"]).returncode:
        pytest.skip("this user may not mount a file system")
    said = one_line(project.behind(*mount).run(*FLAGS), 1)
    assert "/dev/shm is too small for a batch" in said and "--ipc=host" in said


def test_a_signal_ends_the_wait_for_a_batch_that_never_comes(project):
    """Then the same command goes on."""
    files = {name: (project.root / name).read_text() for name in ("data.py", "run.py")}
    stuck = project.root / "stuck"
    (project.root / "data.py").write_text(
        files["data.py"] + "\n\ndef slow(examples):\n"
        "    import pathlib, time\n"
        f"    marks = pathlib.Path({str(stuck)!r})\n"
        "    if marks.exists():\n"
        "        marks.with_name('waiting').touch()\n"
        "        time.sleep(10_000)\n"
        "    return torch.utils.data.default_collate(examples)\n"
    )
    run = files["run.py"].replace("shuffle=True)", "shuffle=True, collate=data.slow)")
    (project.root / "run.py").write_text(f"import data\n{run}")
    stuck.touch()
    try:
        job = project.start(*FLAGS, "--seed", "3")
        wait_until((project.root / "waiting").exists)
        job.terminate()
        done = ended(job)
        assert done.returncode == 128 + signal.SIGTERM, done
        assert "interrupted: by SIGTERM; the same command continues it" in done.stderr
        stuck.unlink()
        succeeded(project.run(*FLAGS, "--seed", "3"))
    finally:
        for name, text in files.items():
            (project.root / name).write_text(text)


def test_what_cannot_be_pickled(project):
    text = (project.root / "data.py").read_text()
    (project.root / "data.py").write_text(
        text + "\n\ndef joined(examples):\n"
        "    images, labels = torch.utils.data.default_collate(examples)\n"
        "    return images, labels, lambda: 0\n"
    )
    run = (project.root / "run.py").read_text()
    assert run.count("shuffle=True)") == 1
    run = run.replace("shuffle=True)", "shuffle=True, collate=data.joined)")
    (project.root / "run.py").write_text(f"import data\n{run}")
    said = one_line(project.run(*FLAGS), 1)
    assert "a batch cannot be passed from a loader's process" in said and "lambda" in said
