"""`python run.py`: one job, by what it prints, leaves and returns."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Project, wait_until
from test_data import write_cifar10

QUICK = ("--epochs", "2", "--batch-size", "256")


def job_of(done: subprocess.CompletedProcess[str]) -> str:
    """The job id in the last line that a command printed."""
    return (done.stdout or done.stderr).splitlines()[-1].split()[1]


@pytest.fixture(scope="module")
def finished(project: Project) -> subprocess.CompletedProcess[str]:
    """A job run to its end."""
    return project.run(*QUICK, "--augment", "crop-flip", "--log-every", "2")


def test_last_line_is_the_result(finished: subprocess.CompletedProcess[str]) -> None:
    assert finished.returncode == 0, finished.stderr
    last = finished.stdout.splitlines()[-1]
    assert last.startswith("job ") and " finished: " in last and "test_accuracy" in last


def test_files(project: Project, finished: subprocess.CompletedProcess[str]) -> None:
    folder = project.root / "runs" / job_of(finished)
    assert {file.name for file in folder.iterdir()} == {
        "settings.json",
        "log.txt",
        "metrics.jsonl",
        "best.pt",
        "last.pt",
        "predictions.npz",
        "lock",
        "courier.lock",
        "sent.json",
        "outcome.json",
    }
    best = torch.load(folder / "best.pt", weights_only=True)
    assert best["settings"]["epochs"] == 2
    assert set(best["model"]) >= {"mean", "std"}
    with np.load(folder / "predictions.npz") as kept:
        right = (kept["labels"] == kept["guesses"]).mean()
        assert (len(kept["labels"]), list(kept["classes"])) == (359, list("0123456789"))
    assert f"test_accuracy {right:.4g}" in finished.stdout.splitlines()[-1]
    assert json.loads((folder / "outcome.json").read_text())["status"] == "finished"
    assert "epoch 2/2" in (folder / "log.txt").read_text()


def test_readme_tells_how_to_have_the_model_again(
    project: Project, finished: subprocess.CompletedProcess[str]
) -> None:
    readme = (project.root / "README.md").read_text()
    (snippet,) = re.findall(r"```python\n(import torch.*?)```", readme, re.DOTALL)
    code = snippet.replace("<job id>", job_of(finished))
    code += "print(model(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)).shape)"
    out, err = project.start(sys.executable, "-c", code).communicate()
    assert out == "torch.Size([2, 10])\n", err


def test_store_has_one_run_with_everything(
    project: Project, finished: subprocess.CompletedProcess[str]
) -> None:
    ((run, status),) = project.runs(job_of(finished))
    assert status == "FINISHED"
    tags = dict(project.ask("SELECT key, value FROM tags WHERE run_uuid = ?", str(run)))
    assert tags["finished"] == "true" and tags["precision"] == "fp32" and tags["torch"]
    params = dict(project.ask("SELECT key, value FROM params WHERE run_uuid = ?", str(run)))
    assert params["lr"] == "0.001" and params["batch_size"] == "256" and params["device"] == "auto"
    query = "SELECT step FROM metrics WHERE run_uuid = ? AND key = ? ORDER BY step"
    steps = lambda key: [step for (step,) in project.ask(query, str(run), key)]  # noqa: E731
    assert steps("train_loss") == steps("lr") == [2, 4, 6, 8, 10, 12]  # 1,294 examples, 6 batches
    for key in ("val_loss", "val_accuracy", "train_accuracy", "examples_per_second"):
        assert steps(key) == [1, 2], key
    assert len(steps("test_accuracy")) == len(steps("test_loss")) == len(steps("best_epoch")) == 1


def test_again_says_so_without_torch(
    project: Project, finished: subprocess.CompletedProcess[str]
) -> None:
    words = [sys.executable, "-X", "importtime", "run.py", *QUICK, "--augment", "crop-flip"]
    out, imports = project.start(*words).communicate()
    assert out.splitlines() == [
        finished.stdout.splitlines()[-1].replace("finished", "already finished")
    ]
    assert " json" in imports
    assert not any(f" {name}\n" in imports for name in ("torch", "mlflow", "pandas", "numpy"))


def test_force_runs_it_again_in_one_run(
    project: Project, finished: subprocess.CompletedProcess[str]
) -> None:
    """The same job bit for bit, though its data comes another way."""
    before = project.runs(job_of(finished))
    flags = ("--augment", "crop-flip", "--loader", "workers", "--workers", "2")
    again = project.run(*QUICK, *flags, "--force", "--quiet")
    assert again.returncode == 0
    after = project.runs(job_of(finished))
    assert len(before) == len(after) == 1 and before != after
    assert again.stdout.splitlines() == [finished.stdout.splitlines()[-1]]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--modle", "mlp"), "--modle: no such flag; did you mean --model?"),
        (("--lr", "fast"), "--lr: 'fast' is not a number"),
        (("--dataset", "image-folder", "--data-root", "nowhere"), "no folder nowhere"),
        (("--runs-root", "run.py/runs"), "cannot write in"),
        (("--sync", "--lr", "1"), "--sync: goes with --runs-root alone"),
        (("--sync", "--runs-root", "nowhere"), "--runs-root: there is no folder nowhere"),
    ],
)
def test_wrong_settings_are_one_line_and_leave_nothing(
    project: Project, flags: tuple[str, ...], said: str
) -> None:
    runs = set(project.root.glob("runs/*"))
    done = project.run(*flags)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("run.py: ") and said in line
    assert set(project.root.glob("runs/*")) == runs


@pytest.mark.parametrize(
    ("address", "said"),
    [("foo://x", "must begin with one of"), ("sqlite:////nowhere/x.db", "no folder /nowhere")],
)
def test_an_address_of_no_store_is_refused(project: Project, address: str, said: str) -> None:
    for flags in ((*QUICK, "--note", "nowhere"), ("--sync",)):
        done = project.run(*flags, MLFLOW_TRACKING_URI=address)
        assert (done.returncode, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"run.py: MLFLOW_TRACKING_URI {address}: ") and said in line


def test_another_python_is_told_what_it_lacks(project: Project) -> None:
    out, err = (process := project.start(sys.executable, "-S", "run.py")).communicate()
    assert (process.returncode, out) == (1, "")
    said = "missing packages; README.md says how to install them"
    assert err == f"{sys.executable}: {said}\n"


def begun(job: subprocess.Popen[str]) -> str:
    """The id of a job that has trained for an epoch."""
    assert job.stdout
    first = next(job.stdout).split()[1].rstrip(":")
    next(line for line in job.stdout if line.startswith("epoch "))
    return first


def test_killed_it_is_marked_by_its_courier_and_goes_on_and_ends_in_order(project: Project) -> None:
    flags = ("--epochs", "2000", "--loader", "workers", "--workers", "1")
    job = project.start(sys.executable, "run.py", *QUICK, *flags)
    job_id = begun(job)
    job.kill()
    job.wait()
    wait_until(lambda: [status for _, status in project.runs(job_id)] == ["KILLED"])
    again = project.start(sys.executable, "run.py", *QUICK, *flags)
    assert begun(again) == job_id
    wait_until(lambda: [status for _, status in project.runs(job_id)] == ["RUNNING"])
    os.killpg(again.pid, signal.SIGINT)  # what a terminal does: its loader's process gets it too
    _, err = again.communicate(timeout=120)
    assert again.returncode == 130
    assert err == f"job {job_id} interrupted: by SIGINT; the same command goes on from there\n"
    assert [status for _, status in project.runs(job_id)] == ["KILLED"]


def test_a_fault_in_the_projects_code_is_one_line_and_its_trace_is_kept(project: Project) -> None:
    code = (project.root / "models.py").read_text()
    (project.root / "models.py").write_text(
        code.replace("MLP(shape, classes)", "MLP(shape, clases)")
    )
    done = project.run(*QUICK, "--note", "fault", "--quiet")
    (project.root / "models.py").write_text(code)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "failed: NameError: name 'clases' is not defined (full trace: " in line
    assert "Traceback" in (project.root / "runs" / job_of(done) / "log.txt").read_text()


def test_store_away_the_results_are_safe_and_sent_later(project: Project, tmp_path: Path) -> None:
    flags = (*QUICK, "--note", "away", "--quiet")
    address = "http://127.0.0.1:9"
    away = project.run(*flags, MLFLOW_TRACKING_URI=address)
    assert away.returncode == 3
    (line,) = away.stderr.splitlines()
    assert "finished: test_loss" in line
    missing = f"the tracking store has not got it all ({address}: Connection refused)"
    assert line.endswith(f"{missing}: python run.py --sync sends what is left")
    assert project.runs(job_of(away)) == []
    best = project.root / "runs" / job_of(away) / "best.pt"
    written = best.stat().st_mtime_ns
    damaged = project.root / "runs" / "000000000000"
    damaged.mkdir()
    (damaged / "metrics.jsonl").write_text("no line of a journal\n")
    sync = project.run("--sync")
    shutil.rmtree(damaged)
    assert sync.returncode == 1
    assert sync.stdout == f"job {job_of(away)} sent\n"
    wrong, said = sync.stderr.splitlines()
    assert wrong.startswith("job 000000000000 cannot be sent: ")
    assert said == "1 of 2 jobs sent"
    back = project.run(*flags)
    assert back.returncode == 0 and "already finished" in back.stdout
    assert [status for _, status in project.runs(job_of(away))] == ["FINISHED"]
    assert best.stat().st_mtime_ns == written  # nothing was trained again


def test_resnet18_trains_on_files_in_cifars_format(project: Project, tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    flags = (
        "--dataset",
        "cifar10",
        "--model",
        "resnet18",
        "--epochs",
        "1",
        "--val-fraction",
        "0.3",
    )
    done = project.run(*flags, "--data-root", str(tmp_path))
    assert done.returncode == 0, done.stderr
    best = torch.load(project.root / "runs" / job_of(done) / "best.pt", weights_only=True)
    assert best["model"]["network.conv1.weight"].shape == (64, 3, 3, 3)
    assert best["model"]["network.fc.weight"].shape[0] == 10
