"""`bash run.sh --on lab` on a Slurm that is configured in another way."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import slurms
from faults import OFTEN, Project, assert_as_undisturbed, one_line, silent, succeeded, wait_until
from machines import machines
from servers import mlflow_server
from slurms import Cluster, arrays, listed, slurm
from sweeps import write_grid

pytestmark = pytest.mark.full

ENFORCED = """\
SelectTypeParameters=CR_Core_Memory
DefMemPerNode=100
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
"""


@pytest.mark.alike
def test_memory_limits_are_enforced(fresh: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job is killed without a word, and then gets more memory, which is enough."""
    text = slurms.CONFIGURATION.replace("SelectTypeParameters=CR_Core\n", ENFORCED)
    monkeypatch.setattr(slurms, "CONFIGURATION", text)
    (fresh.root / "cluster.toml").write_text('[lab]\nsystem = "slurm"\ngpus = 0\n')
    write_grid(fresh.root, "--device cpu --epochs 2 --batch-size 256")
    with slurm(gpus=0, largest_array=10) as cluster:
        fresh.env |= cluster.env
        done = silent(fresh.do("bash", "run.sh", "--on", "lab"))
        assert (
            "no comparable jobs tell the time and the memory: the cluster's limits" in done.stdout
        )
        cluster.wait_until_empty()
        ((state, about),) = listed(fresh.do("bash", "run.sh", "--list")).values()
        assert state in ("pending", "interrupted") and about == "its task was killed"
        done = silent(fresh.do("bash", "run.sh", "--on", "lab"))
        assert "\neach task has memory " in done.stdout
        arrays(done, 1)
        cluster.wait_until_empty()
        ((state, _),) = listed(fresh.do("bash", "run.sh", "--list")).values()
        assert state == "finished"


JOB = " ".join(("--device cpu --threads 1 --batch-size 256", *OFTEN))


@contextmanager
def configured(
    monkeypatch: pytest.MonkeyPatch, old: str, new: str, gpus: int = 0
) -> Iterator[Cluster]:
    """A Slurm with other lines in its configuration."""
    assert old in slurms.CONFIGURATION
    monkeypatch.setattr(slurms, "CONFIGURATION", slurms.CONFIGURATION.replace(old, new))
    with slurm(gpus=gpus, largest_array=10) as cluster:
        yield cluster


def describe(project: Project, *lines: str) -> None:
    (project.root / "cluster.toml").write_text("\n".join(('[lab]\nsystem = "slurm"', *lines)))


@pytest.mark.alike  # takes three tasks of up to two minutes each
def test_a_limit_of_two_minutes_and_preemption(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A longer limit is refused for good, which `--list` shows. With this one a job comes back,
    after each limit and after a preemption, until it has finished."""
    here = project.copy(tmp_path / "here")
    here.edit("run.py", "        model.train()\n", "        model.train()\n        time.sleep(2)\n")
    here.edit("run.py", "import sys\n", "import sys\nimport time\n")
    write_grid(here.root, f"{JOB} --epochs 40")
    alone = here.copy(tmp_path / "alone")
    alone.edit("run.py", "        time.sleep(2)\n", "        time.sleep(0)\n")
    succeeded(alone.do("bash", "run.sh"))
    new = "Default=YES PriorityTier=1 MaxTime=2"
    with configured(monkeypatch, "Default=YES PriorityTier=1", new, gpus=1) as cluster:
        here.env |= cluster.env
        describe(here, 'time = "4:00:00"')
        (array,) = arrays(here.do("bash", "run.sh", "--on", "lab"), 1)
        wait_until(lambda: "PartitionTimeLimit" in here.do("bash", "run.sh", "--list").stdout, 60)
        cluster.ask("scancel", array)
        describe(here, 'time = "0:02:00"')
        (array,) = arrays(here.do("bash", "run.sh", "--on", "lab"), 1)
        wait_until(lambda: [*here.root.glob("runs/*/*/last.pt")], 120)
        cluster.preempt()
        wait_until(lambda: cluster.states() == ["PENDING"], 60)
        cluster.wait_until_empty()
        assert cluster.restarts()[f"{array}_0"] >= 2
        ((job, (state, _)),) = listed(here.do("bash", "run.sh", "--list")).items()
    (other,) = listed(alone.do("bash", "run.sh", "--list"))
    assert state == "finished"
    assert_as_undisturbed(here, job, alone, other)


@pytest.mark.alike
def test_two_partitions(project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """None is the default: sbatch says so, and a key names one, or an option the other."""
    here = project.copy(tmp_path / "here")
    write_grid(here.root, f"{JOB} --epochs 1")
    with configured(monkeypatch, "Default=YES", "Default=NO", gpus=1) as cluster:
        here.env |= cluster.env
        describe(here)
        said = one_line(here.do("bash", "run.sh", "--on", "lab"), 2)
        assert said.startswith("run.sh: sbatch: error: ") and "No partition specified" in said
        describe(here, 'partition = "high"')
        ids = arrays(here.do("bash", "run.sh", "--on", "lab"), 1)
        write_grid(here.root, f"{JOB} --epochs 1 --seed 1")
        ids += arrays(here.do("bash", "run.sh", "--on", "lab", "--", "--partition=main"), 1)
        cluster.wait_until_empty()
        used = [cluster.ask("scontrol", "show", "job", array) for array in ids]
        assert [re.findall(r"Partition=(\w+)", each) for each in used] == [["high"], ["main"]]
        done = here.do("bash", "run.sh", "--list")
    assert [state for state, _ in listed(done).values()] == ["finished"]


@pytest.mark.alike
@pytest.mark.root
def test_nodes_without_network(fresh: Project, tmp_path: Path) -> None:
    """They reach Slurm, but not the tracking store: the check says so, jobs finish, and the login
    node delivers what they have written."""
    write_grid(fresh.root, f"{JOB} --epochs 1", f"{JOB} --epochs 1 --seed 1")
    with (
        machines(["one"], tmp_path / "machines") as (address, found),
        slurm(gpus=0, largest_array=4, machines=found, address=address) as cluster,
        mlflow_server(f"sqlite:///{tmp_path}/store.db") as server,
    ):
        fresh.env |= cluster.env | {"MLFLOW_TRACKING_URI": server.uri}
        describe(fresh, "gpus = 0")
        check = fresh.do("python", "jobs.py", "cluster", "check", "lab")
        assert "\nnot  store: " in check.stdout, check
        arrays(fresh.do("bash", "run.sh", "--on", "lab"), 2)
        cluster.wait_until_empty()
        states = listed(fresh.do("bash", "run.sh", "--list"))
        assert {state for state, _ in states.values()} == {"unsent"}
        succeeded(fresh.do("python", "jobs.py", "sync"))
        states = listed(fresh.do("bash", "run.sh", "--list"))
        assert {state for state, _ in states.values()} == {"finished"}
