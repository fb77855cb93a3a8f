"""What a job's courier costs: its memory and its share of the CPU, beside 8 jobs at once.

    python benchmarks/courier.py > benchmarks/courier.md

The courier is the process that imports MLflow and carries a job's metrics to the store. Eight jobs
of the default settings run at once, each with one thread; what Linux says of every process is noted
while it lives (VmHWM, utime and stime of /proc). So this runs on Linux alone.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from pages import machine, page, spread
from projects import make

TICKS = os.sysconf("SC_CLK_TCK")


class Use(NamedTuple):
    """What a process has used: MiB at most, seconds of a core."""

    mib: float
    seconds: float


def used(pid: int) -> Use | None:
    """So far; None if the process has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        numbers = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    most = next((line for line in status.splitlines() if line.startswith("VmHWM")), None)
    seconds = (int(numbers[11]) + int(numbers[12])) / TICKS
    return Use(int(most.split()[1]) / 1024, seconds) if most else None


def courier_of(pid: int) -> int | None:
    """The courier that a job has started."""
    for child in Path(f"/proc/{pid}/task/{pid}").glob("children"):
        for number in child.read_text().split():
            command = Path(f"/proc/{number}/cmdline")
            if command.exists() and b"labjobs.tracking.courier" in command.read_bytes():
                return int(number)
    return None


def one_round(project: Path, count: int, first_seed: int) -> list[tuple[Use, Use]]:
    """What each of several simultaneous jobs and its courier have used."""
    jobs = []
    for seed in range(first_seed, first_seed + count):
        words = [sys.executable, "run.py", "--seed", str(seed), "--quiet", "--device", "cpu"]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        jobs.append(subprocess.Popen(words, cwd=project, env=env, stdout=subprocess.DEVNULL))
    couriers: dict[int, int] = {}
    uses: dict[int, Use] = {}
    while any(job.poll() is None for job in jobs):
        for job in jobs:
            if job.pid not in couriers and (courier := courier_of(job.pid)):
                couriers[job.pid] = courier
            for pid in (job.pid, couriers.get(job.pid, 0)):
                if use := used(pid):
                    uses[pid] = use
        time.sleep(0.05)
    assert all(job.returncode == 0 for job in jobs)
    return [(uses[job.pid], uses[couriers[job.pid]]) for job in jobs]


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        project = make(folder)
        one_round(project, 1, first_seed=1000)  # makes the store
        pairs = [
            pair
            for number in range(arguments.rounds)
            for pair in one_round(project, arguments.jobs, arguments.jobs * number)
        ]
    about = (
        f"{machine('torch', 'mlflow')}; {arguments.jobs} jobs of the default settings at once, "
        f"{arguments.rounds} times: n = {len(pairs)}; median (least to most). A job of 30 epochs "
        "has 600 steps; most of its courier's time goes into importing MLflow, once. `python "
        "benchmarks/courier.py` makes this page."
    )
    jobs, couriers = zip(*pairs, strict=True)
    shares = [courier.seconds / job.seconds for job, courier in pairs]
    rows = [
        ["memory of a courier, MiB", spread([each.mib for each in couriers], 0)],
        ["memory of a job, MiB", spread([each.mib for each in jobs], 0)],
        ["time of a core, courier to job", spread(shares)],
    ]
    page("What a courier costs", about, ["", ""], rows)


if __name__ == "__main__":
    main()
