"""`--profile`: the report says where the time goes, and what is to be changed first."""

import json
import re

import pytest
import torch
from faults import job_of, same, succeeded

SLOW = '''

class Slow(Dataset):
    """Images that take their time."""

    def __init__(self, examples):
        self.images, self.labels = examples.tensors

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        time.sleep(0.001)
        return self.images[index], int(self.labels[index])
'''
FLAGS = ("--epochs", "3", "--loader", "workers", "--workers", "1", "--profile", "10")


@pytest.fixture(scope="module")
def folder(project):
    """The folder of a job that was profiled, whose data is slow."""
    project.edit("data.py", "import numpy as np\n", "import time\n\nimport numpy as np\n")
    project.edit("data.py", "\n\ndef digits(", f"{SLOW}\n\ndef digits(")
    images = "TensorDataset(images, rows[:, -1].long())"
    project.edit("data.py", images, f"Slow({images})")
    done = succeeded(project.run(*FLAGS))
    folder = project.folder(job_of(done))
    assert f"profile: {folder.relative_to(project.root)}/profile.txt\n" in done.stdout
    assert "Profiler" not in done.stderr and "gpuGetDeviceCount" not in done.stderr
    return folder


def test_of_a_starved_job_the_loader_is_to_be_changed_first(folder):
    report = (folder / "profile.txt").read_text()
    (advice,) = re.findall(r"^  1\. +(\d+)%  the loop waits for data: (.*)$", report, re.MULTILINE)
    assert advice[1].startswith("more --workers")
    rows = re.findall(r"^ +[\d.]+ +([\d.]+)%  ([a-z ]+)$", report, re.MULTILINE)
    parts = {part: float(percent) for percent, part in rows}
    in_training = {p: n for p, n in parts.items() if p != "evaluation"}  # which waits as well
    assert max(in_training, key=in_training.get) == "waiting for data" and int(advice[0]) > 0
    assert sum(parts.values()) == pytest.approx(100, abs=1)
    assert all(parts[part] for part in ("forward", "backward", "optimizer", "evaluation"))
    assert "aten::" in report


def test_the_trace_has_the_parts_and_the_run_has_the_files(project, folder):
    trace = json.loads((folder / "profile.json").read_text())
    names = {event.get("name", "") for event in trace["traceEvents"]}
    assert {"forward", "backward", "aten::linear"} <= names
    (run,) = project.runs(folder.parent.name)
    kept = {file.name for file in project.root.glob(f"mlruns/{run[0]}/artifacts/*")}
    assert {"profile.txt", "profile.json"} <= kept


@pytest.mark.full
def test_it_changes_no_result(project, folder):
    plain = project.copy(folder.parent.parent.with_name("plain"))
    succeeded(plain.run(*FLAGS[:-2]))
    best, watched = (
        torch.load(root / "best.pt") for root in (plain.folder(folder.parent.name), folder)
    )
    assert best["models"]["model"] and same(best, watched)
