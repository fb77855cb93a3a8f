"""Jobs of several processes, started by torchrun, on CPUs."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from faults import Curves, Project, children, ended, job_of, one_line, same, succeeded
from sweeps import write_grid

SHORT = ("--steps", "12", "--eval-every", "6", "--log-every", "1", "--batch-size", "63")
ALIKE = (*SHORT, "--accumulate", "3", "--clip-norm", "1", "--ema", "0.9")
"""A job without random numbers but for the order of the examples."""

DRAWING = (
    *("--model", "convnet", "--augment", "crop-flip", "--accumulate", "2", "--ema", "0.9"),
    *("--epochs", "4", "--schedule", "constant", "--log-every", "7"),
    *("--checkpoint-minutes", "0.0001"),
)
"""A job with batch norm and random numbers, which makes a checkpoint after each step."""


def together(project: Project, count: int, *flags: str, **env: str) -> subprocess.Popen[str]:
    words = ("--standalone", "--nproc-per-node", str(count), "run.py", *flags)
    return project.command(sys.executable, "-m", "torch.distributed.run", *words, **env)


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines that came from the job itself, but for those of its log."""
    lines = (done.stdout + done.stderr).splitlines()
    return [line for line in lines if line.startswith(("job ", "run.py: ")) and "seed=" not in line]


def in_64_bits(project: Project) -> Project:
    """A project, edited so that it computes in 64 bits."""
    project.edit("run.py", "model(inputs).float()", "model(inputs)")
    made = "models.make(settings, splits.spec)"
    project.edit("run.py", f"        {made},", f"        {made}.double(),")
    return project


def differences(expected: Curves, found: Curves) -> float:
    """The largest difference of two jobs' curves, which have the same points."""
    assert expected.keys() == found.keys()
    pairs = [pair for name in expected for pair in zip(expected[name], found[name], strict=True)]
    assert all(here[0] == there[0] for here, there in pairs)
    return max(abs(float(str(here[1])) - float(str(there[1]))) for here, there in pairs)


@pytest.mark.full
def test_killed_and_continued_it_ends_with_the_same_bits(project, fresh, tmp_path):
    temporary = tmp_path / "above" / "temporary"
    temporary.mkdir(parents=True)
    job = job_of(succeeded(ended(together(fresh, 2, *DRAWING, TMPDIR=str(temporary)))))
    assert [*temporary.parent.iterdir()] == [temporary]

    done = killed(together(project, 2, *DRAWING), 1, signal.SIGKILL)
    assert said(done) == [line for line in said(done) if "failed: process 1 has ended" in line]
    done = killed(together(project, 2, *DRAWING), 0, signal.SIGKILL)
    assert said(done) == [f"job {job} failed: process 0 has ended"]
    done = killed(together(project, 2, *DRAWING), None, signal.SIGTERM)
    assert said(done)[-1].startswith(f"job {job} interrupted: by SIGTERM")
    done = ended(together(project, 4, *DRAWING))
    assert "its checkpoint is of 2 processes, which have drawn random numbers" in said(done)[-1]

    succeeded(ended(together(project, 2, *DRAWING)))
    assert same(project.tensors(job), fresh.tensors(job))
    assert project.journalled(job) == fresh.journalled(job)


def killed(
    started: subprocess.Popen[str], number: int | None, by: signal.Signals
) -> subprocess.CompletedProcess[str]:
    """Send a signal to a process of a job, or to torchrun, once it trains; return how it ended."""
    assert started.stdout
    begun = next((line for line in started.stdout if line.startswith("epoch ")), "")
    assert begun
    process = started.pid if number is None else process_of(started.pid, number)
    os.kill(process, by)
    return ended(started)


def process_of(torchrun: int, number: int) -> int:
    """The id of a process of a job."""
    mine = f"LOCAL_RANK={number}".encode()
    for child in children(torchrun):
        if mine in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return child
    raise AssertionError(number)


@pytest.mark.long
def test_what_goes_wrong_is_said_once(fresh):
    done = ended(together(fresh, 2, "--epochs", "many"))
    assert said(done) == ["run.py: --epochs many: must be a whole number"]
    done = ended(together(fresh, 2, "--check"))
    assert said(done) == ["run.py: --check: works with one process; leave torchrun out"]
    (line,) = said(ended(together(fresh, 2, "--batch-size", "1")))
    assert "--batch-size 1: must be at least the number of processes, 2" in line

    loop = "    for _ in job.epochs():"
    fault = '    if __import__("os").environ["RANK"] == "1":\n        raise ValueError("no luck")\n'
    fresh.edit("run.py", loop, fault + loop)
    (line,) = said(ended(together(fresh, 2, *SHORT)))
    assert "failed: process 1 has ended (ValueError: no luck)" in line
    fresh.edit("run.py", fault, "")

    parts = "for part, fraction in job.parts(augment(batch)):"
    without = "for part, fraction in [(augment(batch), torch.tensor(1.0))]:"
    fresh.edit("run.py", parts, without)
    (line,) = said(ended(together(fresh, 2, *SHORT)))
    assert "several processes need job.parts(batch)" in line


@pytest.mark.full
def test_too_many_or_too_few_processes_are_refused_before_anything_is_made(fresh):
    wrong = "--batch-size 1: must be at least the number of processes, 2"
    alone = "--shard: needs several processes: "
    start = ("-m", "labjobs.sweeps.gpus", "2", "run.py")
    done = ended(fresh.command(sys.executable, *start, "--batch-size", "1"))
    assert one_line(done, 2) == f"run.py: {wrong}"

    write_grid(fresh.root, "--batch-size 1", "--batch-size 2")
    done = fresh.do("bash", "run.sh", "--gpus-per-job", "2")
    assert done.returncode == 2, done
    named, counted = done.stderr.splitlines()
    assert named == f"job 1, run.py --batch-size 1: {wrong}"
    assert counted == "run.sh: 1 of 2 jobs are wrong; nothing was started"
    write_grid(fresh.root, "--batch-size 2 --shard", "--batch-size 2")
    done = fresh.do("bash", "run.sh")
    assert done.returncode == 2, done
    assert done.stderr.startswith(f"job 1, run.py --batch-size 2 --shard: {alone}")
    assert not (fresh.root / "runs").exists() and not (fresh.root / "mlflow.db").exists()


def test_processes_that_cannot_meet_say_so_in_one_line(project):
    """Without torchrun, where a variable was forgotten."""
    env = {"RANK": "2", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    line = one_line(project.run("--note", "alone", **env), 2)
    assert line == "run.py: RANK=2: must be less than WORLD_SIZE=2"
    env["RANK"] = "0"
    line = one_line(project.run("--note", "alone", **env), 1)
    assert line.startswith("run.py: the processes of this job cannot reach each other (")
    assert "MASTER_PORT" in line


@pytest.mark.full
def test_without_a_checkpoint_it_needs_as_many_processes_as_before(fresh):
    done = killed(together(fresh, 2, "--epochs", "400", "--log-every", "1"), 0, signal.SIGKILL)
    assert done.returncode == 1
    refused = fresh.run("--epochs", "400", "--log-every", "1")
    assert refused.returncode == 1
    assert (
        "it was begun by 2 processes and has no checkpoint yet, and this job has 1"
        in (refused.stderr.splitlines()[-1])
    )


def begun(project: Project) -> bool:
    journals = [*project.root.glob("runs/*/*/metrics.jsonl")]
    return any("train_loss" in journal.read_text() for journal in journals)


@pytest.mark.full
def test_a_sweep_gives_each_job_several_processes(fresh):
    write_grid(fresh.root, "--epochs 1 --seed 1")
    done = fresh.do("bash", "run.sh", "--gpus-per-job", "2")
    assert done.returncode == 0 and "1 of 1 jobs finished, 1 of them now" in done.stdout, done
    assert any(
        '"processes": "2"' in journal.read_text()
        for journal in fresh.root.glob("runs/*/*/metrics.jsonl")
    )
    done = fresh.do("bash", "run.sh", "--gpus-per-job", "2", "--per-gpu", "2")
    assert done.returncode == 2 and "--gpus-per-job: not with --per-gpu" in done.stderr, done
