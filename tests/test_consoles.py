"""Consoles that show few letters, are closed or have nobody who reads: results do not change."""

import os
import shlex
import sys

import pytest
from faults import ended, job_of, succeeded

QUICK = ("--epochs", "1", "--batch-size", "256", "--device", "cpu")


@pytest.mark.long
def test_a_console_without_letters_is_no_reason_to_fail(project):
    """Of ASCII alone, in which Python may not do otherwise."""
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    succeeded(project.run(*QUICK, "--note", "β é"))
    done = succeeded(project.run(*QUICK, "--seed", "5", **ascii_only))
    assert " finished: best_val_loss " in done.stdout
    listed = succeeded(project.do("python", "jobs.py", "list", **ascii_only))
    assert "2 jobs: 2 finished" in listed.stdout
    inherited = {"MPLBACKEND": "module://of_a_notebook"}  # by `!python plot.py` in it
    succeeded(project.do("python", "plot.py", "--format", "png", **inherited))
    wrong = project.run("--model", "cönvnet", **ascii_only)
    assert wrong.returncode == 2 and wrong.stderr.startswith("run.py: --model c")
    assert wrong.stderr.count("\n") == 1


@pytest.mark.full
@pytest.mark.parametrize("how", [">&- 2>&-", "| head -c 1"])
def test_a_console_that_is_closed_changes_no_status(project, how):
    """Also what the student's code prints, which is left behind in the pipe."""
    seed = str(10 + len(how))
    python = shlex.quote(sys.executable)
    for command, code in (
        (f"{python} run.py {shlex.join(QUICK)} --seed {seed} --note=closed", 0),
        (f"{python} plot.py --format png", 0),
        (f"{python} jobs.py list", 0),
        (f"{python} run.py --model none", 2),
        ("bash run.sh --list", 0),
    ):
        script = f"{command} {how}; exit ${{PIPESTATUS[0]}}"
        done = ended(project.command("bash", "-c", script))
        assert done.returncode == code, (command, done)
        assert "Traceback" not in done.stderr and "rror:" not in done.stderr
    assert "finished" in succeeded(project.do("python", "jobs.py", "list")).stdout


@pytest.mark.full
def test_no_file_of_a_job_takes_the_place_of_a_closed_console(project):
    folder = project.root / "runs"
    flags = (*QUICK, "--seed", "30")
    words = shlex.join([sys.executable, "run.py", *flags])
    project.edit("run.py", "def main(", "print('from the student')\n\n\ndef main(")
    ended(project.command("bash", "-c", f"exec {words} >&- 2>&-"))
    job = job_of(succeeded(project.run(*flags)))
    for file in (folder / job).rglob("*"):
        if file.is_file():
            assert b"from the student" not in file.read_bytes()
    assert os.path.getsize(project.folder(job) / "metrics.jsonl") > 0
