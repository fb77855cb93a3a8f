"""Jobs whose weights are divided among processes (--shard), started by torchrun, on CPUs."""

import re

import pytest
import torch
from faults import Project, ended, job_of, one_line, succeeded
from sweeps import write_grid
from test_damaged_checkpoints import spoil
from test_several import differences, in_64_bits, said, together

ALIKE = (
    *("--batch-size", "63", "--eval-every", "8", "--log-every", "1", "--schedule", "constant"),
    *("--steps", "24", "--accumulate", "3", "--clip-norm", "1", "--ema", "0.9"),
)
"""A job without random numbers but for the order of the examples; slices and parts are uneven."""

SAVING = (*ALIKE, "--checkpoint-minutes", "0.00001")
"""The same with a checkpoint after each step."""

BLOCK = "nn.Sequential(nn.Linear(256, 251), nn.ReLU(), nn.Linear(251, 256))"

KILLED = '''
import os
from pathlib import Path

from labjobs.training import checkpoints

writes = [0]
save = checkpoints.save


def save_or_die(path: Path, *arguments: object) -> None:
    """End process 0 in the middle of a checkpoint."""
    writes[0] += path.name == "last.pt"
    if writes[0] == int(os.environ.get("DIES_AT", "0")) > 0:
        os.kill(os.getpid(), 9)
    save(path, *arguments)


checkpoints.save = save_or_die
Metrics = dict[str, float]
'''


@pytest.fixture(scope="module")
def exact(project):
    in_64_bits(project)
    project.edit("run.py", "\nMetrics = dict[str, float]\n", KILLED)
    project.edit("models.py", "nn.Linear(256, 256),", f"{BLOCK},\n            {BLOCK},")
    return project


@pytest.fixture(scope="module")
def one(exact, tmp_path_factory):
    """The same job in one process."""
    alone = exact.copy(tmp_path_factory.mktemp("one") / "project")
    done = succeeded(alone.run(*ALIKE))
    return alone, job_of(done)


@pytest.mark.full
def test_the_losses_are_those_of_one_process_and_each_holds_its_part(one, tmp_path):
    alone, job = one
    divided = alone.copy(tmp_path / "divided")
    succeeded(ended(together(divided, 2, *ALIKE, "--shard")))
    assert len(divided.journalled(job)["train_loss"]) == 24
    assert differences(alone.journalled(job), divided.journalled(job)) < 1e-6
    assert_same_weights(alone, divided, job)

    log = (divided.folder(job) / "log.txt").read_text()
    told = re.search(r"--shard: of (\S+) MB of state the processes hold (.*) MB", log)
    assert told
    held = [float(each) for each in told[2].split(", ")]
    # Four tensors for each weight: itself, its EMA's and Adam's two.
    weights = sum(each.nbytes for each in alone.weights(job).values())
    assert float(told[1]) == pytest.approx(4 * weights / 1e6, rel=0.01)
    assert len(held) == 2 and sum(held) == pytest.approx(float(told[1]), rel=0.02)
    assert max(held) < 1.02 * float(told[1]) / 2


def assert_same_weights(alone: Project, divided: Project, job: str) -> None:
    """best.pt is that of one process: whole tensors, which differ by rounding."""
    expected, found = alone.weights(job), divided.weights(job)
    assert expected.keys() == found.keys()
    for name, weight in expected.items():
        assert type(found[name]) is torch.Tensor
        assert torch.allclose(found[name], weight, rtol=0, atol=1e-5)


@pytest.mark.long
def test_a_checkpoint_of_four_is_continued_by_two_and_by_one(one, tmp_path):
    alone, job = one
    divided = alone.copy(tmp_path / "divided")
    divided.env["DIES_AT"] = "10"
    done = ended(together(divided, 4, *SAVING, "--shard"))
    assert said(done) == [f"job {job} failed: process 0 has ended"]
    steps = len(divided.journalled(job)["train_loss"])
    assert 8 <= steps < 24

    divided.env["DIES_AT"] = "0"
    done = ended(together(divided, 2, *SAVING, "--shard", "--pause-after", "14"))
    assert done.returncode == 0 and "paused: after 14 steps" in said(done)[-1], done
    spoil(divided.folder(job) / "last.pt")
    done = ended(together(divided, 4, *SAVING, "--shard", "--pause-after", "18"))
    assert done.returncode == 0 and "paused: after 18 steps" in said(done)[-1], done
    log = (divided.folder(job) / "log.txt").read_text()
    assert "last.pt is damaged" in log and "continuing from previous.pt" in log

    done = divided.run(*SAVING, "--pause-after", "20")  # without --shard
    assert done.returncode == 0, done
    done = ended(together(divided, 2, *SAVING, "--shard"))  # and again with it
    assert done.returncode == 0, done
    assert differences(alone.journalled(job), divided.journalled(job)) < 1e-6
    assert_same_weights(alone, divided, job)


def test_without_torchrun_it_is_refused(exact):
    line = one_line(exact.run("--shard"), 2)
    assert line.startswith("run.py: --shard: needs several processes: torchrun")


REFUSED = {
    "--compile on": "--shard: not with --compile on",
    "--batch-size 358": "last batch has 1 example, fewer than 2 processes",
}


@pytest.mark.full
@pytest.mark.parametrize("flags", REFUSED)
def test_what_does_not_work_is_refused(exact, flags):
    done = ended(together(exact, 2, "--steps", "2", "--shard", *flags.split()))
    (line,), why = said(done), REFUSED[flags]
    assert why in line
    assert "exitcode  : 2" in done.stdout + done.stderr


@pytest.mark.full
def test_a_network_with_convolutions_is_divided(exact, tmp_path):
    """Whose weights are in the layout channels last, and whose blocks compute again."""
    project = exact.copy(tmp_path / "convolutions")
    flags = ("--steps", "2", "--eval-every", "2", "--model", "convnet", "--recompute")
    succeeded(ended(together(project, 2, "--shard", *flags)))


@pytest.mark.long
def test_a_network_that_cannot_be_divided_is_refused(exact, tmp_path):
    project = exact.copy(tmp_path / "scalar")
    project.edit(
        "models.py",
        "        super().__init__()\n        self.layers",
        "        super().__init__()\n        self.scale = nn.Parameter(torch.ones(()))\n"
        "        self.layers",
    )
    (line,) = said(ended(together(project, 2, "--steps", "2", "--shard")))
    assert "--shard: model.network.scale is a single number" in line
    write_grid(project.root, "--steps 2 --shard", "--steps 2 --shard --optimizer muon")
    done = project.do("bash", "run.sh", "--gpus-per-job", "2")
    scale, muon, counted = done.stderr.splitlines()
    assert "--shard: model.network.scale is a single number" in scale and "Muon needs" in muon
    assert counted == "run.sh: 2 of 2 jobs are wrong; nothing was started"

    project = exact.copy(tmp_path / "late")
    project.edit("run.py", "    job.init(model=model)  # --init-from\n", "")
    (line,) = said(ended(together(project, 2, "--steps", "2", "--shard")))
    assert "--shard: run.py has to call job.init(…) with each model" in line
