"""A script that knows only the project's AGENTS.md finds the best of a small space, and what it
reports is right."""

import json
import statistics
import subprocess

import pytest
from faults import Project

pytestmark = pytest.mark.full

LIST = ("--list", "--json")

GRID = """#!/usr/bin/env bash
cd "$(dirname "$0")" || exit 1
shell=$(PATH="${{VIRTUAL_ENV:-.venv}}/bin:$PATH" "${{PYTHON:-python}}" -m labjobs.sweeps) || exit 1
# shellcheck source=/dev/null
source "$shell" # job, search, sweep
grid() {{
  for lr in {rates}; do
    for seed in {seeds}; do
      job --epochs 3 --lr "$lr" --seed "$seed"
    done
  done
}}
sweep "$@"
"""


def printed(project: Project, *command: str) -> str:
    """What a command prints on stdout; it has to succeed."""
    done: subprocess.CompletedProcess[str] = project.do(*command)
    assert done.returncode == 0, done
    return done.stdout


def swept(project: Project, rates: str, seeds: str) -> dict[float, list[dict[str, float]]]:
    """Run a grid; return the metrics of its finished jobs by learning rate."""
    (project.root / "explore.sh").write_text(GRID.format(rates=rates, seeds=seeds))
    printed(project, "bash", "explore.sh")
    wanted = {job["id"] for job in json.loads(printed(project, "bash", "explore.sh", *LIST))}
    found: dict[float, list[dict[str, float]]] = {}
    for job in json.loads(printed(project, "python", "jobs.py", "list", "--json")):
        if job["id"] in wanted and job["state"] == "finished":
            found.setdefault(job["settings"]["lr"], []).append(job["metrics"])
    return found


def test_the_best_of_a_small_space_and_its_results(project: Project) -> None:
    found = swept(project, "1e-5 1e-2 1e-4", "0 1 2")
    assert {rate: len(jobs) for rate, jobs in found.items()} == {1e-5: 3, 1e-4: 3, 1e-2: 3}
    chosen = min(
        found, key=lambda rate: statistics.mean(job["best_val_loss"] for job in found[rate])
    )
    assert chosen == 1e-2  # the others have hardly left the start after three epochs
    (fresh,) = swept(project, f"{chosen:g}", "10 11 12").values()
    reported = sorted(job["test_accuracy"] for job in fresh)

    stored = project.ask(
        "SELECT latest_metrics.value FROM latest_metrics JOIN params USING (run_uuid) "
        "WHERE latest_metrics.key = 'test_accuracy' AND params.key = 'seed' "
        "AND CAST(params.value AS INTEGER) >= 10"
    )
    assert reported == sorted(value for (value,) in stored) and len(reported) == 3
    assert 0.8 < statistics.mean(reported) <= 1
