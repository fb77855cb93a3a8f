"""Two versions of the template, side by side: what the later one costs.

    python benchmarks/versions.py --before COMMIT > benchmarks/versions.md

Each version measures itself, with the scripts of its own `benchmarks/`, in a process that stays;
the two take turns, and each goes first in every other round. drawing.py --before does so for plots.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pages import machine, page, spread

REPOSITORY = Path(__file__).resolve().parents[1]

WAYS = {
    "step": "a step of run.py's loop, to the loop by hand (steps.py)",
    "start": "`python run.py`, to its first step (start.py)",
    "finished": "`bash run.sh` over 5,000 finished jobs (refactor.py)",
    "sweep": "`bash run.sh`: 12 jobs of 5 epochs (sweeps.py)",
}

WORKER = """
import json, os, sys, tempfile
from pathlib import Path
sys.path.insert(0, os.getcwd())
import projects, refactor, start, steps, sweeps

folder = Path(tempfile.mkdtemp(dir=sys.argv[1]))


def fresh(name):
    (folder / name).mkdir()
    return projects.make(str(folder / name))


def step():
    project = fresh("step")
    projects.add(project, models=steps.NETWORK, data=steps.DATASET)
    return lambda number: steps.ratio(project, "ours", 6)


def started():
    project = fresh("start")
    return lambda number: start.seconds("run.py", project, number)


def finished():
    project, each = fresh("finished"), 5000 // len(refactor.MODELS)
    refactor.write_grid(project, 1)
    refactor.typed(project, "bash run.sh")
    projects.run(project, str(refactor.COPY), str(each))
    refactor.write_grid(project, each)
    refactor.typed(project, "bash run.sh")
    return lambda number: refactor.typed(project, "bash run.sh")[0]


def sweep():
    return lambda number: sweeps.seconds("run.sh", "5")["run.sh"]


measure = {"step": step, "start": started, "finished": finished, "sweep": sweep}
answers, sys.stdout = sys.stdout, sys.stderr
for line in sys.stdin:
    way, number = line.split()
    if number == "0":
        measured = measure[way]()
    print(json.dumps(measured(int(number))), file=answers, flush=True)
"""
"""Round 0 of a way makes what it measures, compiled files and caches included."""


class Version:
    """A commit of the template, and the process that measures it."""

    def __init__(self, commit: str, folder: str) -> None:
        clone = Path(folder) / (commit or "now")
        subprocess.run(["git", "clone", "--quiet", REPOSITORY, clone], check=True)
        subprocess.run(["git", "checkout", "--quiet", commit or "HEAD"], cwd=clone, check=True)
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORKER, folder],
            cwd=clone / "benchmarks",
            env={**os.environ, "PYTHON": sys.executable},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def measure(self, way: str, number: int) -> float:
        """Return what one round of a way gives; RuntimeError if its process failed."""
        assert self._process.stdin and self._process.stdout
        print(way, number, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{way}: failed; its error is above")
        return float(json.loads(answer))


def ratios(before: Version, now: Version, way: str, rounds: int) -> list[float]:
    """Return, of each round but the first, what the later version takes, to the earlier one."""
    found = []
    for number in range(rounds + 1):
        order = (before, now) if number % 2 else (now, before)
        taken = {version: version.measure(way, number) for version in order}
        found.append(taken[now] / taken[before])
    return found[1:]


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", required=True, metavar="COMMIT")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        before, now = Version(arguments.before, folder), Version("", folder)
        rows = (
            [WAYS[way], spread(ratios(before, now, way, arguments.rounds))]
            for way in arguments.ways
        )
        about = (
            f"{machine('torch', 'mlflow')}; n = {arguments.rounds} rounds, in turn. What this "
            f"version takes as a ratio to commit {arguments.before[:9]} in the same round: median "
            f"(least to most). `python benchmarks/versions.py --before {arguments.before[:9]}` "
            "makes this page."
        )
        page("This version and an earlier one", about, ["", "ratio"], rows)


if __name__ == "__main__":
    main()
