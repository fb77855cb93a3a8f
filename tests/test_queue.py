"""The queue of run.sh: GPUs shared by sweeps and users, failures, code that does not change.

    pytest -m slow -rP tests/test_queue.py

The GPUs are pretend ones, the jobs light ones that note where and when they ran.
"""

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import Project, wait_until
from sweeps import Lab, assert_one_at_a_time, light, start, write_grid

pytestmark = pytest.mark.slow


@pytest.fixture
def lab(project: Project, tmp_path: Path) -> Lab:
    """A project of the test's own on a machine with 4 pretend GPUs."""
    return Lab(project.copy(tmp_path / "project"), tmp_path / "machine", gpus=4)


def ended(process: subprocess.Popen[str]) -> tuple[str, str, int]:
    out, err = process.communicate(timeout=300)
    return out, err, process.returncode


def counts(line: str) -> list[int]:
    """The numbers of a sweep's last line."""
    return [int(number) for number in re.findall(r"\d+", line)]


def test_forty_jobs_on_four_gpus(lab: Lab) -> None:
    """Some have finished before, some failed, some are new: each runs as often as it should."""
    bad = light(fails="KeyError: no", times=1)
    lab.write_grid(*map(light(), range(5)), *map(bad, range(5, 10)))
    first = lab.sweep()
    assert first.returncode == 1, first.stderr
    lab.write_grid(
        *map(light(), range(5)), *map(bad, range(5, 10)), *map(light(seconds=1), range(10, 40))
    )
    second = lab.sweep()
    assert (second.returncode, second.stderr) == (0, "")
    assert counts(second.stdout.splitlines()[-1])[:2] == [40, 40]
    intervals = lab.intervals()
    assert_one_at_a_time(intervals)
    assert sorted(Counter(i.job for i in intervals).values()) == [1] * 35 + [2] * 5
    long = Counter(i.device for i in intervals if i.ended - i.begun >= 1)
    assert long.keys() == {"GPU-0", "GPU-1", "GPU-2", "GPU-3"}
    assert min(long.values()) >= 5  # of 30 alike: none stood idle


def test_two_sweeps_over_one_grid_share_the_work(lab: Lab) -> None:
    """The second one, started while the first runs, has a longer grid and other flags."""
    lab.write_grid(*map(light(seconds=1), range(12)))
    one = lab.start()
    wait_until(lambda: lab.intervals_file.stat().st_size > 0)
    lab.write_grid(*map(light(seconds=1), range(20)))
    other = lab.start()
    (out, err, code), (out_2, err_2, code_2) = ended(one), ended(other)
    assert (code, err, code_2, err_2) == (0, "", 0, "")
    assert counts(out.splitlines()[-1])[:2] == [12, 12]
    assert counts(out_2.splitlines()[-1])[:2] == [20, 20]
    intervals = lab.intervals()
    assert_one_at_a_time(intervals)
    assert [n for _, n in Counter(i.job for i in intervals).most_common()] == [1] * 20


SOMEONE_ELSE = (
    *("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
)
"""Another user, who may read everything, since the Python of the tests can be root's own."""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start jobs as another user")
def test_two_users_share_the_gpus(lab: Lab, project: Project, tmp_path: Path) -> None:
    other = Lab(project.copy(tmp_path / "other"), lab.machine, gpus=4)
    subprocess.run(["chown", "-R", "nobody", other.project.root], check=True)
    lab.write_grid(*map(light(seconds=1), range(10)))
    other.write_grid(*map(light(seconds=1), range(10, 20)))
    mine = lab.start()
    theirs = start(other.project.root, other.env, before=SOMEONE_ELSE)
    (_, err, code), (_, err_2, code_2) = ended(mine), ended(theirs)
    assert (code, err, code_2, err_2) == (0, "", 0, "")
    intervals = lab.intervals()
    assert_one_at_a_time(intervals)
    assert len({i.job for i in intervals}) == len(intervals) == 20


def test_a_gpu_that_a_stranger_uses_is_waited_for(lab: Lab) -> None:
    lab.use(1, memory=5000, percent=0)
    lab.use(2, memory=300, percent=90)
    lab.write_grid(*map(light(), range(4)))
    sweep = lab.start("--gpus", "1,2")
    assert sweep.stdout
    assert next(sweep.stdout) == "no git repository here, so the jobs note no commit\n"
    said = {next(sweep.stdout).strip() for _ in range(2)}
    assert said == {
        "GPU-1 is taken by a process of no sweep (5000 MiB and 0 % of its time in use); waiting",
        "GPU-2 is taken by a process of no sweep (300 MiB and 90 % of its time in use); waiting",
    }
    assert lab.intervals() == []
    lab.use(2, memory=10, percent=0)
    assert ended(sweep)[2] == 0
    assert [i.device for i in lab.intervals()] == ["GPU-2"] * 4


def test_jobs_that_share_a_gpu(lab: Lab) -> None:
    lab.write_grid(*map(light(seconds=2), range(4)))
    done = lab.sweep("--gpus", "3", "--per-gpu", "2")
    assert (done.returncode, done.stderr) == (0, "")
    intervals = lab.intervals()
    assert {i.device for i in intervals} == {"GPU-3"}
    at_once = [sum(i.begun <= j.begun < i.ended for i in intervals) for j in intervals]
    assert max(at_once) == 2


def test_the_gpus_that_are_allowed_are_passed_on_as_they_are(lab: Lab) -> None:
    lab.write_grid(*map(light(seconds=1), range(4)))
    done = lab.sweep(CUDA_VISIBLE_DEVICES="MIG-a/1, 3")
    assert (done.returncode, done.stderr) == (0, "")
    assert {i.device for i in lab.intervals()} == {"MIG-a/1", "3"}
    assert {path.name for path in (lab.machine / "locks").iterdir()} >= {"GPU-3.0", "MIG-a-1.1"}
    wrong = lab.sweep("--gpus", "7")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == "run.sh: --gpus 7: nvidia-smi knows no such GPU\n"


def test_retries_help_against_want_of_memory_alone(lab: Lab) -> None:
    memory, fault = "out of memory; try less", "KeyError: 'x'"
    lab.write_grid(
        light(fails=memory, times=2)(0), light(fails=memory)(1), light(fails=fault, times=1)(2)
    )
    done = lab.sweep("--retries", "2")
    assert done.returncode == 1
    ran = Counter(i.job for i in lab.intervals())
    assert sorted(ran.values()) == [1, 3, 3]
    assert sorted(line.split(": ", 2)[2].split(" [")[0] for line in done.stderr.splitlines()) == [
        f"{fault}",
        memory,
    ]
    assert counts(done.stdout.splitlines()[-1])[:2] == [1, 3]


def test_only_failed_and_fail_fast(lab: Lab) -> None:
    lab.write_grid(light(fails="ValueError")(0), *map(light(seconds=20), range(1, 9)))
    stopped = lab.sweep("--fail-fast")
    assert stopped.returncode == 1
    assert "because of --fail-fast" in stopped.stderr
    assert [i.job for i in lab.intervals()] == re.findall(r"status 1: job (\w{12})", stopped.stderr)
    again = lab.sweep("--only", "failed")
    assert again.returncode == 1
    assert counts(again.stdout.splitlines()[-1]) == [0, 1, 0, 1, 0]


def test_the_code_is_that_of_the_start(lab: Lab) -> None:
    """In a repository with changes and a new file, and outside of git; then it is cleared away."""
    root = lab.project.root
    git = ["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "All"]):
        subprocess.run([*git, *command], cwd=root, check=True)
    old = (root / "run.py").read_text()
    (root / "extra.py").write_text("WORD = 'new file'\n")
    changed = old.replace('"""A job that', 'import extra\n"""A job that').replace(
        '"code": __doc__', '"code": extra.WORD'
    )
    for number in range(2):
        (root / "run.py").write_text(changed)
        (root / "extra.py").write_text("WORD = 'new file'\n")
        lab.write_grid(*map(light(seconds=1), range(8 * number, 8 * number + 8)))
        sweep = lab.start("--gpus", "0,1")
        before = len(lab.intervals())
        wait_until(lambda before=before: len(lab.intervals()) > before)  # type: ignore[misc]
        (root / "run.py").write_text("raise SystemExit('edited')\n")
        (root / "extra.py").unlink()
        assert ended(sweep)[1:] == ("", 0)
        assert list((root / ".sweeps").iterdir()) == []
        shutil.rmtree(root / ".git", ignore_errors=True)
    assert [i.code for i in lab.intervals()] == ["new file"] * 16


@pytest.fixture
def bare(project: Project, tmp_path: Path) -> Project:
    """A project of the test's own, with jobs that train."""
    return project.copy(tmp_path / "bare")


def test_what_has_changed_is_kept_with_each_job(
    bare: Project, sweep_of: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    git = ["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "All"]):
        subprocess.run([*git, *command], cwd=bare.root, check=True)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=bare.root, capture_output=True, text=True, check=True
    ).stdout.strip()
    (bare.root / "models.py").open("a").write("# a change\n")
    (bare.root / "new.py").write_text("NEW = 1\n")
    write_grid(bare.root, "--epochs 1 --batch-size 256")
    done = sweep_of(bare)
    assert done.returncode == 0, done.stderr
    (folder,) = (bare.root / "runs").iterdir()
    diff = (folder / "changes.diff").read_text()
    assert "+# a change" in diff and "+NEW = 1" in diff and "+  job --epochs 1" in diff
    tags = bare.ask("SELECT key, value FROM tags WHERE key IN ('commit', 'dirty') ORDER BY key")
    assert tags == [("commit", head), ("dirty", "true")]


@pytest.fixture
def sweep_of() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`bash run.sh` in a project."""

    def sweep(project: Project, *flags: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "run.sh", *flags],
            cwd=project.root,
            env=project.env,
            capture_output=True,
            text=True,
        )

    return sweep
