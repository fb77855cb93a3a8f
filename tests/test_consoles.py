"""Consoles that show few letters, are closed or have nobody who reads: results do not change."""

import os
import shlex
import shutil
import subprocess
import sys

import pytest
from faults import ended, job_of, succeeded

QUICK = ("--epochs", "1", "--batch-size", "256", "--device", "cpu")


@pytest.fixture(scope="module")
def locales(tmp_path_factory):
    """A folder with a locale of Latin-1 letters, which differ from UTF-8's."""
    if not shutil.which("localedef"):
        pytest.skip("there is no localedef to make a locale with")
    folder = tmp_path_factory.mktemp("locales")
    made = folder / "en_US.ISO-8859-1"
    words = ("localedef", "-c", "-i", "en_US", "-f", "ISO-8859-1", str(made))
    if subprocess.run(words, capture_output=True).returncode > 1 or not made.exists():
        pytest.skip("this system has no sources of locales")
    return {"LOCPATH": str(folder), "LC_ALL": made.name}


def test_a_job_is_the_same_in_a_locale_of_other_letters(project, locales):
    flags = (*QUICK, "--note", "β é")
    job = job_of(succeeded(project.run(*flags, **locales)))
    again = succeeded(project.run(*flags, **{"LC_ALL": "C.UTF-8"}))
    assert job_of(again) == job and "already finished" in again.stdout
    drawn = succeeded(project.do("python", "plot.py", "--format", "png", **locales))
    assert "figures/" in drawn.stdout and "Traceback" not in drawn.stderr
    inherited = {"MPLBACKEND": "module://of_a_notebook"}  # by `!python plot.py` in it
    succeeded(project.do("python", "plot.py", "--format", "png", **inherited))
    listed = succeeded(project.do("python", "jobs.py", "list", **locales))
    assert "β é" in listed.stdout
    words = shlex.join(flags)
    (project.root / "grid.sh").write_text(
        (project.root / "run.sh").read_text().split("grid() {")[0]
        + f'grid() {{ job {words}; }}\nsweep "$@"\n'
    )
    swept = succeeded(project.do("bash", "grid.sh", **locales))
    assert swept.stdout == "1 of 1 jobs finished, 0 of them now\n"


def test_a_console_without_letters_is_no_reason_to_fail(project):
    """Of ASCII alone, in which Python may not do otherwise."""
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = succeeded(project.run(*QUICK, "--seed", "5", **ascii_only))
    assert " finished: best_val_loss " in done.stdout
    wrong = project.run("--model", "cönvnet", **ascii_only)
    assert wrong.returncode == 2 and wrong.stderr.startswith("run.py: --model c")
    assert wrong.stderr.count("\n") == 1


@pytest.mark.parametrize("how", [">&-", ">&- 2>&-", "| head -c 1"])
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


def test_no_file_of_a_job_takes_the_place_of_a_closed_console(project):
    folder = project.root / "runs"
    flags = (*QUICK, "--seed", "30")
    words = shlex.join([sys.executable, "run.py", *flags])
    project.edit("run.py", "def main(", "print('from the student')\n\n\ndef main(")
    ended(project.command("bash", "-c", f"exec {words} >&- 2>&-"))
    job = job_of(succeeded(project.run(*flags)))
    for file in (folder / job).rglob("*"):
        if file.is_file():
            assert b"from the student" not in file.read_bytes() or "code" in file.name
    assert os.path.getsize(project.folder(job) / "metrics.jsonl") > 0
