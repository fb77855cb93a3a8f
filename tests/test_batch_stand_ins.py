"""`bash run.sh --on lab` with PBS and LSF, as far as their manuals tell how they answer."""

from pathlib import Path

import pytest
from batch_stand_ins import stand_in
from faults import Project, assert_as_undisturbed, silent, wait_until
from slurms import HELD, listed
from sweeps import write_grid

pytestmark = pytest.mark.long

JOB = "--device cpu --epochs 4 --batch-size 256 --checkpoint-minutes 1 --seed"


@pytest.mark.parametrize("title", ["PBS", "LSF"])
def test_pieces(project: Project, tmp_path: Path, title: str) -> None:
    """A job is warned of its time limit, and the next task continues it. PBS puts none back: there
    a comparable job tells how many tasks a job gets."""
    here, name = project.copy(tmp_path / "here"), title.lower()
    held = HELD.replace('os.environ["CUDA_VISIBLE_DEVICES"]', '""')
    here.edit_loop("        model.train()\n", held)
    (here.root / "cluster.toml").write_text(f'[lab]\nsystem = "{name}"\ngpus = 0\ncores = 1\n')
    there = here.copy(tmp_path / "there")
    write_grid(there.root, f"{JOB} 1")
    silent(there.do("bash", "run.sh"))
    for each in (here, there):
        write_grid(each.root, *(f"{JOB} {seed}" for seed in (2, 3)))
    silent(here.do("bash", "run.sh"))
    (there.root / "hold").touch()
    with stand_in(tmp_path / "system") as system:
        there.env |= system.env
        said = silent(there.do("bash", "run.sh", "--on", "lab", "--piece", "2m")).stdout
        arrays = system.submitted()
        ids = ", ".join(array["id"] for array in arrays)
        assert f"2 jobs submitted to {title} as {ids}; --list shows them\n" in said
        assert "each task has time 0:02:00, memory 2G\n" in said
        wait_until(lambda: bool([*there.root.glob("runs/*/*/held")]), 300)
        one, two = listed(there.do("bash", "run.sh", "--list")).values()
        assert one[0] == "running" and two == ("queued", f"{title} {arrays[0]['id']}_1 PENDING")
        system.warn()
        job = next(iter(listed(there.do("bash", "run.sh", "--list"))))
        output = there.folder(job) / "output.txt"
        wait_until(lambda: "interrupted: by SIGUSR1" in output.read_text(), 300)
        (there.root / "hold").unlink()
        wait_until(system.is_empty, 300)
    states = listed(there.do("bash", "run.sh", "--list"))
    assert [state for state, _ in states.values()] == ["finished"] * 2
    for job in states:
        assert_as_undisturbed(there, job, here, job)
    first, *others = system.statuses.values()
    if name == "lsf":
        assert (first, others) == ([0, 0], [])
    else:
        assert first == [138, 0] and others and all(each == [0, 0] for each in others)
        waits = [array["words"].get("-W") for array in arrays]
        assert waits == [None, *(f"depend=afterany:{array['id']}" for array in arrays[:-1])]
