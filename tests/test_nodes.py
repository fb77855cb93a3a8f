"""One job on two machines, started by srun of a real Slurm; the machines are network namespaces."""

import re
import subprocess

import numpy as np
import pytest
from faults import Project, ended, succeeded, wait_until
from machines import machines
from repository import REPOSITORY
from slurms import Cluster, slurm
from test_several import ALIKE, DRAWING, differences, in_64_bits, said

pytestmark = [pytest.mark.full, pytest.mark.root]

DOCUMENTED = REPOSITORY / "{{cookiecutter.project_slug}}" / "labjobs" / "docs" / "several-gpus.md"

FOUR = ("--nodes", "2", "--ntasks-per-node", "2")
TWO = ("--nodes", "2", "--ntasks-per-node", "1")


@pytest.fixture(scope="module")
def private(tmp_path_factory):
    """A folder that each machine has for itself."""
    return tmp_path_factory.mktemp("machines") / "private"


@pytest.fixture(scope="module")
def cluster(private):
    with (
        machines(["one", "two"], private.parent) as (here, found),
        slurm(gpus=0, largest_array=4, machines=found, address=here) as cluster,
    ):
        yield cluster


@pytest.fixture(scope="module")
def exact(project, tmp_path_factory):
    return in_64_bits(project.copy(tmp_path_factory.mktemp("exact") / "project"))


def run(
    project: Project, cluster: Cluster, tasks: tuple[str, ...], *flags: str
) -> "subprocess.CompletedProcess[str]":
    """`srun python run.py` with a number of tasks, to its end."""
    words = ("srun", "--overcommit", *tasks, project.env["PYTHON"], "run.py", *flags)
    return project.do(*words, **cluster.env)


def test_the_losses_are_those_of_one_process(exact, cluster, tmp_path):
    """Begun by four processes on two machines, and continued by two."""
    alone = exact.copy(tmp_path / "alone")
    job = alone.finish(*ALIKE)
    apart = exact.copy(tmp_path / "apart")
    done = run(apart, cluster, FOUR, *ALIKE, "--pause-after", "6")
    assert done.returncode == 0 and "paused: after" in said(done)[-1], done
    succeeded(run(apart, cluster, TWO, *ALIKE))
    assert differences(alone.journalled(job), apart.journalled(job)) < 1e-6
    kept, outputs = alone.outputs(job), apart.outputs(job)
    assert kept.keys() == outputs.keys()
    for name in kept:  # those that were measured add up in another order
        exact = kept[name].dtype.kind != "f"
        assert np.allclose(kept[name], outputs[name], rtol=0, atol=0 if exact else 1e-6)


@pytest.mark.long
def test_the_script_of_the_docs_goes_back_into_the_queue(fresh, cluster, tmp_path):
    """Slurm's warning makes it write a checkpoint; after a requeue it finishes."""
    (text,) = re.findall(r"#!/bin/bash.*?(?=```)", DOCUMENTED.read_text(), re.DOTALL)
    here = {
        "--ntasks-per-node 4 --gpus-per-node 4 --cpus-per-task 8": "--ntasks-per-node 2",
        "srun --cpus-per-task 8 python": f"srun {fresh.env['PYTHON']}",
        "--batch-size 512": " ".join(DRAWING),
    }
    for old, new in here.items():
        assert old in text
        text = text.replace(old, new)
    script, output = tmp_path / "job.sh", tmp_path / "output.txt"
    script.write_text(text)
    words = ("sbatch", "--parsable", f"--output={output}", str(script))
    done = ended(fresh.command(*words, **cluster.env))
    number = done.stdout.strip()
    wait_until(lambda: output.exists() and "epoch 1/" in output.read_text(), 300)
    cluster.ask("scancel", "--signal=USR1", number)
    wait_until(lambda: "Restarts=1" in cluster.ask("scontrol", "show", "job", number), 120)
    cluster.wait_until_empty()
    printed = output.read_text()
    assert "interrupted: by SIGUSR1; the same command continues it" in printed
    assert " finished: " in printed and cluster.ended(number) == "COMPLETED", printed


def test_what_goes_wrong_is_said_once(project, cluster, private):
    each = f"{project.env['PYTHON']} run.py --epochs 1 --seed $SLURM_PROCID"
    done = ended(project.command("srun", *TWO, "sh", "-c", each, **cluster.env))
    (line,) = said(done)
    assert done.returncode == 2 and "the processes of this job have different flags" in line, done
    (line,) = said(run(project, cluster, TWO, "--epochs", "many"))
    assert line == "run.py: --epochs many: must be a whole number"
    (line,) = said(run(project, cluster, TWO, "--runs-root", str(private / "runs")))
    assert "failed: process 1 has ended (there is no" in line
    assert "on two; all machines need the same folders" in line
