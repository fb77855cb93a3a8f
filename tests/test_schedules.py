"""Training on GPUs that are not there and run late, in random orders; and with faults planted.

The jobs are those of late_jobs.py. Each fault of gpu_faults.txt is planted in a copy of the engine;
it is found once a job does not end with the bits that it should have.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gpu_faults import FAULTS
from gpus import needs_stand_in
from repository import REPOSITORY

TESTS = REPOSITORY / "tests"
PROJECT = REPOSITORY / "{{cookiecutter.project_slug}}"

AT_ONCE, MOST = 4, 60
"""Schedules that are run before the next look whether a fault was found, and at most."""


def run(project: Path, first: int, count: int) -> list[dict[str, Any]]:
    """Run `count` schedules with a project's engine; return the results that late_jobs.py prints.

    If it crashed, as faults make it do, the last one says so.
    """
    path = [TESTS / "gpu_stand_in", TESTS / "engine", project]
    env = os.environ | {"STAND_IN_GPUS": "2", "PYTHONPATH": os.pathsep.join(map(str, path))}
    words = [sys.executable, str(TESTS / "late_jobs.py"), str(first), str(count)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=3600)
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode:
        end = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        said.append({"seed": first + len(said), "same": False, "error": end})
    return said


@needs_stand_in
@pytest.mark.full
def test_the_order_in_which_a_gpu_works_changes_nothing(pytestconfig):
    count = int(pytestconfig.getoption("--schedules"))
    said = run(PROJECT, 0, count)
    assert [each for each in said if not each["same"]] == []
    assert len(said) == count and max(each["ahead"] for each in said) > 100


def test_every_fault_can_be_planted():
    assert [fault.name for fault in FAULTS if not fault.fits(PROJECT)] == []


FOUND = [fault for fault in FAULTS if not fault.elsewhere]
FIRST = {fault.rules: fault for fault in reversed(FOUND) if fault.rules in "14"}.values()
EACH = [
    pytest.param(fault, id=fault.name, marks=() if fault in FIRST else pytest.mark.long)
    for fault in FOUND
]


@needs_stand_in
@pytest.mark.full
@pytest.mark.parametrize("fault", EACH)
def test_a_fault_is_found(fault, tmp_path):
    ignored = shutil.ignore_patterns("__pycache__", "runs")
    project = Path(shutil.copytree(PROJECT, tmp_path / "project", ignore=ignored))
    fault.plant(project)
    tried = (run(project, first, AT_ONCE) for first in range(0, MOST, AT_ONCE))
    assert any(not each["same"] for said in tried for each in said)
