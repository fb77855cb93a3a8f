"""`bash run.sh --slurm`, with a real Slurm on this machine."""

import json
import os
import re
import shutil
import signal
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from faults import Project, assert_as_undisturbed, one_line, silent, wait_until
from slurms import HELD, PAUSE, Cluster, arrays, listed, slurm
from sweeps import Lab, assert_after_their_inputs, assert_one_at_a_time, light, write_grid

pytestmark = pytest.mark.full

ARRAY = 4
"""Tasks of an array, at most."""


@pytest.fixture(scope="module")
def cluster():
    with slurm(gpus=2, largest_array=ARRAY) as cluster:
        yield cluster


@pytest.fixture
def lab(lab, cluster):
    lab.env |= cluster.env
    return lab


def folders(root: Path) -> list[Path]:
    return list((root / ".sweeps").iterdir())


def test_jobs_that_train(
    project: Project, cluster: Cluster, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    """One fails, others are preempted by a warning, by TERM alone and at their time limit: in the
    end all is as after `bash run.sh`."""
    here = project.copy(tmp_path / "here")
    count = int(pytestconfig.getoption("--slurm-jobs")) - 1
    grid = [f"--device cpu --epochs 10 --batch-size 256 --seed {seed}" for seed in range(count)]
    write_grid(here.root, *grid, "--device cpu --note fails")
    here.edit_loop("        model.train()\n", HELD)
    there = here.copy(tmp_path / "there")
    local = {"CUDA_VISIBLE_DEVICES": "0,1", "GPU_LOCKS": str(tmp_path / "locks")}
    assert here.do("bash", "run.sh", **local).returncode == 1
    *jobs, failed = disturbed(there, cluster)
    states = listed(there.do("bash", "run.sh", "--list"))
    assert states.pop(failed) == ("failed", "KeyError: 'no'")
    assert Counter(state for state, _ in states.values()) == {"finished": count}
    for job in jobs:
        assert_as_undisturbed(there, job, here, job)
    assert [status for _, status in there.runs(failed)] == ["FAILED"]
    devices = "".join((there.folder(job) / "devices").read_text() for job in jobs)
    assert {*devices.splitlines()} == {"0 1", "1 1"}


def disturbed(there: Project, cluster: Cluster) -> list[str]:
    """Hand the grid to Slurm and disturb three of its jobs; all jobs, once they have ended."""
    there.env |= cluster.env
    del there.env["OMP_NUM_THREADS"]
    (there.root / "hold").touch()
    jobs = list(listed(there.do("bash", "run.sh", "--list")))
    arrays(there.do("bash", "run.sh", "--slurm", "--", "--time=30"), len(jobs))

    def wait_until_two_are_held(restarts: int) -> None:
        wait_until(lambda: sum(cluster.restarts().values()) == restarts, 600, PAUSE)
        wait_until(lambda: len([*there.root.glob("runs/*/*/held")]) == 2, 600, PAUSE)

    wait_until_two_are_held(restarts=0)
    states = [state for state, _ in listed(there.do("bash", "run.sh", "--list")).values()]
    assert states == ["running"] * 2 + ["queued"] * (len(jobs) - 2)
    again = silent(there.do("bash", "run.sh", "--slurm"))
    assert again.stdout == f"nothing submitted to Slurm: {len(jobs) - 2} queued, 2 running\n"

    cluster.preempt()
    wait_until_two_are_held(restarts=1)
    with cluster.configured(parameters="idle_on_node_suspend", grace=0):  # no warning
        cluster.preempt()
        wait_until_two_are_held(restarts=2)
    task = cluster.ask("squeue", "--noheader", "--states=RUNNING", "--format=%F_%K").split()[0]
    cluster.set(f"JobId={task}", EndTime="now+45")  # Slurm looks every 30 s who is to be warned
    wait_until_two_are_held(restarts=3)
    cluster.set(f"JobId={task}", TimeLimit=30)
    (there.root / "hold").unlink()
    cluster.wait_until_empty()
    printed = "".join(path.read_text() for path in there.root.glob("runs/*/*/output.txt"))
    signals = Counter(re.findall(r"interrupted: by (\w+); the same command", printed))
    assert signals == {"SIGUSR1": 2, "SIGTERM": 1}
    return jobs


@pytest.mark.long
def test_more_jobs_than_an_array_holds(lab, cluster):
    """They run one at a time, if so asked, and the code that was there when they were handed over,
    which is then cleared away."""
    lab.write_grid(*map(light(), range(10)))
    with cluster.closed():
        ids = arrays(lab.sweep("--slurm", "--at-most", "1"), 10)
        assert len(ids) == 3
        script = lab.project.root / "run.py"
        script.write_text(script.read_text().replace('"""A job', '"""Edited: a job'))
        tasks = [f"{ids[number // ARRAY]}_{number % ARRAY}" for number in range(10)]
        named = {("queued", f"Slurm {task} PENDING") for task in tasks}
        done = lab.sweep("--list")
        assert set(listed(done).values()) == named
        assert "PENDING, PartitionDown]" in done.stdout
        again = silent(lab.sweep("--slurm"))
        assert again.stdout == "nothing submitted to Slurm: 10 queued\n"
    watched = silent(lab.sweep("--watch"))
    assert watched.stdout.splitlines()[-1] == "10 jobs: 10 stale"  # by the edit
    cluster.wait_until_empty()
    intervals = sorted(lab.intervals(), key=lambda interval: interval.begun)
    assert len({i.job for i in intervals}) == len(intervals) == 10
    assert all(one.ended <= after.begun for one, after in pairwise(intervals))
    assert not any("Edited" in i.code for i in intervals)
    assert len(folders(lab.project.root)) == 1
    assert lab.sweep("--only", "failed").returncode == 1  # stale jobs are left
    assert folders(lab.project.root) == []


def test_a_job_does_not_come_back_after_scancel(lab: Lab, cluster: Cluster) -> None:
    """It gets TERM, as a preempted job may, and is interrupted."""
    lab.write_grid(light(seconds=600)(0))
    (array,) = arrays(lab.sweep("--slurm"), 1)
    wait_until(lambda: bool([*lab.project.root.glob("runs/*/*/ran")]))
    cluster.ask("scancel", array)
    cluster.wait_until_empty()
    assert cluster.restarts().get(f"{array}_0", 0) == 0
    (state,) = listed(lab.sweep("--list")).values()
    assert state == ("interrupted", "step 2/12, 20 s left")


def test_how_jobs_end(lab: Lab, cluster: Cluster) -> None:
    """One fails and one is killed, which holds up no others; one whose results are not all sent has
    finished."""
    lab.write_analysis()
    first = [light(status=3), light(ends="failed", says="no"), light(seconds=600), light()]
    captured = [f"id{n}=$(job {each(n)})" for n, each in enumerate(first)]
    derived = [f'again{n}=$(job analyse.py --first "$id{n}")' for n in range(2)]
    lab.write_lines(*captured, *derived, 'job analyse.py --first "$again0"')
    arrays(lab.sweep("--slurm"), 7)
    killed = [*listed(lab.sweep("--list"))][2]
    wait_until(lambda: (lab.project.folder(killed) / "ran").exists(), pause=PAUSE)
    lock = json.loads((lab.project.folder(killed) / "lock").read_text())
    os.kill(lock["pid"], signal.SIGKILL)
    cluster.wait_until_empty()
    notes = [*lab.project.root.glob("runs/*/*/task.json")]  # for it to get more memory
    assert notes == [lab.project.folder(killed) / "task.json"]
    states = [state for state, _ in listed(lab.sweep("--list")).values()]
    assert states == ["unsent", "failed", "interrupted", "unsent", "unsent", "pending", "unsent"]
    assert_after_their_inputs(lab, 2)
    assert_one_at_a_time(lab.intervals())


def test_what_sbatch_refuses(lab, cluster):
    lab.write_grid(*map(light(), range(6)))
    said = one_line(lab.sweep("--slurm", "--", "--partition=nowhere"), 2)
    assert said.startswith("run.sh: sbatch: ") and "nowhere" in said
    assert folders(lab.project.root) == []
    said = one_line(lab.sweep("--slurm", "--", "--test-only"), 2)
    assert said == "run.sh: sbatch: has submitted nothing"
    assert set(listed(lab.sweep("--list")).values()) == {("pending", "")}
    assert cluster.states() == []


def test_what_sbatch_refuses_in_part(lab, cluster):
    """It takes the first array and no more; then the rest is handed over by the same command."""
    lab.write_grid(*map(light(), range(6)))
    real, once = shutil.which("sbatch"), lab.machine / "once"
    shim = lab.machine / "sbatch"
    shim.write_text(f'#!/bin/sh\nmkdir {once} || {{ echo full >&2; exit 1; }}\nexec {real} "$@"\n')
    shim.chmod(0o755)
    with cluster.closed():
        said = one_line(lab.sweep("--slurm"), 1)
        rest = "4 of 6 jobs were submitted, and the same command submits the rest"
        assert said.endswith(f"full; {rest}")
        shim.unlink()
        assert len(arrays(lab.sweep("--slurm"), 2)) == 1
    cluster.wait_until_empty()
    assert sorted(Counter(i.job for i in lab.intervals()).values()) == [1] * 6


HYADES = '[hyades]\nsystem = "slurm"\n'


@pytest.mark.long  # test_containers.py has one
def test_the_check_of_a_cluster(lab: Lab, cluster: Cluster) -> None:
    """All works but the driver and the GPUs, which torch cannot use; then data is missing there."""
    del lab.env["PYTHONPATH"]  # the check imports torch
    toml = lab.project.root / "cluster.toml"
    toml.write_text(HYADES)
    (lab.project.root / "data" / "photos").mkdir(parents=True)
    run = ("python", "jobs.py", "cluster", "check", "hyades")
    found = lab.project.do(*run, GPUS="")
    assert found.returncode == 1, found
    begun, *lines = [line for line in found.stdout.splitlines() if not line.startswith("  ")]
    assert re.fullmatch(r"submitted to Slurm as \d+", begun)
    driver, gpu = [line for line in lines if not line.startswith("ok   ")]
    assert driver.startswith("not  driver: unknown, since nvidia-smi is not there")
    assert gpu.startswith("not  GPU: --device auto: CUDA_VISIBLE_DEVICES")
    said = ["started after", "on ", "store: ", "data: ", "warning: ", "put back", "runs: "]
    assert [begin for begin in said if any(line[5:].startswith(begin) for line in lines)] == said
    toml.write_text(HYADES + f'gpus = 0\nnode_data = "{lab.machine}"\n')
    found = lab.project.do(*run, GPUS="")
    assert found.returncode == 1 and f"not  data: {lab.machine}: photos missing" in found.stdout
    assert "GPU" not in found.stdout
    toml.write_text(HYADES + 'gpus = 0\nsetup = ["module load nothing"]\n')
    found = lab.project.do(*run, "--json", GPUS="")
    early = "ended early: setup in cluster.toml failed: module load nothing"
    assert {"works": False, "said": early} in json.loads(found.stdout)["found"]
    assert cluster.states() == [] and folders(lab.project.root) == []


def test_set_up_and_data_on_the_nodes_disk(lab: Lab, cluster: Cluster) -> None:
    """A line of setup copies it there, and the job reads it there, unless it names another."""
    data = lab.project.root / "data"
    data.mkdir()
    (data / "a").write_text("1")
    copy = 'mkdir -p "$DISK" && cp -a data "$DISK"'
    place = f"export DISK={lab.machine}/$SLURM_JOB_ID"
    (lab.project.root / "cluster.toml").write_text(
        HYADES + f"setup = ['{place}', 'cd {lab.project.root}', '{copy}']\n"
        'node_data = "$DISK/data"\n'
    )
    script = lab.project.root / "run.py"
    where = "    print(job.runtime.data_root, [*job.runtime.data_root.iterdir()])\n"
    script.write_text(script.read_text().replace("    job.make()\n", f"{where}    job.make()\n"))
    lab.write_grid("--seed 1", f"--seed 2 --data-root {lab.machine}/gpus")
    arrays(lab.sweep("--on", "hyades"), 2)
    cluster.wait_until_empty()
    jobs = listed(lab.sweep("--list"))
    assert [state for state, _ in jobs.values()] == ["unsent", "unsent"]
    first, second = [(lab.project.folder(job) / "output.txt").read_text() for job in jobs]
    assert re.search(rf"{lab.machine}/\d+/data \[.*/data/a", first), first
    assert f"{lab.machine}/gpus [" in second
