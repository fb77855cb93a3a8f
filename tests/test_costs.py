"""What a job has cost, in its run and by `jobs.py show`: of a job that is killed and continued."""

import json
import os

import pytest
from faults import ended, job_of, kill, succeeded, wait_until
from labjobs import layout
from labjobs.tracking import costs

JOB = ("--epochs", "30", "--eval-every", "5", "--checkpoint-minutes", "0.001", "--quiet")

LATEST = """
SELECT latest_metrics.key, latest_metrics.value FROM latest_metrics JOIN tags USING (run_uuid)
WHERE tags.key = 'job_id' AND tags.value = ?
"""


@pytest.fixture(scope="module")
def killed(project, tmp_path_factory):
    copy = project.copy(tmp_path_factory.mktemp("killed") / "copy")
    process = copy.start(*JOB)
    wait_until(lambda: any(copy.root.glob("runs/*/*/last.pt")))
    wait_until(lambda: any(copy.root.glob(f"runs/*/*/{layout.COST}")))
    kill(process.pid)
    assert ended(process).returncode == -9
    (file,) = copy.root.glob(f"runs/*/*/{layout.COST}")
    before = costs.totals(file.parent)["cpu_hours"]
    again = copy.command("python", str(copy.root / "run.py"), *JOB)
    _, status, used = os.wait4(again.pid, 0)
    again.returncode = os.waitstatus_to_exitcode(status)
    done = succeeded(ended(again))
    return copy, job_of(done), before, (used.ru_utime + used.ru_stime) / 3600


def test_the_hours_of_both_processes_add_up(killed):
    project, job, before, second = killed
    found = dict(project.ask(LATEST, job))
    assert before > 0
    assert before < float(str(found["cpu_hours"])) <= before + second + 60 / 3600
    seen = json.loads((project.folder(job) / layout.COST).read_text())["processes"]
    assert len(seen) == 2
    most = max(each["host_bytes"] for each in seen.values())
    assert float(str(found["peak_host_memory_gb"])) >= most / 1e9 > 0.05
    assert not {"gpu_hours", "peak_device_memory_gb"} & found.keys()


def test_they_are_in_the_table_of_results_and_shown(killed):
    project, job, *_ = killed
    totals = costs.totals(project.folder(job))
    found = dict(project.ask(LATEST, job))
    assert {name: found[name] for name in totals} == totals
    shown = project.do("python", "jobs.py", "show", job).stdout
    assert f"  cost        cpu_hours {totals['cpu_hours']:.4g}, " in shown
    code = "from labjobs.results import tables; print(*tables.jobs('my_project').columns)"
    assert {*totals} <= {*" ".join(project.printed(code)).split()}
