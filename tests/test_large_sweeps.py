"""5,000 jobs that are finished: `run.sh` says so before torch could even be imported.

pytest -rP tests/test_large_sweeps.py
"""

import json
import shlex
import sqlite3
import statistics
import subprocess
import sys
import time
from contextlib import closing

import pytest
from faults import Project
from sweeps import write_grid

pytestmark = pytest.mark.full

JOBS = 5000
ROUNDS = 3
COPIES = """
INSERT INTO {table} ({columns}) SELECT {values} FROM {table}, jobs WHERE run_uuid = ?
"""


@pytest.fixture(scope="module")
def finished(project: Project) -> Project:
    """A project whose store has all jobs of its grid, copies of one that has really run."""
    flags = "--epochs 1 --batch-size 256"
    assert project.run(*flags.split()).returncode == 0
    write_grid(project.root, f'{flags} --seed "$seed"')
    script = project.root / "run.sh"
    loop = f'  for ((seed = 0; seed < {JOBS}; seed++)); do\n  job {flags} --seed "$seed"\n  done\n'
    script.write_text(script.read_text().replace(f'  job {flags} --seed "$seed"\n', loop))
    ids = [job["id"] for job in json.loads(seconds(project, "bash run.sh --list --json")[1])]
    ((run, _),) = project.runs(ids[0])
    with closing(sqlite3.connect(project.root / "mlflow.db")) as store, store:
        store.execute("CREATE TEMP TABLE jobs (id TEXT)")
        store.executemany("INSERT INTO jobs VALUES (?)", [(job,) for job in ids[1:]])
        for table in ("runs", "tags", "params", "latest_metrics"):
            columns = [name for _, name, *_ in store.execute(f"PRAGMA table_info({table})")]
            change = {"run_uuid": "jobs.id"}
            if table == "tags":
                change["value"] = "CASE WHEN key = 'job_id' THEN jobs.id ELSE value END"
            values = ", ".join(change.get(name, name) for name in columns)
            copies = COPIES.format(table=table, columns=", ".join(columns), values=values)
            store.execute(copies, [run])
    return project


def seconds(project: Project, command: str) -> tuple[float, str]:
    """How long a command takes, and what it prints."""
    begun = time.perf_counter()
    done = subprocess.run(
        shlex.split(command),
        cwd=project.root,
        env=project.env,
        capture_output=True,
        text=True,
        check=True,
    )
    return time.perf_counter() - begun, done.stdout


def test_nothing_to_do_is_said_sooner_than_torch_is_imported(finished: Project) -> None:
    ratios = []
    for _ in range(ROUNDS):
        took, said = seconds(finished, "bash run.sh")
        assert said == f"{JOBS} of {JOBS} jobs finished, 0 of them now\n"
        ratios.append(took / seconds(finished, f"{sys.executable} -c 'import torch'")[0])
    spread = f"({min(ratios):.2f} to {max(ratios):.2f}, n = {ROUNDS})"
    print(
        f"{JOBS} finished jobs, ratio to `import torch`: {statistics.median(ratios):.2f} {spread}"
    )
    assert statistics.median(ratios) < 1


def test_jobs_that_are_stale_for_one_reason_are_named_in_one_line(finished: Project) -> None:
    models = finished.root / "models.py"
    models.write_text(models.read_text().replace("nn.ReLU()", "nn.GELU()"))
    done = finished.do("bash", "run.sh")
    assert done.returncode == 1
    assert done.stdout == f"0 of {JOBS} jobs finished, 0 of them now; {JOBS} stale\n"
    line = "--list names them, --redo-stale runs them again"
    *named, last = done.stderr.splitlines()
    assert len(named) == 11 and all("is stale: " in each for each in named)
    assert last == f"{JOBS - 11} more jobs are stale: in another folder; {line}"
