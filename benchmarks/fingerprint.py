"""How long the code fingerprints of jobs take: for one job, and for a sweep of 5,000.

    python benchmarks/fingerprint.py > benchmarks/fingerprint.md

The code is the template's own. Each fingerprint is of a fresh reading of all files, as in a new
process; the sweep has 12 kinds of jobs (networks, optimizers, schedules) and many seeds.
"""

import argparse
import os
import sys
import time
from itertools import product
from typing import Any

from pages import machine, page, spread
from projects import TEMPLATE

PROJECT = TEMPLATE / "{{cookiecutter.project_slug}}"
sys.path.insert(0, str(PROJECT))

KINDS = [
    {"model": model, "optimizer": optimizer, "schedule": schedule}
    for model, optimizer, schedule in product(
        ("mlp", "convnet"), ("adam", "adamw", "sgd"), ("cosine", "constant")
    )
]
JOBS = 5000


def sweep() -> list[dict[str, Any]]:
    """Return the settings of the jobs of a sweep, as plain values."""
    from labjobs.job.identity import identity
    from settings import Settings

    base = identity(Settings())
    return [{**base, **KINDS[n % len(KINDS)], "seed": n // len(KINDS)} for n in range(JOBS)]


def milliseconds(jobs: list[dict[str, Any]]) -> float:
    """Return the processor time to read the project and find the fingerprints of some jobs."""
    from labjobs.evidence.fingerprint import Project

    begun = time.process_time()
    project = Project(PROJECT)
    for settings in jobs:
        project.fingerprint(settings)
    return 1000 * (time.process_time() - begun)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21)
    rounds = parser.parse_args().rounds
    os.chdir(PROJECT)  # of which the engine is asked
    jobs = sweep()
    kinds = {
        "one job": jobs[:1],
        "12 jobs, one of each kind": jobs[: len(KINDS)],
        f"{JOBS:,} jobs of 12 kinds": jobs,
    }
    times = {name: [milliseconds(some) for _ in range(rounds)] for name, some in kinds.items()}
    about = (
        f"{machine('torch')}; n = {rounds} rounds. Milliseconds of one core, from the files "
        "to the last fingerprint: median (least to most). `python benchmarks/fingerprint.py` makes "
        "this page."
    )
    rows = [[name, spread(values, 0)] for name, values in times.items()]
    page("Code fingerprints", about, ["", "ms"], rows)


if __name__ == "__main__":
    main()
