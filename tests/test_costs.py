"""What a job has cost, in its run and by `jobs.py show`: of a job that is killed and continued.
What the jobs of a grid will cost: the forecast, and a budget that is kept."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from faults import ended, job_of, kill, one_line, silent, succeeded, wait_until
from labjobs import files
from labjobs.tracking import costs
from slurms import listed
from sweeps import SETTINGS, pretend_slurm

JOB = ("--epochs", "150", "--eval-every", "5", "--checkpoint-minutes", "0.001", "--quiet")

LATEST = """
SELECT latest_metrics.key, latest_metrics.value FROM latest_metrics JOIN tags USING (run_uuid)
WHERE tags.key = 'job_id' AND tags.value = ?
"""


@pytest.fixture(scope="module")
def killed(project, tmp_path_factory):
    copy = project.copy(tmp_path_factory.mktemp("killed") / "copy")
    process = copy.start(*JOB)
    wait_until(lambda: any(copy.root.glob("runs/*/*/last.pt")))
    (attempt,) = copy.root.glob("runs/*/*/")
    wait_until(lambda: costs.seen(attempt))
    kill(process.pid)
    assert ended(process).returncode == -9
    before = costs.totals(attempt)["cpu_hours"]
    again = copy.command("python", str(copy.root / "run.py"), *JOB)
    _, status, used = os.wait4(again.pid, 0)
    again.returncode = os.waitstatus_to_exitcode(status)
    done = succeeded(ended(again))
    return copy, job_of(done), before, (used.ru_utime + used.ru_stime) / 3600


@pytest.mark.full
def test_the_hours_of_both_processes_add_up(killed):
    project, job, before, second = killed
    found = dict(project.ask(LATEST, job))
    assert before > 0
    assert before < float(str(found["cpu_hours"])) <= before + second + 60 / 3600
    seen = costs.seen(project.folder(job))
    assert len(seen) == 2
    most = max(each["host_bytes"] for each in seen.values())
    assert float(str(found["peak_host_memory_gb"])) >= most / 1e9 > 0.05
    assert not {"gpu_hours", "peak_device_memory_gb"} & found.keys()


FAILS = """
    import time  # until the courier has seen it
    while not [*job.runtime.runs_root.glob("*/*/sent.json")]:
        time.sleep(0.05)
    raise OSError("no data")
"""


@pytest.mark.full
def test_a_job_that_failed_before_its_first_step_has_a_cost_too(fresh):
    begins = "    splits = data.load("
    fresh.edit("run.py", begins, f"{FAILS.strip(chr(10))}\n{begins}")
    assert fresh.run("--quiet").returncode == 1
    (folder,) = fresh.root.glob("runs/*/*/")
    wait_until(lambda: "cpu_hours" in dict(fresh.ask(LATEST, folder.parent.name)))


@pytest.mark.full
def test_the_hours_of_all_gpus_count(killed, tmp_path):
    project, job, *_ = killed
    attempt = Path(shutil.copytree(project.folder(job), tmp_path / job / "copy"))
    before = costs.seen(attempt)
    costs.Meter(attempt, os.getpid()).look("no such GPU", 4, ended=True)
    seen = costs.seen(attempt)
    (new,) = seen.keys() - before.keys()
    assert seen[new]["gpu_seconds"] == 4 * seen[new]["seconds"] > 0
    assert costs.totals(attempt)["gpu_hours"] == seen[new]["gpu_seconds"] / 3600


@pytest.mark.full
def test_they_are_in_the_table_of_results_and_shown(killed):
    project, job, *_ = killed
    totals = costs.totals(project.folder(job))
    found = dict(project.ask(LATEST, job))
    assert {name: found[name] for name in totals} == totals
    shown = project.do("python", "jobs.py", "show", job).stdout
    assert f"  cost        cpu_hours {totals['cpu_hours']:.4g}, " in shown
    code = "from labjobs.results import tables; print(*tables.jobs('my_project').columns)"
    assert {*totals} <= {*" ".join(project.printed(code)).split()}


# Jobs that take hours by their own account: an epoch of 10 steps takes an hour and a kilowatt hour
# for each of the network's layers, and a process half an hour more.

LOGGED = 'job.journal.metrics(2, {"elapsed_seconds": 4.0}, of=12)'
ACCOUNT = """settings, own = job.settings, job.settings.epochs
    done = own if job.settings.note != '{"seconds": 600}' else 1
    hours = done * settings.layers
    metrics = {"elapsed_seconds": 3600.0 * hours, "epoch": float(done)}
    job.journal.metrics(10 * done, metrics, of=10 * own)
    seconds = 3600 * hours + 1800
    used = {"seconds": seconds, "gpu_seconds": seconds, "joules": 1000 * seconds, "host_bytes": 3e9}
    from labjobs.job import journal
    journal.note_sent(job.path, job.journal.start["journal"], processes={"a": used})"""
MORE = "    layers: int = 1\n    batch_size: int = 10\n"


GPUS = 2


@pytest.fixture
def lab(lab):
    lab.project.edit("run.py", LOGGED, ACCOUNT)
    (lab.project.root / "settings.py").write_text(SETTINGS + MORE)
    return lab


def ran(lab, *jobs):
    """Run jobs, which are then the ones that the forecast knows."""
    lab.write_grid(*jobs)
    silent(lab.sweep())


def forecast(lab, *jobs):
    """What is forecast for jobs: the hours, their range, and whether a comparable job has run."""
    lab.write_grid(*jobs)
    rows = json.loads(silent(lab.sweep("--list", "--cost", "--json")).stdout)
    found = [row["cost"] for row in rows]
    return [each and ([s / 3600 for s in each["seconds"]], each["alike"]) for each in found]


def around(low, high, jobs):
    """The ends of a forecast's range, from the range of the times of several comparable jobs."""
    wider = 1.25 ** (1 / jobs)
    return [pytest.approx(low / wider), pytest.approx(high * wider)]


def test_a_forecast_knows_no_more_than_what_has_run(lab):
    jobs = ["--epochs 2", "--epochs 2 --seed 1", "--epochs 4", "--epochs 2 --lr 0.2"]
    lab.write_grid(*jobs)
    *_, line = silent(lab.sweep("--list", "--cost")).stdout.splitlines()
    assert line == "4 of 4 jobs: no similar job has run; not counted"
    ran(lab, jobs[0])
    finished, again, longer, other = forecast(lab, *jobs)
    assert finished is None
    assert again == ([pytest.approx(2.5), *around(2.5, 2.5, 1)], True)
    assert longer[0][0] == pytest.approx(4.5)
    assert other == (again[0], False)
    *_, states, total, unlike = silent(lab.sweep("--list", "--cost")).stdout.splitlines()
    assert states == "4 jobs: 3 pending, 1 unsent"
    start = "3 jobs to run: 9.5 GPU hours (7.6 to 11.9), 9.5 kWh; 2 at once: 5.0 h (4.0 h to 6.2 h)"
    assert total.startswith(f"{start}, until ")
    like = "counted like the most similar ones, 2.5 GPU hours (2 to 3.12)"
    assert unlike == f"1 of 3 jobs: no comparable job has run; {like}"


@pytest.mark.full
def test_which_settings_matter_is_learnt(lab):
    """How long another batch size takes is a range; of numbers the nearest one stands in."""
    ran(lab, "--epochs 2", "--epochs 2 --lr 0.2", "--epochs 1 --layers 3", "--epochs 1")
    other, layers, more, batch = forecast(
        lab,
        *("--epochs 2 --lr 0.3", "--epochs 2 --lr 0.3 --layers 3"),
        *("--epochs 2 --layers 9", "--epochs 2 --batch-size 40"),
    )
    assert other == ([pytest.approx(2.5), *around(2.5, 2.5, 3)], True)
    assert layers == ([pytest.approx(6.5), *around(6.5, 6.5, 1)], True)
    assert more == ([pytest.approx(6.5), *around(2.5, 6.5, 1)], False)
    assert batch[0][1:] == around(1.0, 2.5, 3) and batch[1]


def test_of_an_interrupted_job_the_rest_counts(lab):
    stopped = "--epochs 4 --layers 2 --note '{\"seconds\": 600}'"
    lab.write_grid(stopped)
    sweep = lab.start()
    wait_until(lambda: any(lab.project.root.glob("runs/*/*/ran")))
    os.killpg(sweep.pid, signal.SIGINT)
    assert ended(sweep).returncode == 130
    ((hours, alike),) = forecast(lab, stopped)
    assert hours[0] == pytest.approx(3 * 2 + 0.5) and alike


def asked(lab, *flags):
    """What Slurm is asked for of time and memory; Slurm forgets it at once."""
    (lab.machine / "submitted").unlink(missing_ok=True)
    silent(lab.sweep("--slurm", *flags))
    words = (lab.machine / "submitted").read_text().split("\0")
    return [word for word in words if word.startswith(("--time=", "--mem="))]


@pytest.mark.full
def test_a_cluster_is_asked_for_what_comparable_jobs_needed(lab):
    """But for what is given; a job that was killed there gets twice the memory that it had."""
    pretend_slurm(lab)
    lab.write_grid("--epochs 2 --seed 1")
    assert asked(lab) == []
    ran(lab, "--epochs 2")
    lab.write_grid("--epochs 2 --seed 1")
    assert asked(lab) == ["--time=3:10:00", "--mem=5G"]  # 2.5 h and a quarter, two minutes
    assert asked(lab, "--", "--time=9", "--mem=9G") == ["--time=9", "--mem=9G"]
    assert asked(lab, "--piece", "2h") == ["--time=2:00:00", "--mem=5G"]
    assert asked(lab, "--piece", "4h") == ["--time=3:10:00", "--mem=5G"]
    said = one_line(lab.sweep("--slurm", "--piece", "30m"), 2)
    assert said == "run.sh: --piece 30m: a start takes 30 min, and a checkpoint a minute"
    said = one_line(lab.sweep("--slurm", "--piece", "2h", "--", "-t", "9"), 2)
    assert said == "run.sh: --piece: not with -t, an option of sbatch"
    lab.write_grid("--epochs 30 --seed 1 --checkpoint-minutes 150")
    assert asked(lab)[0] == "--time=24:00:00"  # the rest goes on in the next task
    said = one_line(lab.sweep("--slurm", "--piece", "2h"), 2)
    assert said == "run.sh: --piece 120m: must be at least --checkpoint-minutes 150"
    lab.write_grid("--epochs 2 --seed 1")
    (job,) = listed(lab.sweep("--list"))
    files.write_record(lab.project.folder(job) / "task.json", {"bytes": 8 * 2**30})
    assert asked(lab) == ["--time=3:10:00", "--mem=17G"]


def started(done):
    """The command lines of the jobs that were started, in the order of their starts."""
    lines = [line for line in done.stdout.splitlines() if " started on " in line]
    return [line.partition("run.py ")[2] for line in lines]


def test_a_budget_starts_only_what_it_lasts_for(lab):
    ran(lab, "--seed 9")
    jobs = ["--epochs 7", "--epochs 2", "--epochs 3 --seed 1"]
    lab.write_grid(*jobs)
    done = lab.sweep("--budget", "4")
    assert done.returncode == 1
    assert {*started(done)} == {*jobs[1:]}
    used, left = done.stderr.splitlines()
    assert used.startswith("run.sh: --budget 4: 0.0") and used.endswith(" hours used")
    assert left.startswith("run.sh: --budget 4: 1 job to run: 7.5 GPU hours (")


@pytest.mark.full
def test_without_a_forecast_jobs_stop_before_a_budget_is_exceeded(lab):
    lab.write_grid("--epochs 4 --note '{\"seconds\": 600}'", "--seed 1", "--seed 2")
    done = lab.sweep("--budget", "0.002", "--gpus", "0")
    assert done.returncode == 1
    assert "stopping the jobs because of --budget" in done.stderr
    assert done.stdout.splitlines()[-1].endswith(" 1 interrupted, 2 not started")
    assert "run.sh: --budget 0.002: 3 jobs to run: " in done.stderr


@pytest.mark.full
def test_with_a_budget_the_longest_jobs_come_first_if_that_ends_sooner(lab):
    ran(lab, "--seed 9")
    jobs = [f"--epochs {epochs}" for epochs in (2, 3, 4, 9)]
    lab.write_grid(*jobs)
    assert started(silent(lab.sweep("--budget", "90")))[0] == jobs[-1]
