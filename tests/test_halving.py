"""`halving` in a grid: the best jobs train on, rung by rung, and are what they would be anyway."""

import json
import math
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from statistics import fmean

import pytest
from bits import plain
from faults import chosen, curves_in, one_line, succeeded, wait_until
from slurms import slurm
from sweeps import processes, write_lines

SEARCH = "search {} --lr 'log 1e-4 1e1' -- --optimizer sgd --epochs {} --device cpu --seed {}"
BATCH = "--batch-size 256"
OFTEN = "--checkpoint-minutes 1e-4"


@pytest.fixture(scope="module")
def counting(project, tmp_path_factory):
    """A project that writes down who trains which step, into the file that TRAINED names."""
    made = project.copy(tmp_path_factory.mktemp("counting") / "my_project")
    count = 'print(os.getpid(), job._folder.id, job.step, file=open(os.environ["TRAINED"], "a"))'
    count += '; time.sleep(float(os.environ.get("PACE", 0)))'
    lr = "            lr = optimizers.set_lr("
    made.edit_loop(lr, f"            {count}\n{lr}")
    return made


def swept(project, *words):
    return project.do("bash", "run.sh", *words, TRAINED=str(project.root / "trained"))


def listed(project):
    """The state of each job of the grid, with what is said about it, by id."""
    done = project.do("bash", "run.sh", "--list", "--json")
    return {row["id"]: (row["state"], row["about"]) for row in json.loads(done.stdout)}


@pytest.mark.long
def test_states_counts_and_what_runs_when_the_line_is_taken_away(counting, tmp_path):
    project = counting.copy(tmp_path / "my_project")
    jobs = [f"{SEARCH.format(3, 2, seed)} {BATCH}" for seed in (0, 1)]
    after = ["keep_all", f"job --epochs 1 --seed 7 --device cpu {BATCH}"]
    write_lines(project.root, "halving 3 1e", *jobs, *after, "confirm 1")
    done = succeeded(swept(project))
    assert done.stdout.splitlines()[-1].startswith("4 of 8 jobs finished, 1 of them now; ")
    states = listed(project)
    assert {*states.values()} >= {("finished", ""), ("stopped", "at 1e")}
    stopped = sorted(job for job, (state, _) in states.items() if state == "stopped")
    rows = project.listed().items()
    assert stopped == sorted(job for job, row in rows if row["state"] == "stopped")
    assert all((project.folder(job) / "last.pt").exists() for job in stopped)
    succeeded(project.do("python", "plot.py", "--format", "png"))
    caption = (project.root / "figures" / "ranking.tex").read_text()
    assert f"{len(stopped)} stopped at 1e." in caption.partition("Of 8 jobs tried, 4 finished")[2]
    again = succeeded(swept(project))
    assert " started on " not in again.stdout and "4 of 8 jobs finished, 0 of" in again.stdout

    write_lines(project.root, *jobs, *after)
    assert swept(project).stdout.splitlines()[-1].startswith(f"{3 + len(stopped)} of 7 jobs fin")
    assert "stopped" not in {state for state, _ in listed(project).values()}
    assert trained_twice(project, killed=set()) == 0


@pytest.mark.long
def test_a_failed_job_blocks_its_rung_and_is_named(counting, tmp_path):
    project = counting.copy(tmp_path / "my_project")
    raising = 'job._folder.settings.note == "no" and 1 / 0; '
    project.edit("run.py", "print(os.getpid()", raising + "print(os.getpid()")
    jobs = [f"job --lr {rate} --epochs 3 --device cpu {BATCH}" for rate in (1e-4, 1e-3, 1e-2)]
    write_lines(project.root, "halving 2 1e", *jobs, f"{jobs[0]} --note no")
    done = swept(project)
    assert done.returncode == 1
    failed = next(job for job, (state, _) in listed(project).items() if state == "failed")
    assert f"job {failed} failed: ZeroDivisionError" in done.stderr
    assert done.stderr.splitlines()[-1] == f"run.sh: halving waits for 1 job, such as {failed}"
    states = Counter(state for state, _ in listed(project).values())
    assert states["paused"] + states["finished"] + states["stopped"] == 3 and states["paused"]


def test_jobs_that_are_not_comparable_are_refused(project):
    """Before anything starts; engine/test_rungs.py has the other mistakes."""
    write_lines(project.root, "halving 3 2e 30e", "job --seed 3")
    done = project.do("bash", "run.sh")
    assert (done.returncode, done.stdout) == (2, "")
    line = "halving: rung 30e is not before the end, --epochs 30"
    assert line in done.stderr.splitlines()[0] and len(done.stderr.splitlines()) < 3
    write_lines(project.root, "halving 3 2e", "job --monitor val_accuracy", "job --seed 1")
    assert "they are compared by one metric" in one_line(project.do("bash", "run.sh"), 2)
    write_lines(project.root, "halving 3 2e", "job", "halving 3 3e", "job")
    assert "is in two of them" in one_line(project.do("bash", "run.sh"), 2)
    write_lines(project.root, "halving 3 2e", "id=$(job)", "keep_all", 'job --init-from "$id"')
    done = project.do("bash", "run.sh")
    assert done.returncode == 2 and "may be stopped by halving: name that elsewhere" in done.stderr
    assert not (project.root / "runs").exists()


# Whatever is killed, on any number of places: the same promotions, the same bits, no step twice.


def at_the_rungs(project, rungs):
    """What the jobs of a grid without halving measured at each of the rungs, by id."""
    found = {}
    for job in listed(project):
        curve = dict(project.journalled(job).get("val_loss", []))
        steps = sorted(curve)
        found[job] = [curve.get(rung * steps[0], math.inf) if steps else math.inf for rung in rungs]
    return found


def expected(project, factor, rungs):
    """Where each job of a grid without halving would be stopped, none at the end: by the book."""
    measured, units = at_the_rungs(project, rungs), {}
    for job in measured:
        about = json.loads((project.folder(job) / "settings.json").read_text())["settings"]
        units.setdefault(about["lr"], []).append(job)
    count, found = len(units), {}
    for number, rung in enumerate(rungs):
        scores = {
            lr: (fmean(measured[job][number] for job in jobs), min(jobs))
            for lr, jobs in units.items()
        }
        finite = [lr for lr in units if math.isfinite(scores[lr][0])]
        best = sorted(finite, key=scores.__getitem__)[: max(1, count // factor ** (number + 1))]
        found |= {job: rung for lr in units.keys() - {*best} for job in units[lr]}
        units = {lr: units[lr] for lr in best}
    return found


@pytest.fixture(scope="module")
def whole(counting, tmp_path_factory, pytestconfig):
    """The same jobs without halving, which are never paused."""
    project = counting.copy(tmp_path_factory.mktemp("whole") / "my_project")
    count = 27 if pytestconfig.getoption("kills") >= 10 else 9
    write_lines(project.root, SEARCH.format(count, 5, 0))
    swept(project)
    return project, count


def kill_some(project, chance, most):
    """Start the sweep, and kill jobs of it until it ends, until its queue or run.sh is killed, or
    until `most` were killed; return what was killed, by its pid."""
    hits = {}
    sweep = project.command("bash", "run.sh", *project.words)

    def victims(whom):
        if whom == "run.sh":
            return [sweep.pid]
        return [pid for pid, role in processes(project.mark).items() if role == whom]

    whom = "job"
    while whom == "job" and len(hits) < most and sweep.poll() is None:
        whom = chance.choice(("job", "job", "job", "queue", "run.sh"))
        wait_until(lambda: sweep.poll() is not None or bool(victims(whom)))  # noqa: B023
        instant = time.monotonic() + chance.uniform(0, 12 if whom == "run.sh" else 3)
        while sweep.poll() is None and time.monotonic() < instant:
            time.sleep(0.01)
        for pid in victims(whom)[:1] if sweep.poll() is None else []:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                hits[pid] = whom
    sweep.communicate(timeout=900)
    return hits


@pytest.mark.full
@pytest.mark.parametrize("slots", chosen([1, 2, 4], 4))
def test_kills_change_no_promotion_and_no_bit(whole, counting, tmp_path, slots, pytestconfig):
    """Takes minutes: 13 or more trainings that are killed again and again."""
    reference, count = whole
    chance, hits, again = random.Random(slots), Counter(), 0
    while hits.total() < pytestconfig.getoption("kills"):
        project = counting.copy(tmp_path / f"after-{hits.total()}-kills")
        project.env |= {"TRAINED": str(project.root / "trained"), "PACE": "0.02"}
        project.mark, project.words = f"TRAINED={project.env['TRAINED']}", ("--per-gpu", str(slots))
        write_lines(project.root, "halving 3 1e 3e", f"{SEARCH.format(count, 5, 0)} {OFTEN}")
        killed, hit = set(), True
        while hit and hits.total() < pytestconfig.getoption("kills"):
            hit = kill_some(project, chance, pytestconfig.getoption("kills") - hits.total())
            hits.update(hit.values())
            killed |= {pid for pid, whom in hit.items() if whom == "job"}
        wait_until(lambda made=project: "job" not in processes(made.mark).values())
        project.do("bash", "run.sh", *project.words)
        assert_as_if_never_paused(project, reference)
        again += trained_twice(project, killed)
    print(f"{slots} places, {count} jobs, killed {dict(hits)}; {again} steps again after kills")


@pytest.mark.long
@pytest.mark.root
def test_kills_on_a_cluster_change_neither(whole, counting, tmp_path, pytestconfig):
    """Each command submits who trains on; tasks are killed now and then."""
    reference, count = whole
    project = counting.copy(tmp_path / "my_project")
    chance, killed = random.Random(0), set()
    mark = f"TRAINED={project.root / 'trained'}"
    write_lines(project.root, "halving 3 1e 3e", f"{SEARCH.format(count, 5, 0)} {OFTEN}")

    with slurm(gpus=2, largest_array=count + 1) as cluster:
        project.env |= cluster.env | {"PACE": "0.02"}
        said = swept(project, "--slurm").stdout
        assert f"\n{count} jobs pause at their rungs" in said
        while "nothing submitted" not in said:
            while cluster.states():
                time.sleep(chance.uniform(0, 4))
                jobs = [pid for pid, role in processes(mark).items() if role == "job"]
                for pid in jobs[:1] if len(killed) < pytestconfig.getoption("kills") else []:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        killed.add(pid)
            said = swept(project, "--slurm").stdout
    assert_as_if_never_paused(project, reference)
    again = trained_twice(project, killed)
    print(f"Slurm, {count} jobs, killed {len(killed)} times; {again} steps again after kills")


def assert_as_if_never_paused(project, reference):
    """The jobs of the halving are stopped where they should be, and have the same bits as those of
    the grid without it."""
    where = expected(reference, 3, (1, 3))
    diverged = {job for job, (state, _) in listed(reference).items() if state == "diverged"}
    for job, state in listed(project).items():
        if job not in where:
            assert state == ("finished", ""), job
            assert plain(project.tensors(job)["best"]) == plain(reference.tensors(job)["best"])
        else:
            stopped = ("stopped", f"at {where[job]}e")
            assert state == stopped or (job in diverged and state[0] == "diverged"), job
        whole = curves_in(reference.folder(job))
        for name, points in curves_in(project.folder(job)).items():
            assert plain(points) == plain(whole[name][: len(points)]), (job, name)


def trained_twice(project, killed):
    """Assert that each process of a job begins where the one before it ended, unless that was
    killed: then at a checkpoint. Return how many steps were trained again."""
    last, again = {}, 0
    for line in (project.root / "trained").read_text().splitlines():
        pid, job, step = line.split()
        before, at = last.get(job, (pid, -1))
        if pid == before or int(before) not in killed:
            assert int(step) == at + 1, (job, line, at)
        assert int(step) <= at + 1
        again += at + 1 - int(step)
        last[job] = pid, int(step)
    return again
