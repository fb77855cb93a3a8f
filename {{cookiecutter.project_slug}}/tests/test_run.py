"""`python run.py`: one job, by what it prints, leaves and returns, whatever it trains."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import KNOWN, Project, short

STEPS = 12
JOB = (*short(STEPS), "--device", "cpu", "--log-every", "5")
TIMES = ("elapsed_seconds", "per_second", "data_wait_fraction", "mfu")


def job_of(done: subprocess.CompletedProcess[str]) -> str:
    """Return the job id in the last line that a command printed."""
    return (done.stdout or done.stderr).splitlines()[-1].split()[1]


def attempt_in(job: Path) -> Path:
    """Return the folder of the only attempt at a job."""
    (attempt,) = job.iterdir()
    return attempt


def learnt(folder: Path) -> list[Any]:
    """Return the best weights and the curves of a job, tensors as bytes."""
    best = torch.load(folder / "best.pt", weights_only=True)
    weights = {
        (model, name): (
            tensor.dtype,
            tensor.flatten().contiguous().view(torch.uint8).numpy().tobytes(),
        )
        for model, tensors in best["models"].items()
        for name, tensor in tensors.items()
        if tensor.ndim
    }
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    points = [
        (line["step"], {k: v for k, v in line["metrics"].items() if not k.endswith(TIMES)})
        for line in lines
        if "step" in line
    ]
    return [weights, best["step"], best["metrics"], points]


@pytest.fixture(scope="module")
def finished(project: Project) -> subprocess.CompletedProcess[str]:
    """A job run to its end."""
    return project.run(*JOB)


def test_a_job_finishes_and_the_last_line_is_the_result(
    project: Project, finished: subprocess.CompletedProcess[str]
) -> None:
    assert finished.returncode == 0, finished.stderr
    last = finished.stdout.splitlines()[-1]
    assert last.startswith("job ") and " finished: " in last
    folder = attempt_in(project.root / "runs" / job_of(finished))
    assert {"settings.json", "spec.json", "log.txt", "metrics.jsonl", "best.pt"} <= {
        file.name for file in folder.iterdir()
    }
    assert json.loads((folder / "outcome.json").read_text())["status"] == "finished"


def test_again_it_says_so_without_torch(
    project: Project, finished: subprocess.CompletedProcess[str]
) -> None:
    process = project.start(sys.executable, "-X", "importtime", "run.py", *JOB)
    out, imports = process.communicate()
    last = finished.stdout.splitlines()[-1]
    assert out.startswith(last.replace("finished", "already finished"))
    assert " json" in imports
    assert not any(f" {name}\n" in imports for name in ("torch", "mlflow", "pandas", "numpy"))


def test_stopped_between_two_evaluations_and_continued_it_is_the_same_to_the_bit(
    project: Project, finished: subprocess.CompletedProcess[str], tmp_path: Path
) -> None:
    """All that training changes is in the checkpoint: what is missing in job.resume is found."""
    elsewhere = ("--runs-root", str(tmp_path))
    store = {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    middle = str(2 * STEPS // 3) if "steps" in KNOWN else "0.7e"
    paused = project.run(*JOB, *elsewhere, "--pause-after", middle, **store)
    assert paused.returncode == 0 and " paused: after " in paused.stdout, paused
    again = project.run(*JOB, *elsewhere, **store)
    assert again.returncode == 0 and "continuing from last.pt" in again.stdout, again
    job = job_of(finished)
    one, other = attempt_in(tmp_path / job), attempt_in(project.root / "runs" / job)
    assert learnt(one) == learnt(other)


def test_its_model_can_be_had_again(
    project: Project, finished: subprocess.CompletedProcess[str]
) -> None:
    code = f"import jobs; print(jobs.load({job_of(finished)!r}).model.training)"
    out, err = project.start(sys.executable, "-c", code).communicate()
    assert out == "False\n", err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--devise", "cpu"), "--devise: no such flag; did you mean --device?"),
        (("--log-every", "often"), "--log-every often: "),
        (("--runs-root", "run.py/runs"), "--runs-root: cannot write in"),
    ],
)
def test_wrong_flags_are_one_line_and_leave_nothing(
    project: Project, flags: tuple[str, ...], said: str
) -> None:
    runs = set(project.root.glob("runs/*"))
    done = project.run(*flags)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("run.py: ") and said in line
    assert set(project.root.glob("runs/*")) == runs


def test_a_try_leaves_nothing(project: Project) -> None:
    runs = set(project.root.glob("runs/*"))
    done = project.run(*short(2), "--scratch", "--quiet")
    assert done.returncode == 0 and "scratch finished: " in done.stdout, done
    assert set(project.root.glob("runs/*")) == runs
