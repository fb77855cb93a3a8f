"""Training on GPUs that are not there and run late, in random orders; and with faults planted.

    python tests/schedules.py [--count 2000] [--with-faults 100] > docs/schedules.md

The jobs are those of late_jobs.py. Each fault of gpu_faults.txt is planted in a copy of the engine;
it is found once a job does not end with the bits that it should have.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpu_faults import FAULTS, Fault
from repository import REPOSITORY

sys.path.append(str(REPOSITORY / "benchmarks"))

from pages import machine, page

TESTS = REPOSITORY / "tests"
PROJECT = REPOSITORY / "{{cookiecutter.project_slug}}"
SHARE = 100
"""Schedules that one process runs."""

AT_ONCE = 10
"""Schedules that are run before the next look whether a fault was found."""


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


@contextmanager
def planted(fault: Fault) -> Iterator[Path]:
    """A copy of the engine with a fault."""
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "project"
        shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns("__pycache__", "runs"))
        fault.plant(project)
        yield project


def tries(fault: Fault, most: int) -> int | None:
    """Return the number of schedules run until a fault was found; None if it was not found."""
    with planted(fault) as project:
        for first in range(0, most, AT_ONCE):
            said = run(project, first, min(AT_ONCE, most - first))
            for number, each in enumerate(said, first + 1):
                if not each["same"]:
                    print(f"{fault.name}: {number}, {each['error']}", file=sys.stderr, flush=True)
                    return number
    print(f"{fault.name}: not found", file=sys.stderr, flush=True)
    return None


def main() -> int:
    """Print the page; returns 1 if a job of the engine without a fault differed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--with-faults", type=int, default=100)
    arguments = parser.parse_args()
    count, most = arguments.count, arguments.with_faults
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        firsts = range(0, count, SHARE)
        shares = pool.map(lambda first: run(PROJECT, first, min(SHARE, count - first)), firsts)
        every = [each for share in shares for each in share]
        found = dict(zip(FAULTS, pool.map(lambda fault: tries(fault, most), FAULTS), strict=True))
    report(every, found, most)
    return 0 if all(each["same"] for each in every) else 1


def report(every: list[dict[str, Any]], found: dict[Fault, int | None], most: int) -> None:
    """Print the page."""
    wrong = [each for each in every if not each["same"]]
    for each in wrong:
        print(f"schedule {each['seed']}: {each['error'] or 'other bits'}", file=sys.stderr)
    ahead = sorted(each.get("ahead", 0) for each in every)
    about = (
        f"{machine('torch')}; not run on a GPU. {len(every):,} jobs, each on one of two GPUs of a "
        "stand-in that works asynchronously, in an order drawn from a seed (rules 2 to 9 of "
        "docs/devices.md): 14 steps with a resident loader or with copies from pinned memory, with "
        "and without evaluation in the background, accumulation, EMA, clipping, bf16, nested "
        "batches and CUDA graphs; evaluated after each epoch, with a checkpoint after each step "
        "or none before the end, or evaluated at the end alone; half of them interrupted and "
        f"continued. In them {sum(each.get('tasks', 0) for each in every):,} operations were "
        "queued; the host was "
        f"up to {ahead[len(ahead) // 2]} ahead in the median job and {ahead[-1]} at most. "
        f"{len(wrong)} jobs ended with other weights, state, curves or kept outputs than the same "
        "job, not compiled, on a GPU that does all at once. Below are faults that were then "
        "planted in the engine, one at a time, and how many jobs it took to find each, of "
        f"{most} at most. "
        "`python tests/schedules.py` makes this page."
    )
    rows = [
        [fault.rules, fault.name, f"`{fault.file}`", str(number or fault.elsewhere or "not found")]
        for fault, number in found.items()
    ]
    page("Random schedules of a GPU", about, ["rule", "fault", "in", "jobs until found"], rows)


if __name__ == "__main__":
    sys.exit(main())
