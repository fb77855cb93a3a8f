"""`bash run.sh --piece`: a long job, whole and in pieces, behind the jobs of others on a real Slurm
that fills gaps. A day is scaled down to some minutes.
"""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from faults import Project, assert_as_undisturbed, wait_until
from slurms import CPUS, PAUSE, Cluster, arrays, listed, slurm
from sweeps import write_grid

pytestmark = pytest.mark.full

STEPS = 1600
LONG = f"--device cpu --steps {STEPS} --eval-every 200 --batch-size 64 --checkpoint-minutes 1"

TAKEN = """\
            with open("steps", "a") as steps:
                print(job.step, file=steps)
            time.sleep(float(os.environ.get("STEP", "0")))
            lr = optimizers.set_lr("""
"""In the training loop: a step is written down, and takes as long as the environment says."""

CLUSTER = '[lab]\nsystem = "slurm"\ngpus = 0\ntime = "0:10:00"\n'


class Course(NamedTuple):
    """When a job trained its first step and its last, in seconds since it was submitted, and how
    many tasks it took."""

    begun: float
    ended: float
    tasks: int


def occupy(cluster: Cluster, seed: int) -> None:
    """Submit jobs of others, most of which need less than the minutes that they ask for."""
    draw = random.Random(seed)
    for _ in range(10):
        cores, minutes = draw.choice([CPUS - 1, CPUS]), draw.randint(1, 4)
        work = f"sleep {60 * minutes * draw.uniform(0.6, 1):.0f}"
        asked = (f"--cpus-per-task={cores}", f"--time={minutes}", "--output=/dev/null")
        cluster.ask("sbatch", *asked, f"--wrap={work}")


def course(project: Project, seed: int, *flags: str) -> Course:
    """Submit the job behind the others, and return how it went."""
    with slurm(gpus=0, largest_array=10) as cluster:
        project.env |= cluster.env | {"STEP": "0.25"}
        occupy(cluster, seed)
        (array,) = arrays(project.do("bash", "run.sh", "--on", "lab", *flags), 1)
        since = time.monotonic()
        wait_until((project.root / "steps").exists, 3600, PAUSE)
        begun = time.monotonic() - since
        wait_until(lambda: f"{array}_0" in cluster.restarts(), 60, PAUSE)
        wait_until(lambda: array not in cluster.ask("squeue", "--format=%F"), 3600, PAUSE)
        return Course(begun, time.monotonic() - since, 1 + cluster.restarts()[f"{array}_0"])


MINUTE = 60
"""Seconds to which Slurm plans the queue."""


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_pieces_start_sooner(project: Project, tmp_path: Path, seed: int) -> None:
    """Or at the same time, if there is no gap. They are trained like the whole job, and no step
    twice. Takes as long as the queue, half an hour."""
    here = project.copy(tmp_path / "here")
    here.edit_loop("            lr = optimizers.set_lr(", TAKEN)
    (here.root / "cluster.toml").write_text(CLUSTER)
    write_grid(here.root, LONG)
    copies = [here.copy(tmp_path / name) for name in ("whole", "pieces")]
    (job,) = listed(here.do("bash", "run.sh", "--list"))
    assert here.do("bash", "run.sh").returncode == 0
    with ThreadPoolExecutor() as pool:
        how = [(), ("--piece", "3m")]
        runs = [pool.submit(course, each, seed, *f) for each, f in zip(copies, how, strict=True)]
    whole, pieces = (run.result() for run in runs)
    for each in copies:
        assert [*map(int, (each.root / "steps").read_text().split())] == [*range(STEPS)]
        assert_as_undisturbed(each, job, here, job)
    print(f"queue {seed}: {whole}, {pieces}")
    assert whole.tasks == 1 < pieces.tasks and pieces.begun < whole.begun + MINUTE
