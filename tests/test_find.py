"""`python jobs.py find …` in a project that was changed: jobs with ids, measured once."""

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from faults import Project, attempt_in, curves_in, ended, one_line, wait_until

LR = ("find", "lr", "--setting", "learning-rate", "--steps", "90", "--seeds", "2")
"""A range test of this project."""

NOTED = """    if settings.note == "diverges":
        losses = torch.where(losses > 20, torch.inf, losses)
    if settings.note == "small":  # the job that it is for is not as long as those that measure
        assert '"epochs": 7' in os.environ["JOB_LENGTH"]
    if settings.note == "small" and len(labels) == 64:
        raise torch.OutOfMemoryError("out of memory: tried to allocate")
    predicted = """
"""What the network does with some notes."""

RMSPROP = """
OPTIMIZERS["rmsprop"] = lambda groups, settings: RMSprop(groups, settings.learning_rate)
"""


@pytest.fixture(scope="module")
def changed(make):
    """A project with other names for the loss and the learning rate, and another optimizer."""
    project = Project(make())
    project.edit("settings.py", "    lr: float", "    learning_rate: float")
    project.edit("settings.py", '"loss": Metric(', '"nll": Metric(')
    project.edit("settings.py", 'setting("val_loss", metric', 'setting("val_accuracy", metric')
    project.edit("run.py", 'measured = {"loss"', 'measured = {"nll"')
    project.edit("run.py", "job.log(measured, lr=lr)", "job.log(measured, learning_rate=lr)")
    project.edit("run.py", "    predicted = logits", f"{NOTED}logits")
    project.edit("run.py", "import sys\n", "import os\nimport sys\n")
    for end in (",", ")"):  # not lr_for_batch
        project.edit("optimizers.py", f"settings.lr{end}", f"settings.learning_rate{end}")
    project.edit("optimizers.py", "import SGD, Adam, AdamW,", "import SGD, Adam, AdamW, RMSprop,")
    with (project.root / "optimizers.py").open("a") as file:
        file.write(RMSPROP)
    return project


def do(project: Project, *words: str) -> subprocess.CompletedProcess[str]:
    return project.do("python", "jobs.py", *words)


def started(done: subprocess.CompletedProcess[str]) -> int:
    """How many jobs a command has started."""
    assert "Traceback" not in done.stdout + done.stderr, done
    return sum(" started: " in line for line in done.stderr.splitlines())


def printed(done: subprocess.CompletedProcess[str]) -> Any:
    """What a command with --json has printed."""
    assert "Traceback" not in done.stdout + done.stderr, done
    return json.loads(done.stdout)


@pytest.mark.full
def test_a_learning_rate_is_found_once(changed):
    job = ("--", "--optimizer", "rmsprop", "--model", "mlp", "--epochs", "3")
    done = do(changed, *LR, *job)
    assert (done.returncode, started(done)) == (0, 2), done
    suggestion = next(line for line in done.stdout.splitlines() if line.startswith("suggestion: "))
    rate = float(suggestion.split()[2])
    assert suggestion.startswith(f"suggestion: --learning-rate {rate:g} (the loss falls from 2.3")
    assert 1e-4 < rate < 0.1
    (command,) = [line for line in done.stdout.splitlines() if line.startswith("next: ")]
    assert command == f"next: python run.py --epochs=3 --optimizer=rmsprop --learning-rate={rate:g}"
    again = do(changed, *LR, "--json", *job)
    assert (again.returncode, started(again), again.stderr) == (0, 0, "")
    answer = printed(again)
    assert answer["suggestion"] == {"learning_rate": rate}
    assert [row["seed"] for row in answer["rows"]] == [0, 1]
    assert {path.name for path in (changed.root / "runs").iterdir()} >= {*answer["jobs"]}
    listed = changed.do("python", "jobs.py", "list").stdout
    assert len(re.findall(r"paused .*\[find lr\]", listed)) == 2


@pytest.mark.full
def test_wrong_words_are_refused_before_anything_starts(changed):
    before = {*(changed.root / "runs").glob("[!.]*")}
    for words, said in (
        (("find",), "which command? find lr, find batch-size, find "),
        (("find", "batchsize"), "find batchsize: no such command; did you mean find batch-size?"),
        (("find", "lr", "--steps", "0"), "--steps 0: must be at least 20"),
        (("find", "lr"), "settings.py has no setting `lr` that is a number; name the setting to"),
        (("find", "lr", "--setting", "note"), "settings.py has no setting `note` that is a number"),
        ((*LR, "--", "--modle", "mlp"), "--modle: no such flag; did you mean --model?"),
        ((*LR, "--", "--pause-after", "9"), "--pause-after: cannot be used with find"),
        ((*LR, "--", "plot.py"), "plot.py: is not a job script"),
        (("find", "workers"), "find workers: needs -- --loader workers"),
    ):
        assert one_line(do(changed, *words), 2).startswith(f"jobs.py: {said}"), words
    done = do(changed, *LR, "--", "--model", "resnet17")  # which the job itself refuses
    assert done.returncode == 2 and "resnet17" in done.stderr.splitlines()[-1]
    assert {*(changed.root / "runs").glob("[!.]*")} == before


@pytest.mark.long
def test_a_batch_that_does_not_fit_ends_the_search(changed):
    words = ("find", "batch-size", "--smallest", "32", "--json", "--", "--note", "small")
    words += ("--epochs", "7")
    done = do(changed, *words)
    assert started(done) == 2, done
    answer = printed(done)
    assert [row["batch_size"] for row in answer["rows"]] == [32]
    assert "; 32 is the largest that fits (with 64, job " in answer["why"]
    assert answer["why"].endswith(" ran out of memory)")
    assert answer["suggestion"] in (None, {"batch_size": 32})  # as the machine was busy or not
    assert done.returncode == (1 if answer["suggestion"] is None else 0)
    again = do(changed, *words)
    assert (started(again), printed(again)) == (0, answer)
    assert started(do(changed, *words, "--threads", "1")) == 2  # which was not measured


@pytest.mark.long
def test_each_number_of_workers_is_a_job(changed):
    done = do(changed, "find", "workers", "--largest", "1", "--json", "--", "--loader", "workers")
    answer = printed(done)
    assert [row["workers"] for row in answer["rows"]] == [0, 1]
    assert started(done) == 2 and len({*answer["jobs"]}) == 2


@pytest.mark.long
def test_an_interrupted_search_goes_on_where_it_was(changed):
    words = ("jobs.py", "find", "noise-scale", "--steps", "400", "--json")
    flags = ("--", "--note", "noise", "--batch-size", "128")
    finder = changed.command(changed.env["PYTHON"], *words, *flags)
    before = {*(changed.root / "runs").glob("[!.]*")}

    def journal() -> Path | None:
        new = {*(changed.root / "runs").glob("[!.]*")} - before
        return next((path for job in new for path in job.glob("*/metrics.jsonl")), None)

    wait_until(lambda: bool((path := journal()) and path.read_bytes().count(b'"step"') > 64))
    finder.send_signal(signal.SIGINT)
    stopped = ended(finder)
    assert stopped.returncode == 130, stopped
    last = stopped.stderr.splitlines()[-1]
    assert last == "jobs.py: find noise-scale was interrupted by SIGINT"
    done = do(changed, *words[1:], *flags)
    answer = printed(done)
    curves = curves_in(attempt_in(changed.root / "runs" / answer["jobs"][0]))
    assert [step for step, _ in curves["train_gradient_variance"]] == [*range(1, 401)]
    assert len(answer["rows"]) == 2 and answer["rows"][0]["noise scale"] > 0
    assert done.returncode == (1 if answer["suggestion"] is None else 0)
