"""Checkpoint files: whole or absent, data and no code, written beside training."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from engine.errors import JobError
from engine.paths import CODE
from engine.training import checkpoints, devices
from torch import nn

CPU = torch.device("cpu")


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    weights, others = checkpoints.weights(model), {"epoch": 3, "settings": {"lr": 0.1, "note": "é"}}
    checkpoints.save(tmp_path / "best.pt", {"model": weights, **others})
    nn.init.zeros_(model[0].weight)  # what was taken stays as it was
    loaded = checkpoints.load(tmp_path / "best.pt", CPU)
    for name, tensor in loaded.pop("model").items():
        assert torch.equal(tensor, weights[name])
    assert weights["0.weight"].all()
    assert loaded == others
    assert torch.load(tmp_path / "best.pt", weights_only=True)["epoch"] == 3


class Code:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def test_a_checkpoint_with_code_in_it_is_refused_and_does_not_run(tmp_path):
    content = {"model": Code(f"touch '{tmp_path}/ran'")}
    torch.save(content, tmp_path / "plain.pt")
    with pytest.raises(checkpoints.Damaged):
        checkpoints.load(tmp_path / "plain.pt", CPU)
    checkpoints.save(tmp_path / "sealed.pt", content)
    with pytest.raises(
        JobError, match=r"holds more than plain data and was not opened: delete it$"
    ):
        checkpoints.load(tmp_path / "sealed.pt", CPU)
    assert not (tmp_path / "ran").exists()


def test_a_failed_write_leaves_the_old_checkpoint_whole(tmp_path):
    old, new = tmp_path / "old.pt", tmp_path / "new.pt"
    checkpoints.save(old, {"epoch": 1})
    for path in (old, new):
        with pytest.raises(Exception, match=r"pickle|local object"):
            checkpoints.save(path, {"model": torch.ones(1000), "hook": lambda: None})
    assert checkpoints.load(old, CPU) == {"epoch": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["old.pt"]


WRITING = """
import sys, torch
from pathlib import Path
from engine.training.writer import Writer

weights = torch.ones(10_000_000)
before = weights.isfinite().all()  # training's own threads
count = lambda: len(list(Path("/proc/self/task").iterdir()))
alone, writer = count(), Writer()
models = {"model": {"w": weights, "half": weights.bfloat16()[:9]}}
writer.write(Path(sys.argv[1]), models, models)
writer.act(lambda: print(count() - alone))
writer.close()
"""


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
def test_writing_a_checkpoint_starts_no_threads_beside_those_of_training(tmp_path):
    env = os.environ | {"OMP_NUM_THREADS": "4"}
    command = [sys.executable, "-c", WRITING, tmp_path / "last.pt"]
    done = subprocess.run(command, cwd=CODE, env=env, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("1\n", "")  # the one that writes
    assert (tmp_path / "last.pt").exists()


def test_a_device_that_runs_ahead_is_waited_for_once(monkeypatch):
    waits = []
    monkeypatch.setattr(devices, "runs_ahead", lambda device: True)
    monkeypatch.setattr(devices, "wait_for_stream", waits.append)
    states = {"model": nn.Linear(3, 2).state_dict(), "more": [torch.ones(2), {"at": torch.ones(1)}]}
    copy = checkpoints.on_host(states)
    assert waits == [torch.device("cpu")]
    assert torch.equal(copy["model"]["weight"], states["model"]["weight"])
    assert copy["model"]["weight"].data_ptr() != states["model"]["weight"].data_ptr()
