"""The queue of run.sh: GPUs shared by sweeps and users, failures, code that does not change."""

import re
import subprocess
from collections import Counter

import pytest
from faults import ended, silent, succeeded, wait_until
from repository import commit
from sweeps import Lab, assert_after_their_inputs, assert_one_at_a_time, light

GPUS = 4


def last_line(done: "subprocess.CompletedProcess[str]") -> str:
    return done.stdout.splitlines()[-1]


def test_jobs_run_as_often_as_they_should(lab):
    """Some have finished before, some failed, some are new."""
    before = [*map(light(), range(2)), *map(light(ends="failed", times=1), range(2, 4))]
    lab.write_grid(*before)
    first = lab.sweep()
    assert first.returncode == 1
    assert last_line(first) == "2 of 4 jobs finished, 2 of them now; 2 failed"
    lab.write_grid(*before, *map(light(seconds=1), range(4, 12)))
    second = silent(lab.sweep())
    assert last_line(second) == "12 of 12 jobs finished, 12 of them now"  # the store has none
    intervals = lab.intervals()
    assert_one_at_a_time(intervals)
    assert sorted(Counter(i.job for i in intervals).values()) == [1] * 10 + [2] * 2
    assert {i.device for i in intervals} == {"GPU-0", "GPU-1", "GPU-2", "GPU-3"}


@pytest.mark.full
def test_jobs_run_after_those_that_they_are_derived_from(lab):
    """Also where the order in the grid is another, and behind jobs that another sweep runs."""
    lab.write_analysis()
    captured = [f"id{n}=$(job {light(seconds=n)(n)})" for n in range(3)]
    derived = [f'again{n}=$(job analyse.py --first "$id{n}")' for n in range(3)]
    twice = [f'job analyse.py --first "$again{n}"' for n in range(3)]
    lab.write_lines(*captured, *derived, *twice, *(f"job --seed {n}" for n in range(7, 10)))
    sweeps = [lab.start(), lab.start("--gpus", "0,1")]
    for done in map(ended, sweeps):
        assert (done.returncode, done.stderr) == (0, ""), done
        assert last_line(done).startswith("12 of 12 jobs finished")
        assert "ended with status 4" not in done.stdout  # one that the other sweep runs
    assert_one_at_a_time(lab.intervals())
    assert {*Counter(i.job for i in lab.intervals()).values()} == {1}
    assert_after_their_inputs(lab, 6)


SOMEONE_ELSE = (
    *("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
)
"""Another user, who may read everything, since the Python of the tests can be root's own."""


@pytest.mark.root
def test_two_users_share_the_gpus(lab, project, tmp_path):
    other = Lab(project, tmp_path / "other", gpus=4, machine=lab.machine)
    subprocess.run(["chown", "-R", "nobody", other.project.root], check=True)
    lab.write_grid(*map(light(seconds=1), range(6)))
    other.write_grid(*map(light(seconds=1), range(6, 12)))
    mine = lab.start()
    theirs = other.project.behind(*SOMEONE_ELSE).command("bash", "run.sh")
    for sweep in (ended(mine), ended(theirs)):
        assert (sweep.returncode, sweep.stderr) == (0, "")
    intervals = lab.intervals()
    assert_one_at_a_time(intervals)
    assert len({i.job for i in intervals}) == len(intervals) == 12


def test_a_gpu_that_another_process_uses_is_waited_for(lab):
    lab.use(1, memory=5000, percent=0)
    lab.use(2, memory=300, percent=90)
    lab.write_grid(*map(light(), range(4)))
    sweep = lab.start("--gpus", "1,2")
    assert next(sweep.stdout).startswith("no commit is recorded: not a git repository")
    said = {next(sweep.stdout).strip() for _ in range(2)}
    assert said == {
        "GPU-1 is in use by another process (5000 MiB, busy 0% of the time); waiting",
        "GPU-2 is in use by another process (300 MiB, busy 90% of the time); waiting",
    }
    assert lab.intervals() == []
    lab.use(2, memory=10, percent=0)
    assert ended(sweep).returncode == 0
    assert [i.device for i in lab.intervals()] == ["GPU-2"] * 4


def test_jobs_that_share_a_gpu(lab):
    lab.write_grid(*map(light(seconds=1), range(4)))
    silent(lab.sweep("--gpus", "3", "--per-gpu", "2"))
    intervals = lab.intervals()
    assert {i.device for i in intervals} == {"GPU-3"}
    assert most_at_once(lab) == 2


def most_at_once(lab: Lab) -> int:
    intervals = lab.intervals()
    return max(sum(i.begun <= j.begun < i.ended for i in intervals) for j in intervals)


@pytest.mark.parametrize(
    ("flags", "asked", "jobs", "threads"),
    [
        (("--per-gpu", "2"), "", 2, "1"),
        ((), "7", 1, "7"),
    ],
)
def test_cores_are_divided_among_the_jobs_on_a_cpu(lab, flags, asked, jobs, threads):
    """Held to one core, a job at a time runs on it; more share it. A user's own number stands."""
    lab.write_grid(*map(light(seconds=1), range(3)))
    cpu = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": asked}
    held = lab.project.behind("taskset", "--cpu-list", "0")
    assert held.do("bash", "run.sh", *flags, **cpu).returncode == 0
    assert most_at_once(lab) == jobs
    assert {i.threads for i in lab.intervals()} == {threads}


def test_the_gpus_that_are_allowed_are_passed_on_as_they_are(lab):
    lab.write_grid(*map(light(seconds=1), range(4)))
    silent(lab.sweep(CUDA_VISIBLE_DEVICES="MIG-a/1, 3"))
    assert {i.device for i in lab.intervals()} == {"MIG-a/1", "3"}
    assert {path.name for path in (lab.machine / "locks").iterdir()} >= {"GPU-3.0", "MIG-a-1.1"}
    wrong = lab.sweep("--gpus", "7")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == "run.sh: --gpus 7: nvidia-smi does not list this GPU\n"


@pytest.mark.full
def test_retries_help_against_want_of_memory_alone(lab):
    memory = "out of memory; try less"
    lab.write_grid(
        light(ends="failed", says=memory, times=2)(0),
        light(ends="failed", says=memory)(1),
        light(ends="failed", says="KeyError: 'x'", times=1)(2),
    )
    done = lab.sweep("--retries", "2")
    assert done.returncode == 1
    assert sorted(Counter(i.job for i in lab.intervals()).values()) == [1, 3, 3]
    assert re.findall("failed: (.*) \\[runs/.*/output.txt]", done.stderr) == [
        memory,
        "KeyError: 'x'",
    ]
    assert last_line(done) == "1 of 3 jobs finished, 1 of them now; 2 failed"


BROKEN = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


@pytest.mark.full
def test_a_broken_gpu_gets_no_more_jobs(lab):
    """Else it would fail all that wait, one after another."""
    lab.write_grid(*map(light(ends="failed", says=BROKEN, on="GPU-1", seconds=1), range(6)))
    done = silent(lab.sweep("--gpus", "0,1"))
    assert Counter(i.device for i in lab.intervals()) == {"GPU-0": 6, "GPU-1": 1}
    assert "GPU-1 is broken: no more jobs are started on it" in done.stdout.splitlines()
    assert last_line(done) == "6 of 6 jobs finished, 6 of them now"


def test_no_gpu_is_left(lab):
    """The jobs wait for the next sweep."""
    lab.write_grid(*map(light(ends="failed", says=BROKEN), range(4)))
    done = lab.sweep("--gpus", "0,1")
    assert done.returncode == 1
    assert Counter(i.device for i in lab.intervals()) == {"GPU-0": 1, "GPU-1": 1}
    assert last_line(done) == "0 of 4 jobs finished, 0 of them now; 4 not started"


@pytest.mark.full
def test_a_job_that_breaks_each_gpu_has_failed(lab):
    """A second GPU that seems broken with it is none."""
    lab.write_grid(light(ends="failed", says=BROKEN)(0), *map(light(seconds=1), range(1, 5)))
    done = lab.sweep("--gpus", "0,1,2")
    assert done.returncode == 1
    assert last_line(done) == "4 of 5 jobs finished, 4 of them now; 1 failed"
    assert done.stdout.count("is broken") == 1


@pytest.mark.full
def test_what_diverged_or_paused_is_left_alone(lab):
    """Neither is a failure, to be retried or to stop for; one that diverged is named each time."""
    lab.write_grid(
        light(ends="diverged", says="train_loss is nan at step 7")(0),
        light(ends="paused")(1) + " --pause-after 2e",
        light()(2),
    )
    done = succeeded(lab.sweep("--fail-fast", "--retries", "2"))
    assert last_line(done) == "1 of 3 jobs finished, 1 of them now; 1 diverged, 1 paused"
    (said,) = done.stderr.splitlines()
    assert re.match(r"job \w{12} diverged: train_loss is nan at step 7 \[runs/", said)
    again = succeeded(lab.sweep())
    assert last_line(again) == "1 of 3 jobs finished, 1 of them now; 1 diverged, 1 paused"
    (said,) = again.stderr.splitlines()
    assert re.match(r"job \w{12} diverged before: train_loss is nan at step 7; --force", said)
    assert len(lab.intervals()) == 3
    lab.write_grid(light(ends="diverged", says="…")(0) + " --force", light(ends="paused")(1))
    longer = lab.sweep()
    assert last_line(longer) == "0 of 2 jobs finished, 0 of them now; 1 diverged, 1 paused"
    assert len(lab.intervals()) == 5


def test_only_failed_and_fail_fast(lab):
    lab.write_grid(light(ends="failed")(0), *map(light(seconds=20), range(1, 9)))
    stopped = lab.sweep("--fail-fast")
    assert stopped.returncode == 1
    assert "because of --fail-fast" in stopped.stderr
    (failed,) = re.findall(r"^job (\w{12}) failed: ", stopped.stderr, re.M)
    assert [i.job for i in lab.intervals()] == [failed]
    form = "0 of 9 jobs finished, 0 of them now; 1 failed, (\\d) interrupted, (\\d) not started"
    numbers = re.fullmatch(form, last_line(stopped))
    assert numbers and int(numbers[1]) + int(numbers[2]) == 8
    again = lab.sweep("--only", "failed")
    assert again.returncode == 1
    assert last_line(again) == "0 of 9 jobs finished, 0 of them now; 1 failed, 8 skipped"


def test_the_code_is_that_of_the_start(lab):
    """In a repository, with changes and a new file; then it is cleared away."""
    root = lab.project.root
    known = commit(root)
    script = root / "run.py"
    script.write_text(script.read_text().replace('"code": __doc__', '"code": extra.WORD'))
    script.write_text(script.read_text().replace('"""A job that', 'import extra\n"""A job that'))
    (root / "extra.py").write_text("WORD = 'new file'\n")
    lab.write_grid(*map(light(seconds=1), range(4)))
    sweep = lab.start("--gpus", "0,1")
    wait_until(lambda: bool(lab.intervals()))
    script.write_text("raise SystemExit('edited')\n")
    (root / "extra.py").unlink()
    silent(ended(sweep))
    assert list((root / ".sweeps").iterdir()) == []
    assert [(i.code, i.commit) for i in lab.intervals()] == [("new file", known)] * 4
    diffs = list(root.glob("runs/*/*/changes.diff"))
    assert len(diffs) == 4
    for diff in diffs:
        text = diff.read_text()
        assert "+import extra" in text and "+WORD = 'new file'" in text and "+  job --seed" in text
