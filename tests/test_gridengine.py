"""`bash run.sh --on lab`, with a real Grid Engine on this machine."""

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from faults import Project, assert_as_undisturbed, silent, wait_until
from gridengines import GridEngine, grid_engine
from slurms import HELD, PAUSE, arrays, listed
from sweeps import Lab, assert_after_their_inputs, assert_one_at_a_time, light, write_grid

pytestmark = pytest.mark.full

ARRAY = 4
"""Tasks of an array, at most."""

CLUSTER = """
[lab]
system = "gridengine"
partition = "main.q"
ask = { gpus = "" }
"""


@pytest.fixture(scope="module")
def cluster():
    with grid_engine(slots=2, largest_array=ARRAY) as cluster:
        yield cluster


GPUS = 2


@pytest.fixture
def lab(lab, cluster):
    lab.env |= cluster.env
    (lab.project.root / "cluster.toml").write_text(CLUSTER)
    return lab


@pytest.mark.long
def test_jobs_that_train(
    project: Project, cluster: GridEngine, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    """One fails, one is taken off its machine, others reach the end of a piece: in the end all is
    as after `bash run.sh`."""
    here = project.copy(tmp_path / "here")
    count = int(pytestconfig.getoption("--slurm-jobs")) - 1
    flags = "--device cpu --epochs 10 --batch-size 256 --checkpoint-minutes 2"
    grid = [f"{flags} --seed {seed}" for seed in range(count)]
    write_grid(here.root, *grid, "--device cpu --checkpoint-minutes 2 --note fails")
    here.edit_loop("        model.train()\n", HELD)
    there = here.copy(tmp_path / "there")
    local = {"CUDA_VISIBLE_DEVICES": "0,1", "GPU_LOCKS": str(tmp_path / "locks")}
    assert here.do("bash", "run.sh", **local).returncode == 1
    (there.root / "cluster.toml").write_text(CLUSTER)
    there.env |= cluster.env | {"CUDA_VISIBLE_DEVICES": "0"}
    (there.root / "hold").touch()
    jobs = list(listed(there.do("bash", "run.sh", "--list")))
    arrays(there.do("bash", "run.sh", "--on", "lab", "--piece", "2m"), len(jobs))

    def held() -> set[Path]:
        return {*there.root.glob("runs/*/*/held")}

    def signals() -> Counter[str]:
        printed = "".join(path.read_text() for path in there.root.glob("runs/*/*/output.txt"))
        return Counter(re.findall(r"interrupted: by (\w+); the same command", printed))

    wait_until(lambda: len(held()) == 2, 600, PAUSE)
    states = Counter(state for state, _ in listed(there.do("bash", "run.sh", "--list")).values())
    assert states == {"running": 2, "queued": len(jobs) - 2}
    cluster.ask("qmod", "-rj", cluster.running()[0])
    wait_until(lambda: signals()["SIGUSR2"] == 1 and len(held()) == 2, 600, PAUSE)
    wait_until(lambda: signals()["SIGUSR1"] >= 2, 600, PAUSE)
    (there.root / "hold").unlink()
    cluster.wait_until_empty()
    states = listed(there.do("bash", "run.sh", "--list"))
    *jobs, failed = jobs
    assert states.pop(failed) == ("failed", "KeyError: 'no'")
    assert Counter(state for state, _ in states.values()) == {"finished": count}
    for job in jobs:
        assert_as_undisturbed(there, job, here, job)
    assert [status for _, status in there.runs(failed)] == ["FAILED"]


@pytest.mark.long
def test_more_jobs_than_an_array_holds(lab: Lab, cluster: GridEngine) -> None:
    """They run one at a time, if so asked, each on a free GPU, which Grid Engine does not give."""
    lab.write_grid(*map(light(), range(10)))
    with cluster.closed():
        ids = arrays(lab.sweep("--on", "lab", "--at-most", "1"), 10)
        assert len(ids) == 3
        tasks = [f"{ids[number // ARRAY]}_{number % ARRAY}" for number in range(10)]
        assert set(listed(lab.sweep("--list")).values()) == {
            ("queued", f"SGE {task} PENDING") for task in tasks
        }
        again = silent(lab.sweep("--on", "lab"))
        assert again.stdout == "nothing submitted to SGE: 10 queued\n"
    cluster.wait_until_empty()
    intervals = sorted(lab.intervals(), key=lambda interval: interval.begun)
    assert len({i.job for i in intervals}) == len(intervals) == 10
    assert all(one.ended <= after.begun for one, after in pairwise(intervals))
    assert {i.device for i in intervals} == {"GPU-0"}


def test_how_jobs_end(lab: Lab, cluster: GridEngine) -> None:
    """One fails and one is deleted, which holds up no others; one that depends on the failed one
    says so; no GPU has two jobs at once."""
    lab.write_analysis()
    first = [light(status=3), light(ends="failed", says="no"), light(seconds=600), light()]
    captured = [f"id{n}=$(job {each(n)})" for n, each in enumerate(first)]
    derived = [f'again{n}=$(job analyse.py --first "$id{n}")' for n in range(2)]
    lab.write_lines(*captured, *derived, 'job analyse.py --first "$again0"')
    array, *_ = arrays(lab.sweep("--on", "lab"), 7)
    deleted = [*listed(lab.sweep("--list"))][2]
    wait_until(lambda: (lab.project.folder(deleted) / "ran").exists(), 60, PAUSE)
    cluster.ask("qdel", array, "-t", "3")
    cluster.wait_until_empty()
    states = [state for state, _ in listed(lab.sweep("--list")).values()]
    assert states == ["unsent", "failed", "interrupted", "unsent", "unsent", "pending", "unsent"]
    assert_after_their_inputs(lab, 2)
    assert_one_at_a_time(lab.intervals())
