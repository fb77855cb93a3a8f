"""`bash run.sh`: the jobs of a grid, by what it prints, leaves and returns."""

import os
import shlex
import signal
import stat
from pathlib import Path

from conftest import Project, wait_until

QUICK = "--epochs 1 --batch-size 256 --device cpu"


def summary(out: str) -> str:
    """The last line of a sweep."""
    return out.splitlines()[-1]


def fake_gpus(folder: Path, *uuids: str) -> str:
    """A PATH on which nvidia-smi lists these GPUs."""
    script = folder / "nvidia-smi"
    script.write_text("#!/bin/sh\n" + "".join(f"echo {uuid}\n" for uuid in uuids))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return f"{folder}:{os.environ['PATH']}"


def test_runs_what_is_not_finished_on_every_gpu(project: Project, tmp_path: Path) -> None:
    jobs = [f"{QUICK} --seed {seed}" for seed in (0, 1)]
    path = fake_gpus(tmp_path, "GPU-a", "GPU-b")
    first = project.sweep(*jobs, f"{jobs[1]} --lr 0.001", PATH=path)
    assert first.returncode == 0, first.stderr
    assert "started on GPU-a" in first.stdout and "started on GPU-b" in first.stdout
    assert summary(first.stdout).startswith("2 of 2 jobs finished, 2 of them now")
    ids = [line.split()[1] for line in first.stdout.splitlines() if " started on " in line]
    assert sorted(len(project.runs(job)) for job in ids) == [1, 1]

    (project.root / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    again = project.sweep(*jobs, PYTHONPATH=str(project.root))
    (project.root / "sitecustomize.py").unlink()
    assert (again.returncode, again.stderr) == (0, "")  # torch could not have been imported
    assert again.stdout.startswith("2 of 2 jobs finished, 0 of them now")


def test_one_failure_is_named_and_stops_no_other(project: Project) -> None:
    note = "it's $(touch oops); `touch oops` \"* \\n"
    done = project.sweep(
        f"{QUICK} --lr 1e30 --optimizer sgd",
        f"{QUICK} --seed 5 --note {shlex.quote(note)}",
    )
    assert done.returncode == 1
    assert summary(done.stdout).startswith("1 of 2 jobs finished, 1 of them now; 1 did not")
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("status 1: "))
    assert "train_loss was not finite" in line and "output.txt" in line
    assert not (project.root / "oops").exists()
    notes = {value for (value,) in project.ask("SELECT value FROM params WHERE key = 'note'")}
    assert notes == {"", note}


def test_a_wrong_grid_starts_nothing_and_names_each_job(project: Project) -> None:
    runs = set(project.root.glob("runs/*"))
    syntax = project.sweep(f"{QUICK} --seed 9", "--lr fast", "--modle mlp")
    assert (syntax.returncode, syntax.stdout) == (2, "")
    assert [line.split(":")[0] for line in syntax.stderr.splitlines()] == [
        "job 2 (--lr fast)",
        "job 3 (--modle mlp)",
        "run.sh",
    ]
    names = project.sweep(f"{QUICK} --seed 9", "--model convnot")
    assert (names.returncode, names.stdout) == (2, "")
    assert "did you mean convnet?" in names.stderr
    folder = project.sweep(f"{QUICK} --seed 9 --runs-root run.py/runs")
    assert (folder.returncode, folder.stdout) == (2, "")
    assert "cannot write in" in folder.stderr
    project.write_grid(f"{QUICK} --seed 9")
    grid = (project.root / "run.sh").read_text().replace("  job ", "  jobb ")
    (project.root / "run.sh").write_text(grid)
    process = project.start("bash", "run.sh")
    out, err = process.communicate()
    assert (process.returncode, out) == (2, "")
    assert err == "run.sh: jobb: no such command; nothing was started\n"
    assert set(project.root.glob("runs/*")) == runs


def test_an_empty_grid_and_a_wrong_word_are_refused(project: Project) -> None:
    assert project.sweep().returncode == 2
    process = project.start("bash", "run.sh", "--fast")
    _, err = process.communicate()
    assert (process.returncode, err) == (
        2,
        "run.sh: no such argument: --fast (the grid is in the script)\n",
    )


def test_ctrl_c_stops_the_running_job_and_starts_no_other(project: Project) -> None:
    project.write_grid(f"{QUICK} --epochs 3000", f"{QUICK} --seed 7")
    sweep = project.start("bash", "run.sh")
    assert sweep.stdout
    job_id = next(line.split()[1] for line in sweep.stdout if " started on " in line)
    printed = project.root / "runs" / job_id / "output.txt"
    wait_until(lambda: printed.exists() and "epoch 1/" in printed.read_text())
    os.killpg(sweep.pid, signal.SIGINT)  # what a terminal does
    out, err = sweep.communicate(timeout=120)
    assert sweep.returncode == 130
    assert f"status 143: job {job_id} interrupted: by SIGTERM" in err
    assert summary(out) == "0 of 2 jobs finished, 0 of them now; 1 did not, 1 were not started"
    assert [status for _, status in project.runs(job_id)] == ["KILLED"]
