"""`bash run.sh`: the jobs of a grid, by what it prints, leaves and returns."""

import math
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from conftest import Project, wait_until

QUICK = "--epochs 1 --batch-size 256 --device cpu"
NOTE = "-- it's $(touch oops); `touch oops` \"* \\n\n${HOME} é"
ONE_FAILS = (
    f"{QUICK} --lr 1e30 --optimizer sgd",
    f"{QUICK} --seed 5 --note={shlex.quote(NOTE)}",
)
RUNNING = ("--epochs", "100000", "--seed", "13")


def no_gpus() -> str:
    """A PATH on which there is no nvidia-smi."""
    found = shutil.which("nvidia-smi")
    folders = os.environ["PATH"].split(os.pathsep)
    return os.pathsep.join(f for f in folders if not found or f != os.path.dirname(found))


def kill_group(process: subprocess.Popen[str]) -> None:
    """Kill a process and all that it has started in its group."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def summary(out: str) -> str:
    """The last line of a sweep."""
    return out.splitlines()[-1]


def fake_gpus(folder: Path, *uuids: str) -> str:
    """A PATH on which nvidia-smi lists these GPUs."""
    script = folder / "nvidia-smi"
    lines = [f"echo 'GPU {n}: Pretend (UUID: {uuid})'\n" for n, uuid in enumerate(uuids)]
    script.write_text("#!/bin/sh\n[ $1 = -L ] || exit 9\n" + "".join(lines))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return f"{folder}:{os.environ['PATH']}"


@pytest.fixture(scope="module")
def swept(
    project: Project, tmp_path_factory: pytest.TempPathFactory
) -> subprocess.CompletedProcess[str]:
    """A sweep of two jobs on two GPUs, of which the first fails; the second is there twice."""
    path = fake_gpus(tmp_path_factory.mktemp("gpus"), "GPU-a", "GPU-b")
    return project.sweep(*ONE_FAILS, f"{ONE_FAILS[1]} --lr 0.001", PATH=path)


def test_every_gpu_has_a_job_and_none_runs_twice(
    project: Project, swept: subprocess.CompletedProcess[str]
) -> None:
    assert "started on GPU-a" in swept.stdout and "started on GPU-b" in swept.stdout
    ids = [line.split()[1] for line in swept.stdout.splitlines() if " started on " in line]
    statuses = [[status for _, status in project.runs(job)] for job in ids]
    assert sorted(statuses) == [["FAILED"], ["FINISHED"]]


def test_one_failure_is_named_and_stops_no_other(
    project: Project, swept: subprocess.CompletedProcess[str]
) -> None:
    assert swept.returncode == 1
    assert summary(swept.stdout).startswith("1 of 2 jobs finished, 1 of them now; 1 did not")
    (line,) = (line for line in swept.stderr.splitlines() if line.startswith("status 1: "))
    assert "train_loss was not finite by optimizer step 2; lower --lr" in line
    output = Path(line.split()[-1].strip("[]"))
    assert output.name == "output.txt" and "failed: train_loss" in output.read_text()
    assert "Traceback" in (output.parent / "log.txt").read_text()
    tags = "SELECT status, value FROM runs JOIN tags USING (run_uuid) WHERE key = 'diverged'"
    assert sorted(project.ask(tags)) == [("FAILED", "true"), ("FINISHED", "false")]
    assert not (project.root / "oops").exists()
    notes = {value for (value,) in project.ask("SELECT value FROM params WHERE key = 'note'")}
    assert notes == {"", NOTE}


def test_what_is_finished_is_not_run_again(
    project: Project, swept: subprocess.CompletedProcess[str]
) -> None:
    (project.root / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    again = project.sweep(ONE_FAILS[1], PYTHONPATH=str(project.root))
    (project.root / "sitecustomize.py").unlink()
    assert (again.returncode, again.stderr) == (0, "")  # torch could not have been imported
    assert again.stdout.startswith("1 of 1 jobs finished, 0 of them now")


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
    assert set(project.root.glob("runs/*")) == runs


@pytest.mark.parametrize(
    ("job", "said"),
    [("jobb --seed 9", "jobb: command not found"), ('job --lr "$lrr"', "lrr: unbound variable")],
)
def test_a_misspelt_grid_starts_nothing(project: Project, job: str, said: str) -> None:
    project.write_grid(QUICK)
    script = (project.root / "run.sh").read_text()
    (project.root / "run.sh").write_text(script.replace(f"job {QUICK}", job))
    process = project.start("bash", "run.sh")
    out, err = process.communicate()
    assert (process.returncode, out) == (2, "")
    unknown, nothing = err.splitlines()
    assert unknown.endswith(said)
    assert nothing == "run.sh: nothing was started"


def test_an_empty_grid_is_refused(project: Project) -> None:
    done = project.sweep()
    assert (done.returncode, done.stderr) == (2, "run.sh: the grid names no job\n")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--fail-fats", "--fail-fats: no such flag; did you mean --fail-fast?"),
        ("--retries -1", "--retries -1: must be 0 or more"),
        ("--per-gpu none", "--per-gpu: invalid int value: 'none'"),
        ("--gpus 3", "--gpus 3: nvidia-smi knows no such GPU"),
        ("--at-most 3", "--at-most: only with --slurm"),
        ("-- --partition gpu", "--: only with --slurm"),
        ("--slurm --retries 2", "--retries: not with --slurm"),
    ],
)
def test_wrong_flags_are_refused(project: Project, flags: str, said: str) -> None:
    project.write_grid(f"{QUICK} --seed 9")
    process = project.start("bash", "run.sh", *flags.split(), PATH=no_gpus())
    assert process.communicate() == ("", f"run.sh: {said}\n")
    assert process.returncode == 2


def test_search_draws_the_same_settings_each_time(project: Project) -> None:
    body = "search {} --lr 'log 1e-4 1e-1' --note \"choice 'a b' c\" -- --seed 1"
    shown = []
    for count in (8, 16):
        project.write_grid("--seed 1")
        script = (project.root / "run.sh").read_text()
        (project.root / "run.sh").write_text(script.replace("job --seed 1", body.format(count)))
        process = project.start("bash", "run.sh", "--list")
        out, err = process.communicate()
        assert (process.returncode, err) == (0, "")
        shown.append(out.splitlines()[:-1])
    assert shown[1][:8] == shown[0] and len(shown[1]) == 16
    rates = [float(re.findall(r"lr=(\S+)", line)[0]) for line in shown[1]]
    quarters = Counter(int(4 * math.log(rate / 1e-4) / math.log(1e3)) for rate in rates)
    assert quarters == {0: 4, 1: 4, 2: 4, 3: 4}  # evenly spread, on the scale that was asked for
    assert {re.findall(r"note=(.+)", line)[0].strip() for line in shown[1]} == {"a b", "c"}
    wrong = body.format("some")
    (project.root / "run.sh").write_text(script.replace("job --seed 1", wrong))
    process = project.start("bash", "run.sh", "--list")
    assert process.communicate()[1].startswith("run.sh: search: must begin with how many")
    assert process.returncode == 2


def listed(project: Project) -> list[str]:
    """What `--list` prints."""
    process = project.start("bash", "run.sh", "--list")
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    return out.splitlines()


def test_states_and_ctrl_c(project: Project, swept: subprocess.CompletedProcess[str]) -> None:
    """It stops the running job and starts no other."""
    project.write_grid(f"{QUICK} --epochs 100000", *ONE_FAILS, f"{QUICK} --seed 7")
    sweep = project.start("bash", "run.sh", "--only", "pending")
    assert sweep.stdout
    job_id = next(line.split()[1] for line in sweep.stdout if " started on " in line)
    folder = project.root / "runs" / job_id
    wait_until(lambda: "epoch 1/" in (folder / "output.txt").read_text())
    *lines, total, rate = listed(project)
    assert [line.split()[1] for line in lines] == ["running", "failed", "finished", "pending"]
    assert re.search(r"epochs=100000 .* \[epoch \d+/100000, .* left\]", lines[0])
    assert "train_loss was not finite" in lines[1]
    assert total == "4 jobs: 1 failed, 1 finished, 1 pending, 1 running"
    assert re.fullmatch(r".+ jobs an hour, .+ left", rate)

    os.killpg(sweep.pid, signal.SIGINT)  # what a terminal does
    out, err = sweep.communicate(timeout=120)
    assert sweep.returncode == 130
    assert f"status 143: job {job_id} interrupted: by SIGTERM" in err
    assert [status for _, status in project.runs(job_id)] == ["KILLED"]
    assert summary(out) == "1 of 3 jobs finished, 0 of them now; 1 did not, 1 were not started"
    states = [line.split()[1] for line in listed(project)[:4]]
    assert states == ["interrupted", "failed", "finished", "pending"]
