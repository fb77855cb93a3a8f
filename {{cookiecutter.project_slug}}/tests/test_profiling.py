"""`--profile`: the report names what is to be changed, and its line."""

import json
import re
from pathlib import Path

import pytest
import torch
from conftest import Project

import run
from engine.cli import parser as cli
from engine.job.folder import Job
from engine.job.terminal import log
from engine.profiling.profile import Profile
from engine.training.precision import Precision

SLOW = '''

class Slow(torch.utils.data.Dataset):
    """Images that take their time."""

    def __init__(self, images):
        self.images, self.labels = images.tensors

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        time.sleep(0.001)
        return self.images[index], int(self.labels[index])
'''
FLAGS = ("--epochs", "3", "--loader", "workers", "--workers", "1", "--profile", "10")


def change(file: Path, changes: dict[str, str]) -> None:
    """Replace words, each of which is in a file once."""
    text = file.read_text()
    for old, new in changes.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    file.write_text(text)


@pytest.fixture(scope="module")
def folder(project: Project) -> Path:
    """The folder of a job that was profiled: its data is slow, and each step reads its loss."""
    digits = "in_memory(images, rows[:, -1])"
    changes = {
        "import numpy as np\n": "import time\n\nimport numpy as np\n",
        "\n\ndef digits(": f"{SLOW}\n\ndef digits(",
        f"Source({digits}": f"Source(Slow({digits})",
    }
    change(project.root / "data.py", changes)
    step = "                scaler.update()\n"
    change(project.root / "run.py", {step: f"{step}                loss.item()\n"})
    done = project.run(*FLAGS)
    assert done.returncode == 0, done.stderr
    (folder,) = project.root.glob("runs/*")
    assert f"profile: runs/{folder.name}/profile.txt\n" in done.stdout
    assert "Profiler" not in done.stderr and "gpuGetDeviceCount" not in done.stderr
    return folder


def test_of_a_starved_job_the_loader_is_to_be_changed_first(folder: Path) -> None:
    report = (folder / "profile.txt").read_text()
    (advice,) = re.findall(r"^  1\. +(\d+)%  the loop waits for data: (.*)$", report, re.MULTILINE)
    assert int(advice[0]) > 50
    assert advice[1].startswith("more --workers")
    assert re.search(r"^ +[\d.]+ +\d\d.\d%  waiting for data$", report, re.MULTILINE)


def test_what_reads_a_tensor_is_named_with_its_line(project: Project, folder: Path) -> None:
    lines = (project.root / "run.py").read_text().splitlines()
    place = f"run.py:{1 + lines.index('                loss.item()')}"
    report = (folder / "profile.txt").read_text()
    assert f"{place} reads a tensor in every step (item)" in report
    assert re.search(rf"^  {place}  item, 10 times", report, re.MULTILINE)


def test_the_parts_of_a_step(folder: Path) -> None:
    report = (folder / "profile.txt").read_text()
    table = report.split("Where the time goes\n")[1].split("\n\n")[0]
    shares = {part: float(share) for share, part in re.findall(r"([\d.]+)%  (.+)", table)}
    parts = {"waiting for data", "forward", "backward", "optimizer", "loss", "logging"}
    assert parts | {"augmentation", "checkpoints", "evaluation"} <= set(shares)
    assert sum(shares.values()) == pytest.approx(100, abs=1)


def test_the_trace_has_the_lines_and_the_run_has_the_files(project: Project, folder: Path) -> None:
    trace = json.loads((folder / "profile.json").read_text())
    names = {event.get("name", "") for event in trace["traceEvents"]}
    assert any(name.startswith("run.py:") for name in names) and "aten::linear" in names
    (run,) = project.runs(folder.name)
    kept = {file.name for file in project.root.glob(f"mlruns/{run[0]}/artifacts/*")}
    assert kept == {"profile.txt", "profile.json", "predictions.npz"}


def test_a_job_with_too_few_steps_says_so(caplog: pytest.LogCaptureFixture) -> None:
    job = Job(cli.parse(run.Settings, ["--profile", "50"]))
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    log.addHandler(caplog.handler)
    with Profile(job, [], model, optimizer, Precision("fp32", torch.device("cpu"))) as profile:
        batches = [(torch.zeros(2), number) for number in range(21)]
        assert list(profile.steps(iter(batches))) == batches
    log.removeHandler(caplog.handler)
    assert caplog.messages == ["--profile: needs 110 steps, the job had 21"]
