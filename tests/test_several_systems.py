"""One grid on several systems at once: a cluster, this machine, and a workstation over ssh."""

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from batch_stand_ins import stand_in
from faults import OFTEN, Project, assert_as_undisturbed, ended, kill, silent, succeeded, wait_until
from gridengines import grid_engine
from slurms import HELD, Cluster, listed, slurm
from sweeps import Lab, assert_after_their_inputs, light, write_grid
from workstations import Workstation, workstations

pytestmark = pytest.mark.full

JOB = " ".join(("--device cpu --threads 1 --epochs 10 --batch-size 256", *OFTEN))
SHARED = ("bash", "run.sh", "--on", "lab,local", "--per-gpu", "1")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with slurm(gpus=1, largest_array=100) as cluster:
        yield cluster


@pytest.fixture
def lab(lab: Lab, cluster: Cluster) -> Lab:
    """Jobs have no GPU here, and one each on Slurm."""
    lab.env |= cluster.env
    describe(lab.project, "slurm")
    return lab


def describe(project: Project, system: str, *more: str) -> None:
    lines = ("[lab]", f'system = "{system}"', *more)
    (project.root / "cluster.toml").write_text("\n".join(lines) + "\n")


def test_jobs_are_taken_back(lab: Lab, cluster: Cluster) -> None:
    """A cluster that starts nothing delays nothing, and a job that is derived from another waits
    for that alone."""
    lab.write_analysis()
    lab.write_lines(
        *(f"job {light()(n)}" for n in range(3)), f'job analyse.py --first "$(job {light()(3)})"'
    )
    with cluster.closed():
        done = ended(lab.start(*SHARED[2:]))
        assert cluster.states() == []
    assert "3 jobs submitted to Slurm as " in silent(done).stdout
    assert done.stdout.endswith("5 of 5 jobs finished, 5 of them now\n")
    assert {interval.device for interval in lab.intervals()} == {""}
    assert_after_their_inputs(lab, 1)


def test_tasks_that_end_early(lab: Lab) -> None:
    """Where tasks fail before their jobs begin, these run here, and are not submitted again."""
    describe(lab.project, "slurm", 'setup = ["false"]')
    lab.write_grid(*map(light(seconds=3), range(3)))
    done = silent(lab.sweep(*SHARED[2:]))
    early = re.findall(r"\] job (\w+): its task ended before its first checkpoint; it", done.stdout)
    assert len({*early}) == len(early) == 2
    assert done.stdout.count("submitted to") == 1
    assert done.stdout.endswith("3 of 3 jobs finished, 3 of them now\n")


def test_ctrl_c_ends_all_tasks(lab: Lab, cluster: Cluster) -> None:
    """The same command goes on with what is left."""
    lab.write_grid(*map(light(seconds=5), range(6)))
    sweep = lab.start(*SHARED[2:])
    wait_until(lambda: len([*lab.project.root.glob("runs/*/*/ran")]) == 2, 60)
    os.killpg(sweep.pid, signal.SIGINT)
    stopped = ended(sweep)
    assert stopped.returncode == 130, stopped
    assert "tasks cancelled on Slurm, of " in stopped.stdout
    assert stopped.stdout.endswith("; 2 interrupted, 4 not started\n")
    cluster.wait_until_empty()
    assert len(lab.intervals()) < 6
    done = lab.sweep(*SHARED[2:])
    assert silent(done).stdout.endswith(" of them now\n") and "6 of 6 jobs finished" in done.stdout


@pytest.mark.parametrize("title", ["PBS", "LSF", "SGE"])
def test_jobs_are_taken_back_from(project: Project, tmp_path: Path, title: str) -> None:
    """As from Slurm."""
    lab = Lab(project, tmp_path, gpus=0)
    lab.write_grid(*map(light(), range(3)))
    describe(lab.project, "gridengine" if title == "SGE" else title.lower())
    with closed(title, tmp_path / "system") as env:
        lab.env |= env | {"PATH": f"{tmp_path}/system:{lab.env['PATH']}"}
        done = silent(ended(lab.start(*SHARED[2:])))
    assert f"2 jobs submitted to {title} as " in done.stdout
    assert done.stdout.endswith("3 of 3 jobs finished, 3 of them now\n")


@contextmanager
def closed(title: str, folder: Path) -> Iterator[dict[str, str]]:
    """Variables of the environment for a system that starts nothing."""
    if title == "SGE":
        with grid_engine(slots=1, largest_array=9) as cluster, cluster.closed():
            yield cluster.env
            assert cluster.states() == []
    else:
        with stand_in(folder) as system:
            (folder / "closed").touch()
            yield system.env
            wait_until(system.is_empty)


@pytest.fixture
def here(project: Project, cluster: Cluster, tmp_path: Path) -> Project:
    """A project whose jobs train, and wait after their first epoch while `hold` is there."""
    (tmp_path / "home").mkdir()
    here = project.copy(tmp_path / "home" / "project")
    text = HELD.replace('os.environ["CUDA_VISIBLE_DEVICES"]', '""').replace(
        'os.environ["OMP_NUM_THREADS"]', '""'
    )
    text = text.replace('"hold"', f'"{tmp_path}/hold"')
    here.edit_loop("        model.train()\n", text)
    describe(here, "slurm")
    here.env |= cluster.env | {"PATH": f"{tmp_path}:{here.env['PATH']}", "HOST_SECONDS": "20"}
    return here


def places(project: Project, job: str) -> list[str]:
    """Where a job has been started, one after another."""
    return re.findall(r"started on (\w+)", (project.folder(job) / "output.txt").read_text())


@pytest.mark.long
@pytest.mark.root
def test_three_systems(
    here: Project, cluster: Cluster, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    """Whoever is free takes the next job, while tasks are preempted, the host goes away and jobs
    are killed: each ends once, with the bits of an undisturbed one."""
    count = int(pytestconfig.getoption("--host-jobs"))
    write_grid(here.root, *(f"{JOB} --seed {seed}" for seed in range(count)))
    alone = here.copy(tmp_path / "alone")
    succeeded(alone.do("bash", "run.sh"))
    chance = random.Random(count)
    with workstations(["gpu1"], tmp_path, tmp_path / "home") as (host,):
        host.start()
        command = (*SHARED, "--hosts", "gpu1", "--retries", "9")
        sweep = here.command(*command)
        wait_until(lambda: any(here.root.glob("runs/*/*/output.txt")), 300)
        for _ in range(count // 2):
            time.sleep(chance.uniform(0, 10))
            if sweep.poll() is None:
                disturb(chance, cluster, host)
        done = ended(sweep)
        assert done.returncode in (0, 3) and "Traceback" not in done.stdout + done.stderr, done
        succeeded(here.do(*command))
    jobs = listed(here.do("bash", "run.sh", "--list"))
    assert {*jobs.values()} == {("finished", "")}
    each = [places(here, job) for job in jobs]
    assert {place for places in each for place in places} == {"cpu", "gpu1", "vm"}
    for job in jobs:
        assert_as_undisturbed(here, job, alone, job)


def disturb(chance: random.Random, cluster: Cluster, host: Workstation) -> None:
    """Preempt a task, switch the host off and on again, or kill a job."""
    match chance.choice(["task", "task", "host", "job"]):
        case "task":
            cluster.preempt()
        case "host":
            host.switch_off()
            host.plug("up")
            host.start()
        case "job":
            asked = ["pgrep", "-f", r"run\.py .*--threads 1"]
            pids = subprocess.run(asked, capture_output=True).stdout.split()
            for pid in pids and [chance.choice(pids)]:
                kill(int(pid))
